"""Payloads on the virtual clock, held to schedules that were worked out by hand."""

import math
from collections import Counter

import pytest
from gem_simulator import SimulationSettings, simulate
from gem_simulator.durations import Durations
from gem_simulator.events import Event, Kind
from gem_simulator.network import WHOLE_PAYLOAD_BYTES, Links
from gem_simulator.timeline import TimelineSettings, timeline
from gem_worker.tasks import Task, TaskOptions, create_task
from gemps import limits
from pydantic import ValidationError

from tests.simulator.test_timeline import of_kind

# A payload alone takes a second.
LINKS = Links(rate=100.0, worker_rate=100.0, delta_bytes=100, reply_bytes=100)


@pytest.fixture(scope="module")
def digits() -> Task:
    return create_task("digits", TaskOptions())


def run(links: Links = LINKS, **timing: object) -> list[Event]:
    values: dict[str, object] = {"workers": 2, "compute": Durations("constant:4"), "links": links} | timing
    return list(timeline(TimelineSettings(**values)))  # type: ignore[arg-type]


def simulated(**values: object) -> SimulationSettings:
    chosen = {"workers": 4, "steps": 5, "batch_size": 1, "model": "mlp"} | values
    return SimulationSettings(**chosen)  # type: ignore[arg-type]


def test_a_step_takes_computing_uploading_and_downloading() -> None:
    events = run(workers=1, network=0.25, service=0.5, commits=2)
    # Pull: 0.25, 0.5 and 0.25 + 1. Then 4, 1 + 0.25 and 0.5.
    assert of_kind(events) == [(0, 7.75), (0, 14.75)]


def test_payloads_of_one_direction_share_its_link() -> None:
    # Both pull at 0 and download until 2, compute until 6, and upload until 8.
    assert of_kind(run(commits=2)) == [(0, 8.0), (1, 8.0)]


def test_replies_do_not_slow_uploads_down() -> None:
    events = run(workers=2, joins={1: 5.0}, commits=2)
    # From 5 to 6 worker 0 uploads, and worker 1 downloads.
    assert of_kind(events) == [(0, 6.0), (1, 11.0)]


def test_a_commit_waits_for_a_staging_buffer_until_one_was_applied() -> None:
    links = Links(100.0, 100.0, 100, 100, uploads=1)
    # Both ask at 6; the second uploads once the first was applied at 7.5.
    assert of_kind(run(links, service=0.0, commits=2)) == [(0, 7.0), (1, 8.0)]
    assert of_kind(run(links, service=0.5, joins={1: 0.5}, commits=2)) == [(0, 7.5), (1, 9.0)]


def test_asking_for_a_staging_buffer_takes_a_round_trip() -> None:
    asked = run(Links(100.0, 100.0, 100, 100, uploads=4), workers=1, network=0.25, commits=1)
    assert of_kind(asked)[0][1] == of_kind(run(workers=1, network=0.25, commits=1))[0][1] + 2 * 0.25


def test_shards_divide_the_time_of_payloads_until_the_workers_links_are_full() -> None:
    def first(workers: int, shards: int) -> float:
        links = Links(100.0 * shards, 100.0, 100, 100)
        return of_kind(run(links, workers=workers, commits=1))[0][1]

    assert [first(8, shards) for shards in (1, 2, 4, 8, 16)] == [4 + 16 / 1, 4 + 16 / 2, 4 + 16 / 4, 4 + 2, 4 + 2]


@pytest.mark.parametrize(
    ("uploads", "ends"),
    [
        (0, [9.5 - 1 / 3, 9.5 - 1 / 3]),  # the others have 5/6 left each, and half the link
        (2, [9.0, 9.25]),  # worker 1 has 3/4 left, and shares the link with worker 2, which gets the buffer
    ],
)
def test_a_dead_worker_frees_the_link_and_its_staging_buffer(uploads: int, ends: list[float]) -> None:
    links = Links(100.0, 100.0, 100, 100, uploads)
    # All download until 3 and compute until 7.
    events = run(links, workers=3, deaths={0: 7.5}, commits=2)
    assert of_kind(events, Kind.LEFT)[0] == (0, 7.5)
    assert [rank for rank, _ in of_kind(events)] == [1, 2]
    assert [at for _, at in of_kind(events)] == pytest.approx(ends)


def test_a_saturated_link_carries_its_rate_and_no_more() -> None:
    links = Links(100.0, 100.0, 50, 25, uploads=4)
    times = [at for _, at in of_kind(run(links, workers=50, compute=Durations("exponential:1"), seconds=500))]
    assert len([at for at in times if at > 100]) / 400 == pytest.approx(2.0, rel=0.01)


def test_who_leaves_and_dies_at_random_leaves_no_staging_buffer_taken() -> None:
    events = run(
        Links(100.0, 100.0, 20, 20, uploads=2),
        workers=20,
        compute=Durations("exponential:1"),
        network=0.1,
        service=0.02,
        joins={5: 3.0},
        deaths={rank: 1.0 + rank / 4 for rank in range(1, 19)},
        seconds=500,
        seed=4,
    )
    times = [event.at for event in events]
    assert times == sorted(times)
    late = Counter(rank for rank, at in of_kind(events) if at > 10)
    assert set(late) == {0, 19}
    assert min(late.values()) > 200


def test_a_slow_link_changes_when_and_what_is_learned_but_a_fast_one_does_not(digits: Task) -> None:
    chosen = simulated(compute_time="speeds:1,1.5,2,2.5")
    without = simulate(chosen, task=digits)
    fast = simulate(chosen.model_copy(update={"network_rate": 1e15}), task=digits)
    slow = simulate(chosen.model_copy(update={"network_rate": 1e4}), task=digits)
    assert fast.digest == without.digest
    assert slow.digest != without.digest
    assert slow.history.column("at")[-1] > without.history.column("at")[-1]


@pytest.mark.parametrize(("wire", "share"), [("float32", 1.0), ("bfloat16", 0.5)])
def test_payloads_have_the_size_of_the_models_in_their_wire_type(digits: Task, wire: str, share: float) -> None:
    result = simulate(
        simulated(workers=1, commits=1, network_rate=1e3, delta_wire=wire, parameter_wire=wire), task=digits
    )
    size = 4 * result.layout.parameter_count * share
    assert result.history.column("at")[0] == pytest.approx(1 + 2 * size / 1e3)


def test_two_shards_of_a_saturated_link_commit_twice_as_often(digits: Task) -> None:
    chosen = simulated(workers=40, seconds=400, steps=0, network_rate=1e4, staging_buffers=4)
    one, two = (simulate(chosen.model_copy(update={"shards": shards}), task=digits) for shards in (1, 2))
    rates = [float((one.history.column("at") > 200).sum()) / 200 for one in (one, two)]
    assert rates == pytest.approx([1e4 / 19240, 2e4 / 19240], rel=0.1)


def test_the_smallest_payload_that_waits_is_the_contracts() -> None:
    assert WHOLE_PAYLOAD_BYTES == limits.WHOLE_PAYLOAD_BYTES


def test_settings_that_the_model_does_not_have_are_refused() -> None:
    for values, why in (
        ({"network_rate": 1e6, "order": "round-robin"}, "needs --exchange service and --order fifo"),
        ({"network_rate": 1e6, "exchange": "paper"}, "needs --exchange service and --order fifo"),
        ({"shards": 2}, "--shards 2 divides the payloads of --network-rate"),
        ({"network_rate": math.inf}, "finite"),
    ):
        with pytest.raises(ValidationError, match=why):
            simulated(**values)
