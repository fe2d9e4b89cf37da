"""`gemps serve --record` and `gemps replay`, as a user types them.

What real workers commit is replayed in tests/simulator/test_one_system.py.
"""

import contextlib
import json
from pathlib import Path

import pytest
from gem_cli.errors import FAILED, USAGE
from gem_worker.client import Client, RunFinishedError

from tests.cli.processes import gemps, gemps_here, served, stop
from tests.client.models import SMALL, payload
from tests.client.real_server import begin


def record(folder: Path, commits: int, *flags: str, delta: float = 0.01) -> int:
    """One start of a server that records in `folder`, a worker's commits, and a clean end; the exit code."""
    folder.mkdir(exist_ok=True)
    options = ("--record", str(folder / "run.trace"), "--data-dir", str(folder / "state"), *flags)
    with served(folder, "--commits", str(commits), "--eta", "0.1", *options) as (address, process):
        with Client(address, worker_name="worker", layout=SMALL) as client, contextlib.suppress(RunFinishedError):
            into = begin(client, SMALL)
            while True:
                client.commit(payload(SMALL, delta), into)
        return stop(process)


def test_a_run_over_two_starts_is_replayed_compared_and_written(tmp_path: Path) -> None:
    assert record(tmp_path, 20) == 0
    assert record(tmp_path, 50, "--resume") == 0
    trace, state, again = (str(tmp_path / name) for name in ("run.trace", "state", "again"))
    done = gemps("replay", trace, "--against", state, "--output", again)
    assert done.returncode == 0, done.stderr
    assert "50 commits of 1 worker, applied again by gem, momentum 0.9" in done.stdout
    assert "2 starts of the server, 1 of them with what the trace has at that clock, bit for bit" in done.stdout
    assert "the same, bit for bit, as what the server ended with: clock 51\n" in done.stdout
    assert f"the same, bit for bit, as what {state} has: clock 51\n" in done.stdout
    kept = tmp_path / "state" / "latest" / "model.safetensors"
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == kept.read_bytes()
    found = json.loads(gemps_here("replay", trace, "--json").stdout)
    assert (found["clock"], found["commits"], found["lost"], found["resets"]) == (51, 50, 0, 1)
    assert found["compared_with"] == ["what the server ended with: clock 51"]


@pytest.mark.long
def test_what_differs_is_one_line_and_a_failure(tmp_path: Path) -> None:
    assert record(tmp_path / "one", 10) == 0
    assert record(tmp_path / "two", 10, delta=0.02) == 0
    trace = str(tmp_path / "one" / "run.trace")
    done = gemps_here("replay", trace, "--against", str(tmp_path / "two" / "state"))
    assert done.returncode == FAILED
    assert "at clock 11 it has other parameters than what it is compared with" in done.stderr
    assert done.stderr.strip().count("\n") == 0


def test_wrong_paths_are_named(tmp_path: Path) -> None:
    done = gemps_here("replay", str(tmp_path / "nothing"))
    assert (done.returncode, "there is no file" in done.stderr) == (USAGE, True)
    (tmp_path / "notes").write_text("notes " * 100)
    done = gemps_here("replay", str(tmp_path / "notes"))
    assert (done.returncode, "is not a trace of gemps" in done.stderr) == (FAILED, True)
    done = gemps_here("replay", str(tmp_path / "notes"), "--against", str(tmp_path))
    assert (done.returncode, "no data directory" in done.stderr) == (USAGE, True)
    with served(tmp_path) as (_, process):
        assert stop(process) == 0
    done = gemps_here("serve", "--bind", "127.0.0.1:0", "--record", str(tmp_path / "notes"))
    assert done.returncode == USAGE
    assert "--record" in done.stderr
    assert "choose another file" in done.stderr
