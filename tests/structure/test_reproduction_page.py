"""docs/reproduction.md is what docs/reproduction.json says, of all figures, each with its picture."""

import json
import subprocess
import sys
from pathlib import Path

from gem_reproduction.figures import ALL, choose

DOCS = Path(__file__).resolve().parents[2] / "docs"
PICTURES = DOCS / "images" / "reproduction"


def test_reproduction_page_is_fresh(tmp_path: Path) -> None:
    fresh = tmp_path / "reproduction.md"
    done = subprocess.run(
        [sys.executable, str(DOCS / "generate_reproduction.py"), "--out", str(fresh)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    committed = (DOCS / "reproduction.md").read_text(encoding="utf-8")
    assert fresh.read_text(encoding="utf-8") == committed, "run `python docs/generate_reproduction.py`"


def test_all_figures_are_in_the_results_and_what_must_hold_does() -> None:
    figures = json.loads((DOCS / "reproduction.json").read_text(encoding="utf-8"))["figures"]
    assert list(figures) == [figure.name for figure in choose([ALL])], (
        "run `gemps reproduce all`, and docs/generate_reproduction.py --from it"
    )
    verdicts = [verdict for figure in figures.values() for verdict in figure["verdicts"]]
    assert [verdict["claim"] for verdict in verdicts if verdict["must_hold"] and not verdict["met"]] == []


def test_every_picture_is_small_and_of_a_figure_with_results() -> None:
    sizes = {path.name: path.stat().st_size for path in PICTURES.iterdir()}
    pages = [json.loads((DOCS / f"{page}.json").read_text("utf-8")) for page in ("reproduction", "beyond")]
    shown = {figure["picture"] for page in pages for figure in page["figures"].values()}
    assert set(sizes) == shown | {"transformer.png"}, "that of an experiment which cannot be repeated"
    assert max(sizes.values()) <= 100_000
