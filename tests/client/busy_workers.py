"""Workers as processes that do nothing but commit, and are terminated at any moment."""

import random
import signal
import subprocess
import sys
import time

TERMINATED_AFTER_SECONDS = (0.02, 0.12)
# What their scripts begin with. Their SIGTERM handler raises.
PREAMBLE = """
import signal, sys
import numpy as np
from gem_core import ElementType, Layout, TensorKind, TensorSpec
from gem_worker.client import Client

class Terminated(BaseException):
    pass

def terminate(*_):
    raise Terminated

signal.signal(signal.SIGTERM, terminate)
layout = Layout([TensorSpec("w", (2048,), ElementType.FLOAT32, TensorKind.PARAMETER)])
held = memoryview(bytearray(4 * 2048))
delta = memoryview(np.full(2048, 1e-6, np.float32).tobytes())
"""


def leave_whenever_terminated(script: str, address: str, *, times: int, seed: int) -> None:
    """Run the script so often: it says "training", is terminated at a random moment, says "left", and ends well."""
    moments = random.Random(seed)
    for _ in range(times):
        process = subprocess.Popen([sys.executable, "-c", script, address], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "training\n"
            time.sleep(moments.uniform(*TERMINATED_AFTER_SECONDS))
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=60)
            assert (said, process.returncode) == ("left\n", 0)
        finally:
            process.kill()
            process.wait()
