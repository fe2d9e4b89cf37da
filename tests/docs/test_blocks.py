"""What is a block, and what its info string says."""

from pathlib import Path

import pytest

from tests.docs.blocks import Block, parse

PAGE = Path("page.md")


def only(markdown: str) -> Block:
    (found,) = parse(markdown, PAGE)
    return found


def test_a_block_knows_its_language_text_and_line() -> None:
    block = only("# Title\n\ntext\n\n```sh\nmake train\n```\n")
    assert (block.language, block.text, block.line, block.where) == ("sh", "make train\n", 5, "page.md:5")
    assert block.shell
    assert block.runs


def test_without_attributes_a_block_is_typed_here_and_awaited() -> None:
    block = only("```sh\nls\n```\n")
    assert (block.on, block.background, block.show) == ("here", False, False)
    assert not block.needs


def test_attributes_follow_the_language() -> None:
    block = only("```sh on=worker-2 background needs=gpu,systemd\ngemps work\n```\n")
    assert (block.on, block.background) == ("worker-2", True)
    assert block.needs == {"gpu", "systemd"}


def test_what_is_shown_is_not_run() -> None:
    block = only("```sh show\nGEMPS_CONFIG=mine.toml gemps serve\n```\n")
    assert block.show
    assert not block.runs


@pytest.mark.parametrize("word", ["backgroud", "on=", "on=mars", "on=worker-0", "needs=luck", "needs=", "show=yes"])
def test_an_attribute_that_nobody_knows_is_refused_with_its_place(word: str) -> None:
    with pytest.raises(ValueError, match=rf"^page.md:3: .*{word}"):
        parse(f"# Title\n\n```sh {word}\nls\n```\n", PAGE)


def test_an_attribute_is_said_once() -> None:
    with pytest.raises(ValueError, match="on is said twice"):
        parse("```sh on=server on=here\nls\n```\n", PAGE)


def test_other_languages_may_say_what_they_like() -> None:
    block = only('```toml title="gemps.toml"\neta = 0.1\n```\n')
    assert block.language == "toml"
    assert not block.runs


def test_headings_and_sections() -> None:
    page = "```a\n```\n# T\n## One\n```b\n```\n### Sub ##\n```c\n```\n## Two\n~~~d\n# no heading\n~~~\n```e\n```\n"
    found = [(block.language, block.section, block.heading) for block in parse(page, PAGE)]
    assert found == [
        ("a", "", ""),
        ("b", "One", "One"),
        ("c", "One", "Sub"),
        ("d", "Two", "Two"),
        ("e", "Two", "Two"),
    ]


def test_a_fence_ends_with_as_many_marks_of_its_kind() -> None:
    block = only("````sh\n```\n~~~~\n````\n")
    assert block.text == "```\n~~~~\n"


def test_a_block_within_a_list_loses_its_indentation() -> None:
    assert only("1. first\n\n   ```sh\n   if true; then\n     ls\n   fi\n   ```\n").text == "if true; then\n  ls\nfi\n"


def test_inline_code_opens_no_block() -> None:
    assert parse("```not a fence``` but `code`\n", PAGE) == []


def test_an_open_block_is_refused() -> None:
    with pytest.raises(ValueError, match=r"page.md:1: the block is never closed"):
        parse("```sh\nls\n", PAGE)


def test_commands_are_lines_with_what_they_continue_on() -> None:
    block = only("```sh\n# set up\nmake train   # minutes\n\nA=1 \\\n    gemps serve\n```\n")
    assert [(one.line, one.text) for one in block.commands] == [
        (3, "make train   # minutes"),
        (5, "A=1 \\\n    gemps serve"),
    ]
