"""The client library is light: a monitoring script, or a worker without torch, can afford it."""

import subprocess
import sys


def test_client_library_needs_neither_torch_nor_numba() -> None:
    code = "import sys, gem_worker.client; print(sorted({'torch', 'numba'} & sys.modules.keys()))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
