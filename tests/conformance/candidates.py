"""What the tests play scenarios with: the workers that are candidates, and a short form of outcomes."""

from collections.abc import Iterable
from pathlib import Path

from gem_conformance import Limits, Outcome

from tests.conformance.mutants import Liberty, Mutant

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "examples/workers/python/conformance.py"
REFERENCE = ROOT / "examples/workers/python/reference_worker.py"
# REFERENCE, with optional parts.
OPTIONAL = ROOT / "tests/conformance/optional_worker.py"
# What both import.
IMPORTS = ("grpc", "numpy", "google_crc32c", "google.rpc.error_details_pb2", "gemps.v1.worker_pb2_grpc")
IMPORTS += ("gemps.v1.lane_pb2", "reference_worker")
# Shorter than the kit's own, for what never comes; a busy machine needs no longer.
LIMITS = Limits(start=60.0, answer=20.0, footer=5.0, exit=6.0)


def explain(outcomes: Iterable[Outcome]) -> list[str]:
    """What failed, each in a text that a person can work with."""
    return [
        f"{one.scenario}: {one.fault}\n  at {one.fault.step}\n  " + "\n  ".join(one.output)
        for one in outcomes
        if one.fault is not None
    ]


def write(edited: Mutant | Liberty, worker: Path, folder: Path) -> Path:
    """Write a worker with its edits. Raises AssertionError for one that does not fit."""
    text = worker.read_text(encoding="utf-8")
    for old, new in ((edited.old, edited.new), *edited.more):
        assert text.count(old) == 1, f"{edited.name}: the worker has this {text.count(old)} times: {old!r}"
        text = text.replace(old, new)
    path = folder / f"{edited.name}.py"
    path.write_text(text, encoding="utf-8")
    return path
