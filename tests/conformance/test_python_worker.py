"""The Python worker passes the kit."""

import sys
from pathlib import Path

from gem_conformance import SCENARIOS, play_scenarios

from tests.conformance.candidates import PYTHON, explain
from tests.conformance.preloaded import preloaded
from tests.forms import FULL

# The scenarios about what the client library does, and about its tensors. The full form of the tests plays all of them.
# One more, restart, is played with a process that is started as users start it.
OF_PYTHON = (
    "pull-torn", "bad-parameters", "wrong-digest", "final-layout-mismatch", "next-eta", "torn-commit", "dropped-reply",
    "torn-reply", "killed-worker", "retry-info", "no-retry", "bad-value", "checksum-always", "newer-session",
    "expired-session", "draining", "interrupted", "delta-bfloat16", "dropped-int4-block", "delta-sparse-block",
    "parameter-int4-block", "names", "element-types", "empty-payload", "many-tensors", "local-steps", "early-proceed",
    "lane-torn", "shards-first", "shards-eta", "shards-int4", "shards-retry-info", "shards-torn-piece",
    "shards-dropped-reply",
)  # fmt: skip


def test_python_worker_passes(tmp_path: Path) -> None:
    names = SCENARIOS if FULL else OF_PYTHON
    with preloaded(tmp_path, "torch") as command:
        outcomes = play_scenarios([SCENARIOS[name] for name in names], [*command, str(PYTHON)], jobs=3)
    assert explain(outcomes) == []


def test_python_worker_passes_when_it_is_started_as_a_program() -> None:
    outcomes = play_scenarios([SCENARIOS["restart"]], [sys.executable, str(PYTHON)], jobs=1)
    assert explain(outcomes) == []
