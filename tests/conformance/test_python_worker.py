"""The Python worker as a candidate."""

import sys
from pathlib import Path

from gem_conformance import SCENARIOS, play_scenarios

from tests.conformance.preloaded import preloaded
from tests.conformance.puppet import explain
from tests.forms import FULL

SCRIPT = Path(__file__).resolve().parents[2] / "examples/workers/python/conformance.py"
# What the library behind the Python worker does by itself, and its tensors; the full form plays them all. One
# more, restart, is played by a process that is started as people start it.
OF_PYTHON = (
    "pull-resumed", "bad-parameters", "wrong-digest", "local-steps", "torn-commit", "dropped-reply", "torn-reply",
    "retry-info", "no-retry", "expired-session", "draining", "delta-bfloat16", "delta-int4-block", "delta-sparse-block",
    "parameter-int4-block", "parameter-sparse-block",
    "buffers-first", "element-types",
    "empty-payload", "many-tensors", "shards-first", "shards-eta", "shards-int4", "shards-retry-info", "shards-expired",
    "shards-torn-piece", "shards-dropped-reply",
)  # fmt: skip


def test_python_worker_passes(tmp_path: Path) -> None:
    names = SCENARIOS if FULL else OF_PYTHON
    with preloaded(SCRIPT, tmp_path) as command:
        outcomes = play_scenarios([SCENARIOS[name] for name in names], command, jobs=3)
    assert explain(outcomes) == []


def test_python_worker_passes_as_a_process_of_its_own() -> None:
    outcomes = play_scenarios([SCENARIOS["restart"]], [sys.executable, str(SCRIPT)], jobs=1)
    assert explain(outcomes) == []
