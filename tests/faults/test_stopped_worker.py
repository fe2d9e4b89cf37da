"""A worker process that is stopped, as `gemps status --check` tells it to a program that monitors."""

import os
import signal
from pathlib import Path

import pytest

from tests.cli.processes import gemps_here
from tests.waiting import eventually
from tests.worker.serving import processes_in

# After 10 s without a word a worker is silent; a problem is seen within 10 s of its cause, and gone 30 s after its end.
SILENT, APPEARS, ENDS = 10.0, 10.0, 30.0


@pytest.mark.long
def test_a_stopped_worker_is_told_to_monitoring_until_it_goes_on(tmp_path: Path) -> None:
    with processes_in(tmp_path) as processes:
        _, address = processes.serve("--steps", "1000000")

        def check(code: int, text: str) -> bool:
            done = gemps_here("status", address, "--check")
            return done.returncode == code and text in done.stdout

        worker = processes.gemps("worker", "work", address)
        worker.until_log_has("training")
        eventually(lambda: check(0, "GEMPS OK - training, 1 worker"), interval=0.5)
        os.kill(worker.pid, signal.SIGSTOP)
        try:
            told = "GEMPS WARNING - silent-workers"
            eventually(lambda: check(1, told), lambda: "it is not told", patience=SILENT + APPEARS, interval=0.5)
        finally:
            os.kill(worker.pid, signal.SIGCONT)
        eventually(lambda: check(0, "GEMPS OK"), lambda: "it does not end", patience=ENDS, interval=0.5)
