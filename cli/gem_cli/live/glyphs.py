"""Drawing characters."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Character set; each is one column wide."""

    levels: str  # lowest first
    done: str
    left: str
    line: str
    to: str
    between: str
    cut: str


BLOCKS = Glyphs(levels="▁▂▃▄▅▆▇█", done="█", left="░", line="─", to="–", between=" · ", cut="…")  # noqa: RUF001
ASCII = Glyphs(levels="_.-:=+*#", done="#", left=".", line="-", to="-", between=", ", cut="~")


def glyphs_for(term: str, encoding: str) -> Glyphs:
    """Choose for the terminal; Linux's console lacks block eighths."""
    is_unicode = encoding.lower().replace("-", "") in ("utf8", "utf16", "utf32")
    return BLOCKS if is_unicode and term != "linux" else ASCII
