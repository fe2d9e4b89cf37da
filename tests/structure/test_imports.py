"""Which package may import which (docs/design.md, section 1), in the source of every file, lazy imports included."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE, TRACE, SERVER, WORKER, SIMULATOR, REPRODUCTION, CONFORMANCE, CLI, LAUNCH = (
    ROOT / path
    for path in (
        "gem_core", "gem_trace", "server/gem_server", "worker/gem_worker", "simulator/gem_simulator",
        "reproduction/gem_reproduction", "conformance/gem_conformance", "cli/gem_cli", "launch/gem_launch",
    )
)  # fmt: skip
PACKAGES = (CORE, TRACE, SERVER, WORKER, SIMULATOR, REPRODUCTION, CONFORMANCE, CLI, LAUNCH)
FRAMING = ROOT / "proto/gemps"

GRPC = ("grpc", "grpc_health", "grpc_reflection", "grpc_status", "gemps")
PROTOBUF = ("google.protobuf", "google.rpc")


@cache
def sources(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.rglob("*.py") if "_pb2" not in path.name)
    assert found, f"{folder} has no Python files: this test looks in the wrong place"
    return found


@cache
def imports(path: Path) -> tuple[tuple[int, str], ...]:
    """(line, absolute module name) of every import statement and import_module("literal") call, wherever it stands."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{_absolute(path, node)}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from ((node.lineno, str(one.value)) for one in node.args[:1] if isinstance(one, ast.Constant))


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = path.parent
    for _ in range(node.level - 1):
        package = package.parent
    top = next(folder.parent for folder in (*PACKAGES, FRAMING) if path.is_relative_to(folder))
    return ".".join([*package.relative_to(top).parts, *([node.module] if node.module else [])])


def violations(paths: list[Path], forbidden: tuple[str, ...]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in paths
        for line, module in imports(path)
        if any(module == name or module.startswith(f"{name}.") for name in forbidden)
    ]


def test_core_imports_nothing_of_ours_no_grpc_no_protobuf_no_torch() -> None:
    ours = ("gem_trace", "gem_server", "gem_worker", "gem_simulator", "gem_reproduction", "gem_conformance", "gem_cli")
    assert violations(sources(CORE), (*ours, *GRPC, *PROTOBUF, "torch", "torchvision")) == []


def test_core_reads_no_clock_and_does_no_input_or_output() -> None:
    assert violations(sources(CORE), ("time", "datetime", "socket", "asyncio", "subprocess", "logging")) == []


def test_trace_imports_the_core_alone_and_reads_no_clock() -> None:
    ours = ("gem_server", "gem_worker", "gem_simulator", "gem_reproduction", "gem_conformance", "gem_cli")
    clocks = ("time", "datetime", "socket", "asyncio", "subprocess", "logging")
    assert violations(sources(TRACE), (*ours, *GRPC, *PROTOBUF, *clocks, "torch", "torchvision")) == []


def test_contract_imports_nothing_of_ours_but_for_the_public_names() -> None:
    ours = ("gem_core", "gem_trace", "gem_server", "gem_worker", "gem_simulator", "gem_reproduction", "gem_cli")
    public = (FRAMING / "__init__.py", FRAMING / "spark.py", *sources(FRAMING / "integrations"))
    contract = [path for path in sources(FRAMING) if path not in public]
    assert violations(contract, (*ours, "gem_conformance", "torch", "numpy")) == []
    # They load lazily, so importing the contract loads none of them: test_an_import_is_light.
    assert {module for _, module in imports(FRAMING / "__init__.py")} == {
        "typing.TYPE_CHECKING", "gem_core.lazy.lazy", "gem_launch.LaunchError", "gem_launch.ServerProcessError",
        "gem_launch.launch", "gem_launch.load", "gem_launch.serve", "gem_server.__version__",
        "gem_simulator.SimulationSettings", "gem_simulator.simulate", "gem_worker.ParameterServer",
        "gem_worker.RunFinishedError",
    }  # fmt: skip


def test_integrations_are_workers_that_know_no_wire() -> None:
    ours = ("gem_trace", "gem_server", "gem_simulator", "gem_reproduction", "gem_conformance", "gem_cli")
    wire = ("gem_worker.client", "grpc", "google", "gemps.v1", "gemps.framing", "gemps.lane")
    assert violations(sources(FRAMING / "integrations"), (*ours, *wire)) == []


def test_server_and_worker_do_not_know_each_other() -> None:
    assert violations(sources(SERVER), ("gem_worker", "gem_simulator", "gem_reproduction", "gem_conformance")) == []
    assert violations(sources(WORKER), ("gem_server", "gem_simulator", "gem_reproduction", "gem_conformance")) == []


def test_simulator_knows_neither_the_server_nor_the_wire_nor_a_clock() -> None:
    clocks = ("time", "datetime", "socket", "asyncio", "subprocess")
    forbidden = ("gem_server", "gem_worker.client", "gem_worker.parameter_server", *GRPC, *PROTOBUF)
    assert violations(sources(SIMULATOR), (*forbidden, *clocks, "gem_reproduction", "gem_conformance")) == []


def test_reproduction_knows_neither_the_server_nor_the_wire() -> None:
    forbidden = ("gem_server", "gem_worker.client", "gem_worker.parameter_server", "gem_conformance", *GRPC, *PROTOBUF)
    assert violations(sources(REPRODUCTION), forbidden) == []


def test_conformance_knows_the_contract_and_the_core_but_no_worker_and_no_server() -> None:
    """A kit that shared code with what it judges would share its mistakes."""
    ours = ("gem_trace", "gem_server", "gem_worker", "gem_simulator", "gem_reproduction")
    assert violations(sources(CONFORMANCE), (*ours, "torch", "torchvision", "numba")) == []


def test_server_does_not_import_torch() -> None:
    assert violations(sources(SERVER), ("torch", "torchvision")) == []


def test_server_knows_the_wire_only_in_its_service_and_its_pages() -> None:
    """The pages show what the service tells, so they read its messages; they call nobody."""
    pages = sources(SERVER / "web")
    assert violations(pages, ("grpc", "grpc_health", "grpc_reflection", "grpc_status")) == []
    outside = [path for path in sources(SERVER) if path not in pages and not path.is_relative_to(SERVER / "service")]
    assert {path.stem for path in outside} >= {"central_variable", "ledger", "request_queue", "checkpoint", "server"}
    assert violations(outside, (*GRPC, *PROTOBUF)) == []


@pytest.mark.parametrize(
    ("room", "may_import"),  # each may import rooms of earlier rows only
    [
        ("telemetry", ()),
        ("shared_memory", ()),
        ("state", ("telemetry", "shared_memory")),
        ("flow", ("state", "shared_memory", "telemetry")),
        ("durability", ("state", "flow", "telemetry")),
        ("security", ("settings",)),
        ("shards", ("state", "flow", "durability", "telemetry")),
        ("recorder", ("state", "flow", "settings")),
        ("service", ("state", "flow", "durability", "security", "shared_memory", "telemetry", "settings", "shards")),
        ("web", ("service", "settings")),
    ],
)
def test_rooms_of_the_server_form_no_circle(room: str, may_import: tuple[str, ...]) -> None:
    rooms = {path.stem for path in SERVER.iterdir() if path.is_dir() or path.suffix == ".py"}
    others = rooms - {room, "errors", "peer_log", "process_memory", "version", *may_import}
    path = SERVER / room
    assert (
        violations(
            sources(path) if path.is_dir() else [path.with_suffix(".py")],
            tuple(f"gem_server.{other}" for other in others),
        )
        == []
    )


def test_worker_knows_the_wire_only_in_its_client() -> None:
    outside = [path for path in sources(WORKER) if not path.is_relative_to(WORKER / "client")]
    assert violations(outside, (*GRPC, *PROTOBUF)) == []


def test_client_does_not_import_torch_or_numba() -> None:
    assert violations(sources(WORKER / "client"), ("torch", "torchvision", "numba", "gem_core.rules")) == []


def test_nothing_but_the_interface_from_python_imports_the_command_line() -> None:
    others = [path for folder in (*PACKAGES, FRAMING) if folder not in (CLI, LAUNCH) for path in sources(folder)]
    assert violations(others, ("gem_cli",)) == []


def test_only_the_public_names_and_gemps_launch_import_the_interface_from_python() -> None:
    may = {FRAMING / "__init__.py", FRAMING / "spark.py", *(CLI / "commands").glob("launch_*.py")}
    others = [path for folder in (*PACKAGES, FRAMING) if folder != LAUNCH for path in sources(folder)]
    others = [path for path in others if path not in may]
    assert violations(others, ("gem_launch",)) == []


def test_interface_from_python_knows_the_wire_only_through_the_client() -> None:
    assert violations(sources(LAUNCH), (*GRPC, *PROTOBUF)) == []


def test_command_line_knows_the_wire_only_through_the_client() -> None:
    assert violations(sources(CLI), (*GRPC, *PROTOBUF)) == []


def test_nothing_is_pickled() -> None:
    """Neither the product, nor what it is shown, measured and packed with.

    But for functions that a process hands to its own children, through a private folder.
    """
    beside = [ROOT / name for name in ("examples", "benchmarks", "docs", "docker")]
    own = LAUNCH / "functions.py"
    code = [path for folder in (*PACKAGES, FRAMING, *beside) for path in sources(folder) if path != own]
    modules = ("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve")
    assert violations(code, modules) == []
    assert [f"{path.relative_to(ROOT)}:{line}: {call}" for path in code for line, call in unpickling(path)] == []


def unpickling(path: Path) -> Iterator[tuple[int, str]]:
    """Calls that read or write pickles, whatever they were imported as: torch's, NumPy's, pandas'."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        loads = called in ("torch.load", "torch.save", "torch.hub.load") or called.endswith(("_pickle", "load_object"))
        if loads or any(one.arg == "allow_pickle" and ast.unparse(one.value) != "False" for one in node.keywords):
            yield node.lineno, ast.unparse(node)


def test_pickling_would_be_seen(tmp_path: Path) -> None:
    text = tmp_path / "imagined.py"
    text.write_text(
        "import numpy, pandas, torch\ntorch.load('a')\nnumpy.load('b', allow_pickle=True)\npandas.read_pickle('c')\n"
        "numpy.load('d', allow_pickle=False)\n",
        encoding="utf-8",
    )
    assert [line for line, _ in unpickling(text)] == [2, 3, 4]


def test_the_walk_sees_lazy_relative_and_dynamic_imports(tmp_path: Path) -> None:
    file = CORE / "rules" / "imagined.py"  # only its place matters; the text comes from elsewhere
    text = tmp_path / "imagined.py"
    text.write_text(
        "def f():\n    import grpc.aio\n    from torch import nn\n    import_module('gem_cli.main')\n", encoding="utf-8"
    )
    assert [module for _, module in imports(text)] == ["grpc.aio", "torch.nn", "gem_cli.main"]
    node = ast.parse("from ..layout import Layout").body[0]
    assert isinstance(node, ast.ImportFrom)
    assert _absolute(file, node) == "gem_core.layout"


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import gem_core", ("numba", "grpc", "torch")),
        (
            "import gemps",
            ("numba", "grpc", "torch", "numpy", "pydantic", "gem_server", "gem_simulator", "gem_worker", "gem_launch"),
        ),
        ("import gem_launch", ("torch", "numba", "grpc", "numpy", "cloudpickle", "gem_cli")),
        ("import gem_launch.server_process", ("torch", "numba", "IPython", "pandas")),
        ("import gem_launch.workers, gem_launch.run_files", ("torch", "numba", "IPython", "pandas")),
        ("import gem_simulator", ("torch", "numba", "numpy")),
        ("import gem_core.layout, gem_core.chunking, gem_core.checksum", ("numba", "grpc", "torch")),
        ("import gem_worker", ("torch", "grpc", "numba")),
        ("import gem_worker.client", ("torch", "numba")),
        ("import gem_worker.client.client, gem_worker.client.observer", ("torch", "numba", "aiohttp")),
        ("import gem_worker.trainer, gem_worker.evaluate, gem_worker.evaluator", ("numba", "aiohttp")),
        ("import gem_cli.main", ("torch", "numba", "grpc", "matplotlib", "numpy")),
        ("import gem_server.settings", ("torch", "numba", "grpc")),
        ("import gem_reproduction.reproduction", ("torch", "numba", "grpc", "matplotlib")),
    ],
)
def test_an_import_is_light(statement: str, unwanted: tuple[str, ...]) -> None:
    code = f"import sys; {statement}; print(*sorted(set({unwanted!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
