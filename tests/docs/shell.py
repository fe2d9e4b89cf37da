"""Takes shell lines apart, as far as documentation uses the shell: words, assignments, pipes and lists."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_ENDS_COMMAND = re.compile(r"[;&|()]+")
_REDIRECTION = re.compile(r"&?[<>]+&?")
_KEYWORDS = frozenset({"if", "then", "elif", "else", "while", "until", "do", "done", "fi", "!", "{", "}"})
# Commands that run the command behind them, and those of their options that take a word.
_WRAPPERS = {"sudo": {"-u", "-g"}, "env": {"-u"}, "nohup": set[str](), "exec": set[str](), "time": set[str]()}


@dataclass(frozen=True)
class SimpleCommand:
    """A program and its arguments, with the variables set for it; `words` is empty where only variables are set."""

    words: tuple[str, ...]
    variables: dict[str, str]

    @property
    def program(self) -> str:
        """The program's name without its folder."""
        return PurePosixPath(self.words[0]).name if self.words else ""


def simple_commands(line: str) -> Iterator[SimpleCommand]:
    """All programs that a line starts, those inside quoted arguments like `sh -c "..."` included.

    Raises:
        ValueError: quotes that are not closed.
    """
    lexer = shlex.shlex(line.replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if not _ENDS_COMMAND.fullmatch(word):
            words.append(word)
        elif words:
            yield from _one(words)
            words = []


def _one(words: list[str]) -> Iterator[SimpleCommand]:
    variables: dict[str, str] = {}
    rest = list(words)
    while rest:
        if rest[0] in _KEYWORDS:
            rest.pop(0)
        elif _ASSIGNMENT.match(rest[0]):
            name, _, value = rest.pop(0).partition("=")
            variables[name] = value
        elif rest[0] in _WRAPPERS:
            takes_word = _WRAPPERS[rest.pop(0)]
            while rest and rest[0].startswith("-"):
                if rest.pop(0) in takes_word and rest:
                    rest.pop(0)
        else:
            break
    arguments = tuple(_without_redirections(rest))
    yield SimpleCommand(arguments, variables)
    for word in arguments[1:]:
        if " " in word and not _ASSIGNMENT.match(word):
            try:
                yield from simple_commands(word)
            except ValueError:
                continue  # a text, not a command


def _without_redirections(words: list[str]) -> list[str]:
    kept: list[str] = []
    waiting = False
    for word in words:
        if waiting:
            waiting = False
        elif _REDIRECTION.fullmatch(word):
            waiting = True
            if kept and kept[-1].isdigit():
                kept.pop()  # the 2 of 2>errors
        else:
            kept.append(word)
    return kept
