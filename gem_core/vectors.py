"""Vector width of compiled loops; affects only the summation order of statistics.

LLVM prefers 256 bits even with AVX-512. 53cc78a4, on a processor with AVX-512: gem's kernel takes 0.20 ms instead of
0.31 ms for 262 144 parameters, which stay in a cache. Other processors compile the same code as without this module.
"""

from __future__ import annotations

from typing import Any

import numba
from numba.core.codegen import get_host_cpu_features

__all__ = ["prefer_wide_vectors"]

# As in threads.
config: Any = numba.config

# Since Ice Lake and Zen 4, which keep their clock rate.
_KEEPS_ITS_CLOCK = "+avx512vbmi2"


def prefer_wide_vectors() -> None:
    """Use 512-bit vectors where the clock rate stays, unless NUMBA_CPU_NAME or _FEATURES is set.

    Call before the first function is decorated.
    """
    if config.CPU_NAME is not None or config.CPU_FEATURES is not None:
        return
    # Respects NUMBA_ENABLE_AVX.
    features: str = get_host_cpu_features()  # type: ignore[no-untyped-call]
    if _KEEPS_ITS_CLOCK in features.split(","):
        config.CPU_FEATURES = f"{features},-prefer-256-bit"
