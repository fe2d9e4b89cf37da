"""docs/beyond.md, own-optimizer.md and time-to-loss.md are what their results say today."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "figures"),
    [
        ("beyond", ["rules", "sweeps", "wire-types", "heterogeneity", "better-default", "samples"]),
    ],
)
def test_a_page_is_fresh_and_has_its_pictures_and_verdicts(page: str, figures: list[str], tmp_path: Path) -> None:
    fresh = tmp_path / f"{page}.md"
    generate = [sys.executable, str(DOCS / "generate_reproduction.py"), f"--{page}", "--out", str(fresh)]
    done = subprocess.run(generate, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    committed = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    assert fresh.read_text(encoding="utf-8") == committed, (
        f"run `python docs/generate_reproduction.py --{page}` and commit the page"
    )
    found = json.loads((DOCS / f"{page}.json").read_text(encoding="utf-8"))["figures"]
    assert list(found) == figures
    for figure in found.values():
        picture = DOCS / "images" / "reproduction" / figure["picture"]
        assert picture.stat().st_size <= 100_000
        assert f"](images/reproduction/{figure['picture']})" in committed
        assert all(verdict["claim"] in committed for verdict in figure["verdicts"])


@pytest.mark.parametrize(
    ("page", "command"),
    [
        ("own-optimizer", ("-m", "benchmarks.own_optimizer", "--page")),
        ("time-to-loss", ("-m", "benchmarks.time_to_loss.page")),
    ],
)
def test_the_pages_of_benchmarks_are_fresh(page: str, command: tuple[str, ...], tmp_path: Path) -> None:
    fresh = tmp_path / f"{page}.md"
    done = subprocess.run([sys.executable, *command, str(fresh)], cwd=DOCS.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    committed = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    written = f"run `python {' '.join(command)} docs/{page}.md`"
    assert fresh.read_text(encoding="utf-8") == committed, written
    if page == "time-to-loss":
        assert done.stdout.strip() in (DOCS.parent / "README.md").read_text(encoding="utf-8"), written
