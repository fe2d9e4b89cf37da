"""Signals while the main thread is inside gRPC: noted, and acted upon when it has been left."""

import signal
import threading
from collections.abc import Iterator

import pytest
from gem_worker.client.interrupts import interrupts_wait

from tests.client.busy_workers import PREAMBLE, leave_whenever_terminated
from tests.client.conftest import Serve

BUSY_WORKER = (
    PREAMBLE
    + """
with Client(sys.argv[1], worker_name="worker", layout=layout) as client:
    if not client.join().has_parameters:
        client.initialize(held)
    client.pull(held)
    print("training", flush=True)
    try:
        while True:
            client.commit(delta, held)
    except Terminated:
        client.leave("terminated")
        print("left", flush=True)
"""
)


class InterruptedByTest(Exception):  # noqa: N818 - it stands for KeyboardInterrupt
    pass


@pytest.fixture
def raising_handler() -> Iterator[None]:
    def interrupt(number: int, frame: object) -> None:
        raise InterruptedByTest

    before = signal.signal(signal.SIGINT, interrupt)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("raising_handler")
def test_handler_runs_when_the_block_is_left_and_the_call_is_cancelled_by_another_thread() -> None:
    cancelled = threading.Event()
    by: list[threading.Thread] = []

    def cancel() -> None:
        by.append(threading.current_thread())
        cancelled.set()

    def work() -> None:
        with interrupts_wait(cancel):
            signal.raise_signal(signal.SIGINT)
            assert cancelled.wait(30)
            by.append(threading.current_thread())

    with pytest.raises(InterruptedByTest):
        work()
    assert by[1] is threading.main_thread()
    assert by[0] is not threading.main_thread()


@pytest.mark.usefixtures("raising_handler")
def test_handler_of_an_inner_block_waits_for_the_outer_one() -> None:
    steps = []

    def work() -> None:
        with interrupts_wait():
            with interrupts_wait(lambda: None):
                signal.raise_signal(signal.SIGINT)
            steps.append("after the inner block")

    with pytest.raises(InterruptedByTest):
        work()
    assert steps == ["after the inner block"]


@pytest.mark.usefixtures("raising_handler")
def test_interrupt_wins_over_the_error_that_its_cancelling_made() -> None:
    def work() -> None:
        with interrupts_wait():
            signal.raise_signal(signal.SIGINT)
            raise RuntimeError("cancelled")

    with pytest.raises(InterruptedByTest):
        work()


@pytest.mark.usefixtures("raising_handler")
def test_handlers_are_back_after_the_block() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with interrupts_wait():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    with pytest.raises(InterruptedByTest):
        signal.raise_signal(signal.SIGINT)


def test_ignored_signals_stay_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts_wait():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_are_left_alone() -> None:
    seen: list[object] = []

    def run() -> None:
        with interrupts_wait():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]


@pytest.mark.long
def test_busy_worker_leaves_whenever_it_is_terminated(serve: Serve) -> None:
    """Raising within gRPC's code left a lock taken about once in fifty times, and the worker hung."""
    leave_whenever_terminated(BUSY_WORKER, serve().address, times=6, seed=7)
