"""Workers are killed again and again while they train digits: it costs no accuracy, and leaves nothing in the server.

The full form (GEMPS_TEST_FULL=1) takes ten minutes for each of three seeds, beside trainings that are left alone.
"""

import random
import statistics
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.supervised import SAMPLE_SECONDS, Sample, TrainingRun, look_for, look_until
from tests.figures import Figures
from tests.forms import FULL

SECONDS, KILL_SECONDS = (600.0, 30.0) if FULL else (10.0, 2.0)
WORKERS = 4 if FULL else 2
POINT = 0.01
# In the short form, which has no training beside it: two workers that are left alone end above this.
LEAST_ACCURACY = 0.93
MIB = 1024 * 1024
# As in benchmarks/many_workers.py.
MEMORY_MORE = 5 * MIB


class Killer:
    """Kills one of a training's workers at random moments, one in `seconds` on average."""

    def __init__(self, training: TrainingRun, seed: int, seconds: float) -> None:
        self._training = training
        self._draw = random.Random(seed)
        self._seconds = seconds
        self._next = self._draw_next()
        self.kills = 0

    def look(self) -> None:
        running = [worker for worker in self._training.workers if worker.is_running]
        if running and time.monotonic() >= self._next:
            self._draw.choice(running).kill()
            self.kills += 1
            self._next = self._draw_next()

    def _draw_next(self) -> float:
        return time.monotonic() + self._draw.uniform(0.5, 1.5) * self._seconds


@dataclass(frozen=True)
class Found:
    """Of one seed: a training whose workers were killed, and in the long form one beside it that was left alone."""

    kills: int
    commits: int
    accuracy: float
    undisturbed_accuracy: float | None
    before: Sample
    after: Sample


@pytest.mark.long
@pytest.mark.timeout(3200 if FULL else 1200)
def test_workers_killed_at_random_cost_no_accuracy_and_leave_nothing_behind(tmp_path: Path, figures: Figures) -> None:
    found = [train(tmp_path, seed) for seed in ((1, 2, 3) if FULL else (1,))]
    undisturbed = [one.undisturbed_accuracy for one in found if one.undisturbed_accuracy is not None]
    figures(
        f"workers killed every {KILL_SECONDS:g} s for {SECONDS:g} s, seeds: {len(found)}",
        f"kills {[one.kills for one in found]}, commits {[one.commits for one in found]}; "
        f"accuracy {shown(one.accuracy for one in found)}, beside it without kills "
        f"{shown(undisturbed) or 'in the long form only'}; the server before and after: descriptors "
        f"{[(one.before.descriptors, one.after.descriptors) for one in found]}, "
        f"MiB {[(in_mib(one.before.anonymous_bytes), in_mib(one.after.anonymous_bytes)) for one in found]}",
    )
    expected = statistics.mean(undisturbed) - POINT if undisturbed else LEAST_ACCURACY
    assert statistics.mean(one.accuracy for one in found) >= expected
    for one in found:
        assert one.kills >= SECONDS / (2 * KILL_SECONDS)
        assert one.after.descriptors == one.before.descriptors
        assert one.after.anonymous_bytes - one.before.anonymous_bytes <= MEMORY_MORE


def train(folder: Path, seed: int) -> Found:
    with ExitStack() as stack:
        names = ("killed", "undisturbed") if FULL else ("killed",)
        trainings = [
            stack.enter_context(TrainingRun(folder / f"{name}-{seed}", WORKERS, f"--seed={seed}")) for name in names
        ]
        killed = trainings[0]
        all_train(trainings)
        before = settled(killed, trainings)
        killer = Killer(killed, seed, KILL_SECONDS)
        ends_at = time.monotonic() + SECONDS
        while time.monotonic() < ends_at:
            look_for(0.1, *trainings)
            killer.look()
        all_train(trainings)
        after = settled(killed, trainings)
        for training in trainings:
            training.finish()
            assert training.exit_codes() == [0] * (1 + WORKERS)
            of_run, of_workers = training.ledger_commits()
            assert of_run == of_workers
            assert "Traceback" not in training.said
    commits, _ = killed.ledger_commits()
    undisturbed = trainings[1].accuracy() if FULL else None
    return Found(killer.kills, commits, killed.accuracy(), undisturbed, before, after)


def all_train(trainings: Sequence[TrainingRun]) -> None:
    """Returns when every worker, as it runs now, has commits that it had not before."""
    before = [training.commits_of_each() for training in trainings]

    def moved() -> bool:
        return all(
            all(now > then for now, then in zip(training.commits_of_each(), commits, strict=True))
            for training, commits in zip(trainings, before, strict=True)
        )

    look_until(moved, *trainings)


def settled(training: TrainingRun, trainings: Sequence[TrainingRun]) -> Sample:
    """The least that the server has while all its workers train: without a checkpoint that is just being written."""
    training.samples.clear()
    look_for(4 * SAMPLE_SECONDS, *trainings)
    return Sample(
        min(sample.descriptors for sample in training.samples),
        min(sample.anonymous_bytes for sample in training.samples),
    )


def in_mib(count: float) -> float:
    return round(count / MIB, 1)


def shown(accuracies: Iterable[float]) -> str:
    return ", ".join(f"{100 * one:.1f} %" for one in accuracies)
