"""The characters that pictures are made of: blocks where the terminal has them, ASCII elsewhere."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set; every one of them is one column wide."""

    levels: str  # from the lowest to the highest
    done: str  # of a bar
    left: str
    line: str
    to: str  # from-to
    between: str
    cut: str  # where text was cut off


BLOCKS = Glyphs(levels="▁▂▃▄▅▆▇█", done="█", left="░", line="─", to="–", between=" · ", cut="…")  # noqa: RUF001
ASCII = Glyphs(levels="_.-:=+*#", done="#", left=".", line="-", to="-", between=", ", cut="~")


def glyphs_for(term: str, encoding: str) -> Glyphs:
    """Return those that a terminal can show. The console of Linux has no eighths of blocks in its font."""
    is_unicode = encoding.lower().replace("-", "") in ("utf8", "utf16", "utf32")
    return BLOCKS if is_unicode and term != "linux" else ASCII
