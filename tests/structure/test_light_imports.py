"""What an import loads: a monitoring script, or a worker without torch, can afford the client library.

The contracts in pyproject.toml say which package may import which. These tests see what an import really loads, since
public names are loaded lazily.
"""

import subprocess
import sys

import pytest


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
