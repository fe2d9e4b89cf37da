"""The virtual clock, held to schedules that were worked out by hand."""

from collections import Counter

import pytest
from gem_simulator.durations import Durations
from gem_simulator.events import Event, Kind
from gem_simulator.exchanges import OriginalExchange, PaperExchange
from gem_simulator.timeline import TimelineSettings, timeline


def of_kind(events: list[Event], kind: Kind = Kind.COMMITTED) -> list[tuple[int, float]]:
    return [(event.rank, event.at) for event in events if event.kind is kind]


def run(**timing: object) -> list[Event]:
    values: dict[str, object] = {"workers": 2, "compute": Durations("constant:1")} | timing
    return list(timeline(TimelineSettings(**values)))  # type: ignore[arg-type]


def test_everybody_joins_and_pulls_before_the_first_commit() -> None:
    kinds = [event.kind for event in run(workers=3, steps=1)]
    assert kinds[:6] == [Kind.JOINED] * 3 + [Kind.PULLED] * 3
    assert kinds[6:] == [Kind.COMMITTED, Kind.LEFT] * 3


def test_first_come_is_first_served() -> None:
    events = run(compute=Durations("speeds:2,3"), commits=5)
    assert of_kind(events) == [(0, 2.0), (1, 3.0), (0, 4.0), (1, 6.0), (0, 6.0)]


def test_requests_that_arrive_together_are_served_in_the_order_in_which_they_were_sent() -> None:
    events = run(workers=3, commits=6)
    assert of_kind(events) == [(0, 1.0), (1, 1.0), (2, 1.0), (0, 2.0), (1, 2.0), (2, 2.0)]


def test_a_message_takes_its_way_and_the_server_its_time() -> None:
    # Pull: 0.25 there, 0.5 served, 0.25 back. The second worker's waits for the first's.
    events = run(network=0.25, service=0.5, commits=3)
    assert of_kind(events, Kind.PULLED) == [(0, 0.75), (1, 1.25)]
    # 0.75 + 0.25 + 1 + 0.25 arrives at 2.25, served until 2.75; the other arrives at 2.75.
    assert of_kind(events) == [(0, 2.75), (1, 3.25), (0, 4.75)]
    assert [event.waited for event in events if event.kind is Kind.COMMITTED] == [0.0, 0.0, 0.0]


def test_a_busy_server_lets_requests_wait() -> None:
    events = [event for event in run(workers=3, service=1.0, commits=3) if event.kind is Kind.COMMITTED]
    # Pulls until 1, 2 and 3, so commits arrive at 2, 3, 4; the server is free at 3.
    assert [(event.at, event.waited) for event in events] == [(4.0, 1.0), (5.0, 1.0), (6.0, 1.0)]


def test_in_round_robin_order_whoever_has_the_turn_is_waited_for() -> None:
    events = run(compute=Durations("speeds:4,1"), round_robin=True, commits=4)
    assert of_kind(events) == [(0, 4.0), (1, 4.0), (0, 8.0), (1, 8.0)]


def test_a_straggler_computes_so_many_times_longer() -> None:
    assert Counter(rank for rank, _ in of_kind(run(slower={1: 4.0}, seconds=8))) == {0: 8, 1: 2}


def test_who_joins_late_commits_from_then_on() -> None:
    events = run(joins={1: 2.5}, seconds=5)
    assert of_kind(events, Kind.JOINED) == [(0, 0.0), (1, 2.5)]
    assert of_kind(events) == [(0, 1.0), (0, 2.0), (0, 3.0), (1, 3.5), (0, 4.0), (1, 4.5), (0, 5.0)]


@pytest.mark.parametrize("round_robin", [False, True])
def test_who_dies_is_noticed_and_its_turn_passes_on(round_robin: bool) -> None:
    events = run(deaths={0: 2.5}, steps=4, round_robin=round_robin)
    assert of_kind(events) == [(0, 1.0), (1, 1.0), (0, 2.0), (1, 2.0), (1, 3.0), (1, 4.0)]
    assert of_kind(events, Kind.LEFT) == [(0, 2.5), (1, 4.0)]


def test_what_has_arrived_when_a_worker_dies_is_still_served() -> None:
    # Pulls are served until 1 and 2, so both commits arrive at 3; worker 1 dies while its own waits.
    events = run(service=1.0, compute=Durations("speeds:2,1"), deaths={1: 3.5}, commits=2)
    assert of_kind(events) == [(0, 4.0), (1, 5.0)]
    assert (1, 3.5) in of_kind(events, Kind.LEFT)


def test_events_never_go_back_in_time() -> None:
    events = run(
        workers=20,
        compute=Durations("exponential:1"),
        network=0.1,
        service=0.02,
        joins={5: 3.0},
        deaths={7: 2.0, 9: 6.0},
        slower={3: 5.0},
        seconds=20,
        seed=4,
    )
    times = [event.at for event in events]
    assert times == sorted(times)
    assert Counter(event.kind for event in events)[Kind.LEFT] == 20


def test_under_the_papers_exchange_others_commit_between_fetching_and_committing() -> None:
    events = run(requests=PaperExchange.requests, network=0.25, commits=2)
    steps = [(event.kind, event.rank) for event in events if event.kind in (Kind.FETCHED, Kind.COMMITTED)]
    assert steps[:4] == [(Kind.FETCHED, 0), (Kind.FETCHED, 1), (Kind.COMMITTED, 0), (Kind.COMMITTED, 1)]


def test_under_the_original_exchange_everybody_waits_for_one_workers_messages() -> None:
    events = run(holds=OriginalExchange.holds, network=0.25, commits=2)
    # Both arrive at 1.75, and each keeps the server for there and back.
    assert of_kind(events) == [(0, 2.25), (1, 2.75)]


def test_compute_times_follow_from_seed_and_rank() -> None:
    durations = Durations("lognormal:2,0.5")

    def some(seed: int, rank: int) -> list[float]:
        times = durations.of(seed, rank)
        return [next(times) for _ in range(2000)]

    assert some(1, 0) == some(1, 0)
    assert some(1, 0) != some(1, 1)
    assert some(1, 0) != some(2, 0)
    assert sorted(some(1, 0))[1000] == pytest.approx(2.0, rel=0.1)
    exponential = Durations("exponential:3").of(0, 0)
    assert sum(next(exponential) for _ in range(5000)) / 5000 == pytest.approx(3.0, rel=0.1)


def test_a_step_of_several_gradients_takes_their_time() -> None:
    assert of_kind(run(gradients=3, compute=Durations("speeds:1,2"), seconds=9)) == [
        (0, 3.0), (1, 6.0), (0, 6.0), (0, 9.0),
    ]  # fmt: skip
