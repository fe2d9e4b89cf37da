"""docs/beyond.md and time-to-loss.md are what their results say today."""

import json
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_beyond_is_fresh_and_has_its_pictures_and_verdicts(tmp_path: Path) -> None:
    fresh = tmp_path / "beyond.md"
    generate = [sys.executable, str(DOCS / "generate_reproduction.py"), "--beyond", "--out", str(fresh)]
    done = subprocess.run(generate, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    committed = (DOCS / "beyond.md").read_text(encoding="utf-8")
    assert fresh.read_text(encoding="utf-8") == committed, (
        "run `python docs/generate_reproduction.py --beyond` and commit the page"
    )
    found = json.loads((DOCS / "beyond.json").read_text(encoding="utf-8"))["figures"]
    assert list(found) == ["rules", "sweeps", "wire-types", "heterogeneity", "better-default", "samples"]
    for figure in found.values():
        picture = DOCS / "images" / "reproduction" / figure["picture"]
        assert picture.stat().st_size <= 100_000
        assert f"](images/reproduction/{figure['picture']})" in committed
        assert all(verdict["claim"] in committed for verdict in figure["verdicts"])


def test_the_page_and_the_readmes_table_of_the_contest_are_fresh(tmp_path: Path) -> None:
    fresh, command = tmp_path / "time-to-loss.md", ("-m", "benchmarks.time_to_loss.page")
    done = subprocess.run([sys.executable, *command, str(fresh)], cwd=DOCS.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    committed = (DOCS / "time-to-loss.md").read_text(encoding="utf-8")
    written = f"run `python {' '.join(command)} docs/time-to-loss.md`"
    assert fresh.read_text(encoding="utf-8") == committed, written
    assert done.stdout.strip() in (DOCS.parent / "README.md").read_text(encoding="utf-8"), written
