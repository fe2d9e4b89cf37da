"""Who was served when, as a trace has it; and what has no order to follow."""

from pathlib import Path

import pytest

from gem_trace import OrderError, TraceWriter, read_order
from gem_trace.format import encode
from tests.trace.orders import write_order


def found(path: Path) -> str:
    return " ".join(f"c{turn}" if turn >= 0 else f"p{-1 - turn}" for turn in read_order(path).turns)


def test_turns_are_commits_and_first_pulls_in_the_order_of_the_trace(tmp_path: Path) -> None:
    order = "p1 p0 c1 c1 p3 c0 c3 c1"
    path = write_order(tmp_path / "run.trace", order)
    assert found(path) == order
    read = read_order(path)
    assert (read.first_clock, read.commits, read.workers) == (1, 5, 4)


def test_later_pulls_of_a_session_are_no_turns(tmp_path: Path) -> None:
    path = write_order(tmp_path / "run.trace", "p0 c0")
    writer = TraceWriter(path)
    writer.append({"event": "pulled", "session": 1, "reset": False})
    writer.close()
    assert found(path) == "p0 c0"


def test_commits_that_a_restart_lost_are_no_turns(tmp_path: Path) -> None:
    path = write_order(tmp_path / "run.trace", "p0 p1 c0 c1 p2 c1 c1 c0")
    write_order(path, "p1 p0 c0 c0", clock=3)
    assert found(path) == "p0 p1 c0 c1 p2 p1 p0 c0 c0"
    write_order(path, "p0 c0", clock=1)
    assert found(path) == "p0 p1 p0 c0"


@pytest.mark.parametrize(
    ("clock", "next_turns"),
    [(0, "p0 p1 c0 p2 c1 c2"), (1, "p0 p1 c0 p2 c1 c2"), (2, "p2 c1 c2"), (3, "c2"), (4, ""), (9, "")],
)
def test_turns_after_a_clock_are_those_that_did_not_make_it(tmp_path: Path, clock: int, next_turns: str) -> None:
    order = "p0 p1 c0 p2 c1 c2"
    read = read_order(write_order(tmp_path / "run.trace", order))
    assert order.split()[read.after(clock) :] == next_turns.split()


def test_trace_that_breaks_off_is_an_order_up_to_there(tmp_path: Path) -> None:
    path = write_order(tmp_path / "run.trace", "p0 c0 c0")
    path.write_bytes(path.read_bytes()[:-100])
    assert found(path) == "p0 c0"


def test_what_is_no_trace_has_no_commits_or_misses_some_is_refused_with_the_file_and_the_fix(tmp_path: Path) -> None:
    def file(name: str, data: bytes) -> Path:
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    whole = write_order(tmp_path / "whole", "p0 c0 c0 c0").read_bytes()
    damaged = bytearray(whole)
    damaged[0] ^= 1
    gap = write_order(write_order(tmp_path / "gap", "p0 c0"), "p0 c0", clock=4)
    foreign = b"".join(encode({"event": "started", "format": "gemps-trace-9"}))
    unknown = whole + b"".join(encode({"event": "committed", "session": 99, "clock": 5}))
    skipped = whole + b"".join(encode({"event": "committed", "session": 1, "clock": 6}))
    cases = {
        tmp_path / "nothing": "No such file",
        tmp_path: "it is a directory",
        file("empty", b""): "not a trace",
        file("notes", b"notes " * 100): "not a trace",
        file("damaged", bytes(damaged)): "damaged at offset 0",
        file("middle", b"".join(encode({"event": "joined"}))): "begins with 'joined'",
        file("foreign", foreign): "gemps-trace-9",
        write_order(tmp_path / "idle", "p0 p1"): "no commits",
        gap: "missing between clock 2 and 4",
        file("skipped", skipped): "missing before clock 6",
        file("unknown", unknown): "not a trace of gemps",
    }
    for path, says in cases.items():
        with pytest.raises(OrderError, match=says) as refused:
            read_order(path)
        assert str(path) in str(refused.value)
        assert "choose another file" in str(refused.value)
