"""The banner of the dashboard: what the page makes of the problems in a report."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from gem_server.web.dashboard import STATIC

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node.js here")

SCRIPT = """
import { notices } from "./facts.js";
console.log(JSON.stringify(notices(JSON.parse(process.argv[2]), { text: "" })));
"""
CRITICAL, WARNING = "PROBLEM_SEVERITY_CRITICAL", "PROBLEM_SEVERITY_WARNING"


def banner(folder: Path, problems: list[dict[str, Any]], workers: list[dict[str, Any]]) -> list[list[str]]:
    """Kinds and texts of the notices."""
    scripts = folder / "js"
    shutil.copytree(STATIC / "js", scripts)
    (folder / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    (scripts / "ask.js").write_text(SCRIPT, encoding="utf-8")
    run = {"state": "training", "workers": workers, "status": {"problems": problems}}
    done = subprocess.run(["node", scripts / "ask.js", json.dumps(run)], capture_output=True, text=True, check=True)
    found: list[list[str]] = json.loads(done.stdout)
    return found


def test_problems_are_told_with_names_and_fix_and_without_seconds(tmp_path: Path) -> None:
    problems = [
        {
            "kind": "disk-space",
            "severity": CRITICAL,
            "seconds": 17,
            "text": "the disk is full",
            "fix": "free some room",
        },
        {
            "kind": "silent-workers",
            "severity": WARNING,
            "seconds": 1,
            "text": "no word",
            "fix": "look",
            "workers": ["a"],
        },
    ]
    workers = [
        {"name": "a", "condition": "WORKER_CONDITION_SILENT"},
        {"name": "b", "condition": "WORKER_CONDITION_SLOW"},
        {"name": "c", "condition": "WORKER_CONDITION_DEPARTED"},
    ]
    assert banner(tmp_path, problems, workers) == [
        ["gone", "the disk is full. Free some room."],
        ["look", "a: no word. Look."],
        ["look", "b is slow. It commits less than half as often as the median worker."],
    ]


def test_without_problems_there_is_no_banner(tmp_path: Path) -> None:
    assert banner(tmp_path, [], [{"name": "a", "condition": "WORKER_CONDITION_WELL"}]) == []
