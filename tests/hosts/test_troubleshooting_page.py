"""Every message that docs/troubleshooting.md quotes is one that the software can print.

A quoted line is laid beside all texts in the source, where a placeholder stands for anything short. What is then left
of it is nothing that the software says.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs.blocks import blocks_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/troubleshooting.md"
SOURCES = ["gem_core", "server/gem_server", "worker/gem_worker", "cli/gem_cli"]

# Texts with fewer characters of their own would match anything.
LEAST_TEXT = 15
# A placeholder may stand for a name, an address, a number, or another program's words; for no sentence of ours.
LONGEST_VALUE = 60
LONGEST_LAST = 45
# What may remain between texts: a worker's name, a log level, a reason in brackets.
LONGEST_REST = 30

# Of logging and of str.format.
PLACEHOLDER = re.compile(r"%(?:\.\d+)?[sdgrf]|\{\w*\}")


def quoted_lines() -> list[str]:
    return [line for block in blocks_of(PAGE) if block.language == "text" for line in block.text.splitlines()]


def texts(tree: ast.AST) -> Iterator[list[str]]:
    """Each text of the source as its literal parts, with something between them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [""]
            for value in node.values:
                if isinstance(value, ast.Constant):
                    parts[-1] += str(value.value)
                else:
                    parts.append("")
            yield parts
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield PLACEHOLDER.split(node.value)


@cache
def patterns() -> list[re.Pattern[str]]:
    """What matches each text, with a short value at its end where it has one."""
    found = []
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for parts in texts(ast.parse(path.read_text(encoding="utf-8"))):
                if sum(len(part.strip()) for part in parts) >= LEAST_TEXT:
                    literal = [re.escape(part) for part in parts]
                    if parts[0][:1].islower():  # what to do about a problem becomes a sentence where it is shown
                        literal[0] = f"[{parts[0][0]}{parts[0][0].upper()}]{re.escape(parts[0][1:])}"
                    pattern = "(.*?)".join(literal).removeprefix("(.*?)")
                    found.append(re.compile(re.sub(r"\(\.\*\?\)$", f"(.{{0,{LONGEST_LAST}}})", pattern)))
    return found


def unsaid(line: str) -> list[str]:
    """The parts of the line, longer than a name, that no text of the source accounts for."""
    said = [False] * len(line)
    for pattern in patterns():
        for match in pattern.finditer(line):
            values = [match.span(group) for group in range(1, pattern.groups + 1)]
            long = {at for start, end in values if end - start > LONGEST_VALUE for at in range(start, end)}
            for at in set(range(*match.span())) - long:
                said[at] = True
    rest = "".join(character if not known else "\0" for character, known in zip(line, said, strict=True))
    return [part for part in rest.split("\0") if len(part) > LONGEST_REST]


def test_the_page_quotes_messages() -> None:
    assert len(quoted_lines()) > 20


@pytest.mark.parametrize("line", quoted_lines(), ids=lambda line: line[:60])
def test_the_software_can_say_what_the_page_quotes(line: str) -> None:
    assert unsaid(line) == []


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("gemps: the port of the server is busy at the moment, sorry", "is busy at the moment"),
        ("worker w1 expired: not heard of for 120 s, and its gradients were all lost", "gradients were all lost"),
        (
            "connection to 10.77.0.1:50051 lost (the moon stood between this machine and the server, in its last "
            "quarter): trying again for up to 300 s",
            "the moon stood",
        ),
    ],
)
def test_a_message_that_nobody_prints_is_found(line: str, part: str) -> None:
    assert part in "".join(unsaid(line))
