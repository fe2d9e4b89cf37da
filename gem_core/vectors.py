"""How wide the vectors are that Numba compiles loops to.

LLVM prefers vectors of 256 bits on nearly every x86 processor that has AVX-512, because on the first of them (Skylake)
wider ones slowed down the whole core. Later ones keep their pace, and there gem's kernel, whose statistics turn five
float32 vectors into float64, took 0.75 instead of 1.15 ns an element in cache. What becomes of an element does not
depend on the width; only the sums of the statistics are added up in another order.
"""

from __future__ import annotations

from typing import Any

import numba
from numba.core.codegen import get_host_cpu_features

__all__ = ["prefer_wide_vectors"]

# Numba fills this module from the environment, so no type checker knows what is in it.
config: Any = numba.config

# Ice Lake and Zen 4 were the first with it: processors that keep their clock rate.
_KEEPS_ITS_CLOCK = "+avx512vbmi2"


def prefer_wide_vectors() -> None:
    """Let Numba use all of the vectors' width where that costs nothing.

    Whoever has set NUMBA_CPU_NAME or NUMBA_CPU_FEATURES has decided already. Call it before the first function is
    decorated: later it changes nothing, which is slower and no error. Numba's cache keeps both kinds apart.
    """
    if config.CPU_NAME is not None or config.CPU_FEATURES is not None:
        return
    # Without AVX where NUMBA_ENABLE_AVX says so.
    features: str = get_host_cpu_features()  # type: ignore[no-untyped-call]
    if _KEEPS_ITS_CLOCK in features.split(","):
        config.CPU_FEATURES = f"{features},-prefer-256-bit"
