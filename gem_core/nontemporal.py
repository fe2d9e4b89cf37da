"""Non-temporal stores: a long vector that a kernel only writes goes to memory past the cache.

Before a processor changes a cache line it reads the line, since it cannot know that all of it will be overwritten; and
what it writes takes the place of something else in the cache. A non-temporal store does neither. So it pays where a
vector is too long to be in the cache still when it is read: widening 8 or 16 bits takes half of the time, a copy nine
tenths. Shorter ones are better kept.

LLVM makes no vectors of a loop over such stores, because it cannot know that they will begin where cache lines begin.
So a kernel computes a strip, which stays in the level 1 cache, and `store_lines` carries it away:

    strip = new_strip(target)
    past_cache = elements_past_cache(target, from which size on)
    for begin in range(0, past_cache, STRIP): compute into strip; store_lines(strip, target, begin, number of elements)
    finish_nontemporal()
    ... and the rest of the target, or all of a short one, the ordinary way

Whoever changes a function here, STRIP or CACHE_LINE deletes gem_core/__pycache__ (see rules/blocks.py).
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

from gem_core.aligned import CACHE_LINE
from gem_core.rules.blocks import STRIP

__all__ = [
    "elements_past_cache",
    "finish_nontemporal",
    "new_strip",
    "store_lines",
]

# Elements of a cache line. It is stored at once, so it must be a whole one.
_LANES = CACHE_LINE // 4
if STRIP % _LANES:
    raise AssertionError(f"a strip of {STRIP} elements does not end with a cache line: make it a multiple of {_LANES}")


@numba.njit(nogil=True)
def elements_past_cache(target, nontemporal_from):  # type: ignore[no-untyped-def]
    """How many elements of `target`, from its beginning, `store_lines` may store: whole lines of long vectors."""
    if target.size < nontemporal_from or target.ctypes.data % CACHE_LINE != 0:
        return 0
    return target.size // _LANES * _LANES


@numba.njit(nogil=True)
def new_strip(target):  # type: ignore[no-untyped-def]
    """Memory for STRIP elements of the target's type, where `store_lines` can read."""
    memory = np.empty(STRIP + _LANES, target.dtype)
    first = (CACHE_LINE - memory.ctypes.data % CACHE_LINE) // 4
    return memory[first : first + STRIP]


def _store_lines(_: Any, strip: Any, target: Any, begin: Any, elements: Any) -> Any:
    """Store the first `elements` of `strip` in `target`, from `begin` on: whole lines, at the border of a line.

    Arrays are handed over whole: slices would be counted as references, and before a processor changes such a counter
    it waits for all of its stores.
    """
    if not all(array.dtype.bitwidth == 32 and array.layout == "C" for array in (strip, target)):
        raise TypingError("store_lines copies contiguous elements of 4 bytes")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        line = ir.VectorType(word, _LANES)
        data = [
            context.make_array(kind)(context, builder, array).data
            for kind, array in zip(signature.args[:2], arguments[:2], strict=True)
        ]
        source = builder.bitcast(data[0], line.as_pointer())
        sink = builder.bitcast(builder.gep(data[1], [arguments[2]]), line.as_pointer())
        hint = builder.module.add_metadata([ir.Constant(word, 1)])
        lines = builder.udiv(arguments[3], ir.Constant(arguments[3].type, _LANES))
        with cgutils.for_range(builder, lines) as loop:
            value = builder.load(builder.gep(source, [loop.index]))
            stored = builder.store(value, builder.gep(sink, [loop.index]))
            value.align = stored.align = CACHE_LINE
            stored.set_metadata("nontemporal", hint)
        return context.get_dummy_value()

    return types.void(strip, target, types.intp, types.intp), generate


def _finish_nontemporal(_: Any) -> Any:
    """Whoever sees what this thread writes next sees all that `store_lines` has stored.

    A full barrier: on x86 a locked instruction, which empties the buffers of such stores as an SFENCE does.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


store_lines: Any = intrinsic(_store_lines)
finish_nontemporal: Any = intrinsic(_finish_nontemporal)
