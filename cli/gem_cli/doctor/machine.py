"""Checks threads, memory, clock and variables."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import psutil

from gem_cli.doctor.check_result import CheckResult, ok, problem, warning
from gem_cli.environment import misspelt
from gem_core.extras import how_to_install

# Earlier clocks are wrong.
_WRITTEN = datetime(2026, 1, 1, tzinfo=UTC)
# Without the model: 420 MB with torch 2.11 (CPU).
_WORKER_BYTES = 1 << 29
# float32: parameters and gradients, held and in transit.
_WORKER_VECTORS = 4
_MIB = 1 << 20


def check_threads() -> CheckResult:
    """Start the kernel threads."""
    try:
        from gem_core.errors import ThreadingError
        from gem_core.threads import configure_threads
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        return warning(
            "threads", f"without Numba this machine can neither serve nor simulate: {how_to_install('server')}"
        )
    except ImportError as error:
        return problem("threads", f"Numba cannot be imported ({error}): pip install --upgrade numba numpy")
    try:
        threads = configure_threads()
    except ThreadingError as error:
        return problem("threads", str(error))
    return ok("threads", f"{threads.number}, by {'OpenMP' if threads.layer == 'omp' else 'TBB'}")


def available_bytes() -> int:
    """Free memory within cgroup limits."""
    from gem_server.process_memory import group_limits

    memory = psutil.virtual_memory()
    return min([memory.available, *group_limits(Path("/"))])


def check_memory(available: int, parameters: int | None) -> CheckResult:
    """Compare free memory with needs."""
    free = f"{available // _MIB:,} MiB free"
    if parameters is None:
        if available < _WORKER_BYTES:
            return warning("memory", f"{free}: a worker takes about {_WORKER_BYTES // _MIB} MiB before its model")
        return ok("memory", f"{free}; what the model needs is known once a server has one")
    vectors = 4 * parameters * _WORKER_VECTORS
    needed = _WORKER_BYTES + vectors
    text = (
        f"{free}, and a worker with the run's {parameters:,} parameters takes about {needed // _MIB:,} MiB before its "
        "activations"
    )
    if available < needed:
        return problem("memory", f"{text}: stop other programs, or start the worker elsewhere")
    return ok("memory", text)


def check_clock(now: datetime, *, over_tls: bool, same_machine: bool) -> CheckResult:
    """Check the clock."""
    shown = now.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    if now < _WRITTEN:
        return problem("clock", f"this machine's says {shown}: set it, or certificates are refused (timedatectl)")
    if over_tls:
        return ok("clock", f"{shown}, within the time for which the server's certificate is good")
    if same_machine:
        return ok("clock", f"{shown}, the server's too: it is this machine")
    return ok("clock", f"{shown}; the server's cannot be known, and only certificates go by the date")


def check_variables(environment: Mapping[str, str] = os.environ) -> CheckResult:
    """Look for misspelt variables."""
    wrong = misspelt(environment)
    if wrong:
        told = ", ".join(f"{name} (did you mean {meant}?)" for name, meant in wrong.items())
        return warning("variables", f"no such setting, so it is ignored: {told}")
    known = sorted(name for name in environment if name.startswith("GEMPS_"))
    return ok("variables", ", ".join(known) if known else "none that begins with GEMPS_")
