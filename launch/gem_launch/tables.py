"""Tables."""

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import pandas

Table: TypeAlias = "pandas.DataFrame | list[dict[str, Any]]"


def table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Table."""
    if find_spec("pandas") is None:
        return [dict(row) for row in rows]
    import pandas

    return pandas.DataFrame(rows)
