"""docs/settings.md is what the settings classes say today."""

import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_settings_page_is_fresh(tmp_path: Path) -> None:
    fresh = tmp_path / "settings.md"
    done = subprocess.run(
        [sys.executable, str(DOCS / "generate_settings.py"), "--out", str(fresh)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    committed = (DOCS / "settings.md").read_text(encoding="utf-8")
    assert fresh.read_text(encoding="utf-8") == committed, "run `python docs/generate_settings.py` and commit the page"
