"""Nothing here shall depend on what other tests left behind."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def collected() -> Iterator[None]:
    """No garbage is collected meanwhile: once a file, since a collection takes up to a second.

    In CPython 3.11 ast.parse fails ("recursion depth mismatch") when a collection in its midst runs Python code: for
    one, what asyncio says of a task that nobody awaited.
    """
    gc.collect()
    gc.disable()
    yield
    gc.enable()
