"""What the front page promises: two commands, links that lead somewhere, settings that exist."""

import re
from collections.abc import Iterator
from pathlib import Path

from gem_cli.commands.known import KNOWN
from gem_cli.options import flag
from gem_simulator.settings import SimulationSettings

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def first_code_block() -> list[str]:
    match = re.search(r"^```[^\n]*\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert match, "README.md has no code block"
    return [line.partition("#")[0].strip() for line in match[1].splitlines() if line.strip()]


def test_first_code_block_of_the_readme_is_the_two_commands() -> None:
    assert first_code_block() == ["make train", "make test"]


def test_the_two_commands_are_make_targets() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {command.removeprefix("make ") for command in first_code_block()} <= set(targets)


def test_the_pages_people_look_for_are_there() -> None:
    assert {page.name for page in ROOT.iterdir()} >= {
        "README.md", "LICENSE", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CITATION.cff",
    }  # fmt: skip


def links(page: Path) -> Iterator[str]:
    """Links and pictures within the repository, as they are written."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)[^)]*\)|(?:src|srcset|href)=\"([^\"]+)\"", text):
        if "://" not in (target := "".join(link)):
            yield target


def anchors(page: Path) -> set[str]:
    """What GitHub makes of a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_links_of_all_pages_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        for link in links(page):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert broken == []


def readme_settings() -> Iterator[tuple[str, str]]:
    """(flag, default) of each row of the README's table of settings, one for each flag of a row."""
    section = README.read_text(encoding="utf-8").partition("\n## Settings\n")[2].partition("\n## ")[0]
    for row in re.findall(r"^\| (`--.*)$", section, re.MULTILINE):
        flags, default, *_ = (cell.strip() for cell in row.split(" | "))
        names = flags.split(", ")
        defaults = default.split(", ") if ", " in default else [default] * len(names)
        yield from ((name.strip("`"), one.strip("`")) for name, one in zip(names, defaults, strict=True))


def as_written(default: object) -> str:
    if default is None or default == "":
        return "-"
    if isinstance(default, bool):
        return "on" if default else "off"
    return f"{default:g}" if isinstance(default, float) else str(default)


def test_settings_of_the_readme_exist_and_have_these_defaults() -> None:
    fields = {
        flag(name): field.get_default(call_default_factory=True, validated_data={})
        for settings in KNOWN
        if settings is not SimulationSettings  # which names its rule
        for name, field in settings.model_fields.items()
    }
    shown = dict(readme_settings())
    assert len(shown) >= 15, "the table is not where this test looks"
    assert shown == {name: as_written(fields[name]) for name in shown}
