"""Non-temporal stores, which neither read a line first nor displace another, for vectors larger than the cache.

LLVM does not vectorise loops of them: kernels compute into a strip in the L1 cache, which `store` copies. Numba's cache
ignores changes here (rules/blocks.py).
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from gem_core.aligned import CACHE_LINE

__all__ = ["finish", "first_line", "new_strip", "store"]

_LANES = CACHE_LINE // 4


@numba.njit(nogil=True)
def first_line(out):  # type: ignore[no-untyped-def]
    """The first element that begins a cache line."""
    return min(-out.ctypes.data % CACHE_LINE // 4, out.size)


@numba.njit(nogil=True)
def new_strip(elements, out):  # type: ignore[no-untyped-def]
    """Aligned, of `out`'s type."""
    memory = np.empty(elements + _LANES, out.dtype)
    first = first_line(memory)
    return memory[first : first + elements]


def _store(_: Any, strip: Any, out: Any, begin: Any, elements: Any) -> Any:
    """Copy strip[:elements], whole cache lines of 4-byte elements, to out[begin:].

    Not to a slice: counting references waits for stores.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        line = ir.VectorType(ir.IntType(32), _LANES).as_pointer()
        arrays = zip(signature.args[:2], arguments[:2], strict=True)
        source, target = (context.make_array(kind)(context, builder, array).data for kind, array in arrays)
        source = builder.bitcast(source, line)
        target = builder.bitcast(builder.gep(target, [arguments[2]]), line)
        hint = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        with cgutils.for_range(builder, builder.udiv(arguments[3], ir.Constant(arguments[3].type, _LANES))) as loop:
            value = builder.load(builder.gep(source, [loop.index]))
            stored = builder.store(value, builder.gep(target, [loop.index]))
            value.align = stored.align = CACHE_LINE
            stored.set_metadata("nontemporal", hint)
        return context.get_dummy_value()

    return types.void(strip, out, types.intp, types.intp), generate


def _finish(_: Any) -> Any:
    """Order `store`'s stores before later ones."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


store: Any = intrinsic(_store)
finish: Any = intrinsic(_finish)
