"""Functions and results as pickles."""

import linecache
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle


@dataclass(frozen=True, slots=True)
class CallEnd:
    """Result, or a traceback."""

    result: Any = None
    traceback: str = ""


def write_call(path: Path, function: Callable[..., Any], args: Iterable[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises TypeError."""
    # Tracebacks need the lines of notebook cells.
    cells = {name: linecache.getlines(name) for name in [*linecache.cache] if not os.path.exists(name)}
    try:
        inner = cloudpickle.dumps((cells, function, tuple(args), dict(kwargs)))
    except Exception as error:
        raise TypeError(
            f"the function cannot be sent to workers ({error}): create inside it what cannot be copied, as files, "
            "locks, connections, iterators"
        ) from None
    path.write_bytes(cloudpickle.dumps((sys.path, inner)))


def call(path: Path) -> Any:
    """Run a written call."""
    sys.path[:], inner = cloudpickle.loads(path.read_bytes())
    cells, function, args, kwargs = cloudpickle.loads(inner)  # imports modules
    for name, lines in cells.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    return function(*args, **kwargs)


def write_ending(path: Path, ending: CallEnd) -> None:
    """Write atomically."""
    part = path.with_suffix(".part")
    part.write_bytes(cloudpickle.dumps(ending))
    part.replace(path)


def read_ending(path: Path) -> CallEnd | None:
    """None: the process died."""
    if not path.exists():
        return None
    try:
        ending: CallEnd = cloudpickle.loads(path.read_bytes())
    except Exception as error:  # of a class's own code
        return CallEnd(traceback=f"its result cannot be read: {type(error).__name__}: {error}")
    return ending
