"""An AdamW script becomes a worker by at most four changed lines, and its schedule is kept; both scripts run."""

import difflib
import re
from pathlib import Path

from tests.worker.serving import Process, processes_in

SCRIPTS = Path(__file__).resolve().parent / "lines"
ALONE, WORKER = SCRIPTS / "alone.py", SCRIPTS / "worker.py"
STEPS = 160


def code_of(script: Path) -> list[str]:
    """Its lines without indentation and without the docstring."""
    return [line.strip() for line in script.read_text().splitlines()[1:]]


def result(script: Process) -> tuple[float, float]:
    assert script.wait() == 0, script.output
    ((loss, rate),) = re.findall(r"held-out loss ([\d.]+) at rate ([\d.]+)", script.output)
    return float(loss), float(rate)


def test_four_lines_differ_and_none_of_the_schedule() -> None:
    changes = [line for line in difflib.ndiff(code_of(ALONE), code_of(WORKER)) if line.startswith(("+ ", "- "))]
    assert sum(line.startswith("+ ") for line in changes) == 4, changes
    assert [line for line in changes if line.startswith("- ")] == ["- optimizer.step()"]


def test_the_script_trains_alone_and_better_as_three_workers_with_its_schedule_to_the_end(tmp_path: Path) -> None:
    with processes_in(tmp_path) as processes:
        alone = processes.start("alone", str(ALONE), OMP_NUM_THREADS="1")
        loss_alone, rate_alone = result(alone)
        server, address = processes.serve("--rule=auto", "--min-workers=3", f"--steps={STEPS}")
        workers = [
            processes.start(
                f"worker-{number}",
                str(WORKER),
                OMP_NUM_THREADS="1",
                GEMPS_SERVER=address,
                GEMPS_WORKER_NAME=f"worker-{number}",
            )
            for number in range(3)
        ]
        found = [result(worker) for worker in workers]
        assert server.wait() == 0, server.output
    assert rate_alone == 0
    assert max(loss for loss, _ in found) < loss_alone
    # A schedule is where the run is, so who ends before the others has a rate from before its end.
    assert min(rate for _, rate in found) < 0.003 / 100
