"""Threading layer and thread count of parallel kernels.

Numba's "workqueue" aborts the process when two threads launch kernels.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numba
from numba import get_num_threads, set_num_threads
from numba.np.ufunc import parallel

from gem_core.errors import ThreadingError

# Any: Numba sets attributes from the environment.
config: Any = numba.config

__all__ = ["Threads", "apply_thread_count", "configure_threads", "require_threads"]

# Neither layer is available everywhere. Numba's wheels (0.68.1) for arm64 and macOS have OpenMP's alone. The wheel for
# Linux on x86_64 has both, but links to libgomp1, which slim images of Debian lack; tbb comes from pip there.
# OpenMP first: its threads wake up sooner.
_CANDIDATES = {
    "default": ("omp", "tbb"),
    "threadsafe": ("omp", "tbb"),
    "forksafe": ("tbb",),
    "safe": ("tbb",),
    "omp": ("omp",),
    "tbb": ("tbb",),
}
_HINTS = {
    "omp": "install GNU OpenMP (the package libgomp1 on Debian and Ubuntu, libgomp on Fedora)",
    "tbb": "pip install tbb",
}


class Threads(NamedTuple):
    """Threading layer ("omp" or "tbb") and thread count."""

    layer: str
    number: int


# Threads per kernel; 0: all.
_count = 0


def configure_threads(count: int = 0) -> Threads:
    """Start a safe threading layer and set the thread count of later kernels.

    `count` 0: NUMBA_NUM_THREADS, by default the usable cores. Raises ThreadingError if `count` is too large, or without
    a safe layer.
    """
    global _count
    available = int(config.NUMBA_NUM_THREADS)
    if not 0 <= count <= available:
        raise ThreadingError(
            f"{count} threads were asked for, {available} are available: ask for at most {available} "
            f"(0 means all), or set NUMBA_NUM_THREADS={max(count, 1)} before the process starts"
        )
    _count = count
    return require_threads()


def require_threads() -> Threads:
    """Start a safe threading layer, keeping the count. Raises ThreadingError."""
    _require_safe_layer()
    apply_thread_count()
    return Threads(_running_layer(), get_num_threads())


def apply_thread_count() -> None:
    """Apply the count to the calling thread."""
    set_num_threads(_count or config.NUMBA_NUM_THREADS)


def _require_safe_layer() -> None:
    if parallel._is_initialized:
        if _running_layer() not in _HINTS:
            raise ThreadingError(_refusal(_running_layer()))
        return
    wanted = str(config.THREADING_LAYER).lower()
    if wanted not in _CANDIDATES:
        raise ThreadingError(_refusal(wanted))
    for layer in _CANDIDATES[wanted]:
        if _loads(layer):
            config.THREADING_LAYER = layer
            return
    fixes = " or ".join(_HINTS[layer] for layer in _CANDIDATES[wanted])
    raise ThreadingError(f"no safe threading layer for parallel kernels can be loaded: {fixes}")


def _running_layer() -> str:
    return str(parallel.threading_layer())  # type: ignore[no-untyped-call]


def _refusal(layer: str) -> str:
    return (
        f"Numba's threading layer {layer!r} is not accepted: "
        "it can abort the process when two threads launch kernels; set NUMBA_THREADING_LAYER=omp or tbb, or unset it"
    )


def _loads(layer: str) -> bool:
    if layer == "tbb":
        _preload_tbb()
    try:
        with _patient_openmp():
            importlib.import_module(f"numba.np.ufunc.{layer}pool")
    except ImportError:
        return False
    return True


@contextmanager
def _patient_openmp() -> Iterator[None]:
    """Spinning threads would take cores from workers."""
    if any(name in os.environ for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")):
        yield
        return
    # Read on load; child processes must not inherit it.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    try:
        yield
    finally:
        del os.environ["OMP_WAIT_POLICY"]


def _preload_tbb() -> None:
    """The loader does not search pip's folder."""
    for folder in (Path(sys.prefix) / "lib", Path(sys.base_prefix) / "lib"):
        for library in sorted(folder.glob("libtbb.so.12")):
            try:
                ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
            except OSError:
                continue
            return
