"""The documentation site (`make docs`), as far as it can be checked without MkDocs."""

import importlib
import re
import runpy
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOOK = runpy.run_path(str(ROOT / "docs" / "outside_pages.py"))
API_PAGES = runpy.run_path(str(ROOT / "docs" / "generate_api.py"))["PAGES"]
SECTIONS = ["Start", "Tutorials", "How-to", "Concepts", "Reference"]


def navigation() -> dict[str, list[str]]:
    """Pages by section, in the order of mkdocs.yml."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2].partition("\n\n")[0]
    found: dict[str, list[str]] = {}
    for line in nav.splitlines():
        if section := re.fullmatch(r"  - ([\w-]+):", line):
            pages = found.setdefault(section[1], [])
        else:
            entry = re.fullmatch(r"      - .+: (\S+\.md)", line)
            assert entry, f"mkdocs.yml: {line!r} is neither a section nor a page"
            pages.append(entry[1])
    return found


def test_the_site_has_five_sections_with_pages() -> None:
    found = navigation()
    assert list(found) == SECTIONS
    assert all(found.values())


def test_every_page_is_in_the_navigation_once_and_every_entry_exists() -> None:
    docs = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    entries = sorted(page for pages in navigation().values() for page in pages)
    assert entries == sorted([*docs, *HOOK["OUTSIDE_PAGES"]])


@pytest.mark.parametrize("page", sorted(API_PAGES))
def test_every_name_of_an_api_page_is_public(page: str) -> None:
    names = re.findall(r"^::: (\w+)\.(\w+)$", API_PAGES[page], re.MULTILINE)
    assert names
    assert [name for package, name in names if name not in importlib.import_module(package).__all__] == []


def test_outside_pages_are_files_and_hold_every_design_note() -> None:
    files = set(HOOK["OUTSIDE_PAGES"].values())
    assert {file for file in files if not (ROOT / file).is_file()} == set()
    listed = subprocess.run(["git", "ls-files", "*DESIGN.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(listed.stdout.split()) <= files


@pytest.mark.parametrize(
    ("page", "written", "on_the_site"),
    [
        ("deploy.md", "[start](../README.md#in-containers)", "[start](readme.md#in-containers)"),
        ("deploy.md", "[probes](#probes)", "[probes](#probes)"),
        ("tutorials/own-script.md", "[note](../../gem_core/DESIGN.md)", "[note](../notes/gem_core.md)"),
        ("tutorials/own-script.md", "[all](../settings.md)", "[all](../settings.md)"),
        ("rules.md", "[the rules](../gem_core/rules)", "the rules (`gem_core/rules`)"),
        ("protocol.md", "[`proto/gemps/v1`](../proto/gemps/v1)", "`proto/gemps/v1`"),
        ("readme.md", "[all](docs/settings.md#run)", "[all](settings.md#run)"),
        ("readme.md", '<img src="docs/images/benchmark.png">', '<img src="images/benchmark.png">'),
        ("notes/client.md", "[lane](../../../proto/gemps/v1/lane.proto)", "lane (`proto/gemps/v1/lane.proto`)"),
        ("deploy.md", "[gone](../no_such_file.md)", "[gone](../no_such_file.md)"),
        ("deploy.md", "```sh on=server background\ngemps serve\n```", "```sh\ngemps serve\n```"),
    ],
)
def test_links_lead_to_pages_of_the_site_or_become_text(page: str, written: str, on_the_site: str) -> None:
    of = SimpleNamespace(file=SimpleNamespace(src_uri=page))
    assert HOOK["on_page_markdown"](written, page=of, config=None, files=None) == on_the_site
