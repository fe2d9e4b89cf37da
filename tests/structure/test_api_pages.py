"""The pages in docs/api are what the docstrings say today, and can be read without the site."""

import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_api_pages_are_fresh(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(DOCS / "generate_api.py"), "--out", str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    fresh, committed = (
        {page.name: page.read_text(encoding="utf-8") for page in folder.glob("*.md")}
        for folder in (tmp_path, DOCS / "api")
    )
    assert fresh == committed, "run `python docs/generate_api.py` and commit the pages"


def test_no_page_has_what_only_the_site_can_show() -> None:
    """Directives, admonitions, tabs and snippets of MkDocs are plain characters in a checkout and on a forge."""
    for page in sorted(DOCS.rglob("*.md")):
        lines = page.read_text(encoding="utf-8").splitlines()
        assert [line for line in lines if line.startswith((":::", "!!!", "???", "===", "--8<--"))] == [], page.name
