"""What every page tells a reader to type exists: options, values, make targets, files, services.

This is the quick half. `python -m pytest -m printed` runs the commands of README.md and docs/deploy.md as printed.
"""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from gem_cli import gone
from gem_cli.options import flag

from tests.docs import command_line
from tests.docs.blocks import Block, blocks_of
from tests.docs.shell import SimpleCommand, simple_commands

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "docker").rglob("*.md")])

LANGUAGES = frozenset({"sh", "python", "toml", "yaml", "ini", "json", "proto", "bibtex", "text", "diff"})
LANGUAGES |= {"go", "rust", "java", "cpp", "typescript"}
COMPOSE = frozenset({"build", "config", "cp", "down", "exec", "logs", "ps", "restart", "run", "start", "stop", "up"})
# Flags that pages name in their text and that are other programs'.
BENCH = (ROOT / "benchmarks" / "bench.py").read_text(encoding="utf-8")
OTHER_FLAGS = frozenset({"--scale", "--build", "--profile", "--volumes", "--", *re.findall(r'"(--[\w-]+)"', BENCH)})
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
WORD_OF_THE_READERS = re.compile(r"\b[A-Z][A-Z_]+\b|[.…]{3}|<")  # ADDRESS, COMMAND, N: to be replaced

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def lines(page: Path) -> Iterator[tuple[str, str]]:
    """(place, line) of everything that a reader may type: lines of shell blocks, and commands within the text."""
    blocks = blocks_of(page)
    for block in blocks:
        if block.shell:
            yield from ((f"{page.name}:{command.line}", command.text) for command in block.commands)
    for number, text in prose(page, blocks):
        for span in SPAN.finditer(text):
            line = " ".join(span[1].split())
            if re.match(r"([A-Z_]+=\S+ )*(gemps|make|docker compose|python\d?) \S", line):
                yield f"{page.name}:{number + text[: span.start()].count(chr(10))}", line


def prose(page: Path, blocks: list[Block]) -> Iterator[tuple[int, str]]:
    """(number of its first line, text) of each paragraph outside of blocks."""
    inside = {number for block in blocks for number in range(block.line, block.line + block.text.count("\n") + 2)}
    paragraph: list[str] = []
    rows = page.read_text(encoding="utf-8").splitlines()
    for number, row in enumerate([*rows, ""], start=1):
        if row.strip() and number not in inside:
            paragraph.append(row)
        elif paragraph:
            yield number - len(paragraph), "\n".join(paragraph)
            paragraph = []


def programs(page: Path) -> Iterator[tuple[str, SimpleCommand]]:
    return ((place, one) for place, line in lines(page) for one in simple_commands(line))


@pages
def test_every_block_says_its_language(page: Path) -> None:
    unknown = [(block.where, block.language) for block in blocks_of(page) if block.language not in LANGUAGES]
    assert unknown == [], "what a reader types is marked sh, all else as what it is"


@pages
def test_shell_blocks_are_bash(page: Path) -> None:
    for block in blocks_of(page):
        if block.shell:
            checked = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
            assert (checked.returncode, checked.stderr) == (0, ""), block.where


@pages
def test_gemps_takes_the_options_and_values_of_every_line(page: Path) -> None:
    removed = what_is_gone(page)
    wrong = [f"{place}: {said}" for place, one in programs(page) if (said := objection(one))]
    assert [said for said in wrong if said.split()[-1] not in removed] == []


def what_is_gone(page: Path) -> set[str]:
    """Commands and flags that are removed, and that this page may name all the same: only the changelog may."""
    return {*gone.COMMANDS, *map(flag, gone.SETTINGS)} if page.name == "CHANGELOG.md" else set()


def objection(one: SimpleCommand) -> str:
    words = list(one.words)
    if one.program == "docker":  # docker compose exec server gemps status
        while words and words[0] != "gemps":
            words.pop(0)
    elif one.program != "gemps":
        words = []
    if words and any(WORD_OF_THE_READERS.search(word) for word in words[1:2]):
        return ""  # gemps COMMAND --help
    return command_line.objection(words[1:], one.variables)


@pages
def test_flags_named_in_the_text_exist(page: Path) -> None:
    named = {
        span[1].split()[0].partition("=")[0]
        for _, text in prose(page, blocks_of(page))
        for span in SPAN.finditer(text)
        if span[1].startswith("--")
    }
    assert named - command_line.flags() - OTHER_FLAGS - what_is_gone(page) == set()


@pages
def test_toml_blocks_are_settings(page: Path) -> None:
    for block in blocks_of(page):
        if block.language == "toml":
            values = tomllib.loads(block.text)
            assert values, block.where
            assert command_line.refused_keys(values) == "", block.where


@pages
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {
        word
        for _, one in programs(page)
        if one.program == "make"
        for word in one.words[1:]
        if "=" not in word and not word.startswith(("-", ".venv/"))
    }
    assert named <= targets


@pages
def test_files_named_in_commands_exist(page: Path) -> None:
    # Not runs: what commands write there is the reader's own.
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")} - {"runs"}
    written = {block.text.splitlines()[0].removeprefix("# ") for block in blocks_of(page) if block.text}
    missing = [
        f"{place}: {word}"
        for place, one in programs(page)
        for word in one.words[1:]
        if re.fullmatch(r"[\w.@-]+(/[\w.@-]+)*", word)
        and (word.partition("/")[0] in folders or re.search(r"\.(py|ya?ml|toml|service|Dockerfile)$", word))
        and not WORD_OF_THE_READERS.search(word)
        and word not in written
        and not any((base / word).exists() for base in (ROOT, ROOT / "examples"))
    ]
    assert missing == []


@pages
def test_compose_lines_name_files_commands_and_services_that_exist(page: Path) -> None:
    services = set(re.findall(r"^  ([a-z]+):$", services_of_compose(), re.MULTILINE))
    profiles = set(re.findall(r"^    profiles: \[(\w+)\]$", services_of_compose(), re.MULTILINE))
    assert services
    for place, one in programs(page):
        if one.words[:2] != ("docker", "compose"):
            continue
        words = list(one.words[2:])
        while words and words[0].startswith("-"):
            option = words.pop(0)
            assert option in ("-f", "--file", "-p", "--project-name", "--profile"), f"{place}: {option}"
            value = words.pop(0)
            assert option not in ("-f", "--file") or (ROOT / value).is_file(), f"{place}: {value}"
            assert option != "--profile" or value in profiles, f"{place}: {value}"
        assert words, place
        assert words[0] in COMPOSE, f"{place}: {words[0]}"
        scaled = [value.partition("=")[0] for before, value in pairwise(words) if before == "--scale"]
        copied = [word.partition(":")[0] for word in words if words[0] == "cp" and ":" in word]
        assert {*scaled, *copied} <= services, place


def services_of_compose() -> str:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    return re.split(r"^(?=\S)", text.partition("\nservices:\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
