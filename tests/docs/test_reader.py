"""How blocks are typed: shown with small pages on this machine."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.docs.blocks import parse
from tests.docs.reader import Outcome, Reader

PAGE = Path("page.md")


@dataclass(frozen=True)
class ThisMachine:
    name: str
    folder: Path

    def on(self, *words: str) -> list[str]:
        return ["env", f"--chdir={self.folder}", f"MACHINE={self.name}", *words]


def read(
    folder: Path, *blocks: str, machines: Sequence[str] = ("here",), grace: float = 20, **options: Any
) -> list[Outcome]:
    """Type a page that consists of these: "attributes: lines" or "## heading"."""
    parts = []
    for block in blocks:
        attributes, _, text = block.partition(": ")
        parts.append(block if block.startswith("#") else f"```sh {attributes}\n{text}\n```")
    made = {name: ThisMachine(name, folder / name) for name in machines}
    for machine in made.values():
        machine.folder.mkdir()
    return Reader(grace=grace, quiet=0.3, **options).read(parse("\n".join(parts), PAGE), made)


def codes(outcomes: list[Outcome]) -> list[int | None]:
    return [one.code for one in outcomes]


def test_each_command_has_its_line_machine_seconds_and_exit_code(tmp_path: Path) -> None:
    first, second = read(tmp_path, ": sleep 0.2\n\n# comment\ntrue   # does nothing")
    assert (first.page, first.line, first.command, first.machine, first.code) == ("page.md", 2, "sleep 0.2", "here", 0)
    assert (second.line, second.command, second.code) == (5, "true   # does nothing".replace("   ", " "), 0)
    assert first.seconds is not None
    assert first.seconds >= 0.2
    assert second.seconds is not None
    assert not first.failed


def test_a_block_ends_at_its_first_failure_and_the_next_blocks_are_typed_all_the_same(tmp_path: Path) -> None:
    outcomes = read(tmp_path, ": true\nsh -c 'exit 3'\ntouch never", ": touch yes")
    assert codes(outcomes) == [0, 3, None, 0]
    assert [one.failed for one in outcomes] == [False, True, True, False]
    assert outcomes[2].remark == "not reached"
    assert [one.name for one in (tmp_path / "here").glob("[yn]e*")] == ["yes"]


def test_a_machine_has_one_terminal(tmp_path: Path) -> None:
    outcomes = read(
        tmp_path,
        ": mkdir -p folder && cd folder\nexport COLOUR='dark  red'",
        'on=server: test -z "$COLOUR"\ntest "$MACHINE" = server',
        ': test "$COLOUR" = "dark  red"\ntest "${PWD##*/}" = folder',
        machines=["here", "server"],
    )
    assert codes(outcomes) == [0] * 6


def test_commands_over_several_lines_and_loops_are_timed_from_their_first_line(tmp_path: Path) -> None:
    outcomes = read(tmp_path, ": A=1 \\\n  sleep 0.2\nfor i in 1 2; do\n  sleep 0.1\ndone\ntrue")
    assert codes(outcomes) == [0] * 5
    assert [one.line for one in outcomes] == [2, 4, 5, 6, 7]
    assert outcomes[0].seconds is not None
    assert outcomes[0].seconds >= 0.2
    assert outcomes[0].command == "A=1 sleep 0.2"


def serving(code: int = 0, *, until: str = "SIGTERM") -> str:
    """A program that says something, and ends with `code` on SIGTERM or when there is a file `until`."""
    program = (
        "import pathlib, signal, sys, time; print(1, flush=True); "
        f"signal.signal(signal.SIGTERM, lambda *_: sys.exit({code})); "
        f"[time.sleep(0.1) for _ in iter(lambda: pathlib.Path({until!r}).exists(), True)]; sys.exit({code})"
    )
    return f'{sys.executable} -c "{program}"'


def test_what_runs_in_the_background_is_ended_with_its_section(tmp_path: Path) -> None:
    outcomes = read(
        tmp_path,
        "## One",
        f"background: {serving()}",
        ': kill -0 -- -"$(cat 001-*.pid)"',
        "## Two",
        ': if kill -0 -- -"$(cat 001-*.pid)"; then exit 1; fi',
        grace=0,
    )
    assert codes(outcomes) == [0, 0, 0]


def test_what_ends_by_itself_within_its_section_is_not_signalled(tmp_path: Path) -> None:
    outcomes = read(tmp_path, f"background: {serving(0, until='done')}\ntouch after", ": touch done")
    assert codes(outcomes) == [0, 0, 0]
    assert (tmp_path / "here" / "after").exists()


def test_another_exit_code_than_0_in_the_background_is_a_failure(tmp_path: Path) -> None:
    outcomes = read(tmp_path, f"background: {serving(143)}", ": true", grace=0)
    assert codes(outcomes) == [143, 0]


def test_workers_are_all_machines_that_are_called_so(tmp_path: Path) -> None:
    outcomes = read(tmp_path, "on=workers: echo $MACHINE > name", machines=["here", "server", "worker-1", "worker-2"])
    assert [one.machine for one in outcomes] == ["worker-1", "worker-2"]
    assert (tmp_path / "worker-2" / "name").read_text() == "worker-2\n"


def test_what_needs_a_thing_that_is_not_there_is_reported_as_skipped(tmp_path: Path) -> None:
    outcomes = read(tmp_path, "needs=gpu,systemd: touch never", "needs=systemd: true", things=frozenset({"systemd"}))
    assert codes(outcomes) == [None, 0]
    assert outcomes[0].remark == "skipped: no gpu here"
    assert not outcomes[0].failed


def test_commands_left_out_are_reported_with_the_reason(tmp_path: Path) -> None:
    outcomes = read(tmp_path, ": touch never  # minutes\ntouch yes", left_out={"touch never": "takes long"})
    assert codes(outcomes) == [None, 0]
    assert outcomes[0].remark == "skipped: takes long"
    assert not (tmp_path / "here" / "never").exists()


def test_what_is_only_shown_is_not_typed(tmp_path: Path) -> None:
    assert read(tmp_path, "show: false") == []
