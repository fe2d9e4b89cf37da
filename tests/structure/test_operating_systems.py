"""Which modules use names that Windows or macOS lack."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.structure.source_files import (
    CLI,
    CONFORMANCE,
    CORE,
    FRAMING,
    REPRODUCTION,
    ROOT,
    SIMULATOR,
    TRACE,
    WORKER,
    imports,
    sources,
)
from tests.worker.restricted_system import MISSING_MODULES, MISSING_NAMES

OPERATING_SYSTEM = WORKER / "client" / "operating_system.py"
# Its event loops differ: those of Windows have neither add_reader nor add_signal_handler.
MODULES = set.union({"asyncio"}, *MISSING_MODULES.values())
METHODS = "|".join(names["socket.socket"] for names in MISSING_NAMES.values())
NAMES = {
    module: "|".join(names[module] for names in MISSING_NAMES.values() if module in names)
    for module in MISSING_NAMES["win32"].keys() - {"socket.socket"}
}
# These decide by system.
NAMES["sys"] = "platform|getwindowsversion"
NAMES["os"] += "|name"


def system_names(path: Path) -> Iterator[str]:
    """FILE:LINE NAME of each."""
    place = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
    for line, module in imports(path):
        owner, _, name = module.rpartition(".")
        if module.partition(".")[0] in MODULES or (owner in NAMES and re.fullmatch(NAMES[owner], name)):
            yield f"{place}:{line} {module}"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        owner = name = ""
        if isinstance(node, ast.Attribute):
            owner, name = ast.unparse(node.value), node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            owner, name = (ast.unparse(one).strip("'") for one in node.args[:2])
        if (owner in NAMES and re.fullmatch(NAMES[owner], name)) or (name and re.fullmatch(METHODS, name)):
            yield f"{place}:{node.lineno} {owner}.{name}"


def test_worker_and_command_use_them_in_one_module() -> None:
    path = [one for folder in (CORE, FRAMING, WORKER, CLI) for one in sources(folder)]
    assert OPERATING_SYSTEM in path
    # Of the core, which cannot import that module: a flag that is left out where a system lacks it.
    flags = [name.partition(" ")[2] for name in system_names(CORE / "regular_files.py")]
    assert flags == ["os.O_NONBLOCK"]
    own = (OPERATING_SYSTEM, CORE / "regular_files.py")
    assert [name for one in path if one not in own for name in system_names(one)] == []


def test_packages_that_no_worker_needs_use_them_here() -> None:
    """The server may anywhere: it runs on Linux."""
    folders = (TRACE, SIMULATOR, REPRODUCTION, CONFORMANCE)
    found = {str(one.relative_to(ROOT)) for folder in folders for one in sources(folder) if any(system_names(one))}
    assert found == {
        "conformance/gem_conformance/candidate.py",  # kills a process group
        "gem_trace/files.py",  # locks a trace, on Windows not
        "gem_trace/writer.py",
        "simulator/gem_simulator/results.py",  # its own memory, where the system says it
    }


@pytest.mark.parametrize(
    "statement",
    [
        "import fcntl",
        "def f():\n    from termios import tcgetattr",
        "import asyncio.events",
        "from os import fork",
        "os.sched_getaffinity(0)",
        "hasattr(os, 'memfd_create')",
        "signal.SIGKILL",
        "socket.socket(socket.AF_UNIX)",
        "connection.sendmsg(parts)",
        "mmap.mmap(0, 1, prot=mmap.PROT_READ)",
        "if sys.platform == 'linux': pass",
        "os.name == 'posix'",
    ],
)
def test_each_way_to_use_one_would_be_seen(statement: str, tmp_path: Path) -> None:
    file = tmp_path / "imagined.py"
    file.write_text(f"{statement}\nsignal.SIGTERM\nos.replace(a, b)\nsocket.recv_into(c)\n", encoding="utf-8")
    assert len(list(system_names(file))) == 1
