"""The threads that parallel kernels run on: which library provides them, and how many are used.

Numba can run parallel kernels on OpenMP, TBB or its own "workqueue", which aborts the process when two threads of it
launch kernels at the same time. A server must not die of that, so only the first two are accepted, and it is checked
before the first kernel runs, not when it crashes.
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

# Numba fills this module from the environment, so no type checker knows what is in it.
config: Any = numba.config

__all__ = ["Threads", "apply_thread_count", "configure_threads", "require_threads"]

# Layers that may be used, in order of preference, by the value of NUMBA_THREADING_LAYER. OpenMP comes first because its
# threads wake up sooner than TBB's, which took 2.3 ms instead of 1.7 ms for 4.2 M parameters once a millisecond (two
# cores). What Numba calls "safe" and "forksafe" is TBB on Linux.
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
    """What parallel kernels run on: the layer ("omp" or "tbb") and the number of threads."""

    layer: str
    number: int


# The number of threads to launch kernels with; 0: all that Numba has. Written by configure_threads only.
_count = 0


def configure_threads(count: int = 0) -> Threads:
    """Require a safe threading layer, start its threads, and set how many of them every later kernel uses.

    May be called again, with another count. Results do not depend on the count, only the time they take does.

    Args:
        count: threads to use; 0: as many as Numba offers: NUMBA_NUM_THREADS, by default one a core that this process
            may use.

    Raises:
        ThreadingError: neither OpenMP nor TBB can be loaded, NUMBA_THREADING_LAYER asks for something else, or there
            are fewer threads than asked for.
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
    """Require a safe threading layer and start its threads; the configured number stays what it is.

    Raises:
        ThreadingError: neither OpenMP nor TBB can be loaded, or NUMBA_THREADING_LAYER asks for something else.
    """
    _require_safe_layer()
    apply_thread_count()  # launches them
    return Threads(_running_layer(), get_num_threads())


def apply_thread_count() -> None:
    """Make the calling thread's next parallel kernel use the configured number of threads.

    Numba remembers the number separately for every thread that launches kernels.
    """
    set_num_threads(_count or config.NUMBA_NUM_THREADS)


def _require_safe_layer() -> None:
    """Choose the threading layer, or check the one that already runs."""
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
    """While GNU OpenMP is being loaded, ask it to let waiting threads sleep instead of spin, unless the user has asked.

    By default a thread that waits for another spins for milliseconds. When workers share the machine, it spins on the
    very core that the other thread needs: with two busy processes on two cores a commit of 65 536 parameters took
    6.4 ms instead of 0.13 ms. On an idle machine spinning gains less than 0.1 ms a commit.
    """
    if any(name in os.environ for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")):
        yield
        return
    # The library reads it once, when it is loaded; child processes shall not inherit it.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    try:
        yield
    finally:
        del os.environ["OMP_WAIT_POLICY"]


def _preload_tbb() -> None:
    """Load libtbb where pip puts it, which is no folder that the loader searches.

    Once it is loaded, the loader finds it by its name, whoever asks for it.
    """
    for folder in (Path(sys.prefix) / "lib", Path(sys.base_prefix) / "lib"):
        for library in sorted(folder.glob("libtbb.so.12")):
            try:
                ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
            except OSError:
                continue
            return
