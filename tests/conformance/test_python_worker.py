"""The Python worker as a candidate."""

import os
import sys
from pathlib import Path

from gem_conformance import SCENARIOS, play_scenarios

from tests.conformance.puppet import explain

ROOT = Path(__file__).resolve().parents[2]
PYTHON = [sys.executable, str(ROOT / "examples/workers/python/conformance.py")]
# What the library behind the Python worker does by itself, and its tensors; `make test-conformance` plays them all.
OF_PYTHON = (
    "pull-resumed", "bad-parameters", "wrong-digest", "local-steps", "torn-commit", "dropped-reply", "torn-reply",
    "restart", "retry-info", "no-retry", "expired-session", "draining", "delta-bfloat16", "buffers-first",
    "element-types", "empty-payload", "many-tensors",
)  # fmt: skip
ALL_OF_PYTHON = bool(os.environ.get("GEMPS_TEST_CONFORMANCE"))


def test_python_worker_passes() -> None:
    names = SCENARIOS if ALL_OF_PYTHON else OF_PYTHON
    outcomes = play_scenarios([SCENARIOS[name] for name in names], PYTHON, jobs=2)
    assert explain(outcomes) == []
