"""Measure a server, an honest worker and a health probe, each in its own process, while attackers run.

One measurement: the attackers prepare (imports, sessions); a quiet interval; the attack; five seconds without attack;
and, if the attackers used a noticeable share of a processor, an interval in which harmless processes use as much.
All processes share the machine's cores. An attacker on another machine would not take processor time from the honest
worker, so the busy interval is the baseline then. The table says which baseline each row uses.
"""

import contextlib
import json
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self

import grpc
from gem_cli.options import to_arguments
from gemps.v1 import session_pb2, worker_pb2_grpc

from tests.forms import FULL
from tests.hostile import attacks, health_probe, honest_worker
from tests.hostile.attacks import Attack, Target
from tests.hostile.recorder import Record, Window
from tests.security.authority import Authority
from tests.server_settings import keys
from tests.waiting import eventually, happens
from tests.wire.model import Model, Tensor
from tests.wire.processes import START_PATIENCE

ROOT = Path(__file__).parents[2]
MIB = 1024 * 1024

TOKEN = "worker-token-of-the-honest"
# 8 KiB, which travel whole; for shared memory 256 KiB.
SMALL_PARAMETERS, SHARED_PARAMETERS = 2_048, 64 * 1024

QUIET_SECONDS = 3.0
PEACE_SECONDS = 5.0
BURNERS_START_SECONDS = 0.3
# From this part of a processor on, the attackers' own time is made up for in the baseline.
NOTICEABLE = 0.15


@dataclass(frozen=True)
class Limits:
    """What must hold.

    p99: as a multiple of the baseline's, which counts as at least `p99_floor` (seconds): on two shared cores less is
        the scheduler's.
    lines: of the server's log, from the attack's begin until five seconds after it, beside `lines_a_session` for each
        session of the attackers (join, pull, and their end).
    """

    p99: float = 10.0
    p99_floor: float = 0.005
    health: float = 1.0
    memory_mib: float = 32.0
    lines: int = 20
    lines_a_session: int = 4


LIMITS = Limits()


@dataclass(frozen=True)
class Measured:
    """One attack, and what became of the others.

    baseline: what the honest worker did without the attack; beside `busy` processors' worth of harmless work (0: none).
    memory: anonymous memory more than before, in MiB: at most while it lasted, and five seconds after it.
    """

    attack: Attack
    transport: str
    baseline: Window
    busy: float
    during: Window
    health: Window
    peak_mib: float
    after_mib: float
    lines: int
    traceback: bool
    alive: bool
    recovered: bool
    complaints: tuple[str, ...]
    facts: Mapping[str, int]

    @property
    def ratio(self) -> float:
        return self.during.rate / self.baseline.rate if self.baseline.rate else math.inf

    @property
    def p99_ratio(self) -> float:
        return self.during.p99 / max(self.baseline.p99, LIMITS.p99_floor)

    def wrong(self) -> list[str]:
        """What must not be, whatever the machine."""
        lines = LIMITS.lines + LIMITS.lines_a_session * self.facts.get("sessions", 0)
        found = {
            "the server is gone": not self.alive,
            "a traceback in its log": self.traceback,
            "the honest worker does not go on": not self.recovered,
            f"{self.after_mib:.1f} MiB more than before, afterwards": self.after_mib > LIMITS.memory_mib,
            f"{self.peak_mib:.1f} MiB more than before, meanwhile": self.peak_mib > self.attack.peak_mib,
            f"{self.lines} lines in its log, not {lines}": self.lines > lines,
        }
        return [what for what, is_so in found.items() if is_so] + list(self.complaints)

    def beyond(self) -> list[str]:
        """The limits of time that were not kept."""
        found = {
            f"{self.ratio:.2f} of the commits/s, not {self.attack.least_ratio:g}": self.ratio < self.attack.least_ratio,
            f"p99 {self.p99_ratio:.1f} times the baseline's, not {LIMITS.p99:g}": self.p99_ratio > LIMITS.p99,
            f"health after {self.health.longest:.1f} s, not {LIMITS.health:g}": self.health.longest > LIMITS.health,
        }
        return [what for what, is_so in found.items() if is_so]


HEAD = (
    "| attack | target | honest commits/s: before, during | ratio | limit | baseline | p99 ms: before, during | ratio "
    "| health ms | memory MiB: during, after | log lines | verdict |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def row(measured: Measured) -> str:
    """The measurement as one line of the table."""
    found = measured.wrong() + measured.beyond()
    base, during = measured.baseline, measured.during
    cells = (
        measured.attack.name,
        measured.attack.target,
        f"{base.rate:.0f}, {during.rate:.0f}",
        f"{measured.ratio:.2f}",
        f"{measured.attack.least_ratio:g}",
        f"{measured.busy:.1f} processors busy" if measured.busy else "quiet",
        f"{base.p99 * 1000:.1f}, {during.p99 * 1000:.1f}",
        f"{measured.p99_ratio:.1f}",
        f"{measured.health.longest * 1000:.0f}",
        f"{measured.peak_mib:+.1f}, {measured.after_mib:+.1f}",
        f"{measured.lines}",
        "kept" if not found else "NOT KEPT: " + "; ".join(found),
    )
    return f"| {' | '.join(cells)} |"


# -- processes ---------------------------------------------------------------------------------------------------------


class Process:
    """A script of this folder, which ends when its standard input does, or is killed."""

    def __init__(self, *arguments: str, log: Path, environment: Mapping[str, str] | None = None) -> None:
        self._log = log
        with log.open("ab") as errors:
            self.popen = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
            )

    def line(self) -> str:
        """The next line that it says."""
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert line, self._log.read_text()[-4000:]
        return line

    def say(self, word: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{word}\n")
        self.popen.stdin.flush()

    def end(self, patience: float = 10.0) -> None:
        """End its input; it is killed if it does not end."""
        assert self.popen.stdin is not None
        with contextlib.suppress(OSError):
            self.popen.stdin.close()
        try:
            self.popen.wait(patience)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        assert self.popen.stdout is not None
        self.popen.stdout.close()

    @property
    def runs(self) -> bool:
        return self.popen.poll() is None


@dataclass
class Arena:
    """A server with an honest worker and a probe beside it, from `with` to its end. `needs`: see Attack."""

    folder: Path
    needs: frozenset[str] = frozenset()
    processes: list[Process] = field(default_factory=list)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._start_server()
            self._start_others()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.processes):
            if process is self.processes[0]:
                process.popen.terminate()  # the server drains
            process.end()
        self.processes = []

    # -- the server ----------------------------------------------------------------------------------------------------

    def _start_server(self) -> None:
        ready = self.folder / "ready.json"
        settings = {
            "bind": "127.0.0.1:0",
            "ready_file": str(ready),
            "threads": "1",
            **self._settings(),
        }
        flags = to_arguments(keys(settings))
        self.log = self.folder / "server.log"
        self.server = self._process("-c", "from gem_cli.main import main; main()", "serve", *flags)
        eventually(lambda: ready.exists() or not self.server.runs, self.log.read_text, patience=START_PATIENCE)
        assert ready.exists(), self.log.read_text()
        told = json.loads(ready.read_text())
        self.address, self.dashboard = told["address"], told.get("dashboard", "")

    def _settings(self) -> dict[str, str]:
        settings: dict[str, str] = {}
        self.ca_file = self.token = self.socket = ""
        if "tls" in self.needs:
            authority = Authority(self.folder)
            certificate, key = authority.pair("server").write(self.folder, "server")
            settings |= {"tls_cert": str(certificate), "tls_key": str(key)}
            self.ca_file = str(authority.file)
        if "tokens" in self.needs:
            tokens = self.folder / "tokens"
            tokens.write_text(f"worker {TOKEN}\n")
            settings["tokens"] = str(tokens)
            self.token = TOKEN
        if "shared memory" in self.needs:
            self.socket = str(self.folder / "shm.sock")
            settings["shared_memory_socket"] = self.socket
        if "dashboard" in self.needs:
            settings["dashboard"] = "127.0.0.1:0"
        return settings

    def alive(self) -> bool:
        return self.server.runs

    def memory(self) -> float:
        """The server's anonymous memory, in MiB."""
        for line in Path(f"/proc/{self.server.popen.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024
        return 0.0

    def logged(self) -> list[str]:
        return self.log.read_text().splitlines()

    # -- the others ----------------------------------------------------------------------------------------------------

    def _process(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Process:
        server = not self.processes
        log = self.log if server else self.folder / "others.log"
        process = Process(*arguments, log=log, environment=environment)
        self.processes.append(process)
        return process

    def _start_others(self) -> None:
        parameters = SHARED_PARAMETERS if self.socket else SMALL_PARAMETERS
        credentials = {"GEMPS_CLIENT_TOKEN": self.token} if self.token else {}
        credentials |= {"GEMPS_CLIENT_TLS_CA": self.ca_file} if self.ca_file else {}
        record = self.folder / "commits"
        self.honest = self._process(
            honest_worker.__file__, self.address, "honest", str(parameters), str(record), environment=credentials
        )
        told = json.loads(self.honest.line())
        self.transport = told["transport"]
        self.commits = Record(record)
        record = self.folder / "probes"
        self._process(health_probe.__file__, self.address, str(record), self.ca_file)
        eventually(lambda: record.exists() and record.stat().st_size and Record(record).count, patience=START_PATIENCE)
        self.probes = Record(record)
        self.target = self._look(parameters, told["session"])

    def _look(self, parameters: int, session: str) -> Target:
        """What anybody learns who may join."""
        request = session_pb2.JoinRequest(
            session_id=os.urandom(16),
            worker_name="scout",
            host_id="host",
            layout=Model((Tensor("weight", (parameters,)),)).to_proto(),
        )
        metadata = (("authorization", f"Bearer {self.token}"),) if self.token else ()
        with self.channel() as channel:
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            joined = stub.Join(request, metadata=metadata, timeout=30)
            leave = session_pb2.LeaveRequest(session_id=request.session_id, reason="finished")
            stub.Leave(leave, metadata=metadata, timeout=30)
        return Target(
            address=self.address,
            parameters=parameters,
            incarnation=joined.incarnation,
            session=session,
            commit_port=getattr(joined, "commit_port", 0),
            lane_port=getattr(joined, "lane_port", 0),
            dashboard=self.dashboard,
            shared_memory_socket=self.socket,
            token=self.token,
            ca_file=self.ca_file,
        )

    def channel(self) -> grpc.Channel:
        options = health_probe.OWN_CONNECTION
        if not self.ca_file:
            return grpc.insecure_channel(self.address, options)
        credentials = grpc.ssl_channel_credentials(Path(self.ca_file).read_bytes())
        return grpc.secure_channel(self.address, credentials, options)

    # -- measuring -----------------------------------------------------------------------------------------------------

    def measure(self, attack: Attack) -> Measured:
        """Run the attack, and measure all others."""
        assert self.target.lane_port
        seconds = attack.seconds if FULL else attack.short_seconds
        processes = attack.processes if FULL else 1
        attackers = [self._attacker(attack, seconds, number) for number in range(processes)]
        try:
            for one in attackers:
                assert one.line() == "ready\n"
            before, lines = self.memory(), len(self.logged())
            quiet = self._interval(QUIET_SECONDS if FULL else 0.1)
            began = time.monotonic()
            for one in attackers:
                one.say("go")
            seen = [before]

            def is_over() -> bool:
                seen.append(self.memory())
                return not (self.alive() and any(one.runs for one in attackers))

            happens(is_over, patience=seconds, interval=0.05)
            ended = time.monotonic()
            during = self.commits.window(began, ended)
            said = [json.loads(one.line()) for one in attackers]
        finally:
            for one in attackers:
                one.end()
                self.processes.remove(one)
        recovered = self._recovers()
        after = self._rest(before)
        health = self.probes.window(began, ended + 0.5)
        new = self.logged()[lines:]
        busy = sum(one["processor_seconds"] for one in said) / (ended - began)
        baseline, busy = self._baseline(quiet, busy, processes)
        facts: dict[str, int] = {}
        for one in said:
            for name, value in one["facts"].items():
                known = facts.get(name, 0)
                facts[name] = max(known, value) if name.endswith("_ms") else known + value
        return Measured(
            attack=attack,
            transport=self.transport,
            baseline=baseline,
            busy=busy,
            during=during,
            health=health,
            peak_mib=max(seen) - before,
            after_mib=after - before,
            lines=len(new),
            traceback=any("Traceback" in line for line in new),
            alive=self.alive(),
            recovered=recovered,
            complaints=tuple(text for one in said for text in one["complaints"]),
            facts=facts,
        )

    def _attacker(self, attack: Attack, seconds: float, number: int) -> Process:
        told = {
            "of": attack.target,
            "attack": attack.name,
            "target": asdict(replace(self.target, number=number)),
            "seconds": seconds,
        }
        return self._process("-m", attacks.__name__, json.dumps(told))

    def _interval(self, seconds: float) -> Window:
        began = time.monotonic()
        time.sleep(seconds)
        return self.commits.window(began, time.monotonic())

    def _recovers(self) -> bool:
        """Whether the honest worker commits and the probe is answered, now that the attack is over."""
        commits, probes = self.commits.count, self.probes.count

        def is_back() -> bool:
            return self.commits.count >= commits + 3 and self.probes.count >= probes + 2

        happens(lambda: is_back() or not (self.alive() and self.honest.runs), patience=20.0)
        return is_back() and (bool(self.ca_file) or self._lane_answers(20.0))

    def _lane_answers(self, seconds: float) -> bool:
        """Whether the lane answers a new connection in time: after a storm it accepts up to 4096 others first."""
        try:
            with socket.create_connection(("127.0.0.1", self.target.lane_port), seconds) as connection:
                connection.sendall(bytes(16))
                connection.recv(1)
        except ConnectionResetError:
            return True
        except OSError:
            return False
        return True

    def _rest(self, before: float) -> float:
        """Memory after the seconds of peace; in the quick form as soon as it is what it should be."""

        def is_over() -> bool:
            return not self.alive() or (not FULL and self.memory() <= before + LIMITS.memory_mib)

        happens(is_over, patience=PEACE_SECONDS, interval=0.1)
        return self.memory() if self.alive() else 0.0

    def _baseline(self, quiet: Window, busy: float, processes: int) -> tuple[Window, float]:
        """(the baseline, processors that were busy in it)."""
        if not FULL or busy < NOTICEABLE:
            return quiet, 0.0
        share = min(busy / processes, 1.0)
        burners = [self._process("-c", BURNER, str(share)) for _ in range(processes)]
        try:
            time.sleep(BURNERS_START_SECONDS)
            return self._interval(QUIET_SECONDS), busy
        finally:
            for one in burners:
                one.end()
                self.processes.remove(one)


# Takes a part of a processor until its input ends, in slices of 10 ms.
BURNER = """
import sys, threading, time
share = float(sys.argv[1])
done = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
while not done.is_set():
    until = time.thread_time() + 0.01 * share
    began = time.monotonic()
    while time.thread_time() < until:
        pass
    time.sleep(max(0.0, 0.01 - (time.monotonic() - began)))
"""

Measure = Callable[[Attack], Measured]


def judge(measured: Measured) -> None:
    """Fail when a limit was not kept; those of time only where they are measured."""
    found = measured.wrong() + (measured.beyond() if FULL else [])
    assert not found, f"{measured.attack.name}: {'; '.join(found)}\n{dict(measured.facts)}\n{HEAD}\n{row(measured)}"
