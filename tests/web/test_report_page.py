"""The report of a run in a real browser (`make test-browser`)."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from gem_cli.training.report import Contents, page

from tests.cli.made_up_run import SUMMARY, folder_of, history, status
from tests.web.browser import Browser, missing

WANTED = bool(os.environ.get("GEMPS_TEST_BROWSER"))
pytestmark = [
    pytest.mark.skipif(not WANTED, reason="it needs a browser: make test-browser"),
    pytest.mark.skipif(WANTED and bool(missing()), reason=missing()),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    opened = Browser()
    yield opened
    opened.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [380, 1440])
def test_a_report_fits_its_window_and_is_accessible(browser: Browser, tmp_path: Path, width: int, scheme: str) -> None:
    folder = folder_of(tmp_path, status(), history(), SUMMARY)
    folder.write_report(page(Contents.of(folder)))
    browser.open(folder.report.as_uri(), width=width, height=900, scheme=scheme)
    assert browser.see("document.documentElement.scrollWidth") == width
    light = browser.see("getComputedStyle(document.body).backgroundColor").removeprefix("rgb(").split(",")[0]
    assert (int(light) > 128) == (scheme == "light")
    # Lines and dots in every plot, within it.
    plots = "[...document.querySelectorAll('.plot')]"
    drawn = "[...one.querySelectorAll('.line, .bar')].some((mark) => mark.getBoundingClientRect().width > 20)"
    assert browser.see(f"{plots}.filter((one) => !({drawn})).length") == 0
    assert browser.serious() == []
    assert browser.problems() == []
