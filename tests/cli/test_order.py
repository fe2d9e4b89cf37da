"""An order that a run shall follow, as a user types it; tests/simulator/test_one_system.py has runs that do."""

from pathlib import Path

from gem_cli.errors import FAILED, USAGE

from tests.cli.processes import gemps_here
from tests.trace.orders import write_order


def test_order_that_cannot_be_followed_is_one_line_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("notes " * 100)
    three = write_order(tmp_path / "three.trace", "p0 p1 p2 c0 c1 c2")
    serve = ("serve", "--bind=127.0.0.1:0", "--order=trace")
    for arguments, says in (
        (serve, "--order trace needs --order-trace FILE"),
        ((*serve, f"--order-trace={tmp_path / 'notes'}"), "notes is not a trace of gemps"),
        ((*serve, f"--order-trace={three}", "--min-workers=2"), "--min-workers 3"),
    ):
        done = gemps_here(*arguments)
        assert done.returncode == USAGE
        assert says in done.stderr
        assert done.stderr.strip().count("\n") == 0
    done = gemps_here(
        "train", "--workers=2", "--order=trace", f"--order-trace={three}", f"--run-dir={tmp_path / 'run'}"
    )
    assert done.returncode == FAILED
    assert "gemps train: --workers 3" in done.stderr
