"""What travels is the rule applied in the order of the commits, bit for bit (docs/design.md, section 2)."""

import math
from pathlib import Path

import numpy as np
import pytest
from gemps.v1 import run_pb2

from gem_core import rule_names
from tests.wire.conftest import Serve
from tests.wire.model import BFLOAT16, DELTA_WIRE_TYPES, LARGE, SMALL, Model, Tensor, Values
from tests.wire.oracle import Oracle
from tests.wire.serving import Serving
from tests.wire.worker import Outcome, RawWorker

ONE = Model((Tensor("weight", (1,)),))


async def train(
    serving: Serving, oracle: Oracle, workers: list[RawWorker], order: list[int], scale: float = 0.01
) -> Outcome:
    """Commit in the given order of workers, and check that every verdict and every reply is the oracle's."""
    for seed, number in enumerate(order):
        worker = workers[number]
        delta = worker.model.random_values(seed, scale=scale)
        outcome = await worker.commit(delta)
        travelled = worker.model.decode(worker.model.encode(delta, worker.delta_wire_type), worker.delta_wire_type)
        staleness, statistics = oracle.commit(worker.name, travelled.parameters, worker.membership.next_eta)
        assert outcome.verdict.staleness == staleness
        assert outcome.verdict.version.clock == oracle.clock
        for field in outcome.verdict.statistics.DESCRIPTOR.fields:
            told = getattr(outcome.verdict.statistics, field.name)
            assert math.isclose(told, getattr(statistics, field.name), rel_tol=1e-4, abs_tol=1e-9), field.name
        np.testing.assert_array_equal(serving.snapshot(worker).parameters, oracle.held(worker.name))
        assert outcome.reply.values.rest == delta.rest
    return outcome


@pytest.mark.parametrize("rule", rule_names())
@pytest.mark.parametrize("model", [SMALL, LARGE], ids=["whole", "chunked"])
async def test_interleaved_workers_get_the_rules_result_bit_for_bit(serve: Serve, rule: str, model: Model) -> None:
    serving = await serve(rule=rule)
    workers = await serving.training(3, model)
    oracle = Oracle(await serving.values(model), rule)
    for worker in workers:
        oracle.pull(worker.name)
    outcome = await train(serving, oracle, workers, [0, 1, 2, 2, 1, 0, 0, 0, 1, 2, 0, 1])
    np.testing.assert_array_equal(outcome.reply.values.parameters, oracle.held(workers[1].name))
    np.testing.assert_array_equal((await serving.values(model)).parameters, oracle.parameters)


@pytest.mark.parametrize("model", [SMALL, LARGE], ids=["whole", "chunked"])
async def test_a_rule_gets_the_eta_that_the_worker_had_with_its_delta(serve: Serve, model: Model) -> None:
    """This is the eta of the Join or verdict before. A Heartbeat's, and what others got meanwhile, do not count."""
    serving = await serve(rule="ringmaster-lmo", eta=0.8, eta_schedule="warmup:4,cosine:20")
    workers = await serving.training(3, model)
    oracle = Oracle(await serving.values(model), "ringmaster-lmo")
    etas = {worker.name: worker.membership.next_eta for worker in workers}
    for worker in workers:
        oracle.pull(worker.name)
    for seed, number in enumerate([0, 1, 1, 0, 2, 2, 0, 1, 2, 0, 1, 1, 0]):
        worker = workers[number]
        await worker.heartbeat()
        delta = worker.delta(seed)
        prepared = worker.prepare(delta)
        outcome = await worker.commit_on_new_stream(prepared)
        oracle.commit(worker.name, delta.parameters, etas[worker.name])
        np.testing.assert_array_equal(outcome.reply.values.parameters, oracle.held(worker.name))
        etas[worker.name] = outcome.verdict.next_eta
        if seed == 3:  # another commits before the reply of 0 is asked for again: its eta is that of now
            other = workers[1]
            delta = other.delta(100)
            outcome = await other.commit_on_new_stream(other.prepare(delta))
            oracle.commit(other.name, delta.parameters, etas[other.name])
            etas[other.name] = outcome.verdict.next_eta
            repeat = await worker.commit_stream().outcome_of_repeat(prepared)
            assert repeat.verdict.next_eta != etas[worker.name]
            etas[worker.name] = repeat.verdict.next_eta
    assert len(set(etas.values())) == 3
    np.testing.assert_array_equal((await serving.values(model)).parameters, oracle.parameters)


async def test_rules_settings_are_those_of_the_server(serve: Serve) -> None:
    chosen = {"momentum": 0.5, "kappa": 2.0, "pi_min": 0.1, "pi_max": 3.0, "epsilon": 1e-9}
    serving = await serve(rule_settings=chosen)
    workers = await serving.training(2)
    oracle = Oracle(await serving.values(), **chosen)
    for worker in workers:
        oracle.pull(worker.name)
    await train(serving, oracle, workers, [0, 1, 0, 0, 1])


async def test_pull_refreshes_the_snapshot_and_leaves_the_moment(serving: Serving) -> None:
    workers = await serving.training(2)
    oracle = Oracle(await serving.values())
    for worker in workers:
        oracle.pull(worker.name)
    await train(serving, oracle, workers, [0, 0, 1, 1])
    await workers[0].pull()
    oracle.pull(workers[0].name)
    await train(serving, oracle, workers, [0, 1, 0])


async def test_worked_example_of_two_workers(serving: Serving) -> None:
    """docs/design.md, section 2: theta = 0, A .1 -> .1; B .1 -> 0; A .1 -> .19; B .2 -> .10; theta = .39."""
    ada = await serving.joined(ONE)
    bob = await serving.joined(ONE)
    await ada.initialize(Values(np.zeros(1, np.float32)))
    await ada.pull()
    await bob.pull()
    updates, theta = [], 0.0
    for worker, delta in ((ada, 0.1), (bob, 0.1), (ada, 0.1), (bob, 0.2)):
        outcome = await worker.commit(Values(np.float32([delta])))
        updates.append(float(outcome.reply.values.parameters[0]) - theta)
        theta += updates[-1]
    assert updates == pytest.approx([0.1, 0, 0.19, 0.10], abs=1e-6)
    assert theta == pytest.approx(0.39, abs=1e-6)


async def test_worked_example_of_one_worker(serving: Serving) -> None:
    """docs/design.md, section 2: deltas .1, .1, -.05, .001 -> .1, .19, -.121, .005."""
    worker = await serving.joined(ONE)
    await worker.initialize(Values(np.zeros(1, np.float32)))
    await worker.pull()
    updates, theta = [], 0.0
    for delta in (0.1, 0.1, -0.05, 0.001):
        outcome = await worker.commit(Values(np.float32([delta])))
        updates.append(float(outcome.reply.values.parameters[0]) - theta)
        theta += updates[-1]
    assert updates == pytest.approx([0.1, 0.19, -0.121, 0.005], abs=1e-6)


@pytest.mark.parametrize("wire_type", DELTA_WIRE_TYPES)
@pytest.mark.parametrize("model", [SMALL, LARGE], ids=["whole", "chunked"])
async def test_deltas_in_every_wire_type_are_applied_as_decoded(serving: Serving, wire_type: int, model: Model) -> None:
    workers = await serving.training(2, model, delta_wire_types=[wire_type])
    oracle = Oracle(await serving.values(model))
    for worker in workers:
        oracle.pull(worker.name)
    await train(serving, oracle, workers, [0, 1, 0, 0, 1])


async def test_snapshot_stays_unrounded_when_parameters_travel_in_reduced_precision(serving: Serving) -> None:
    """Else the rounding error eats the energy budget: theta - s_w would not be 0 when nobody else has committed.

    `train` compares s_w with the oracle's after every commit, and the oracle knows no wire.
    """
    workers = await serving.training(2, LARGE, parameter_wire_types=[BFLOAT16])
    oracle = Oracle(await serving.values(LARGE))
    for worker in workers:
        oracle.pull(worker.name)
    outcome = await train(serving, oracle, workers, [0, 0, 1, 0, 1])
    exact = LARGE.encode(Values(oracle.parameters, outcome.reply.values.rest), BFLOAT16)
    received = LARGE.decode(bytes(outcome.reply.payload), BFLOAT16).parameters
    np.testing.assert_allclose(received, LARGE.decode(exact, BFLOAT16).parameters, atol=0.03)
    assert not np.array_equal(received, oracle.parameters), "nothing was rounded, so this shows nothing"


async def test_buffers_are_the_newest_commits(serving: Serving) -> None:
    ada, bob = await serving.training(2)
    await ada.commit(ada.delta(1))
    newest = bob.delta(2)
    await bob.commit(newest)
    assert (await serving.values()).rest == newest.rest
    assert (await ada.pull()).values.rest == newest.rest


async def test_reply_carries_the_buffers_of_its_own_version(serve: Serve) -> None:
    """A reply never mixes the parameters of one commit with the buffers of another."""
    serving = await serve(chunk_bytes=40_000)
    ada, bob = await serving.training(2, LARGE)
    delta = ada.delta(1)
    stream = ada.commit_stream()
    await stream.send_commit(ada.prepare(delta))
    torn = (await stream.outcome(stop_after=1)).reply
    await bob.commit(bob.delta(2))
    assert (await ada.resume(torn)).values.rest == delta.rest


async def test_zero_delta_changes_nothing_and_counts(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    before = (await serving.values()).parameters
    zero = Values(np.zeros(SMALL.parameter_count, np.float32), worker.delta(1).rest)
    outcome = await worker.commit(zero)
    assert outcome.verdict.version.clock == 2
    np.testing.assert_array_equal(outcome.reply.values.parameters, before)
    assert outcome.verdict.statistics.mean_pi == outcome.verdict.statistics.blocked_fraction == 0


async def test_loss_and_samples_reach_the_status(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    await worker.commit(worker.delta(1), loss=2.5, samples=64)
    await worker.commit(worker.delta(2), loss=1.5, samples=64)
    status = (await serving.status()).workers[0]
    assert (status.loss, status.samples) == (1.5, 128)


# --- rules that send something else than theta, or keep something of the run

ELSEWHERE = [("dana", ""), ("easgd", "alpha=0.25"), ("easgd", "alpha=0.25,momentum=0.9")]


async def elsewhere(
    serve: Serve, rule: str, chosen: str, **settings: object
) -> tuple[Serving, Oracle, list[RawWorker]]:
    """Three workers that have committed, so that theta is not what they hold."""
    serving = await serve(rule=rule, rule_settings=chosen, **settings)
    workers = await serving.training(3, LARGE)
    oracle = Oracle(await serving.values(LARGE), rule, **serving.server.settings.settings_of_rule())
    for worker in workers:
        oracle.pull(worker.name)
    await train(serving, oracle, workers, [0, 1, 2, 0])
    assert not np.array_equal(oracle.held(workers[0].name), oracle.parameters)
    return serving, oracle, workers


@pytest.mark.parametrize(("rule", "chosen"), ELSEWHERE)
async def test_a_sessions_pull_gets_what_the_rule_sends_and_others_get_theta(
    serve: Serve, rule: str, chosen: str
) -> None:
    serving, oracle, workers = await elsewhere(serve, rule, chosen)
    pulled = await workers[1].pull()
    oracle.pull(workers[1].name)
    np.testing.assert_array_equal(pulled.values.parameters, oracle.held(workers[1].name))
    np.testing.assert_array_equal((await serving.values(LARGE)).parameters, oracle.parameters)
    await train(serving, oracle, workers, [1, 0, 2, 1])


@pytest.mark.parametrize(("rule", "chosen"), ELSEWHERE)
async def test_a_version_alone_does_not_say_what_a_session_holds(serve: Serve, rule: str, chosen: str) -> None:
    """Whoever has theta of this version, from a pull without a session, has not what the session is sent."""
    serving, oracle, workers = await elsewhere(serve, rule, chosen)
    theta = await serving.read(LARGE)
    assert (await serving.read(LARGE, known_version=theta.version)).not_modified is not None
    pulled = await workers[1].pull(known_version=theta.version)
    assert pulled.not_modified is None
    oracle.pull(workers[1].name)
    np.testing.assert_array_equal(pulled.values.parameters, oracle.held(workers[1].name))


async def test_dana_forgets_a_worker_that_left_after_its_last_commit(serve: Serve) -> None:
    serving, oracle, workers = await elsewhere(serve, "dana", "")
    await workers[2].leave()
    oracle.leave(workers[2].name)
    await workers[1].pull()
    oracle.pull(workers[1].name)
    await train(serving, oracle, workers[:2], [0, 1, 0])


async def test_ace_forgets_the_delta_of_a_worker_that_left(serve: Serve) -> None:
    serving = await serve(rule="ace")
    workers = await serving.training(3, LARGE)
    oracle = Oracle(await serving.values(LARGE), "ace")
    for worker in workers:
        oracle.pull(worker.name)
    await train(serving, oracle, workers, [0, 1, 2, 0])
    await workers[2].leave()
    oracle.leave(workers[2].name)
    again = await serving.joined(LARGE, workers[1].name)
    oracle.leave(workers[1].name)
    await again.pull()
    oracle.pull(again.name)
    await train(serving, oracle, [workers[0], again], [0, 0, 1, 0])


async def test_dana_sends_a_session_the_same_again_at_the_same_version(serve: Serve) -> None:
    """Otherwise the rest of a torn transfer would not fit: no new version is made when another worker leaves."""
    _, oracle, workers = await elsewhere(serve, "dana", "")
    await workers[2].leave()
    again = await workers[0].pull()
    np.testing.assert_array_equal(again.values.parameters, oracle.held(workers[0].name))


async def test_dana_forgets_a_worker_whose_session_was_superseded(serve: Serve) -> None:
    serving, oracle, workers = await elsewhere(serve, "dana", "")
    again = await serving.joined(LARGE, workers[2].name)
    oracle.leave(workers[2].name)
    await again.pull()
    oracle.pull(again.name)
    await train(serving, oracle, [*workers[:2], again], [0, 2, 1, 2])


@pytest.mark.parametrize(("rule", "chosen"), ELSEWHERE)
async def test_the_log_keeps_theta_and_not_what_a_worker_was_sent(
    serve: Serve, rule: str, chosen: str, tmp_path: Path
) -> None:
    serving, oracle, workers = await elsewhere(serve, rule, chosen, data_dir=tmp_path, durability="commit")
    await train(serving, oracle, workers, [1, 0])
    log = serving.server.persistence.log
    assert log is not None
    await log.until(oracle.clock)
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*.wal"))
    assert oracle.parameters.tobytes() in stored
    assert oracle.held(workers[0].name).tobytes() not in stored


async def test_memory_of_the_run_is_counted_once(serve: Serve) -> None:
    """gap-aware keeps one vector of the run beside what downpour keeps, however many workers there are."""
    bytes_of = {}
    for rule in ("downpour", "gap-aware"):
        serving = await serve(rule=rule)
        found = []
        for count in (1, 2):
            await serving.training(count, LARGE)
            found.append((await serving.status()).memory.reserved_bytes)
        bytes_of[rule] = found
    vector = 4 * LARGE.parameter_count
    assert [gap - plain for gap, plain in zip(bytes_of["gap-aware"], bytes_of["downpour"], strict=True)] == [vector] * 2


@pytest.mark.parametrize(
    ("rule", "chosen", "steps", "normalises"),
    [("gem", "", 1, False), ("agn", "local_steps=4", 4, True), ("easgd", "period=4", 4, False)],
)
async def test_workers_are_told_how_many_local_steps_they_take(
    serve: Serve, rule: str, chosen: str, steps: int, normalises: bool
) -> None:
    serving = await serve(rule=rule, rule_settings=chosen)
    told = (await serving.joined()).membership.settings
    assert (told.local_steps, told.normalise_local_steps) == (steps, normalises)
    assert (await serving.status()).settings == told


async def test_a_budget_in_epochs_counts_steps_that_share_a_commit(serve: Serve) -> None:
    serving = await serve(rule="agn", rule_settings="local_steps=4", epochs=1)
    (worker,) = await serving.training(1, steps_per_epoch=9)
    states = [(await worker.commit(worker.delta(step))).verdict.run_state for step in range(3)]
    assert [state == run_pb2.RUN_STATE_FINISHED for state in states] == [False, False, True]
