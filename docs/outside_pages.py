"""MkDocs hook: pages of the site that are files outside docs/, and links to files that are not on the site."""

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parent.parent

# Page of the site: file of the repository.
OUTSIDE_PAGES = {
    "readme.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "changelog.md": "CHANGELOG.md",
    "notes/gem_core.md": "gem_core/DESIGN.md",
    "notes/gem_trace.md": "gem_trace/DESIGN.md",
    "notes/gem_server.md": "server/gem_server/DESIGN.md",
    "notes/durability.md": "server/gem_server/durability/DESIGN.md",
    "notes/telemetry.md": "server/gem_server/telemetry/DESIGN.md",
    "notes/gem_worker.md": "worker/gem_worker/DESIGN.md",
    "notes/client.md": "worker/gem_worker/client/DESIGN.md",
    "notes/gem_simulator.md": "simulator/gem_simulator/DESIGN.md",
    "notes/gem_reproduction.md": "reproduction/gem_reproduction/DESIGN.md",
    "notes/gem_conformance.md": "conformance/gem_conformance/DESIGN.md",
}
_PAGE_OF = {file: page for page, file in OUTSIDE_PAGES.items()}

_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<path>[^):#\s]+)(?P<anchor>#[^)\s]*)?\)")
_ASSET = re.compile(r'(?P<before>!\[[^\]]*\]\(|src(?:set)?=")(?P<path>docs/[^)"]+)')
_FENCE_ATTRIBUTES = re.compile(r"^(\s*```\w+) .*$", re.MULTILINE)  # for tests/docs/blocks.py alone


def on_files(files: "Files", config: Any) -> "Files":
    """Add the outside pages."""
    from mkdocs.structure.files import File  # the tests run without MkDocs

    for page, file in OUTSIDE_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / file).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links at pages of the site, and replace those to other files of the repository by their path."""
    site_path = page.file.src_uri
    file = OUTSIDE_PAGES.get(site_path, f"docs/{site_path}")
    markdown = _FENCE_ATTRIBUTES.sub(r"\1", markdown)
    markdown = _ASSET.sub(lambda match: match["before"] + _relative(match["path"], site_path), markdown)
    return _LINK.sub(lambda link: _rewritten(link, file, site_path), markdown)


def _rewritten(link: re.Match[str], file: str, site_path: str) -> str:
    target = posixpath.normpath(posixpath.join(posixpath.dirname(file), link["path"]))
    if target.startswith("docs/") or target in _PAGE_OF:
        return f"[{link['text']}]({_relative(target, site_path)}{link['anchor'] or ''})"
    if not (ROOT / target).exists():
        return link[0]  # MkDocs warns
    return link["text"] if target in link["text"] else f"{link['text']} (`{target}`)"


def _relative(target: str, site_path: str) -> str:
    """The path of a file of the repository, which is on the site, from a page of the site."""
    return posixpath.relpath(_PAGE_OF.get(target, target.removeprefix("docs/")), posixpath.dirname(site_path) or ".")
