"""docs/transformer.md is what its results say today."""

import json
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_of_the_transformer_is_fresh_and_says_what_has_run(tmp_path: Path) -> None:
    fresh = tmp_path / "transformer.md"
    generate = [sys.executable, str(DOCS / "generate_reproduction.py"), "--transformer", "--out", str(fresh)]
    done = subprocess.run(generate, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    committed = (DOCS / "transformer.md").read_text(encoding="utf-8")
    assert fresh.read_text(encoding="utf-8") == committed, (
        "run `python docs/generate_reproduction.py --transformer` and commit the page"
    )
    results = json.loads((DOCS / "transformer.json").read_text(encoding="utf-8"))
    assert "**What has run:** " in committed
    for figure in results["figures"].values():
        assert f"](images/reproduction/{figure['picture']})" in committed
        assert all(verdict["claim"] in committed for verdict in figure["verdicts"])
