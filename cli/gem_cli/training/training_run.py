"""Runs servers, workers and an evaluator as processes, from their start to their end.

`TrainingRun` starts the servers, waits until they serve, starts workers and evaluator, and then supervises them on one
thread. It records the server's reports, restarts lost workers (`worker_processes`), tells the server which workers have
ended, and finishes the run when all workers have ended, so that the evaluator gets the last version. A failed worker or
evaluator does not end the run. The first Ctrl-C ends all processes cleanly, and a second one kills them.
"""

import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType

from gem_server.waiting_notice import PREPARING_KERNELS
from gem_worker.client.operating_system import KILL, Terminals, end_signals

from gem_cli import status_view
from gem_cli.errors import USAGE, CommandError
from gem_cli.sinks.sinks import Sinks
from gem_cli.status_view import Status
from gem_cli.training.children import Child, terminate, wait
from gem_cli.training.follower import Follower, History
from gem_cli.training.metrics_file import MetricsFile
from gem_cli.training.repeated_failures import RepeatedFailures
from gem_cli.training.reporters import Reporter
from gem_cli.training.run_folder import RunFolder
from gem_cli.training.worker_processes import PAUSES, WorkerProcesses, was_killed
from gem_cli.training.worker_warnings import WorkerWarnings

EVALUATOR = "evaluator"
POLL = 0.1  # seconds
WORKER_GRACE = 15.0  # one slow step
QUIET_WAIT = 3.0
SERVER_GRACE = 60.0  # draining, writing gigabytes
EVALUATOR_GRACE = 15.0
LEAVE_GRACE = 3.0  # for the server's own exit
MAX_REASON = 200  # characters, for the server's log


@dataclass(frozen=True, slots=True)
class Plan:
    """The commands of the processes, which read the server's address from their environment."""

    server: Sequence[str]
    worker: Sequence[str]
    workers: int
    min_workers: int
    worker_environment: Mapping[str, str]
    is_script: bool  # the worker is a command of the user's
    report_interval: float
    worker_exit_timeout: float
    evaluator: Sequence[str] | None = None
    shards: Sequence[Sequence[str]] = ()  # further servers


@dataclass(slots=True)
class Outcome:
    """Result of a training."""

    interrupted_by: signal.Signals | None = None
    address: str | None = None  # None: never served
    exit_codes: dict[str, int | None] = field(default_factory=dict)
    last_status: Status | None = None
    restarts: dict[str, int] = field(default_factory=dict)  # of workers that were started again
    late: list[str] = field(default_factory=list)  # never joined
    overdue: list[str] = field(default_factory=list)  # killed
    servers: list[str] = field(default_factory=list)
    merge_error: str = ""

    @property
    def server_failed(self) -> bool:
        """Whether a server failed."""
        return any(self.exit_codes.get(name) != 0 for name in self.servers)

    @property
    def failed_workers(self) -> list[str]:
        """Failed or killed workers."""
        others = (*self.servers, EVALUATOR, *self.late)
        return [
            name for name, code in self.exit_codes.items() if name in self.overdue or (name not in others and code != 0)
        ]


class Interrupts:
    """Counts SIGINT, SIGTERM and the end of the terminal (SIGHUP) while active.

    If the process ignores SIGHUP, as under nohup, it still does so. The kernel and the shell may both report the end
    of a terminal, so SIGHUP counts once, and only if no other signal has interrupted the run before.
    """

    def __init__(self) -> None:
        self.count = 0
        self.first: signal.Signals | None = None
        self._terminals = Terminals()
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "Interrupts":
        for number in (signal.SIGINT, *end_signals()):
            self._before[number] = signal.signal(number, self._count)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal gave

    def _count(self, number: int, _frame: FrameType | None) -> None:
        if number not in (signal.SIGINT, signal.SIGTERM):
            self._terminals.replace_closed()
            if self.count:
                return
        self.count += 1
        self.first = self.first or signal.Signals(number)


class TrainingRun:
    """Runs a plan. Call `run` once."""

    def __init__(self, plan: Plan, folder: RunFolder, reporter: Reporter, sinks: Sinks) -> None:
        self._plan = plan
        self._sinks = sinks
        self._folder = folder
        self._metrics = MetricsFile(folder.metrics, plan.report_interval)
        self._reporter = reporter
        self._warnings = WorkerWarnings(reporter)
        self._servers: list[Child] = []
        self._workers = WorkerProcesses(self._start_worker)
        self._failures = RepeatedFailures()
        self._evaluator: Child | None = None
        self._evaluator_is_seen = False  # its failure needs no report, or has one
        self._quoted: list[str] | None = None  # the end of a log that was reported last; avoids repetition
        self._outcome = Outcome()

    def run(self) -> Outcome:
        """Train. Raises CommandError when the server fails to start."""
        with Interrupts() as interrupts:
            try:
                self._reporter.phase("server", "starting the server")
                self._start_servers()
                address = self._await_ready(interrupts)
                if address is not None:
                    self._workers.start_all(self._plan.workers)
                    self._start_evaluator(address)
                    self._supervise(address, interrupts)
            finally:
                children = [*self._servers, *self._workers.children, *self._evaluators()]
                terminate(children, (KILL, 10.0))
                self._warnings.close()
                self._outcome.restarts = self._workers.restarts
                if (newest := self._metrics.write_newest()) is not None:
                    self._sinks.status(newest)
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

    def _start_servers(self) -> None:
        for index, command in enumerate((self._plan.server, *self._plan.shards)):
            name = f"shard-{index}" if index else "server"
            self._servers.append(self._start(name, command, {}, signal.SIGTERM))
            self._outcome.servers.append(name)

    def _await_ready(self, interrupts: Interrupts) -> str | None:
        is_compiling = False
        while not self._folder.ready_file.exists():
            if not is_compiling and self._servers[0].has_logged(PREPARING_KERNELS):
                is_compiling = True
                self._reporter.phase("kernels", f"the server is {PREPARING_KERNELS}")
            if not all(server.running for server in self._servers):
                running = wait(self._servers, QUIET_WAIT)  # one that fails ends others
                ends = [server.describe_end() for server in self._servers if server not in running]
                raise CommandError("the server did not start: " + "\n".join(ends))
            if interrupts.count:
                self._stop_servers()
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
        imports = "" if self._plan.is_script else "importing PyTorch, "
        workers = status_view.workers_in_words(self._plan.workers)
        self._reporter.phase("workers", f"starting {workers}: {imports}loading data, joining the run")
        if url := str(ready.get("dashboard", "")):
            self._reporter.event("dashboard", f"dashboard {url}", url=url)
        return address

    def _start_worker(self, index: int) -> Child:
        name = f"worker-{index}"
        environment = {
            **self._plan.worker_environment,
            **self._warnings.environment(name),
            "GEMPS_SERVER": str(self._outcome.address),
            "GEMPS_WORKER_NAME": name,
            "GEMPS_WORKER_INDEX": str(index),
            "GEMPS_WORKERS": str(self._plan.workers),
        }
        return self._start(name, self._plan.worker, environment, KILL)

    def _start_evaluator(self, address: str) -> None:
        if self._plan.evaluator is not None:
            environment = {**self._plan.worker_environment, "GEMPS_SERVER": address}
            self._evaluator = self._start(EVALUATOR, self._plan.evaluator, environment, KILL)

    def _evaluators(self) -> list[Child]:
        return [self._evaluator] if self._evaluator is not None else []

    def _evaluates(self) -> bool:
        return self._evaluator is not None and self._evaluator.running

    def _supervise(self, address: str, interrupts: Interrupts) -> None:
        server, *shards = self._servers
        follower = Follower(address, self._plan.report_interval)
        ended_at: float | None = None
        waits_for_evaluator = False
        try:
            while server.running:
                if not self._evaluates():
                    follower.may_leave.set()
                self._record(follower.get(POLL), follower.newest_history())
                self._notice_failures(follower)
                self._warnings.poll()
                if interrupts.count:
                    self._stop(follower, interrupts)
                elif not self._workers.count_active:
                    if ended_at is None:
                        ended_at = time.monotonic()
                        self._finish_run(follower)
                    elif time.monotonic() - ended_at <= LEAVE_GRACE:
                        pass  # for the server's own exit
                    elif not (self._evaluates() and self._is_finished()):
                        self._record(follower.now(), follower.newest_history())
                        self._stop_servers()
                    elif not waits_for_evaluator:
                        waits_for_evaluator = True
                        self._report_waiting([EVALUATOR], "to evaluate the last version")
                elif self._cannot_begin(follower):
                    terminate(self._workers.children, (signal.SIGINT, WORKER_GRACE), (KILL, 5.0))
                    self._workers.ended()
                else:
                    self._start_lost_workers()
        finally:
            follower.close()
        self._workers.cancel_restarts()
        while (status := follower.get(0)) is not None:
            self._record(status)
        self._record(None, follower.newest_history())
        terminate(wait(shards, SERVER_GRACE, unless=lambda: interrupts.count > 1), (signal.SIGTERM, SERVER_GRACE))
        failed = [child for child in self._servers if child.exit_code != 0]
        if failed and not interrupts.count:
            for child in failed:
                self._reporter.event("server_failed", child.describe_end(), exit_code=child.exit_code)
        else:
            self._await_workers(interrupts)
        if self._is_finished():
            wait(self._evaluators(), EVALUATOR_GRACE, unless=lambda: interrupts.count > 0)
        self._notice_failures(None)
        self._evaluator_is_seen = True  # it never exits alone
        terminate([*self._workers.children, *self._evaluators()], (signal.SIGINT, WORKER_GRACE))

    def _finish_run(self, follower: Follower) -> None:
        """Finish the run when all workers have ended before its budget was spent, or without a budget."""
        self._record(follower.now(), follower.newest_history())
        seen = self._outcome.last_status
        if seen is None or status_view.state(seen) != "TRAINING":
            return
        failed = [worker.name for worker in self._workers.children if worker.exit_code]
        reason = "every worker has ended" + (f", with an error: {', '.join(failed)}" if failed else "")
        if follower.finish_run(reason[:MAX_REASON]):
            self._record(follower.now())
            has_budget = any(float(one) for one in seen.get("settings", {}).get("budget", {}).values())
            early = ", before its budget was spent" if has_budget else ""
            self._reporter.event("ended", f"{reason}: the run is finished at version {status_view.clock(seen)}{early}")

    def _report_waiting(self, names: Sequence[str], purpose: str) -> None:
        patience = self._plan.worker_exit_timeout
        self._reporter.event(
            "waiting",
            f"the run is over; waiting for {', '.join(names)} {purpose}, for {patience:g} s at most "
            "(worker_exit_timeout)",
            workers=list(names),
            seconds=patience,
        )

    def _await_workers(self, interrupts: Interrupts) -> None:
        def interrupted() -> bool:
            return interrupts.count > 0

        patience = self._plan.worker_exit_timeout
        deadline = time.monotonic() + patience
        busy = wait(self._workers.children, QUIET_WAIT, unless=interrupted)
        late = [worker for worker in busy if worker.name in self._never_joined()]
        busy = [worker for worker in busy if worker not in late]
        if busy and not interrupted():
            self._report_waiting([worker.name for worker in busy], "to end")
        for worker in late:
            self._outcome.late.append(worker.name)
            self._reporter.event("worker_stopped", f"{worker.name} came too late for the run: stopping it")
        terminate(late, (signal.SIGINT, WORKER_GRACE))
        overdue = wait([*busy, *late], deadline - time.monotonic(), unless=interrupted)
        if interrupted():
            return
        terminate(overdue, (signal.SIGINT, WORKER_GRACE), (KILL, 10.0))
        self._workers.ended()
        for worker in overdue:
            self._outcome.overdue.append(worker.name)
            self._reporter.event(
                "worker_failed",
                f"{worker.name} was killed, because it still ran {patience:g} s after the end of the run; what it had "
                f"not saved is lost: raise it with --set worker_exit_timeout=SECONDS; its log is {worker.log}",
                worker=worker.name,
                exit_code=worker.exit_code,
                log=str(worker.log),
            )

    def _never_joined(self) -> set[str]:
        """Names of workers that the server has never seen. Empty if the script chose other names."""
        heard, ours = self._heard_workers(), {worker.name for worker in self._workers.children}
        return ours - heard if self._is_finished() and heard <= ours else set()

    def _heard_workers(self) -> set[str]:
        """Names of the workers that the server knows. A resumed server also lists workers of its earlier processes."""
        seen = self._outcome.last_status or {}
        uptime = float(seen.get("uptime_seconds", 0))
        return {w["name"] for w in seen.get("workers", ()) if float(w.get("seconds_since_last_call", 0)) <= uptime}

    def _is_finished(self) -> bool:
        seen = self._outcome.last_status
        return seen is not None and status_view.state(seen) == "FINISHED"

    def _is_old(self, status: Status) -> bool:
        last = self._outcome.last_status or {}
        return float(status.get("uptime_seconds", 0)) < float(last.get("uptime_seconds", 0))

    def _record(self, status: Status | None, history: History | None = None) -> None:
        if history is not None:
            self._folder.write_history(history)
        if status is not None and not self._is_old(status):
            self._outcome.last_status = status
            if self._metrics.offer(status, time.monotonic()):
                self._sinks.status(status)
            self._sinks.evaluation(status)
            self._reporter.status(status)
            self._warnings.status(status)

    def _notice_failures(self, follower: Follower | None) -> None:
        """Report processes that have ended. With a follower, so during the run, have lost workers restarted."""
        for index in self._workers.ended():
            worker = self._workers.children[index]
            if worker.exit_code:
                self._report_failure("worker_failed", worker, worker=worker.name)
                self._record(follower.now() if follower is not None else None)  # the newest report may be old
            if follower is not None and not self._is_finished():
                self._handle_end(index, worker, follower)
        evaluator = self._evaluator
        if evaluator is not None and evaluator.exit_code and not self._evaluator_is_seen:
            self._evaluator_is_seen = True
            self._report_failure("evaluator_failed", evaluator)

    def _report_failure(self, event: str, child: Child, **who: str) -> None:
        end_of_log = child.last_lines()
        text = child.describe_end(quote=end_of_log != self._quoted)
        self._quoted = end_of_log
        self._reporter.event(event, text, exit_code=child.exit_code, log=str(child.log), **who)

    def _handle_end(self, index: int, worker: Child, follower: Follower) -> None:
        repeated = self._repeated_error(worker)
        pause = self._workers.schedule_restart(index) if self._is_lost(worker) and not repeated else None
        attempts = self._workers.attempts(index)
        if pause is not None:
            self._reporter.event(
                "worker_restarts",
                f"{worker.name} is started again in {pause:g} s (attempt {attempts} of {len(PAUSES)})",
                worker=worker.name,
                seconds=pause,
                attempt=attempts,
            )
        elif repeated:
            self._reporter.event(
                "worker_given_up",
                f"{worker.name} is not started again, because it has failed at the same place twice, without a commit "
                f"in between: {repeated}",
                worker=worker.name,
            )
        elif worker.exit_code and attempts == len(PAUSES):
            self._reporter.event(
                "worker_given_up",
                f"{worker.name} is not started again, because it has failed {attempts + 1} times in a row",
                worker=worker.name,
            )
        follower.end_session(worker.name, f"its process {worker.describe_exit()}", comes_back=pause is not None)

    def _repeated_error(self, worker: Child) -> str:
        """Return the error with which a worker's processes end repeatedly. Empty if another attempt may help."""
        if not worker.exit_code or was_killed(worker.exit_code) or worker.name not in self._heard_workers():
            return ""
        workers = (self._outcome.last_status or {}).get("workers", ())
        commits = next((int(one.get("commits", 0)) for one in workers if one.get("name") == worker.name), 0)
        return self._failures.add(worker.name, worker.last_text(), commits)

    def _is_lost(self, worker: Child) -> bool:
        """Whether the worker should be restarted (see `worker_processes`)."""
        code = worker.exit_code
        if not code or code == USAGE or status_view.has_finished(self._outcome.last_status or {}, worker.name):
            return False
        heard = self._heard_workers()
        has_own_name = not heard <= {one.name for one in self._workers.children}  # then its name in the run is unknown
        return was_killed(code) or worker.name in heard or has_own_name

    def _start_lost_workers(self) -> None:
        if self._is_finished():
            self._workers.cancel_restarts()
        self._workers.start_due()

    def _cannot_begin(self, follower: Follower) -> bool:
        running = self._workers.count_active
        some_left = running < self._plan.workers
        seen = self._outcome.last_status
        if not some_left or running >= self._plan.min_workers or not seen or status_view.state(seen) != "WAITING":
            return False
        status = follower.now()  # may be old
        if status is None or status_view.state(status) != "WAITING":
            return False
        self._reporter.event(
            "training_failed",
            f"training cannot begin: --min-workers {self._plan.min_workers}, but workers left: {running}",
        )
        return True

    def _stop_servers(self, unless: Callable[[], bool] = lambda: False) -> None:
        for server in reversed(self._servers):  # the first ends the others
            server.send_signal(signal.SIGTERM)
        wait(self._servers, SERVER_GRACE, unless)

    def _stop(self, follower: Follower, interrupts: Interrupts) -> None:
        self._reporter.event("interrupted", "stopping: workers first, then the server; Ctrl-C again kills them")
        self._workers.cancel_restarts()
        self._evaluator_is_seen = True
        children = [*self._workers.children, *self._evaluators()]
        for child in children:
            child.send_signal(signal.SIGINT)
        wait(children, WORKER_GRACE, unless=lambda: interrupts.count > 1)
        terminate(children, (KILL, 5.0))
        self._workers.ended()
        self._record(follower.now(), follower.newest_history())
        self._stop_servers(unless=lambda: interrupts.count > 1)
        terminate(self._servers, (KILL, 10.0))
