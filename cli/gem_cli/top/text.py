"""Text of an exact width."""

from rich.cells import cell_len, set_cell_size


def fit(text: str, width: int, cut: str, *, right: bool = False) -> str:
    """Return the text in exactly `width` columns of a terminal; `cut` stands where some of it is missing."""
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + cut if width > 0 else ""
    return " " * (width - length) + text if right else text + " " * (width - length)
