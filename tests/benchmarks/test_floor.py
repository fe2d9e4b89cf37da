import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import floor
from benchmarks.harness.results import Results
from benchmarks.harness.run import Nurseries, Run, parts_of_a_commit, run_once
from benchmarks.peers import CONTENDERS
from benchmarks.peers.floor import PartTimer
from benchmarks.peers.interface import Case
from tests.benchmarks.samples import results, run

SMALL = Case(20_000, 2)
STREAM = {
    "worker: scale, judge, encode",
    "worker: checksums",
    "worker: TCP",
    "worker: decode into the parameters",
    "server: TCP",
    "server: checksums",
    "server: decode and judge, staged",
    "server: GEM and its statistics",
    "server: encode",
}
SHARED = {
    "worker: wake-ups",
    "worker: copy into the parameters",
    "server: wake-ups",
    "server: copy, scale, judge, staged",
    "server: GEM and its statistics",
}


@pytest.fixture(scope="module")
def nurseries() -> Iterator[Nurseries]:
    made = Nurseries()
    yield made
    made.close()


@pytest.mark.parametrize("way", ["float32", "shared-memory"])
def test_every_part_of_a_least_step_is_timed_at_both_ends(way: str, nurseries: Nurseries) -> None:
    found = run_once(CONTENDERS[f"floor-{way}"], SMALL, 0.3, 0, nurseries)
    if found.error is not None:  # a machine that is too busy to begin in time
        assert "no worker came to make a step" in found.error
        return
    assert set(found.parts) == (SHARED if way == "shared-memory" else STREAM)
    assert all(seconds > 0 for seconds in found.parts.values())


def test_warm_up_is_not_counted() -> None:
    timer = PartTimer()
    for _ in range(2):
        timer.end("first")
        timer.end_commit()
    timer.end("second")
    timer.end_commit()
    assert (timer.commits, set(timer.seconds)) == (1, {"second"})


def test_parts_of_processes_are_added_up_and_shared_among_their_commits() -> None:
    words = [{"parts": {"worker: TCP": 3.0}, "commits": 2}, {"parts": {"worker: TCP": 1.0, "x": 2.0}, "commits": 6}]
    assert parts_of_a_commit(words) == {"worker: TCP": 0.5, "x": 0.25}
    assert parts_of_a_commit([{"parts": {}, "commits": 0}]) == {}


def with_parts(name: str, rate: float, round_: int, **parts: float) -> Run:
    """Parts in milliseconds."""
    timed = {f"{side}: TCP": milliseconds / 1000 for side, milliseconds in parts.items()}
    return replace(run(name, rate, round_), parts=timed)


def measured() -> Results:
    """Floors of 30, 10 and 20 ms; a peer whose commit takes 1.5 s / (2 s * rate)."""
    return results(
        with_parts("floor-bfloat16", 60, 0, worker=10, server=20),
        run("torch-rpc-tcp", 20, 0),
        run("gemps-bfloat16", 10, 0),
        with_parts("floor-bfloat16", 80, 1, worker=5, server=5),
        run("torch-rpc-tcp", 40, 1),
        run("gemps-bfloat16", 20, 1),
        with_parts("floor-bfloat16", 75, 2, worker=9, server=11),
        run("torch-rpc-tcp", 25, 2),
        run("gemps-bfloat16", 50, 2),
    )


def test_the_parts_shown_are_those_of_one_run_and_add_up_to_the_floor() -> None:
    rows = floor.part_rows(measured(), floor.DEFAULT)
    assert {len(row) for row in rows} == {1 + len(floor.WAYS)}
    column = {row[0]: row[1 + floor.WAYS.index("bfloat16")] for row in rows}
    assert column == {
        "CPU ms a commit": "bfloat16",
        "worker: TCP": "9.0",
        "server: TCP": "11.0",
        "**all parts together: the floor**": "20.0",
        "the same program, seen from outside": "10.0",
        "gemps": "37.5",
    }
    assert {row[1] for row in rows[1:]} == {"-"}  # float32 was not measured


def test_ratios_are_those_that_processor_time_allows_and_those_that_were_reached() -> None:
    (row,) = (row for row in floor.ratio_rows(measured(), floor.DEFAULT) if row[0] == "bfloat16 both ways")
    # The peer takes 37.5, 18.75 and 30 ms; two cores have time for 66.7, 200 and 100 commits of the floor's.
    assert row[1:] == [
        "1.2 times torch-rpc-tcp",
        "30.0, 20.0",
        "1.50 (1.25..1.88)",
        "4.00 (3.33..5.00)",
        "3.00 (2.00..3.00)",
        "0.50 (0.50..2.00)",
    ]


@pytest.mark.long
def test_the_command_measures_shows_and_shows_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(floor, "WAYS", ("bfloat16",))
    monkeypatch.setattr(floor, "PEERS", ("torch-rpc-tcp",))
    case = ["--parameters", "20000", "--workers", "1", "--rounds", "1", "--seconds", "0.3"]
    output = ["--output", str(tmp_path / "floor.json")]
    monkeypatch.setattr(sys, "argv", ["floor.py", *case, *output])
    floor.main()
    shown = capsys.readouterr().out
    assert "| CPU ms a commit | bfloat16 |\n| --- | --- |\n| worker: scale, judge, encode |" in shown
    assert "| bfloat16 both ways | 1.2 times torch-rpc-tcp |" in shown
    assert {one.contender: one.error for one in Results.load(tmp_path / "floor.json").runs if one.parts} == {
        "floor-bfloat16": None
    }
    monkeypatch.setattr(sys, "argv", ["floor.py", "--show", *output])
    floor.main()
    assert capsys.readouterr().out == shown


def test_a_file_that_is_not_there_is_named_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["floor.py", "--show", "--output", str(tmp_path / "none.json")])
    with pytest.raises(SystemExit, match=r"none\.json.*python -m benchmarks.floor"):
        floor.main()


def test_no_rounds_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["floor.py", "--rounds", "0"])
    with pytest.raises(SystemExit):
        floor.main()
    assert "--rounds: at least 1" in capsys.readouterr().err
