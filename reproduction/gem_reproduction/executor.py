"""Executes runs in parallel."""

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path

import psutil

from gem_reproduction import outcomes
from gem_reproduction.errors import ReproductionError
from gem_reproduction.outcomes import Outcome
from gem_reproduction.runs import Run

# Thread counts change convolution sums.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")

# Of a large run: 16 workers of AlexNet take 9.4e9.
LARGE_BYTES = 10_000_000_000


def execute(
    runs: Sequence[Run], folder: Path, jobs: int, on_done: Callable[[Run, Outcome, bool], None]
) -> dict[str, Outcome]:
    """Return outcomes by key.

    `on_done`: gets whether the outcome is new. Raises ReproductionError; finished runs are kept.
    """
    wanted = {run.key(): run for run in runs}
    found: dict[str, Outcome] = {}
    missing: dict[str, Run] = {}
    for key, run in wanted.items():
        outcome = outcomes.read(folder, run)
        if outcome is None:
            missing[key] = run
        else:
            found[key] = outcome
            on_done(run, outcome, False)
    # Longest first; large runs last, limited by memory.
    queue = sorted(missing.values(), key=lambda run: -run.commits)
    together, large = [run for run in queue if not run.large], [run for run in queue if run.large]
    beside = max(1, min(jobs, psutil.virtual_memory().available // LARGE_BYTES))
    for batch, width in ((together, jobs), (large, beside)):
        for run, outcome in _in_processes(batch, folder, width):
            found[run.key()] = outcome
            on_done(run, outcome, True)
    return found


def _in_processes(runs: Sequence[Run], folder: Path, jobs: int) -> Iterator[tuple[Run, Outcome]]:
    if not runs:
        return
    with _environment(ONE_THREAD):
        pool = ProcessPoolExecutor(
            min(jobs, len(runs)), multiprocessing.get_context("spawn"), initializer=_exit_with_parent
        )
        try:
            waiting: dict[Future[str | None], Run] = {
                pool.submit(_perform, json.dumps(run.describe()), str(folder)): run for run in runs
            }
            while waiting:
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    run = waiting.pop(future)
                    yield run, _outcome(run, folder, future)
        finally:
            # Do not wait for running ones.
            for process in multiprocessing.active_children() if waiting else ():
                process.terminate()
            pool.shutdown(cancel_futures=True)


def _outcome(run: Run, folder: Path, future: "Future[str | None]") -> Outcome:
    try:
        problem = future.result()
    except BrokenProcessPool:
        raise ReproductionError(
            f"the process of a run ended (the system may have killed it for its memory; fewer --jobs need less): "
            f"{run.title()}"
        ) from None
    if problem is not None:
        raise ReproductionError(f"{run.title()}: {problem}")
    outcome = outcomes.read(folder, run)
    if outcome is None:
        raise ReproductionError(
            f"{outcomes.path(folder, run)} was written, and cannot be read: choose another --output"
        )
    return outcome


def _perform(description: str, folder: str) -> str | None:
    from gem_simulator import SimulationError
    from gem_worker.errors import TaskError

    from gem_core import RuleError
    from gem_reproduction.perform import perform

    run = Run.from_description(json.loads(description))
    try:
        outcomes.write(Path(folder), run, perform(run))
    except (TaskError, RuleError, SimulationError) as error:
        return str(error)
    except OSError as error:
        return f"{folder} cannot be written: {error.strerror}; choose another --output"
    return None


def _exit_with_parent() -> None:
    """If it dies, exit; it handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # regardless of the main thread


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
