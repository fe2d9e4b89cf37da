"""Which characters names may have: what people cannot see is found and escaped, what scripts and emoji need is kept."""

import sys
import unicodedata

import pytest

from gem_core.visible_text import describe_invisible, escape_invisible, find_invisible


@pytest.mark.parametrize("category", ["Cc", "Cf", "Zl", "Zp"])
def test_every_character_of_these_categories_is_found_between_letters(category: str) -> None:
    found = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) == category]
    assert found
    assert [character for character in found if find_invisible(f"a{character}b") != 1] == []


@pytest.mark.parametrize(
    ("text", "at"),
    [
        pytest.param("ab\u034fc", 2, id="combining-grapheme-joiner"),
        pytest.param("\u3164", 0, id="hangul-filler"),
        pytest.param("葛\U000e0100", 1, id="ideographic-variation"),
        pytest.param("a\ufe0f", 1, id="variation-selector-after-a-letter"),
        pytest.param("工\u200d人", 1, id="joiner-between-ideographs"),
        pytest.param("\u200d👩", 0, id="joiner-first"),
        pytest.param("👩\u200d", 1, id="joiner-last"),
        pytest.param("👩\u200d\u200d👩", 1, id="two-joiners"),
        pytest.param("ب\u200cd", 1, id="non-joiner-before-latin"),
        pytest.param("🏴\U000e0067\U000e007f", 1, id="tags-after-an-emoji"),
    ],
)
def test_what_is_invisible_is_found_where_no_script_needs_it(text: str, at: int) -> None:
    assert find_invisible(text) == at


@pytest.mark.parametrize(
    "text",
    [
        "", "node-3 (cuda:1)", "Zoë", "Zoe\u0308", "工人 7", "ワーカー\u30001", "한국", "Ωmega", "\ue0b0", "👷🏽",
        pytest.param("👩🏽\u200d🚀", id="astronaut"),
        pytest.param("❤\ufe0f\u200d🔥", id="heart-on-fire"),
        pytest.param("1\ufe0f\u20e3", id="key-cap"),
        pytest.param("مى\u200cشود", id="persian"),
        pytest.param("क्\u200dष", id="devanagari"),
        pytest.param("র\u200d্য", id="bengali"),
        pytest.param("ශ්\u200dරී", id="sinhala"),
    ],
)  # fmt: skip
def test_names_of_all_scripts_are_left_as_they_are(text: str) -> None:
    assert find_invisible(text) is None
    assert escape_invisible(text) == text


def test_what_is_found_is_named_and_escaped() -> None:
    text = "eda\u202enim\x1b[2J\U000e0041é"
    assert describe_invisible(text, 3) == "the invisible character U+202E (RIGHT-TO-LEFT OVERRIDE) at position 4"
    assert describe_invisible(text, 7) == "the control character U+001B at position 8"
    assert escape_invisible(text) == r"eda\u202enim\x1b[2J\U000e0041é"
