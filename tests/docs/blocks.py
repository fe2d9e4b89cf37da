"""The fenced blocks of a Markdown page, and what their info strings say of how a test runs them.

A block that a reader types is marked `sh`, with attributes behind it that a Markdown viewer does not show:

    on=NAME       the machine: here (a newcomer's, in the checkout), server, worker-1, ...; workers: on each of them
    background    keeps running while the next blocks run, until the end of its section (## heading)
    needs=THING   only where there is one; several with commas
    show          not run: a fragment, or something with a name of the reader's own
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHELL = "sh"
HERE = "here"
MACHINE = re.compile(r"here|server|workers|worker-[1-9][0-9]*")
NEEDS = frozenset({"gpu", "systemd"})

_FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<marks>`{3,}|~{3,})[ \t]*(?P<info>[^`]*)$")
_HEADING = re.compile(r"^(?P<marks>#{1,6})[ \t]+(?P<text>.*?)[ \t]*#*[ \t]*$")


@dataclass(frozen=True)
class Command:
    """What a reader types at once: a line, with those that it continues on."""

    text: str  # as printed, with its lines and a comment at its end
    line: int  # its first line in the page, from 1


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: Path
    line: int  # of the opening fence, from 1
    section: str  # the "## heading" above it; "" before the first
    heading: str  # the nearest heading of any level
    language: str  # "" when there is none
    text: str  # without the indentation of the fence; ends with a newline unless empty
    on: str = HERE
    background: bool = False
    needs: frozenset[str] = frozenset()
    show: bool = False

    @property
    def shell(self) -> bool:
        return self.language == SHELL

    @property
    def runs(self) -> bool:
        """Whether it is for a test to run."""
        return self.shell and not self.show

    @property
    def where(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def commands(self) -> tuple[Command, ...]:
        """What is typed, in order: without empty lines and whole lines of comment."""
        return tuple(_commands(self.text, self.line + 1))


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order.

    Raises:
        ValueError: a fence that is not closed, or a shell block with an attribute that nobody knows.
    """
    return parse(page.read_text(encoding="utf-8"), page)


def parse(markdown: str, page: Path) -> list[Block]:
    """All fenced blocks of a page's text, as `blocks_of`."""
    found: list[Block] = []
    section = heading = ""
    lines = iter(enumerate(markdown.splitlines(), start=1))
    for number, line in lines:
        if title := _HEADING.match(line):
            heading = title["text"]
            if len(title["marks"]) <= 2:
                section = heading if len(title["marks"]) == 2 else ""
        elif fence := _FENCE.match(line):
            language, _, attributes = fence["info"].strip().partition(" ")
            found.append(
                Block(
                    page,
                    number,
                    section,
                    heading,
                    language,
                    _content(lines, fence, f"{page.name}:{number}"),
                    **(_attributes(attributes, f"{page.name}:{number}") if language == SHELL else {}),
                )
            )
    return found


def _content(lines: Iterator[tuple[int, str]], fence: re.Match[str], where: str) -> str:
    marks, indent = fence["marks"], len(fence["indent"])
    closing = re.compile(rf"^[ \t]*{re.escape(marks[0])}{{{len(marks)},}}[ \t]*$")
    content: list[str] = []
    for _, line in lines:
        if closing.match(line):
            return "".join(one + "\n" for one in content)
        content.append(line[min(indent, len(line) - len(line.lstrip())) :])
    raise ValueError(f"{where}: the block is never closed")


def _attributes(words: str, where: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word in words.split():
        name, equals, value = word.partition("=")
        if name in found:
            raise ValueError(f"{where}: {name} is said twice")
        if word in ("background", "show"):
            found[word] = True
        elif name == "on" and MACHINE.fullmatch(value):
            found["on"] = value
        elif name == "needs" and equals and NEEDS.issuperset(value.split(",")):
            found["needs"] = frozenset(value.split(","))
        else:
            raise ValueError(f"{where}: no test knows what {word!r} means; see the top of tests/docs/blocks.py")
    return found


def _commands(text: str, first: int) -> Iterator[Command]:
    begun: list[str] = []
    start = first
    for number, line in enumerate(text.splitlines(), start=first):
        if not begun:
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            start = number
        begun.append(line)
        if not line.endswith("\\"):
            yield Command("\n".join(begun), start)
            begun = []
    if begun:
        yield Command("\n".join(begun), start)
