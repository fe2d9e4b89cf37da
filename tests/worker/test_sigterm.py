"""The handler of SIGTERM and SIGHUP: ends a computation, lets what is held come to its end, and leaves others alone."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from gem_worker.client.interrupts import interrupts_wait
from gem_worker.termination import termination

from tests.terminations import default_handlers, ends_terminated, terminate
from tests.waiting import eventually

PREAMBLE = """
import os, signal, sys, time
from gem_worker.termination import TerminatedError, termination
"""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    with default_handlers():
        yield


def test_computations_end_at_once_and_exit_with_0() -> None:
    with ends_terminated(0), termination.handled():
        terminate()
        pytest.fail("the computation went on")
    assert not termination.has_begun


def test_the_end_of_a_terminal_is_the_same() -> None:
    with ends_terminated(0), termination.handled():
        assert signal.getsignal(signal.SIGHUP) is termination
        with termination.held():
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGHUP)  # of the shell, and of the kernel
    assert not termination.has_begun


def test_the_end_of_a_terminal_that_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with termination.handled(), termination.held(), interrupts_wait():
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_in_an_indexed_job_the_exit_code_is_143(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "3")
    with ends_terminated(143), termination.handled():
        terminate()


def test_what_is_held_comes_to_its_end() -> None:
    steps = []
    with ends_terminated(), termination.handled():
        with termination.held():
            with termination.held(60.0, lambda: steps.append("given up")), interrupts_wait():
                terminate()
                steps.append("inner")
            steps.append("outer")
        steps.append("afterwards")
    assert steps == ["inner", "outer"]


def test_what_is_held_is_given_up_again_and_again_until_it_ends_but_not_longer() -> None:
    calls: list[threading.Thread] = []
    with ends_terminated(), termination.handled(), termination.held():
        with termination.held(0.05, lambda: calls.append(threading.current_thread())):
            terminate()
            eventually(lambda: len(calls) >= 3)
        count = len(calls)
        later: list[int] = []
        with termination.held(0.0, lambda: later.append(1)):
            eventually(lambda: later)
        assert len(calls) == count
    assert threading.main_thread() not in calls


def test_an_error_of_what_was_given_up_is_replaced() -> None:
    with ends_terminated(), termination.handled(), termination.held():
        terminate()
        raise RuntimeError("cancelled")


def test_ctrl_c_is_not_held() -> None:
    with pytest.raises(KeyboardInterrupt), termination.handled(), termination.held():
        signal.raise_signal(signal.SIGINT)


def test_a_call_outside_of_held_blocks_is_cancelled() -> None:
    cancelled = threading.Event()
    with ends_terminated(), termination.handled(), interrupts_wait(cancelled.set):
        terminate()
        assert cancelled.wait(30)


def test_other_handlers_stay() -> None:
    seen = []
    signal.signal(signal.SIGTERM, mine := lambda *_: seen.append(1))
    with termination.handled(), termination.handled(), termination.held():
        assert signal.getsignal(signal.SIGTERM) is mine
        terminate()
    assert seen == [1]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with termination.handled():
        signal.signal(signal.SIGTERM, mine)
    assert signal.signal(signal.SIGTERM, signal.SIG_DFL) is mine


def test_blocks_may_be_nested() -> None:
    with termination.handled():
        with termination.handled():
            pass
        assert signal.getsignal(signal.SIGTERM) is termination
    assert signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


def test_other_threads_neither_handle_nor_hold() -> None:
    seen: list[object] = []

    def work() -> None:
        with termination.handled(), termination.held():
            seen.extend((signal.getsignal(signal.SIGTERM), termination.is_held))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL, False]


def test_a_second_one_ends_the_process_at_once() -> None:
    script = PREAMBLE + (
        "with termination.handled(), termination.held():\n"
        "    print('held', flush=True)\n"
        "    while not termination.has_begun: time.sleep(0.01)\n"
        "    print('first', flush=True)\n"
        "    while True: time.sleep(0.01)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        process.terminate()
        assert process.stdout.readline() == "first\n"

        def again() -> bool:
            process.terminate()
            return process.poll() is not None

        eventually(again)
        assert process.returncode == -signal.SIGTERM


def test_one_that_comes_with_the_first_is_the_same() -> None:
    """As from an engine that signals a process group and its processes."""
    with ends_terminated(), termination.handled(), termination.held():
        terminate()
        terminate()


def test_forked_children_end_as_without_a_handler() -> None:
    with termination.handled():
        child = os.fork()
        if not child:
            try:
                terminate()
            finally:
                os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


def test_processes_of_a_data_loader_may_get_it_too() -> None:
    """PyTorch's handler of SIGCHLD raises when they end so, also in the block that leaves."""
    script = PREAMBLE + (
        "import torch\n"
        "os.setpgid(0, 0)\n"
        "loader = torch.utils.data.DataLoader(range(10**9), num_workers=2)\n"
        "with termination.handled():\n"
        "    try:\n"
        "        for _ in loader:\n"
        "            print('loading', flush=True)\n"
        "            os.killpg(0, signal.SIGTERM)\n"
        "    except TerminatedError:\n"
        "        with termination.held():\n"
        "            until = time.monotonic() + 1\n"
        "            while time.monotonic() < until: pass\n"
        "            print('left', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "loading\nleft\n"), done.stderr
