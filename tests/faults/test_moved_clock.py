"""The clock is moved by a day, there and back, while workers train: nothing goes by it."""

import asyncio
import itertools
import json
import random
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from gem_worker.client import ClientSettings, Observer

from tests.cli.processes import PATIENCE, command, gemps, json_lines, started, wait_for
from tests.faults.history import Deltas, History
from tests.faults.load import LoggedWorker
from tests.faults.moved_clock import DAY, MovedClock
from tests.faults.processes import count
from tests.figures import Figures
from tests.wire.model import SMALL
from tests.wire.serving import Endpoint
from tests.wire.worker import RawWorker, all_of

# Between the time at which a line was written and the one at which it was read: the machine may be busy.
BUSY_SECONDS = 600.0
# Between two moves: longer than between two ticks of the server.
MOVED_SECONDS = (0.6, 1.0)


class MovedServer:
    """`gemps serve` with a clock of its own; started again it has the same port, and goes on with the same run."""

    def __init__(self, folder: Path, clock: MovedClock, *options: str) -> None:
        self._folder = folder
        self.clock = clock
        self._options = ("--durability=commit", f"--data-dir={folder / 'state'}", "--resume", *options)
        self._logs: list[Path] = []
        self.port = 0

    @property
    def said(self) -> str:
        """Its log, over all its starts."""
        return "".join(log.read_text(encoding="utf-8") for log in self._logs)

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """One start; killed at the end of the block, unless it has ended."""
        ready = self._folder / "ready.json"
        ready.unlink(missing_ok=True)
        log = self._folder / f"server-{len(self._logs)}.log"
        self._logs.append(log)
        told = (f"--bind=127.0.0.1:{self.port}", f"--ready-file={ready}", *self._options)
        with started(command("serve", *told), log, self.clock.env) as process:
            wait_for(ready.exists, process, log)
            self.port = json.loads(ready.read_text(encoding="utf-8"))["port"]
            yield process

    def date_of(self, words: str) -> datetime:
        """When the server says that it wrote the line with these words."""
        (line,) = [line for line in self.said.splitlines() if words in line]
        return datetime.strptime(line[:19], "%Y-%m-%d %H:%M:%S")


def is_about(date: datetime, clock: MovedClock) -> bool:
    """Whether a process with this clock can have written this date just now."""
    return abs((date - datetime.now()).total_seconds() - clock.seconds) < BUSY_SECONDS


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_servers_clock_moves_by_a_day_and_back_under_load(tmp_path: Path, figures: Figures) -> None:
    clock = MovedClock(tmp_path / "moved-by")
    server = MovedServer(tmp_path, clock)
    log = History(SMALL, SMALL.random_values(0))
    seeds = itertools.count(1)
    workers = [LoggedWorker(f"worker-{number}", SMALL, log, seeds) for number in range(4)]
    silent = workers[-1]
    draw = random.Random(15)
    moves = 0
    for last in (False, True):
        with server.running() as process:
            address = f"127.0.0.1:{server.port}"
            await workers[0].connect(address)
            await all_of(*(worker.connect(address) for worker in workers[1:]))
            training = [asyncio.create_task(worker.train_until_gone()) for worker in workers[:-1]]
            for _ in range(count(2, 50)):
                clock.move(draw.choice([seconds for seconds in (-DAY, 0, DAY) if seconds != clock.seconds]))
                moves += 1
                await asyncio.sleep(draw.uniform(*MOVED_SECONDS))
                await visit(address, f"visitor-{moves}")
                assert is_about(server.date_of(f"worker visitor-{moves} joined"), clock), "nothing was moved"
            for worker in workers if last else ():
                worker.stopped = True
            if not last:
                process.kill()
                clock.move(-DAY if clock.seconds >= 0 else 0)  # it comes back on another day
            await asyncio.wait_for(asyncio.gather(*training), PATIENCE)
            if last:
                silent.stopped = False
                await silent.train(2)  # as if nothing had been
                endpoint = Endpoint(address)
                assert bytes((await endpoint.read(SMALL)).payload) == log.rebuild(Deltas(SMALL))
                await endpoint.close()
            for worker in workers:
                await worker.close()
    expired, stalled = server.said.count("expired"), server.said.count("stalled")
    figures(
        "server's clock moved by a day, both ways",
        f"{moves} moves and a SIGKILL; {len(log.commits)} commits, 0 lost, 0 twice, parameters bit-equal; sessions "
        f"expired: {expired}, uploads given up: {stalled}",
    )
    assert (expired, stalled) == (0, 0)


async def visit(address: str, name: str) -> None:
    """So that the server writes a line."""
    worker = RawWorker(address, SMALL, name)
    await worker.join()
    await worker.leave()
    await worker.close()


class MovedWorker:
    """`gemps work` with a clock of its own, which logs every step."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.clock = MovedClock(folder / f"{name}-moved-by")
        self._log = folder / f"{name}.log"

    @contextmanager
    def running(self, address: str, credentials: Path) -> Iterator[None]:
        told = (address, f"--worker-name={self.name}", f"--credentials={credentials}", "--device=cpu")
        work = command("work", *told, "--log-format=json", "--log-interval=0")
        with started(work, self._log, self.clock.env) as self._process:
            yield

    def steps(self) -> list[dict[str, Any]]:
        whole_lines = self._log.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()
        told = json_lines("\n".join(line for line in whole_lines if line.startswith("{")))
        return [line for line in told if "clock" in line]

    def trains_on(self) -> None:
        """Returns when it has made some steps more; it wrote them down with the date of its clock."""
        before = len(self.steps())
        wait_for(lambda: len(self.steps()) > before + 5, self._process, self._log)
        assert is_about(datetime.fromtimestamp(self.steps()[-1]["time"]), self.clock), "nothing was moved"

    def exit_code(self) -> int:
        return self._process.wait(PATIENCE)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_clocks_of_server_and_workers_move_by_a_day_under_training_with_tls(tmp_path: Path, figures: Figures) -> None:
    """The certificates are from today; one worker starts as if it were yesterday, one as if it were tomorrow."""
    certificates = tmp_path / "certs"
    assert gemps("certs", str(certificates)).returncode == 0
    server = MovedServer(tmp_path, MovedClock(tmp_path / "moved-by"), f"--credentials={certificates / 'server'}")
    workers = [MovedWorker(tmp_path, name) for name in ("early", "late")]
    clocks = [worker.clock for worker in workers]
    moves = 0

    def move(*days: int) -> None:
        nonlocal moves
        moves += len(days)
        for clock, by in zip((*clocks, server.clock), days, strict=True):
            clock.move(by * DAY)

    move(-1, 1, 0)
    with ExitStack() as running:
        with server.running():
            address = f"localhost:{server.port}"
            for worker in workers:
                running.enter_context(worker.running(address, certificates / "worker"))
            for days in ((1, -1, 0), (0, 0, 1), (-1, 1, 1)):
                move(*days)
                for worker in workers:
                    worker.trains_on()
        move(1, -1, -1)
        with server.running() as process:
            for worker in workers:
                worker.trains_on()
            operator = ClientSettings(credentials=certificates / "operator")
            with Observer(address, settings=operator) as observer:
                observer.control("finish", "the test has seen enough")
                assert [worker.exit_code() for worker in workers] == [0, 0]
            process.terminate()
            assert process.wait(PATIENCE) == 0
    state = json.loads((tmp_path / "state/latest/state.json").read_text(encoding="utf-8"))
    ledger = {worker["name"]: worker["commits"] for worker in state["workers"]}
    steps = {worker.name: worker.steps() for worker in workers}
    applied = [(line["incarnation"], line["clock"]) for lines in steps.values() for line in lines]
    figures(
        "clocks of server and two workers moved, TLS",
        f"{moves} moves, certificates accepted on all days, a SIGKILL; {state['commits']} commits, "
        f"{len(applied) - len(set(applied))} twice; sessions expired: {server.said.count('expired')}",
    )
    assert {name: len(lines) for name, lines in steps.items()} == ledger
    assert len(set(applied)) == len(applied) == state["commits"]
    for lines in steps.values():
        assert [line["sequence"] for line in lines] == list(range(1, len(lines) + 1))
    assert "expired" not in server.said
    assert "stalled" not in server.said
