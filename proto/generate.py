"""Generate the Python code of proto/gemps/v1 (`make proto`).

grpcio-tools 1.80.1 output loads on protobuf 6.31.1 to 7.x.
"""

import argparse
import sys
from importlib.metadata import version
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent
GENERATOR_VERSION = "1.80.1"


def generate(out: Path) -> None:
    """Write generated modules below `out`, or raise SystemExit."""
    if version("grpcio-tools") != GENERATOR_VERSION:
        sys.exit(f"grpcio-tools {GENERATOR_VERSION} is needed: pip install grpcio-tools=={GENERATOR_VERSION}")
    files = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "gemps").rglob("*.proto"))
    well_known = Path(protoc.__file__).parent / "_proto"
    outputs = [f"--python_out={out}", f"--pyi_out={out}"]
    if protoc.main(["protoc", f"-I{ROOT}", f"-I{well_known}", *outputs, *files]) != 0:
        sys.exit("protoc failed: see above")
    services = [name for name in files if "\nservice " in (ROOT / name).read_text(encoding="utf-8")]
    if protoc.main(["protoc", f"-I{ROOT}", f"-I{well_known}", f"--grpc_python_out={out}", *services]) != 0:
        sys.exit("protoc failed: see above")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT)
    generate(parser.parse_args().out)
