"""One training: starts the server and the workers, watches over them, and brings all of them to their end.

    starting   the server alone, until it writes its ready file
    training   the workers beside it, until the server has ended
    stopping   after Ctrl-C: workers are interrupted, then the server drains and writes its checkpoint

A worker that fails is told about and the others go on; a second Ctrl-C kills everything. An evaluator may run beside
the workers; the server waits for its last evaluation, and its failure is told and fails nothing.
"""

import json
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType

from gem_cli import status_view
from gem_cli.errors import CommandError, last_lines
from gem_cli.sinks.sinks import Sinks
from gem_cli.status_view import Status
from gem_cli.training.children import Child, end, wait
from gem_cli.training.follower import Follower, History
from gem_cli.training.reporters import Reporter
from gem_cli.training.run_folder import RunFolder

EVALUATOR = "evaluator"
POLL = 0.1  # seconds between looks at the children
WORKER_GRACE = 15.0  # seconds a worker gets to leave: one step of a large model on a slow machine
QUIET_WAIT = 3.0  # seconds in which most workers end after a run, before it is said who is waited for
SERVER_GRACE = 60.0  # seconds a server gets to drain and write its checkpoint: gigabytes on a slow disk
EVALUATOR_GRACE = 15.0  # seconds an evaluator gets to see that the run is over
LEAVE_GRACE = 3.0  # seconds after the last worker in which the server should end by itself


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start. Where the server is and who it is, a worker finds in its environment: see `_start_workers`."""

    server: Sequence[str]
    worker: Sequence[str]
    workers: int
    min_workers: int
    worker_environment: Mapping[str, str]
    report_interval: float
    worker_exit_timeout: float
    evaluator: Sequence[str] | None = None


@dataclass(slots=True)
class Outcome:
    """How it went."""

    interrupted_by: signal.Signals | None = None
    address: str | None = None  # of the server; None when it was interrupted before it served
    exit_codes: dict[str, int | None] = field(default_factory=dict)
    first_status: Status | None = None
    last_status: Status | None = None
    late: list[str] = field(default_factory=list)  # workers that were stopped because they had not joined
    overdue: list[str] = field(default_factory=list)  # workers that were killed because they went on after the run

    @property
    def server_failed(self) -> bool:
        """Whether the server ended badly."""
        return self.exit_codes.get("server") != 0

    @property
    def failed_workers(self) -> list[str]:
        """Names of the workers that ended badly, or had to be killed."""
        others = ("server", EVALUATOR, *self.late)
        return [
            name for name, code in self.exit_codes.items() if name in self.overdue or (name not in others and code != 0)
        ]


class Interrupts:
    """Counts SIGINT and SIGTERM instead of dying of them, while in its `with` block."""

    def __init__(self) -> None:
        self.count = 0
        self.first: signal.Signals | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "Interrupts":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal gave

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self.first = self.first or signal.Signals(number)


class Training:
    """Runs a plan in a run folder. `run` is called once."""

    def __init__(self, plan: Plan, folder: RunFolder, reporter: Reporter, sinks: Sinks) -> None:
        self._plan = plan
        self._sinks = sinks
        self._folder = folder
        self._reporter = reporter
        self._server: Child | None = None
        self._workers: list[Child] = []
        self._evaluator: Child | None = None
        self._noticed: set[str] = set()
        self._quoted: list[str] = []  # the end of the log that was told last: many workers often fail alike
        self._outcome = Outcome()

    def run(self) -> Outcome:
        """Train to the end. Raises CommandError when the server does not start; leaves no process behind."""
        with Interrupts() as interrupts:
            try:
                self._server = server = self._start("server", self._plan.server, {}, signal.SIGTERM)
                address = self._await_ready(server, interrupts)
                if address is not None:
                    self._start_workers(address)
                    self._start_evaluator(address)
                    self._follow(server, address, interrupts)
            finally:
                children = [*([self._server] if self._server else []), *self._workers, *self._evaluators()]
                end(children, (signal.SIGKILL, 10.0))
            self._outcome.exit_codes = {child.name: child.exit_code for child in children}
            self._outcome.interrupted_by = interrupts.first
        return self._outcome

    def _start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], orphan_signal: signal.Signals
    ) -> Child:
        try:
            return Child(name, command, self._folder.log(name), environment=environment, orphan_signal=orphan_signal)
        except OSError as error:
            raise CommandError(f"{command[0]} cannot be started: {error.strerror}") from None

    def _await_ready(self, server: Child, interrupts: Interrupts) -> str | None:
        """Return the server's address once it serves; None when interrupted before."""
        while not self._folder.ready_file.exists():
            if not server.running:
                raise CommandError(f"the server did not start: {server.describe_end()}")
            if interrupts.count:
                end([server], (signal.SIGTERM, SERVER_GRACE))
                return None
            time.sleep(0.02)
        ready = json.loads(self._folder.ready_file.read_text(encoding="utf-8"))
        address = str(ready["address"])
        self._outcome.address = address
        self._reporter.event(
            "started",
            f"server {address}, workers: {self._plan.workers}, run folder {self._folder.path}",
            server=address,
            workers=self._plan.workers,
            run_dir=str(self._folder.path),
        )
        if url := str(ready.get("dashboard", "")):
            self._reporter.event("dashboard", f"dashboard {url}", url=url)
        return address

    def _start_workers(self, address: str) -> None:
        for index in range(self._plan.workers):
            name = f"worker-{index}"
            environment = {
                **self._plan.worker_environment,
                "GEMPS_SERVER": address,
                "GEMPS_WORKER_NAME": name,
                "GEMPS_WORKER_INDEX": str(index),
                "GEMPS_WORKERS": str(self._plan.workers),
            }
            self._workers.append(self._start(name, self._plan.worker, environment, signal.SIGKILL))

    def _start_evaluator(self, address: str) -> None:
        if self._plan.evaluator is not None:
            environment = {**self._plan.worker_environment, "GEMPS_SERVER": address}
            self._evaluator = self._start(EVALUATOR, self._plan.evaluator, environment, signal.SIGKILL)

    def _evaluators(self) -> list[Child]:
        return [self._evaluator] if self._evaluator is not None else []

    def _evaluates(self) -> bool:
        return self._evaluator is not None and self._evaluator.running

    def _follow(self, server: Child, address: str, interrupts: Interrupts) -> None:
        follower = Follower(address, self._plan.report_interval)
        ended_at: float | None = None
        try:
            while server.running:
                if not self._evaluates():
                    follower.may_leave.set()
                self._take(follower.take(POLL), follower.take_history())
                self._notice_failures()
                if interrupts.count:
                    self._stop(server, follower, interrupts)
                elif not any(worker.running for worker in self._workers):
                    ended_at = ended_at or time.monotonic()
                    is_over = time.monotonic() - ended_at > LEAVE_GRACE
                    if is_over and not (self._evaluates() and self._is_finished()):
                        # A worker died without leaving, or had no budget.
                        self._take(follower.now(), follower.take_history())
                        end([server], (signal.SIGTERM, SERVER_GRACE))
                elif self._cannot_begin(follower):
                    end(self._workers, (signal.SIGINT, WORKER_GRACE), (signal.SIGKILL, 5.0))
        finally:
            follower.close()
        while (status := follower.take(0)) is not None:
            self._take(status)
        self._take(None, follower.take_history())
        if server.exit_code != 0 and not interrupts.count:
            self._reporter.event("server_failed", server.describe_end(), exit_code=server.exit_code)
        else:
            self._await_workers(interrupts)
        if self._is_finished():
            wait(self._evaluators(), EVALUATOR_GRACE, unless=lambda: interrupts.count > 0)
        self._notice_failures()
        self._noticed.add(EVALUATOR)  # it waits for a server that will not come back
        end([*self._workers, *self._evaluators()], (signal.SIGINT, WORKER_GRACE))

    def _await_workers(self, interrupts: Interrupts) -> None:
        """Wait for what workers do after the run, such as a last evaluation; stop those that never joined."""

        def interrupted() -> bool:
            return interrupts.count > 0

        patience = self._plan.worker_exit_timeout
        deadline = time.monotonic() + patience
        busy = wait(self._workers, QUIET_WAIT, unless=interrupted)
        late = [worker for worker in busy if worker.name in self._never_joined()]
        busy = [worker for worker in busy if worker not in late]
        if busy and not interrupted():
            names = [worker.name for worker in busy]
            self._reporter.event(
                "waiting",
                f"the run is over; waiting for {', '.join(names)} to end, for {patience:g} s at most "
                "(--worker-exit-timeout)",
                workers=names,
                seconds=patience,
            )
        for worker in late:
            self._outcome.late.append(worker.name)
            self._reporter.event("worker_stopped", f"{worker.name} came too late for the run: stopping it")
        end(late, (signal.SIGINT, WORKER_GRACE))
        overdue = wait([*busy, *late], deadline - time.monotonic(), unless=interrupted)
        if interrupted():
            return
        end(overdue, (signal.SIGINT, WORKER_GRACE), (signal.SIGKILL, 10.0))
        for worker in overdue:
            self._noticed.add(worker.name)
            self._outcome.overdue.append(worker.name)
            self._reporter.event(
                "worker_failed",
                f"{worker.name} was killed, because it still ran {patience:g} s after the end of the run; what it had "
                f"not saved is lost: raise --worker-exit-timeout; its log is {worker.log}",
                worker=worker.name,
                exit_code=worker.exit_code,
                log=str(worker.log),
            )

    def _never_joined(self) -> set[str]:
        """Workers that the server never heard of: none where that is not known, or scripts choose other names."""
        seen = self._outcome.last_status or {}
        uptime = float(seen.get("uptime_seconds", 0))
        # A resumed server also lists workers of its earlier processes: it heard of them before this one began.
        heard = {w["name"] for w in seen.get("workers", ()) if float(w.get("seconds_since_last_call", 0)) <= uptime}
        ours = {worker.name for worker in self._workers}
        return ours - heard if self._is_finished() and heard <= ours else set()

    def _is_finished(self) -> bool:
        seen = self._outcome.last_status
        return seen is not None and status_view.state(seen) == "FINISHED"

    def _take(self, status: Status | None, history: History | None = None) -> None:
        if history is not None:
            self._folder.write_history(history)
        if status is not None:
            self._outcome.first_status = self._outcome.first_status or status
            self._outcome.last_status = status
            self._folder.add_metrics(status)
            self._sinks.status(status)
            self._reporter.status(status)

    def _notice_failures(self) -> None:
        for child in (*self._workers, *self._evaluators()):
            if child.exit_code and child.name not in self._noticed:
                self._noticed.add(child.name)
                end_of_log = last_lines(child.log)
                text = child.describe_end(quote=end_of_log != self._quoted)
                self._quoted = end_of_log
                who = {"exit_code": child.exit_code, "log": str(child.log)}
                if child.name == EVALUATOR:
                    self._reporter.event("evaluator_failed", text, **who)
                else:
                    self._reporter.event("worker_failed", text, worker=child.name, **who)

    def _cannot_begin(self, follower: Follower) -> bool:
        """Whether workers that failed are missing for --min-workers, so that the others would wait for ever."""
        running = sum(worker.running for worker in self._workers)
        failed = any(worker.name in self._noticed for worker in self._workers)
        seen = self._outcome.last_status
        if not failed or running >= self._plan.min_workers or not seen or status_view.state(seen) != "WAITING":
            return False
        status = follower.now()  # what was seen may be old
        if status is None or status_view.state(status) != "WAITING":
            return False
        self._reporter.event(
            "training_failed",
            f"training cannot begin: --min-workers {self._plan.min_workers}, but only {running} workers are left",
        )
        return True

    def _stop(self, server: Child, follower: Follower, interrupts: Interrupts) -> None:
        self._reporter.event("interrupted", "stopping: workers first, then the server; Ctrl-C again kills them")
        children = [*self._workers, *self._evaluators()]
        for child in children:
            self._noticed.add(child.name)  # however it ends now is no failure
            child.send(signal.SIGINT)
        wait(children, WORKER_GRACE, unless=lambda: interrupts.count > 1)
        end(children, (signal.SIGKILL, 5.0))
        self._take(follower.now(), follower.take_history())
        server.send(signal.SIGTERM)
        wait([server], SERVER_GRACE, unless=lambda: interrupts.count > 1)
        end([server], (signal.SIGKILL, 10.0))
