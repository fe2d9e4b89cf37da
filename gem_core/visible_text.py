"""Which characters names of peers may have, so that people see what is there.

A name is shown in logs, terminals, the dashboard and labels of metrics. A character that cannot be seen lets two names
look alike, hides text from people that programs read, and one that changes the direction of writing makes a line say
something else. All that is decided here, by the kind of a character (its Unicode category and properties):

- Refused are control characters (Cc), separators of lines and paragraphs (Zl, Zp), and format characters (Cf): zero
  width, direction marks, embeddings and isolates, soft hyphen, byte order mark, tags. Unicode's other characters that
  are invisible by default are refused like them.
- Taken, because without them some names cannot be written, are: a joiner (U+200C, U+200D) beside the virama of an Indic
  script; U+200C between two letters of the Arabic or the Syriac script, as in Persian; U+200D between two symbols, as
  in emoji of several people; and U+FE0E or U+FE0F, which ask for the plain or the coloured form, after a symbol, or
  after a digit of a key cap. RFC 5892 (appendix A) allows joiners in domain names in nearly the same places. Emoji
  that are made of tags (flags of regions such as Scotland) are refused.
- Everything else is taken: accents, CJK, private use, and characters newer than this Python. Names that look alike
  because two visible characters do, such as a Latin and a Cyrillic letter, are not recognised.
"""

import unicodedata
from functools import lru_cache

_REFUSED_CATEGORIES = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs"})
# Unicode's property Default_Ignorable_Code_Point, as far as the categories above do not cover it: the combining
# grapheme joiner, Hangul fillers, Khmer's inherent vowels, variation selectors, and code points reserved for more.
_INVISIBLE = (
    (0x034F, 0x034F),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x2065, 0x2065),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFF8),
    (0xE0000, 0xE0FFF),
)
_NON_JOINER, _JOINER = "\u200c", "\u200d"
_FORMS = ("\ufe0e", "\ufe0f")
_KEY_CAP = "\u20e3"
_VIRAMA = 9  # combining class
_MOST_MARKS = 8  # with their letter
_SYMBOLS = ("So", "Sk", "Sm")  # Sk: skin tones


# Of names on the wire (session.proto).
_MOST_NAME_BYTES = 256


def check_name(name: str) -> str:
    """Return a name that the wire can carry, or an empty one. Raises ValueError."""
    if len(name.encode(errors="replace")) > _MOST_NAME_BYTES:
        raise ValueError(f"a name has at most {_MOST_NAME_BYTES} bytes of UTF-8")
    if (at := find_invisible(name)) is not None:
        raise ValueError(f"a name cannot have {describe_invisible(name, at)}")
    return name


def find_invisible(text: str) -> int | None:
    """The index of the first character that people would not see, or that changes others' order; None without any."""
    if text.isprintable() and text.isascii():
        return None
    found = (at for at, character in enumerate(text) if _is_invisible(character) and not _is_needed(text, at))
    return next(found, None)


def describe_invisible(text: str, at: int) -> str:
    """Such as `the invisible character U+200B (ZERO WIDTH SPACE) at position 3`; positions count from 1."""
    character = text[at]
    kind = "control" if unicodedata.category(character) == "Cc" else "invisible"
    name = unicodedata.name(character, "")
    return f"the {kind} character U+{ord(character):04X}{f' ({name})' if name else ''} at position {at + 1}"


def escape_invisible(text: str) -> str:
    r"""The text with each such character as a Python escape, such as `\u202e` or `\x1b`, for display.

    Names of peers that speak the present contract have none of these characters. What older servers, checkpoints and
    log files hold may.
    """
    if find_invisible(text) is None:
        return text
    return "".join(
        character.encode("unicode_escape").decode("ascii")
        if _is_invisible(character) and not _is_needed(text, at)
        else character
        for at, character in enumerate(text)
    )


@lru_cache(maxsize=4096)
def _is_invisible(character: str) -> bool:
    if character.isascii():
        return not character.isprintable()
    if unicodedata.category(character) in _REFUSED_CATEGORIES:
        return True
    code = ord(character)
    return any(first <= code <= last for first, last in _INVISIBLE)


def _is_needed(text: str, at: int) -> bool:
    """Whether the invisible character at this index changes how its neighbours are written."""
    character, before, after = text[at], text[at - 1] if at else "", text[at + 1] if at + 1 < len(text) else ""
    if character in _FORMS:
        return _is_symbol(before) or (after == _KEY_CAP and before in tuple("0123456789#*"))
    if character not in (_NON_JOINER, _JOINER) or not before or not after:
        return False
    if _VIRAMA in (unicodedata.combining(before), unicodedata.combining(after)):
        return True
    if character == _NON_JOINER:
        return _is_cursive(text[max(0, at - _MOST_MARKS) : at][::-1]) and _is_cursive(
            text[at + 1 : at + 1 + _MOST_MARKS]
        )
    if before in _FORMS:
        before = text[at - 2] if at > 1 else ""
    return _is_symbol(before) and _is_symbol(after)


def _is_symbol(character: str) -> bool:
    return bool(character) and unicodedata.category(character) in _SYMBOLS and not character.isascii()


def _is_cursive(text: str) -> bool:
    """Whether the first character that is no mark is a letter of the Arabic script, or of one that joins likewise."""
    letter = next((one for one in text if unicodedata.bidirectional(one) != "NSM"), "")
    return bool(letter) and unicodedata.bidirectional(letter) == "AL"
