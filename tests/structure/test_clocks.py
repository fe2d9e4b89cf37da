"""No decision goes by the date: whoever moves a machine's clock changes nothing but what logs and reports say."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.structure.source_files import PACKAGES, ROOT, sources

# What tells the date, or compares dates of files.
DATES = {
    "time.time", "time.time_ns", "time.gmtime", "time.localtime", "time.ctime", "time.strftime",
    "datetime.now", "datetime.utcnow", "datetime.today", "date.today",
}  # fmt: skip
FILE_DATES = {"st_mtime", "st_mtime_ns", "st_ctime", "st_ctime_ns", "getmtime", "getctime"}
ALLOWED = {
    # Written down for people, or into names.
    "worker/gem_worker/progress.py": {"time.time"},
    "server/gem_server/recorder.py": {"datetime.now"},
    "cli/gem_cli/commands/train.py": {"datetime.now"},
    "cli/gem_cli/sinks/tensorboard.py": {"time.time"},
    "cli/gem_cli/training/results.py": {"datetime.now"},
    "cli/gem_cli/training/metrics_file.py": {"datetime.now"},
    "cli/gem_cli/training/run_folder.py": {"datetime.now"},
    # Whether it can be right.
    "cli/gem_cli/commands/doctor.py": {"datetime.now"},
    # From when to when a certificate is good.
    "server/gem_server/problem_watch.py": {"time.time"},
    "cli/gem_cli/certificates.py": {"datetime.now"},
    # Whether a file is another one than before: equal or not, never older or newer.
    "server/gem_server/security/watched_files.py": {"st_mtime_ns"},
    "worker/gem_worker/client/credentials.py": {"st_mtime_ns"},
}


def dates(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr in FILE_DATES:
            yield node.attr
        elif isinstance(node, ast.Attribute):
            last_two = ".".join(ast.unparse(node).split(".")[-2:])
            if last_two in DATES:
                yield last_two
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from DATES & {f"time.{alias.name}" for alias in node.names}


def test_the_date_is_asked_for_only_to_be_written_down() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): asked
        for folder in PACKAGES
        for path in sources(folder)
        if (asked := set(dates(path)))
    }
    assert found == ALLOWED
