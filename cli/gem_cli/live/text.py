"""Fixed-width text."""

from rich.cells import cell_len, set_cell_size


def fit(text: str, width: int, cut: str, *, right: bool = False) -> str:
    """Pad or cut to `width` columns."""
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + cut if width > 0 else ""
    return " " * (width - length) + text if right else text + " " * (width - length)
