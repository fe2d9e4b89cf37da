"""The function `gemps.launch`."""

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gem_cli import status_view
from gem_cli.status_view import Status
from gem_cli.training.children import ONE_THREAD, Child, terminate
from gem_cli.training.follower import Follower
from gem_cli.training.reporters import Reporter
from gem_cli.training.worker_processes import PAUSES, WorkerProcesses, was_killed
from gem_cli.training.worker_warnings import WorkerWarnings
from gem_worker.client.channel import check_address

from gem_launch.functions import read_ending, write_call
from gem_launch.reports import reporter_for_output
from gem_launch.server_process import RunningServer, ServerProcessError, checked, require_either, serve

POLL = 0.1  # seconds
REPORT_INTERVAL = 0.25
LEAVE_SECONDS = 5.0  # of interrupted workers
READ_BYTES = 1 << 20  # of a worker's output at a time


class LaunchError(RuntimeError):
    """Some workers have failed.

    Attributes:
        results: the results by rank. None for workers that failed, and after SIGTERM.
        failures: the failures by rank.
    """

    def __init__(self, message: str, results: list[Any], failures: dict[int, str]) -> None:
        super().__init__(message)
        self.results = results
        self.failures = failures


def launch(
    function: Callable[..., Any],
    workers: int = 4,
    *,
    args: Iterable[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    server: str | RunningServer | None = None,
    shards: int = 1,
    **settings: Any,
) -> list[Any]:
    """Run `function(*args, **kwargs)` in the workers of a run, and return their results by rank.

        gemps.launch(train, workers=4, steps=200, eta=0.05)

    In the function, `ParameterServer(model=model)` needs no address. The function and what it refers to are copied into
    the processes, which have one CPU thread each, and the environment of `gemps train`. A worker that fails does not
    stop the others; Ctrl-C stops all. If a process is killed, for example because memory is short, a new process calls
    the function again, at most three times in a row.

    If standard output is no terminal, phases of the start that take longer than a second are reported on standard
    error.

    Args:
        function: any callable.
        workers: number of worker processes.
        args: positional arguments of the function.
        kwargs: keyword arguments of the function.
        server: the address of a server, or a `RunningServer`. Default: `serve(**settings)` starts one.
        shards: number of servers that hold the model.
        settings: settings of the server. `min_workers` is `workers` by default, and `run` is a name by host and
            process.

    Raises:
        LaunchError: at least one worker failed. It is raised when all have ended.
        ServerProcessError: the server failed.
        TypeError: a setting does not exist, or the function cannot be copied.
    """
    if not callable(function) or isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise TypeError("launch(function, workers=N): give a function and a number of workers from 1")
    require_either(server, settings, shards)
    if isinstance(server, RunningServer) and server.exit_code is not None:
        raise ServerProcessError(f"{server.explain_end()}: start another with gemps.serve")
    if server is None:
        asked = checked(settings, shards)
        own = {"min_workers": workers, "run": f"{socket.gethostname()}-{os.getpid()}"}
        settings |= {name: value for name, value in own.items() if name not in asked.model_fields_set}
    try:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="gemps-launch-")))
            write_call(folder / "call", function, args, kwargs or {})
            reporter = stack.enter_context(reporter_for_output())
            owns_server = server is None
            if server is None:
                reporter.phase("server", "starting the server; Numba compiles its kernels once on a machine")
                server = stack.enter_context(serve(shards=shards, **settings))
            group = _Workers(folder, workers, server, owns_server=owns_server)
            stack.callback(group.stop)
            group.run(reporter)
            reporter.close()
            return group.results()
    except (KeyboardInterrupt, LaunchError) as error:
        raise error.with_traceback(None) from None  # hides frames


class _Workers:
    def __init__(self, folder: Path, count: int, server: str | RunningServer, *, owns_server: bool) -> None:
        self._owns_server = owns_server  # it serves nobody after these workers
        self._folder = folder
        self._server = server if isinstance(server, RunningServer) else None
        self._address = check_address(server) if isinstance(server, str) else server.address
        self._count = count
        self._processes = WorkerProcesses(self._start)
        self._read = [0] * count
        self._failures: dict[int, str] = {}
        self._status: Status = {}
        self._too_few = ""
        self._warnings: WorkerWarnings

    def run(self, reporter: Reporter) -> None:
        self._warnings = WorkerWarnings(reporter)
        reporter.phase("workers", f"starting {status_view.workers_in_words(self._count)}, which join the run")
        self._processes.start_all(self._count)
        follower = Follower(self._address, REPORT_INTERVAL)
        try:
            while self._processes.count_active:
                self._record(follower.get(POLL), reporter)
                self._report(reporter, follower)
                self._start_lost_workers(reporter)
                self._warnings.poll()
                if self._server is not None and self._server.exit_code is not None:
                    self._refuse_early_end(self._server, follower, reporter)
                if not self._too_few and self._cannot_begin(follower):
                    self.stop()
            self._report(reporter, follower)
            self._record(follower.now(), reporter)
            if self._owns_server and status_view.state(self._status) == "TRAINING":
                follower.finish_run("every worker of launch has ended")
                self._record(follower.now(), reporter)
        finally:
            self._warnings.close()
            follower.close(at_once=True)

    def stop(self) -> None:
        self._processes.cancel_restarts()
        try:
            terminate(self._processes.children, (signal.SIGINT, LEAVE_SECONDS))
        finally:  # second Ctrl-C
            terminate(self._processes.children, (signal.SIGKILL, LEAVE_SECONDS))

    def results(self) -> list[Any]:
        ranks = {worker["name"]: int(worker.get("rank", 0)) for worker in self._status.get("workers", ())}
        order = sorted(range(self._count), key=lambda index: (ranks.get(self._name(index), self._count), index))
        endings = [read_ending(self._ending(index)) for index in order]
        results = [None if ending is None else ending.result for ending in endings]
        texts = [self._failures.get(index, "") for index in order]
        texts = [text or (ending.traceback if ending else "") for text, ending in zip(texts, endings, strict=True)]
        failures = {place: text for place, text in enumerate(texts) if text}
        if failures or self._too_few:
            lines = [f"{len(failures)} of {status_view.workers_in_words(self._count)} failed{self._too_few}"]
            for place, text in failures.items():
                index = order[place]
                same = next((other for other, said in failures.items() if said == text), place)
                who = f"rank {place} (worker-{index})"
                lines.append(f"{who}: as rank {same}" if same != place else f"{who}: {text}")
            raise LaunchError("\n".join(lines), results, failures)
        return results

    def _start(self, index: int) -> Child:
        command = [sys.executable, "-P", "-m", "gem_launch.worker_process", str(self._folder / "call")]
        environment = {
            **ONE_THREAD,
            **self._warnings.environment(f"worker-{index}"),
            "GEMPS_SERVER": self._address,
            "GEMPS_WORKER_NAME": self._name(index),
            "GEMPS_WORKER_INDEX": str(index),
            "GEMPS_WORKERS": str(self._count),
            **({} if self._server is None else {"GEMPS_RUN": self._server.settings.run}),
        }
        return Child(
            f"worker-{index}",
            [*command, str(self._ending(index))],
            self._folder / f"worker-{index}.log",
            environment=environment,
            orphan_signal=signal.SIGKILL,
        )

    def _name(self, index: int) -> str:
        return f"worker-{index}" if self._server is not None else f"{socket.gethostname()}-{os.getpid()}-{index}"

    def _ending(self, index: int) -> Path:
        return self._folder / f"ending-{index}"

    def _record(self, status: Status | None, reporter: Reporter) -> None:
        if status is not None:
            self._status = status
            reporter.status(status)
            self._warnings.status(status)

    def _report(self, reporter: Reporter, follower: Follower) -> None:
        ended = self._processes.ended()  # before reading
        for index in range(self._count):
            while self._print_output(index, reporter) and index in ended:
                pass
        for index in ended:
            if not self._too_few:
                self._handle_end(index, reporter, follower)

    def _handle_end(self, index: int, reporter: Reporter, follower: Follower) -> None:
        """Report how a worker ended, tell the server, and restart the worker if it was killed."""
        child = self._processes.children[index]
        code = child.exit_code or 0
        if code:
            self._record(follower.now(), reporter)  # the newest report may be old
        is_finished = status_view.state(self._status) == "FINISHED"
        is_lost = was_killed(code) and read_ending(self._ending(index)) is None  # it neither returned nor raised
        is_lost &= not status_view.has_finished(self._status, self._name(index))
        pause = self._processes.schedule_restart(index) if is_lost and not is_finished else None
        if not is_finished:
            why = f"its process {child.describe_exit()}"
            follower.end_session(self._name(index), why, comes_back=pause is not None)
        if pause is not None:
            attempt = f"attempt {self._processes.attempts(index)} of {len(PAUSES)}"
            text = f"[{child.name}] {child.describe_exit()} and is started again in {pause:g} s ({attempt})"
            reporter.event("worker_restarts", text)
        elif code:
            self._report_failure(index, code, reporter)

    def _start_lost_workers(self, reporter: Reporter) -> None:
        if status_view.state(self._status) == "FINISHED":
            for index in self._processes.cancel_restarts():
                self._report_failure(index, self._processes.children[index].exit_code or 0, reporter)
        self._processes.start_due()

    def _print_output(self, index: int, reporter: Reporter) -> bool:
        child = self._processes.children[index]
        ended = not child.running  # before reading
        with child.log.open("rb") as log:
            log.seek(self._read[index])
            new = log.read(READ_BYTES)
        size = new.rfind(b"\n") + 1
        if not size and (ended or len(new) == READ_BYTES):
            size = len(new)
        self._read[index] += size
        for line in new[:size].decode(errors="replace").removesuffix("\n").split("\n") if size else ():
            shown = line.rstrip("\r").rpartition("\r")[2]  # progress bars redraw a line after carriage returns
            reporter.event("printed", f"[{child.name}] {shown}")
        return size > 0

    def _report_failure(self, index: int, code: int, reporter: Reporter) -> None:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        ending, name = read_ending(self._ending(index)), self._processes.children[index].name
        if ending is not None and not ending.traceback:
            reporter.event("ended", f"[{name}] returned its result, and then {how}")
            return
        if ending is None and (attempts := self._processes.attempts(index)):
            how += f", {attempts + 1} times in a row"
        self._failures[index] = text = how if ending is None else f"\n{ending.traceback}"
        last = text.strip().splitlines()[-1]
        others = "; the others continue" if self._processes.count_active else ""
        reporter.event("worker_failed", f"[{name}] failed: {last}{others}")

    def _refuse_early_end(self, server: RunningServer, follower: Follower, reporter: Reporter) -> None:
        while status := follower.get(0):
            self._record(status, reporter)
        if server.exit_code or status_view.state(self._status) != "FINISHED":
            raise ServerProcessError(server.explain_end())

    def _cannot_begin(self, follower: Follower) -> bool:
        running = self._processes.count_active
        wanted = 0 if self._server is None else self._server.settings.min_workers
        if not 0 < running < min(wanted, self._count) or status_view.state(self._status) != "WAITING":
            return False
        status = follower.now()  # may be newer
        if status is None or status_view.state(status) != "WAITING":
            return False
        self._too_few = f"; training cannot begin: min_workers={wanted}"
        return True
