"""The project's prose stays short, and plain technical English (docs/count_words.py)."""

import functools
import runpy
from pathlib import Path

import pytest

COMMAND = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "count_words.py"))
count = functools.cache(COMMAND["count"])
LIMITS = {"README.md": 1_600, "pages": 22_000, "docstrings and comments": 30_000}
# Dialect markers in 1 000 words.
MARKERS = 0.5


@pytest.mark.parametrize("kind", LIMITS)
def test_prose_is_short_and_plain(kind: str) -> None:
    counted = count()[kind]
    assert 0 < counted.words <= LIMITS[kind]
    assert counted.markers_per_1000 <= MARKERS, "say it as in CONTRIBUTING.md"


def test_messages_are_plain() -> None:
    assert count()["messages"].markers_per_1000 <= MARKERS, "say it as in CONTRIBUTING.md"


def test_a_message_is_a_string_of_several_words_and_no_docstring() -> None:
    source = '"""A docstring with words."""\nNAME = "port"\nraise E(f"{NAME}: already in use")\n'
    assert COMMAND["message_text"](source).split() == [":", "already", "in", "use"]
    assert COMMAND["proto_text"]("// Seconds.\nmessage A {} // Empty.\n").split() == ["Seconds.", "Empty."]


def test_code_blocks_of_a_page_do_not_count() -> None:
    assert COMMAND["page_text"]("one\n```sh\ntwo three\n```\nfour\n").split() == ["one", "four"]
