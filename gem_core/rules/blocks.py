"""How kernels are compiled, and how long their blocks and strips are.

Numba's cache notices a change of the file that a kernel is in, but not of other files whose functions or constants it
uses: after a change here, delete gem_core/rules/__pycache__ and gem_core/__pycache__ (a new installation has new file
times anyway).
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import numba
from numba import types

from gem_core.vectors import prefer_wide_vectors

__all__ = ["BLOCK", "PARALLEL_FROM", "Driver", "arithmetic", "block_function", "driver", "driver_function"]

# Elements of a block: 64 KiB a vector, so that gem's four vectors fit into a core's level 2 cache, and 1 M parameters
# still make 64 blocks for the threads to share. The time is flat from 4 096 to 65 536 (benchmarks/kernel.py).
BLOCK = 16_384
# Elements of a strip, whose statistics a rule may sum up in float32: what it keeps for that, 16 KiB, stays in the level
# 1 cache. Summing all of gem's in float64 took twice as long as the update itself.
STRIP = 2_048
# Elements from which a commit runs in parallel. Two idle cores pay from about 32 768 elements on (gem: 33 us alone,
# 22 us together); but on a machine that workers keep busy the second thread comes late, and waiting for it costs 0.1 to
# 0.8 ms on average. Up to here one thread takes less than that: 0.4 ms.
PARALLEL_FROM = 524_288

prefer_wide_vectors()

VECTOR = types.Array(types.float32, 1, "C", aligned=True)
READ_ONLY_VECTOR = types.Array(types.float32, 1, "C", readonly=True, aligned=True)
SCALAR = types.float32
INTEGER = types.intp
PARTIALS = types.Array(types.float64, 2, "C", aligned=True)

# error_model="numpy": division by zero gives inf or NaN instead of an exception, which would prevent vectorisation.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def arithmetic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a piece of the update, to be inlined: exact IEEE 754 operations in the order written.

    `fastmath` is said, because Numba hands a caller's down to functions that say nothing: the block function's would
    let a product of three factors, or a sum of three terms, be taken in another order.
    """
    compiled: Callable[..., Any] = numba.njit(forceinline=True, fastmath=False, **_OPTIONS)(function)
    return compiled


def block_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile what updates a block and sums up; only its own additions may be reassociated.

    No "contract", although adding an exact square in one operation would change no sum and save 8 % in cache: LLVM then
    contracted the update, too, in the loop over what is left of a vector, and moments differed in the last bit.
    """
    compiled: Callable[..., Any] = numba.njit(fastmath={"reassoc"}, **_OPTIONS)(function)
    return compiled


class Driver:
    """A loop over blocks; compiled for its one signature at the first call, or loaded from Numba's cache.

    Attributes:
        dispatcher: Numba's own object, for whoever wants to look at the cache's statistics.
    """

    def __init__(self, function: Callable[..., None], signature: tuple[types.Type, ...], parallel: bool) -> None:
        options = {**_OPTIONS, "parallel": parallel}
        try:
            self.dispatcher = numba.njit(cache=True, **options)(function)
        except RuntimeError:  # no folder to write to
            warnings.warn(
                "no writable folder for Numba's cache, so every start compiles for some seconds: "
                "set NUMBA_CACHE_DIR to a folder that this process may write to",
                RuntimeWarning,
                stacklevel=3,
            )
            self.dispatcher = numba.njit(**options)(function)
        self._signature = signature
        self._compiling = threading.Lock()
        self._is_compiled = False

    def __call__(self, *arguments: object) -> None:
        """Run the kernel; `arguments` must be of the signature's types."""
        if not self._is_compiled:
            self._compile()
        self.dispatcher(*arguments)

    def _compile(self) -> None:
        # Two rules of one kind may be warmed up on two threads; this is the only state that they share.
        with self._compiling:
            if not self._is_compiled:
                # One signature for arrays that may and may not be written to, and no surprise compilations later.
                self.dispatcher.compile(self._signature)
                self.dispatcher.disable_compile()
                self._is_compiled = True


def driver(*signature: types.Type, parallel: bool) -> Callable[[Callable[..., None]], Driver]:
    """Make a `Driver` of the function below."""
    return lambda function: Driver(function, signature, parallel)


def driver_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile what goes over the strips of a block; it adds up in the order written."""
    compiled: Callable[..., Any] = numba.njit(**_OPTIONS)(function)
    return compiled
