"""The figures that tests find: kept while they run, and one table at the end."""

import textwrap
from collections.abc import Iterator

WHAT_WIDTH = 44
FOUND_WIDTH = 100


class Figures:
    """Takes a row of the table: what was done or measured, and what was found. Rows keep their order."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, str]] = []

    def __call__(self, what: str, found: str) -> None:
        self._rows.append((what, found))

    @property
    def rows(self) -> list[tuple[str, str]]:
        """All of them so far."""
        return list(self._rows)

    def lines(self) -> Iterator[str]:
        """The table, wrapped to a terminal's width; nothing when there is no row."""
        for what, found in self._rows:
            left = textwrap.wrap(what, WHAT_WIDTH)
            right = textwrap.wrap(found, FOUND_WIDTH)
            for number in range(max(len(left), len(right))):
                first = left[number] if number < len(left) else ""
                second = right[number] if number < len(right) else ""
                yield f"{first:<{WHAT_WIDTH}}  {second}".rstrip()
