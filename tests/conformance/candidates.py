"""The workers that the tests of the kit use as candidates, and functions to edit them and to explain outcomes."""

from collections.abc import Iterable
from pathlib import Path

from gem_conformance import Limits, Outcome

from tests.conformance.mutants import AllowedVariant, Mutant

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "examples/workers/python/conformance.py"
REFERENCE = ROOT / "examples/workers/python/reference_worker.py"
# The reference worker with optional parts.
OPTIONAL = ROOT / "tests/conformance/optional_worker.py"
# What both workers import; `preloaded` imports it once for all candidates.
IMPORTS = ("grpc", "numpy", "google_crc32c", "google.rpc.error_details_pb2", "gemps.v1.worker_pb2_grpc")
IMPORTS += ("gemps.v1.lane_pb2", "reference_worker")
# Shorter than the defaults of the kit, because many mutants never send what the kit waits for.
LIMITS = Limits(start=60.0, answer=20.0, footer=5.0, exit=6.0)


def explain(outcomes: Iterable[Outcome]) -> list[str]:
    """Return a text for each failed outcome, with its fault, its step and the last lines of the candidate's output."""
    return [
        f"{one.scenario}: {one.fault}\n  at {one.fault.step}\n  " + "\n  ".join(one.output)
        for one in outcomes
        if one.fault is not None
    ]


def write(edited: Mutant | AllowedVariant, worker: Path, folder: Path) -> Path:
    """Write an edited copy of `worker` into `folder`, and return its path.

    Raises AssertionError if a text to be replaced is not exactly once in the worker.
    """
    text = worker.read_text(encoding="utf-8")
    for old, new in ((edited.old, edited.new), *edited.more):
        assert text.count(old) == 1, f"{edited.name}: {worker.name} contains this {text.count(old)} times: {old!r}"
        text = text.replace(old, new)
    path = folder / f"{edited.name}.py"
    path.write_text(text, encoding="utf-8")
    return path
