"""Join: what it answers, what it refuses, and what it must not touch."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from gemps.v1 import run_pb2, session_pb2, transfer_pb2

from tests.wire.conftest import Serve
from tests.wire.model import BFLOAT16, FLOAT32, INT4_BLOCK, LARGE, SHARED_MEMORY, SMALL
from tests.wire.refusals import PATIENCE, refused
from tests.wire.serving import Serving


async def test_join_answers_with_the_runs_settings(serve: Serve) -> None:
    serving = await serve(
        rule_settings="kappa=2", eta=0.01, steps=7, epochs=2.5, commits=100, min_workers=3, seed=5, order="round-robin"
    )
    answer = await serving.worker().join()
    settings = answer.settings
    assert settings.rule == "gem"
    gem = {"momentum": 0.9, "kappa": 2.0, "pi_min": 0, "pi_max": 5, "epsilon": 1e-12, "weight_decay": 0}
    gem |= {"local_steps": 1, "local_rate": 0.3, "signed_gap": 0}
    assert dict(settings.rule_settings) == gem
    assert (settings.eta, answer.next_eta) == (0.01, 0.01)
    assert settings.eta_schedule == run_pb2.ETA_SCHEDULE_CONSTANT
    assert (settings.budget.steps, settings.budget.epochs, settings.budget.commits) == (7, 2.5, 100)
    assert settings.order == run_pb2.SERVING_ORDER_ROUND_ROBIN
    assert (settings.min_workers, settings.seed) == (3, 5)
    assert answer.run_state == run_pb2.RUN_STATE_WAITING


@pytest.mark.parametrize(
    ("run", "needed"),
    [
        ({"direction": "auto"}, ["direction-auto"]),
        ({"clip_norm": 2.0}, ["clip-norm"]),
        ({"direction": "rms", "clip_norm": 2.0}, ["direction-rms", "clip-norm"]),
        ({"local_steps": 4}, ["local-steps"]),
        ({"local_steps": 4, "direction": "rms"}, ["direction-rms", "local-steps", "scaled-local-steps"]),
    ],
)
async def test_a_worker_that_lacks_a_feature_of_the_run_is_refused_by_name(
    serve: Serve, run: dict[str, Any], needed: list[str]
) -> None:
    serving = await serve(**run)
    for missing in needed:
        others = [one for one in needed if one != missing]
        refusal = await refused(serving.worker().join(features=[*others, "direction-muon", "flying"]), "FEATURE")
        assert refusal.metadata["missing"] == missing
        assert f"features that the worker does not announce in Join ({missing})" in refusal.message
        assert "start the server without --" in refusal.message
    assert not (await serving.status()).workers
    answer = await serving.worker().join(features=["flying", *needed, "recipe"])
    assert list(answer.features) == needed


async def test_features_of_the_session_are_named_and_no_others(serving: Serving) -> None:
    announced = ["recipe", "early-proceed", "differences", "shards", "local-steps"]
    answer = await serving.worker().join(features=announced, parameter_wire_types=[INT4_BLOCK])
    assert list(answer.features) == ["early-proceed", "differences"]
    assert answer.parameter_wire_type == INT4_BLOCK


async def test_coarse_parameters_are_passed_over_without_the_feature_differences(serving: Serving) -> None:
    answer = await serving.worker().join(features=[], parameter_wire_types=[INT4_BLOCK, BFLOAT16])
    assert answer.parameter_wire_type == BFLOAT16
    await refused(serving.worker().join(features=[], parameter_wire_types=[INT4_BLOCK]), "WIRE_TYPE")


async def test_join_answers_with_the_digest_of_the_layout(serving: Serving) -> None:
    assert (await serving.worker().join()).layout_digest == SMALL.digest


@pytest.mark.parametrize(("steps", "is_taken"), [(0, False), (1, False), (4, True), (5, False)])
@pytest.mark.parametrize("leaves", [False, True])
async def test_a_commit_has_as_many_local_steps_as_the_run(
    serve: Serve, steps: int, is_taken: bool, leaves: bool
) -> None:
    """The last commit of a worker that leaves may have fewer."""
    serving = await serve(local_steps=4)
    (worker,) = await serving.training(features=["local-steps"])
    commit = worker.prepare(worker.delta(1), local_steps=steps, leaves=leaves)
    if is_taken or (leaves and steps < 4):
        assert (await worker.commit_on_new_stream(commit)).verdict.version.clock == 2
    else:
        refusal = await refused(worker.commit_on_new_stream(commit), "MALFORMED")
        assert f"local_steps is {steps}, and this run has 4" in refusal.message


async def test_a_commit_of_local_steps_in_a_run_without_them_is_refused(serving: Serving) -> None:
    (worker,) = await serving.training()
    await serving.refuses(worker, worker.prepare(worker.delta(1), local_steps=4), "MALFORMED")
    await worker.commit(worker.delta(1), local_steps=1, optimizer_steps=7)


async def test_join_answers_with_what_a_worker_needs(serving: Serving) -> None:
    answer = await serving.worker().join()
    assert answer.incarnation > 0
    assert answer.rank == answer.host_rank == 0
    assert answer.delta_wire_type == answer.parameter_wire_type == FLOAT32
    assert answer.chunk_bytes == 1024 * 1024
    assert answer.last_applied_sequence == 0
    assert not answer.has_parameters
    assert answer.session_timeout_seconds == 120
    assert answer.server_version


async def test_join_tells_whether_there_are_parameters(serving: Serving) -> None:
    first = await serving.joined()
    assert not first.membership.has_parameters
    await first.initialize()
    assert (await serving.joined()).membership.has_parameters


async def test_ranks_count_up_and_host_ranks_count_by_host(serving: Serving) -> None:
    hosts = ["a", "b", "", "a", "a", "b", ""]  # workers without a host_id count as those of one machine
    answers = [await serving.worker(host_id=host).join() for host in hosts]
    assert [answer.rank for answer in answers] == [0, 1, 2, 3, 4, 5, 6]
    assert [answer.host_rank for answer in answers] == [0, 0, 0, 1, 2, 1, 1]


@pytest.mark.parametrize(("bind", "address"), [("127.0.0.1:0", r"127\.0\.0\.1"), ("[::1]:0", r"\[::1\]")])
async def test_log_says_where_a_worker_joined_from(
    serve: Serve, caplog: pytest.LogCaptureFixture, bind: str, address: str
) -> None:
    caplog.set_level("INFO")
    serving = await serve(bind=bind)
    serving.address = f"{bind.rpartition(':')[0]}:{serving.server.port}"
    await serving.joined(name="ada")
    told = [text for text in caplog.messages if "joined from" in text]
    assert len(told) == 1
    assert re.fullmatch(rf"worker ada joined from {address}:\d+, rank 0, rank 0 on its machine", told[0])


async def test_rank_follows_the_name(serving: Serving) -> None:
    workers = [await serving.joined(name=name) for name in ("ada", "bob", "eve")]
    await workers[1].leave()
    assert (await serving.joined(name="fay")).membership.rank == 3
    again = serving.adopt(workers[0].twin())
    assert (await again.join()).rank == 0
    assert (await serving.joined(name="eve")).membership.rank == 2
    assert (await serving.joined(name="bob")).membership.rank == 1


async def test_worker_that_comes_back_gets_its_rank_again(serving: Serving) -> None:
    first = await serving.joined(name="ada")
    await serving.joined(name="bob")
    await first.leave()
    assert (await serving.joined(name="ada")).membership.rank == 0


async def test_joining_again_with_a_live_session_answers_the_same(serving: Serving) -> None:
    (worker,) = await serving.training(1)
    await worker.commit(worker.delta(1))
    first = worker.membership
    again = await worker.join()
    assert again.rank == first.rank
    assert again.last_applied_sequence == 1
    assert again.has_parameters


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ([], FLOAT32),
        ([BFLOAT16, FLOAT32], BFLOAT16),
        ([SHARED_MEMORY, BFLOAT16], BFLOAT16),
        # A wire type of an earlier or a later contract is passed over.
        ([2, 4, 99, FLOAT32], FLOAT32),
    ],
)
async def test_server_chooses_the_best_wire_type_it_can_speak(
    serving: Serving, offered: list[int], chosen: int
) -> None:
    answer = await serving.worker().join(delta_wire_types=offered)
    assert (answer.delta_wire_type, answer.parameter_wire_type) == (chosen, FLOAT32)
    answer = await serving.worker().join(parameter_wire_types=offered)
    assert (answer.delta_wire_type, answer.parameter_wire_type) == (FLOAT32, chosen)


@pytest.mark.parametrize("coarse", [transfer_pb2.WIRE_TYPE_INT4_BLOCK, transfer_pb2.WIRE_TYPE_SPARSE_BLOCK])
async def test_coarse_wire_types_are_for_deltas_and_for_differences(serving: Serving, coarse: int) -> None:
    """A difference takes one more vector of the server's memory."""
    await serving.training()
    before = (await serving.status()).memory.reserved_bytes
    offered = [coarse, BFLOAT16]
    worker = serving.worker()
    answer = await worker.join(delta_wire_types=offered, parameter_wire_types=offered)
    assert (answer.delta_wire_type, answer.parameter_wire_type) == (coarse, coarse)
    after = (await serving.status()).memory
    assert after.reserved_bytes - before == after.worker_bytes + 4 * SMALL.parameter_count


async def test_a_live_session_that_joins_with_other_wire_types_uses_them_from_then_on(serving: Serving) -> None:
    """Rank, sequence and base version stay; memory for differences is promised, and given back."""
    (worker,) = await serving.training(1)
    plain = (await serving.status()).memory.reserved_bytes
    for commits, (deltas, parameters) in enumerate([(BFLOAT16, BFLOAT16), (INT4_BLOCK, FLOAT32), (FLOAT32, BFLOAT16)]):
        differences = await worker.join(delta_wire_types=[deltas], parameter_wire_types=[INT4_BLOCK])
        assert differences.parameter_wire_type == INT4_BLOCK
        assert (await serving.status()).memory.reserved_bytes == plain + 4 * SMALL.parameter_count
        answer = await worker.join(delta_wire_types=[deltas], parameter_wire_types=[parameters])
        assert (answer.delta_wire_type, answer.parameter_wire_type) == (deltas, parameters)
        assert (answer.rank, answer.last_applied_sequence) == (0, commits)
        await worker.commit_on_new_stream(worker.prepare(worker.delta(commits)))
        status = await serving.status()
        (seen,) = status.workers
        assert (seen.delta_wire_type, seen.parameter_wire_type) == (deltas, parameters)
        assert (seen.sessions, seen.commits) == (1, commits + 1)
        assert status.memory.reserved_bytes == plain


@pytest.mark.parametrize("field", ["delta_wire_types", "parameter_wire_types"])
async def test_worker_that_can_only_share_memory_is_refused(serving: Serving, field: str) -> None:
    refusal = await refused(serving.worker().join(**{field: [SHARED_MEMORY]}), "NOT_OFFERED", "WIRE_TYPE")
    assert "float32" in refusal.message.lower()
    assert not (await serving.status()).workers


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"session_id": b""}, id="no-session-id"),
        pytest.param({"session_id": b"\x01" * 15}, id="short-session-id"),
        pytest.param({"session_id": b"\x01" * 17}, id="long-session-id"),
        pytest.param({"worker_name": ""}, id="no-name"),
        pytest.param({"worker_name": "n" * 257}, id="long-name"),
        pytest.param({"worker_name": "ü" * 129}, id="name-long-in-bytes"),
        pytest.param({"worker_name": "a\nb"}, id="control-character"),
        pytest.param({"worker_name": "a\x7fb"}, id="delete"),
        pytest.param({"worker_name": "a\x85b"}, id="c1-control-character"),
        pytest.param({"host_id": "h" * 257}, id="long-host"),
        pytest.param({"agent": "a" * 257}, id="long-agent"),
        pytest.param({"device": "d" * 257}, id="long-device"),
        pytest.param({"host_name": "h" * 257}, id="long-host-name"),
        pytest.param({"engine": "e\x1b[2J"}, id="engine-with-control-character"),
        pytest.param({"worker_name": "eda\u202enimda"}, id="name-written-backwards"),
        pytest.param({"host_name": "rack\u20694"}, id="isolate"),
        pytest.param({"device": "cuda\u2029:0"}, id="paragraph-separator"),
        pytest.param({"agent": "gemps\U000e0067\U000e007f"}, id="tags"),
        pytest.param({"host_id": "h\u2060"}, id="word-joiner"),
        pytest.param({"steps_per_epoch": 2**32 + 1}, id="endless-epoch"),
    ],
)
async def test_join_with_an_illegal_field_is_refused(serving: Serving, changes: dict[str, object]) -> None:
    await refused(serving.worker().join(**changes), "MALFORMED")
    assert not (await serving.status()).workers


@pytest.mark.parametrize(
    "name", ["n", "n" * 256, "ü" * 128, "host-1:4711 (gpu)", "\U0001f469\u200d\U0001f52c", "مى\u200cشود", "工人 7"]
)
async def test_legal_worker_names_are_taken(serving: Serving, name: str) -> None:
    await serving.worker().join(worker_name=name)
    assert [worker.name for worker in (await serving.status()).workers] == [name]


async def test_live_session_id_under_another_name_is_refused(serving: Serving) -> None:
    """A session id that two workers share is a client's mistake, which must not take the first one's session away."""
    (worker,) = await serving.training(1)
    async with serving.unchanged(worker):
        await refused(worker.join(worker_name="somebody else"), "MALFORMED")


async def test_more_sessions_than_allowed_are_refused(serve: Serve) -> None:
    serving = await serve(max_sessions=2)
    worker, other = await serving.training(2)
    async with serving.unchanged(worker):
        refusal = await refused(serving.worker().join(), "TOO_MANY")
        assert "2" in refusal.message
    await other.leave()
    await serving.joined(name="third")


async def test_one_token_cannot_keep_others_out_with_all_sessions(serve: Serve, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("worker leaked-and-known-to-all\nworker of-an-honest-team\nobserver of-one-that-watches\n")
    serving = await serve(tokens=tokens, max_sessions=80)
    worker = serving.worker()

    async def join(name: str, token: str) -> bytes:
        request = worker.join_request(session_id=os.urandom(16), worker_name=name)
        await worker.stub.Join(request, metadata=[("authorization", f"Bearer {token}")], timeout=PATIENCE)
        return request.session_id

    taken = [await join(f"hostile-{number}", "leaked-and-known-to-all") for number in range(80)]
    await join("honest", "of-an-honest-team")
    await refused(join("hostile-80", "leaked-and-known-to-all"), "TOO_MANY")
    heartbeat = session_pb2.HeartbeatRequest(session_id=taken[0])
    metadata = [("authorization", "Bearer leaked-and-known-to-all")]
    refusal = await refused(worker.stub.Heartbeat(heartbeat, metadata=metadata, timeout=PATIENCE), "EXPIRED_SESSION")
    assert "raise limits.max_sessions" in refusal.message


async def test_worker_that_comes_back_under_its_name_fits_where_no_other_does(serve: Serve) -> None:
    serving = await serve(max_sessions=1)
    worker = await serving.joined()
    await serving.adopt(worker.twin()).join()


async def test_join_beyond_the_memory_limit_is_refused_with_the_numbers(serve: Serve) -> None:
    """theta, 4 staging buffers and two vectors a worker: the limit lets a few workers in, not any number."""
    serving = await serve(memory_limit=16 * LARGE.byte_count(), staging_buffers=4)
    (worker,) = await serving.training(1, LARGE)
    async with serving.unchanged(worker):
        while (memory := (await serving.status()).memory).reserved_bytes + memory.worker_bytes <= memory.limit_bytes:
            await serving.joined(LARGE)
        refusal = await refused(serving.worker(LARGE).join(), "MEMORY")
    assert 1 < len((await serving.status()).workers) < 6
    told = refusal.message + str(refusal.metadata)
    assert str(memory.limit_bytes) in told
    assert str(memory.worker_bytes) in told
    assert refusal.retry_after is not None, "a worker may leave, and then another fits"
    await serving.workers[1].leave()
    await serving.joined(LARGE, name="instead")


async def test_model_that_never_fits_is_refused_without_a_retry_hint(serve: Serve) -> None:
    serving = await serve(memory_limit=LARGE.byte_count(), staging_buffers=4)
    refusal = await refused(serving.worker(LARGE).join(), "MEMORY")
    assert refusal.retry_after is None
    await serving.joined(SMALL)
