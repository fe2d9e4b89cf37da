"""JSON that strict parsers read, too."""

import json
import math
from collections.abc import Mapping
from typing import Any


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON text; numbers that are not finite, as of a diverged run, become null."""
    return json.dumps(_with_null(value), indent=indent, allow_nan=False)


def _with_null(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _with_null(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_with_null(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
