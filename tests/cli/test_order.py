"""A run whose order is another run's, as a user types it."""

import json
from pathlib import Path

from gem_cli.errors import FAILED, USAGE

from gem_trace import replay
from tests.cli.processes import gemps
from tests.trace.orders import order_of, write_order


def train(folder: Path, *arguments: str) -> Path:
    """Three workers on digits; returns the trace."""
    trace = folder.with_suffix(".trace")
    settings = ("--workers=3", "--steps=30", "--eta=0.1", "--seed=1", "--device=cpu", f"--record={trace}")
    done = gemps("train", *settings, f"--run-dir={folder}", *arguments)
    assert done.returncode == 0, done.stderr
    return trace


def test_run_in_the_order_of_another_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """The first is in the order in which commits happened to come."""
    first = train(tmp_path / "first")
    again = train(tmp_path / "again", "--order=trace", f"--order-trace={first}")
    assert order_of(again) == order_of(first)
    ends = [replay(trace) for trace in (first, again)]
    assert [end.compared_end for end in ends] == [True, True]
    assert ends[0].end_digest == ends[1].end_digest
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "again")]
    assert models[0] == models[1]
    summary = json.loads((tmp_path / "again" / "summary.json").read_text(encoding="utf-8"))
    assert summary["settings"]["server"]["order_trace"] == str(first)


def test_order_that_cannot_be_followed_is_one_line_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("notes " * 100)
    three = write_order(tmp_path / "three.trace", "p0 p1 p2 c0 c1 c2")
    serve = ("serve", "--bind=127.0.0.1:0", "--order=trace")
    for arguments, says in (
        (serve, "--order trace needs --order-trace FILE"),
        ((*serve, f"--order-trace={tmp_path / 'notes'}"), "notes is not a trace of gemps"),
        ((*serve, f"--order-trace={three}", "--min-workers=2"), "--min-workers 3"),
    ):
        done = gemps(*arguments)
        assert done.returncode == USAGE
        assert says in done.stderr
        assert done.stderr.strip().count("\n") == 0
    done = gemps("train", "--workers=2", "--order=trace", f"--order-trace={three}", f"--run-dir={tmp_path / 'run'}")
    assert done.returncode == FAILED
    assert "gemps train: --workers 3" in done.stderr
