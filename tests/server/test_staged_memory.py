"""Deltas are staged in vectors that begin where a cache line begins."""

from gem_server.flow.staging_pool import StagingBuffer

from gem_core import ElementType, Layout, TensorKind, TensorSpec


def test_what_is_staged_is_aligned() -> None:
    layout = Layout([TensorSpec("weight", (4_200_000,), ElementType.FLOAT32, TensorKind.PARAMETER)])
    assert StagingBuffer(layout).parameters.ctypes.data % 64 == 0
