"""The README's first promise: two commands on a fresh machine."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def first_code_block() -> list[str]:
    match = re.search(r"^```\w*\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert match, "README.md has no code block"
    return [line.partition("#")[0].strip() for line in match[1].splitlines() if line.strip()]


def test_first_code_block_of_the_readme_is_the_two_commands() -> None:
    assert first_code_block() == ["make train", "make test"]


def test_the_two_commands_are_make_targets() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {command.removeprefix("make ") for command in first_code_block()} <= set(targets)


def test_links_of_the_readme_and_docs_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert broken == []
