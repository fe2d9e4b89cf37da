"""How compiled functions are compiled and cached.

Numba caches a compiled function under its name and the time stamp of its own file, and so does not notice when a helper
or a constant in another file changes. Therefore a `Driver` adds a checksum of gem_core's sources to the name: after a
change every function compiles again, and nobody has to delete __pycache__.
"""

from __future__ import annotations

import threading
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba import types

from gem_core.vectors import prefer_wide_vectors

__all__ = ["Driver", "arithmetic", "block_function", "driver", "driver_function"]

prefer_wide_vectors()

VECTOR = types.Array(types.float32, 1, "C", aligned=True)
READ_ONLY_VECTOR = types.Array(types.float32, 1, "C", readonly=True, aligned=True)
SCALAR = types.float32
INTEGER = types.intp
INTEGERS = types.Array(types.int64, 2, "C", aligned=True)
PARTIALS = types.Array(types.float64, 2, "C", aligned=True)

# error_model="numpy": division must not raise, or loops are not vectorised.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def arithmetic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile an inlined part of an update: IEEE 754 operations in source order.

    `fastmath=False` must be explicit: otherwise Numba applies the caller's flags.
    """
    compiled: Callable[..., Any] = numba.njit(forceinline=True, fastmath=False, **_OPTIONS)(function)
    return compiled


def block_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a loop whose own additions may be reassociated.

    Not "contract": LLVM would contract the update in loop remainders and change the last bit of moments.
    """
    compiled: Callable[..., Any] = numba.njit(fastmath={"reassoc"}, **_OPTIONS)(function)
    return compiled


_SOURCES = sorted(Path(__file__).parent.rglob("*.py"))
_CHECKSUM = zlib.crc32(b"".join(file.read_bytes() for file in _SOURCES))


class Driver:
    """Loop over blocks, compiled for one signature (or loaded from cache) at the first call.

    Each function is compiled once: `function.__qualname__`, under which the cache knows it, gets the sources' checksum.
    """

    def __init__(self, function: Callable[..., Any], signature: tuple[types.Type, ...], parallel: bool) -> None:
        options = {**_OPTIONS, "parallel": parallel}
        function.__qualname__ += f"_{_CHECKSUM:08x}"
        try:
            self.dispatcher = numba.njit(cache=True, **options)(function)
        except RuntimeError:  # no writable folder
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

    def __call__(self, *arguments: object) -> Any:
        """Run the kernel. Raises TypeError for arguments that do not have the signature's types.

        Numba checks types, dimensions, memory order and writability of arrays. Callers check lengths and alignment.
        """
        if not self._is_compiled:
            self._compile()
        return self.dispatcher(*arguments)

    def _compile(self) -> None:
        with self._compiling:
            if not self._is_compiled:
                # One signature serves writable and read-only arrays.
                self.dispatcher.compile(self._signature)
                self.dispatcher.disable_compile()
                self._is_compiled = True


def driver(*signature: types.Type, parallel: bool) -> Callable[[Callable[..., Any]], Driver]:
    """Decorate a function to make a `Driver`."""
    return lambda function: Driver(function, signature, parallel)


def driver_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile the loop over strips, summing in source order."""
    compiled: Callable[..., Any] = numba.njit(**_OPTIONS)(function)
    return compiled
