"""docs/beyond.md is what its results say today."""

import json
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_beyond_the_paper_is_fresh_and_has_its_pictures(tmp_path: Path) -> None:
    fresh = tmp_path / "beyond.md"
    generate = [sys.executable, str(DOCS / "generate_reproduction.py"), "--beyond", "--out", str(fresh)]
    done = subprocess.run(generate, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    committed = (DOCS / "beyond.md").read_text(encoding="utf-8")
    assert fresh.read_text(encoding="utf-8") == committed, (
        "run `python docs/generate_reproduction.py --beyond` and commit the page"
    )
    figures = json.loads((DOCS / "beyond.json").read_text(encoding="utf-8"))["figures"]
    assert list(figures) == ["rules", "sweeps", "wire-types", "heterogeneity", "better-default", "samples"]
    for figure in figures.values():
        picture = DOCS / "images" / "reproduction" / figure["picture"]
        assert picture.stat().st_size <= 100_000
        assert f"](images/reproduction/{figure['picture']})" in committed
