"""Waiting for a condition, with a deadline. Otherwise tests sleep only to set a pace, for a named time."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

Found = TypeVar("Found")

PATIENCE = 60.0
# Seconds between two looks.
INTERVAL = 0.01


def happens(look: Callable[[], Found], *, patience: float = PATIENCE, interval: float = INTERVAL) -> Found:
    """Return the first true result of `look`, or its last one when `patience` seconds are over."""
    deadline = time.monotonic() + patience
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(interval)
    return found


def eventually(
    look: Callable[[], Found],
    explain: Callable[[], object] = str,
    *,
    patience: float = PATIENCE,
    interval: float = INTERVAL,
) -> Found:
    """Return the first true result of `look`; fail after `patience` seconds with what `explain` returns."""
    found = happens(look, patience=patience, interval=interval)
    assert found, explain() or "never happened"
    return found


async def happens_async(
    look: Callable[[], Found | Awaitable[Found]], *, patience: float = PATIENCE, interval: float = INTERVAL
) -> Found:
    """As `happens`, without blocking the event loop."""
    deadline = time.monotonic() + patience
    while True:
        result = look()
        found = await result if inspect.isawaitable(result) else result
        if found or time.monotonic() >= deadline:
            return found
        await asyncio.sleep(interval)


async def eventually_async(
    look: Callable[[], Found | Awaitable[Found]],
    explain: Callable[[], object] = str,
    *,
    patience: float = PATIENCE,
    interval: float = INTERVAL,
) -> Found:
    """As `eventually`, without blocking the event loop."""
    found = await happens_async(look, patience=patience, interval=interval)
    assert found, explain() or "never happened"
    return found
