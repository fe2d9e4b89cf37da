"""A reader who types every block of a page, in its order, each on the machine that it names."""

import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Protocol

from tests.docs.blocks import Block, Command
from tests.waiting import happens

TERMINAL = Path(__file__).with_name("terminal.sh")
WORKERS = "workers"
PATIENCE = (
    5400.0  # seconds for a block, of which `make test` on a busy machine needs the most; nothing is measured by it
)


class Machine(Protocol):
    """Where commands run."""

    @property
    def name(self) -> str:
        """As blocks call it."""

    @property
    def folder(self) -> Path:
        """Files that this test and the machine share, under one path."""

    def on(self, *words: str) -> list[str]:
        """Return what this test has to run so that the machine runs `words` in the folder where its reader begins."""


@dataclass(frozen=True)
class Outcome:
    """What became of a command that a page prints, on one machine."""

    page: str
    line: int
    command: str
    machine: str
    seconds: float | None  # None when it did not run
    code: int | None
    remark: str  # why it did not run, or what went wrong
    log: Path  # all that its block printed

    @property
    def skipped(self) -> bool:
        return self.remark.startswith(SKIPPED)

    @property
    def failed(self) -> bool:
        return self.code != 0 and not self.skipped

    def last_words(self, lines: int = 40) -> str:
        """The end of what its block printed."""
        printed = self.log.read_text(encoding="utf-8", errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(printed[-lines:])


SKIPPED = "skipped: "


class Reader:
    """Types blocks and waits for them.

    Args:
        things: what the machines have of what blocks may need.
        left_out: commands that are not typed, and why.
        tell: takes a line about what happens.
        grace: seconds in which programs in the background may end by themselves when their section does.
        quiet: seconds without another word after which a program in the background counts as started.
    """

    def __init__(
        self,
        *,
        things: frozenset[str] = frozenset(),
        left_out: Mapping[str, str] | None = None,
        tell: Callable[[str], None] = lambda line: None,
        grace: float = 30.0,
        quiet: float = 2.0,
    ) -> None:
        self._things = things
        self._left_out = left_out or {}
        self._tell = tell
        self._grace = grace
        self._quiet = quiet
        self._last: dict[Machine, _Typed] = {}  # the newest block that has ended
        self._number = 0

    def read(self, blocks: Iterable[Block], machines: Mapping[str, Machine]) -> list[Outcome]:
        """Type all blocks that are to be run; a block that fails does not keep the next ones from running.

        Args:
            blocks: of a page, in order.
            machines: by name; those called worker-1, worker-2, ... are `workers`.
        """
        outcomes: list[Outcome] = []
        for _, section in groupby((one for one in blocks if one.runs), key=lambda one: (one.page, one.section)):
            typed: list[_Typed] = []
            try:
                for block in section:
                    typed += self._type(block, _where(block, machines))
                self._end(one for one in typed if one.running)
            finally:
                for one in typed:
                    one.kill()
            outcomes += [outcome for one in typed for outcome in one.outcomes()]
        return outcomes

    def _type(self, block: Block, machines: Iterable[Machine]) -> "list[_Typed]":
        """Type a block on each of the machines, and wait for it, or until it has begun if it is for the background."""
        typed = []
        for machine in machines:
            self._number += 1
            one = _Typed(block, machine, f"{self._number:03}", self._left_out)
            typed.append(one)
            missing = block.needs - self._things
            if missing:
                one.skip(f"no {' and no '.join(sorted(missing))} here")
            self._tell(f"{block.where} on {machine.name}: {one.skipped or one.summary}")
            if not missing:
                one.start(self._last.get(machine))
                if not block.background:
                    one.wait(PATIENCE)
                    self._last[machine] = one
        for one in typed:
            if one.running:
                one.settle(self._quiet)
        return typed

    def _end(self, running: Iterable["_Typed"]) -> None:
        """End what runs in the background: the newest first, since servers begin before those who use them."""
        left = list(running)
        happens(lambda: not any(one.running for one in left), patience=self._grace, interval=0.2)
        for one in reversed(left):
            if one.running:
                one.terminate()
                one.wait(PATIENCE)


def _where(block: Block, machines: Mapping[str, Machine]) -> list[Machine]:
    if block.on == WORKERS:
        return [machine for name, machine in machines.items() if name.startswith("worker-")]
    return [machines[block.on]]


class _Typed:
    """A block that is typed on one machine."""

    def __init__(self, block: Block, machine: Machine, name: str, left_out: Mapping[str, str]) -> None:
        self.block = block
        self.machine = machine
        self.skipped = ""
        self._left_out = left_out
        self._base = machine.folder / f"{name}-{block.page.stem}-{block.line}"
        self._process: subprocess.Popen[bytes] | None = None
        self._remark = ""

    def skip(self, why: str) -> None:
        self.skipped = SKIPPED + why

    @property
    def summary(self) -> str:
        return " && ".join(one_line(command.text) for command in self.block.commands)

    def file(self, ending: str) -> Path:
        return self._base.with_name(f"{self._base.name}.{ending}")

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, before: "_Typed | None") -> None:
        terminal = self.machine.folder / TERMINAL.name
        terminal.write_bytes(TERMINAL.read_bytes())
        if before is not None and before.file("after").exists():
            self.file("before").write_bytes(before.file("after").read_bytes())
        script = self.file("sh")
        script.write_text(f". '{terminal}' '{self._base}'\n{self._text()}", encoding="utf-8")
        with self.file("log").open("wb") as log:
            self._process = subprocess.Popen(
                self.machine.on("bash", str(script)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _text(self) -> str:
        """The block as printed, with `:` in the place of what is left out."""
        rows = self.block.text.splitlines()
        for command in self.block.commands:
            if _bare(command) in self._left_out:
                rows[command.line - self.block.line - 1] = ":"
        return "".join(row + "\n" for row in rows)

    def settle(self, quiet: float) -> None:
        """Wait as a reader does before typing on in another terminal: until it has said something and is quiet."""
        size, since = 0, time.monotonic()

        def is_quiet() -> bool:
            nonlocal size, since
            now = self.file("log").stat().st_size
            if now != size:
                size, since = now, time.monotonic()
            return not self.running or (size > 0 and time.monotonic() >= since + quiet)

        happens(is_quiet, patience=120.0, interval=0.1)

    def wait(self, patience: float) -> None:
        assert self._process is not None
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._remark = f"did not end within {patience:.0f} s"
            self.kill()

    def terminate(self) -> None:
        self._signal("TERM")

    def kill(self) -> None:
        if self.running:
            self._signal("KILL")
            assert self._process is not None
            self._process.wait(60)

    def _signal(self, name: str) -> None:
        pid = self.file("pid").read_text().strip()
        subprocess.run(self.machine.on("bash", "-c", f"kill -{name} -- -{pid}"), check=False, capture_output=True)

    def outcomes(self) -> Iterator[Outcome]:
        """One for each command."""
        commands = self.block.commands
        began = [self._began(command, after) for command, after in zip(commands, [*commands[1:], None], strict=True)]
        for number, command in enumerate(commands):
            start = began[number]
            later = [one for one in began[number + 1 :] if one is not None]
            seconds = None if start is None else (later or [self._ended()])[0] - start
            code = 0 if later else self._code()
            remark = "" if later else self._remark
            if self.skipped:
                remark = self.skipped
            elif _bare(command) in self._left_out:
                seconds, code, remark = None, None, SKIPPED + self._left_out[_bare(command)]
            elif start is None and code != 0:  # with 0 it is the `done` of a loop, say
                code, remark = None, "not reached"
            yield Outcome(
                self.block.page.name,
                command.line,
                one_line(command.text),
                self.machine.name,
                seconds,
                code,
                remark,
                self.file("log"),
            )

    def _code(self) -> int | None:
        return None if self._process is None else self._process.returncode

    def _began(self, command: Command, after: Command | None) -> float | None:
        """When the first program of its lines started."""
        lines = range(command.line, after.line if after else self.block.line + self.block.text.count("\n") + 1)
        found = [float(at) for line, at in self._progress() if line.isdigit() and self._in_page(line) in lines]
        return found[0] if found else None

    def _in_page(self, line: str) -> int:
        return self.block.line + int(line) - 1  # the script's first line stands in the place of the fence

    def _ended(self) -> float:
        return next((float(at) for line, at in self._progress() if line == "end"), time.time())

    def _progress(self) -> list[list[str]]:
        file = self.file("progress")
        return [row.split() for row in file.read_text().splitlines()] if file.exists() else []


def one_line(text: str) -> str:
    """A command as printed, without the breaks of its lines."""
    return " ".join(text.replace("\\\n", " ").split())


def _bare(command: Command) -> str:
    return one_line(command.text).partition(" #")[0].strip()
