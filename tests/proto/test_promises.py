"""proto/judge.sh holds the protos to what proto/baseline.txtpb has promised (docs/protocol.md, "What may change").

It needs Node.js and the npm registry: `python -m pytest -m buf`.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.buf


def judged(folder: Path, file: str, before: str, after: str) -> subprocess.CompletedProcess[str]:
    """What proto/judge.sh says of the protos with one change."""
    changed = shutil.copytree(ROOT / "proto", folder / "proto")
    path = changed / "gemps/v1" / file
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1
    path.write_text(text.replace(before, after), encoding="utf-8")
    command = ["proto/judge.sh", str(changed)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("file", "before", "after", "complaint"),
    [
        pytest.param(
            "commit.proto",
            "uint64 sequence = 2;",
            "uint64 sequence = 99;",
            r'field "2" with name "sequence"',
            id="number",
        ),
        pytest.param("commit.proto", "uint64 samples = 7;", "uint32 samples = 7;", r'"7".*changed type', id="type"),
        pytest.param("commit.proto", "uint64 samples = 7;", "uint64 count = 7;", r'"7".*changed name', id="name"),
        pytest.param(
            "transfer.proto", "  WIRE_TYPE_SHARED_MEMORY = 5;\n", "", r'enum value "5" on enum "WireType"', id="value"
        ),
        pytest.param(
            "errors.proto", "ERROR_REASON_STALE_BASE", "ERROR_REASON_OLD_BASE", r'from "ERROR_REASON_STALE', id="reason"
        ),
        pytest.param("worker.proto", "rpc Leave(LeaveRequest) returns (LeaveResponse);", "", r'RPC "Leave"', id="call"),
    ],
)
def test_what_would_break_workers_is_refused(
    file: str, before: str, after: str, complaint: str, tmp_path: Path
) -> None:
    found = judged(tmp_path, file, before, after)
    assert found.returncode != 0
    assert re.search(complaint, found.stdout), found


def test_a_new_field_and_a_new_reason_are_no_break(tmp_path: Path) -> None:
    field = judged(tmp_path / "a", "commit.proto", "  uint64 samples = 7;", "  uint64 samples = 7;\n  bool new = 99;")
    value = "  ERROR_REASON_NO_SHARED_MEMORY = 30;"
    reason = judged(tmp_path / "b", "errors.proto", value, f"{value}\n  ERROR_REASON_NEW = 99;")
    assert (field.returncode, reason.returncode) == (0, 0)
