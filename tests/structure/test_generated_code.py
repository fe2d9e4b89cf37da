"""The committed protobuf code is what the protos say today."""

import subprocess
import sys
from pathlib import Path

PROTO = Path(__file__).resolve().parents[2] / "proto"


def generated(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*_pb2*.py*")}


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(PROTO / "generate.py"), "--out", str(tmp_path)], check=True)
    fresh, committed = generated(tmp_path), generated(PROTO)
    committed = {name: content for name, content in committed.items() if "__pycache__" not in name}
    assert fresh, "proto/generate.py wrote nothing"
    stale = sorted(name for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name))
    assert stale == [], "run `make proto` and commit what it writes"
