"""The report of a run: one page that needs nothing else, from whatever files of a run folder are there."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from gem_cli.errors import USAGE, CommandError
from gem_cli.training.report import Contents, page
from gem_cli.training.report.charts import SHADES, strip
from gem_cli.training.run_folder import RunFolder
from gemps.plain_values import to_dict
from gemps.v1 import history_pb2

from tests.cli.made_up_run import EVIL, SUMMARY, folder_of, history, status
from tests.cli.processes import gemps

PANELS = {
    "figures", "loss", "samples", "accuracy", "rate", "pi", "blocked", "staleness", "histogram", "fairness", "commits",
    "tensors", "workers", "settings",
}  # fmt: skip
VOID = {"meta"}


class Page(HTMLParser):
    """What a browser makes of a page; fails where tags do not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.panels: dict[str, str] = {}
        self._open: list[str] = []
        self._panel = ""
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        if tag not in VOID:
            self._open.append(tag)
        if tag == "section":
            self._panel = str(dict(attrs)["id"])
            self.panels[self._panel] = ""

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        if tag == "section":
            self._panel = ""

    def handle_data(self, data: str) -> None:
        if self._panel:
            self.panels[self._panel] += data


def report_on(folder: RunFolder) -> str:
    return page(Contents.of(folder))


def test_every_panel_of_a_whole_run_shows_something(tmp_path: Path) -> None:
    text = report_on(folder_of(tmp_path, status(), history(), SUMMARY))
    shown = Page(text)
    assert shown.panels.keys() == PANELS
    assert 'class="missing"' not in text
    assert text.count('class="plot"') == 9
    assert text.count('class="strip"') == 2 + 1  # of the tensors, and of the scale
    for panel, words in {"figures": "60.0 %", "workers": "gone", "settings": "eta", "histogram": "3-4"}.items():
        assert words in shown.panels[panel]
    assert "seed 7" in text


def test_figures_are_means_of_the_run(tmp_path: Path) -> None:
    said = Page(report_on(folder_of(tmp_path, status(), history(), SUMMARY))).panels["figures"]
    for name, value in {"Staleness, mean": "1.9", "Pi, mean": "2.08", "Blocked, mean": "31.0 %"}.items():
        assert name + value in said
    assert "Commits a second, mean4.5" in said
    said = Page(report_on(folder_of(tmp_path, status(telemetry=False), history(), SUMMARY))).panels["figures"]
    assert "Staleness, mean-" in said


def test_loss_is_also_over_the_samples_of_all_workers(tmp_path: Path) -> None:
    shown = Page(report_on(folder_of(tmp_path, status(), history(), SUMMARY)))
    assert "2,880" in shown.panels["figures"]  # 90 commits of 32
    assert "2,500" in shown.panels["samples"]


def test_a_script_that_tells_no_samples_is_named_the_fix(tmp_path: Path) -> None:
    seen = status()
    for worker in seen["workers"]:
        worker["samples"] = 0
    shown = Page(report_on(folder_of(tmp_path, seen, history(), SUMMARY)))
    assert "samples=len(batch)" in shown.panels["samples"]


def test_the_page_needs_nothing_beside_itself(tmp_path: Path) -> None:
    text = report_on(folder_of(tmp_path, status(), history(), SUMMARY))
    for outside in ("http:", "https:", "url(", "@import", "javascript:"):
        assert outside not in text
    shown = Page(text)
    assert not shown.tags & {"script", "link", "img", "iframe", "object", "embed", "a"}
    assert not {name for name in shown.attributes if name in ("src", "href", "xlink:href") or name.startswith("on")}


def test_what_somebody_called_his_worker_or_tensor_is_text_and_no_more(tmp_path: Path) -> None:
    text = report_on(folder_of(tmp_path, status(), history(), SUMMARY))
    assert "<img" not in text
    shown = Page(text)
    for panel in ("commits", "workers", "tensors", "settings"):
        assert EVIL in shown.panels[panel]


def test_it_follows_the_readers_colours_and_fits_a_phone_and_paper(tmp_path: Path) -> None:
    text = report_on(folder_of(tmp_path, status(), history()))
    for said in ("prefers-color-scheme: dark", "@media print", 'name="viewport"'):
        assert said in text


def test_a_run_without_telemetry_says_what_is_missing_and_why(tmp_path: Path) -> None:
    text = report_on(folder_of(tmp_path, status(telemetry=False), to_dict(history_pb2.GetHistoryResponse()), SUMMARY))
    shown = Page(text)
    for panel in ("loss", "rate", "pi", "blocked", "staleness", "histogram", "fairness", "tensors"):
        assert "--no-telemetry" in shown.panels[panel]
    assert "--evaluation-interval" in shown.panels["accuracy"]
    assert "60" in shown.panels["commits"]


def test_a_run_that_was_killed_has_a_report_of_what_was_known_last(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, status(), None)
    with folder.metrics.open("a", encoding="utf-8") as file:
        file.write('{"commits": 9')
    text = report_on(folder)
    assert "There is no summary.json" in text
    assert "There is no history.json" in Page(text).panels["loss"]


def test_a_resumed_run_says_of_which_commits_the_curves_are(tmp_path: Path) -> None:
    seen = status() | {"commits": 200}
    assert "of 200 commits the curves show the last 90" in report_on(folder_of(tmp_path, seen, history()))


def test_cells_of_one_colour_are_drawn_as_one() -> None:
    drawn = strip([(0, 1, 0.5), (1, 2, 0.5), (2, 3, None), (3, 4, 0.5), (4, 5, 2.0)], 5)
    assert drawn.count("<rect") == 3
    assert f'class="s{SHADES - 1}"' in drawn


def test_the_command_writes_the_page_again(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, status(), history(), SUMMARY)
    done = gemps("report", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(folder.report)
    assert folder.report.read_text(encoding="utf-8") == report_on(folder)


def test_what_is_no_run_folder_is_refused_with_the_fix(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(CommandError, match="give the folder of a run") as refused:
            Contents.of(RunFolder(path))
        assert refused.value.code == USAGE
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, status(), history())
    folder.history.write_text("{", encoding="utf-8")
    with pytest.raises(CommandError, match=r"history\.json is damaged"):
        Contents.of(folder)


def test_what_is_not_a_number_is_left_out_of_the_file(tmp_path: Path) -> None:
    """JSON has no NaN, and other programs may read it."""
    folder = folder_of(tmp_path, status(), history())

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    kept = json.loads(folder.history.read_text(encoding="utf-8"), parse_constant=refuse)
    assert kept["tensors"]["columns"][0]["mean_pi"] == [1.0, None]
