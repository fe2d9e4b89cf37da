"""Parts of the live view: figures, curves, keys, the order of workers, frames of exactly the terminal's size."""

from typing import Any

import pytest
from gem_cli.live.charts import bars, progress_bar
from gem_cli.live.curves import MAX_POINTS, RATE, Curves
from gem_cli.live.explained import EXPLAINED
from gem_cli.live.figures import ago, compact, count, duration, two_decimals
from gem_cli.live.frame import frame
from gem_cli.live.glyphs import ASCII, BLOCKS, Glyphs, glyphs_for
from gem_cli.live.keys import Keys
from gem_cli.live.progress import progress
from gem_cli.live.view import View
from gem_cli.live.worker_table import ORDERS, columns_for, ordered
from rich.cells import cell_len

from tests.cli.test_status_view import SHARDS, WORKER, changed


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (0, "0"), (0.00123, "0.00123"), (-0.5, "-0.5"), (12.345, "12.3"), (999.4, "999"), (999.6, "1k"),
        (12_345, "12.3k"), (999_600, "1M"), (1.5e9, "1.5G"), (0.00001, "1e-5"), (float("nan"), "nan"),
    ],
)  # fmt: skip
def test_a_figure_never_needs_more_than_seven_characters(value: Any, text: str) -> None:
    assert compact(value) == text
    assert len(text) <= 7


def test_times_and_counts_are_short() -> None:
    assert [duration(seconds) for seconds in (45, 725, 3723, 273_905)] == ["45 s", "12:05", "1:02:03", "3 d 04:05"]
    assert [ago(seconds) for seconds in (0.3, 45.6, 725, 7300, 200_000)] == ["now", "45 s", "12 m", "2 h", "2 d"]
    assert [count(number, 7) for number in (0, 12_345, 1_234_567)] == ["0", "12,345", "1.23M"]
    assert [two_decimals(value) for value in (None, 0.756, 23.4, 1234)] == ["-", "0.76", "23.40", "1.23k"]


def test_a_bar_is_as_high_as_its_value_and_a_gap_is_empty() -> None:
    assert bars([0, 1, None, 7], 1, BLOCKS) == ["▁▂ █"]
    assert bars([10, 17], 1, BLOCKS, from_zero=False) == ["▁█"]
    assert bars([0, 15], 2, BLOCKS) == [" █", "▁█"]
    assert bars([None, None], 1, ASCII) == ["  "]
    assert bars([3.0, 3.0], 1, ASCII, from_zero=False) == ["__"]  # nothing to compare
    assert progress_bar(0.5, 4, ASCII) == "##.."


def interval(begins: float, ends: float, commits: int, **means: float) -> dict[str, Any]:
    return {"begins": begins, "ends": ends, "commits": commits, **means}


def test_curves_go_on_from_the_history_with_each_report() -> None:
    curves = Curves()
    curves.restart({"intervals": [interval(0, 2, 20, loss=4.0), interval(2, 4, 40, loss=2.0)]})
    curves.add(changed(run_seconds=8.0, commits_of_process=100, commits_per_second=10.0, loss=1.0))
    assert curves.columns("loss", 4) == [4.0, 2.0, 1.0, 1.0]
    assert curves.columns(RATE, 4) == [10.0, 20.0, 10.0, 10.0]
    assert curves.columns("loss", 2) == [3.0, 1.0]
    curves.add(changed(run_seconds=8.0, commits_of_process=100, loss=99.0))  # no time has passed
    curves.add(changed(run_seconds=9.0, commits_of_process=100, loss=99.0, run_state="RUN_STATE_FINISHED"))
    assert curves.columns("loss", 2) == [3.0, 1.0]
    curves.restart({"intervals": []})  # the server was restarted
    assert curves.columns("loss", 2) == [None, None]


def test_a_curve_has_a_gap_where_nothing_is_known() -> None:
    curves = Curves()
    curves.restart(
        {"intervals": [interval(0, 1, 5, loss=1.0), interval(1, 2, 0), interval(2, 3, 5, loss=float("nan"))]}
    )
    assert curves.columns("loss", 3) == [1.0, None, None]


def test_a_long_run_keeps_its_whole_course_in_bounded_memory() -> None:
    curves = Curves()
    for second in range(1, 20 * MAX_POINTS):
        curves.add(changed(run_seconds=float(second), commits_of_process=1, loss=float(second)))
        assert len(curves.points) <= MAX_POINTS
    total = 20 * MAX_POINTS - 1
    assert curves.points[0].begins == 0
    assert all(one.ends == other.begins for one, other in zip(curves.points, curves.points[1:], strict=False))
    assert max(point.ends - point.begins for point in curves.points) <= total / 100
    found = curves.columns("loss", 10)
    expected = [(2 * column + 1) * total / 20 for column in range(10)]
    assert found == pytest.approx(expected, rel=0.02)


def test_keys_are_known_however_they_arrive() -> None:
    keys = Keys()
    assert keys.feed(b"jk\x1b[A\x1bOBq") == ["down", "up", "up", "down", "quit"]
    assert keys.feed(b"\x1b[5~\x1b[6~ b") == ["page up", "page down", "page down", "page up"]
    assert keys.feed(b"\x1b[") == []  # over a slow connection
    assert keys.waits
    assert keys.feed(b"B") == ["down"]
    assert not keys.waits
    assert keys.feed(b"\x1b") == []
    assert keys.give_up() == ["other"]
    assert keys.feed(b"\x1b[1;5Cs\xc3") == ["other", "sort", "other"]


def test_glyphs_are_ascii_where_the_font_or_the_encoding_has_no_others() -> None:
    assert glyphs_for("xterm-256color", "utf-8") is BLOCKS
    assert glyphs_for("linux", "utf-8") is ASCII
    assert glyphs_for("xterm", "ascii") is ASCII
    assert all(cell_len(one) == 1 for one in (*BLOCKS.levels, BLOCKS.done, BLOCKS.left, BLOCKS.line, BLOCKS.cut))


def worker(rank: int, **fields: Any) -> dict[str, Any]:
    return {**WORKER, "name": f"w{rank}", "rank": rank, "condition": "WORKER_CONDITION_WELL", **fields}


def test_workers_in_trouble_stand_above_and_those_that_left_below() -> None:
    workers = [
        worker(0, state="WORKER_STATE_LEFT"),
        worker(1, commits_per_second=9.0),
        worker(2, condition="WORKER_CONDITION_SLOW", commits_per_second=1.0),
        worker(3, condition="WORKER_CONDITION_GONE", state="WORKER_STATE_EXPIRED"),
        worker(4, condition="WORKER_CONDITION_SILENT", loss=7.0),
        worker(5, condition="WORKER_CONDITION_MUTED", staleness_mean=50.0),
    ]
    status = changed(workers=workers)
    by = {order: [one["rank"] for one in ordered(status, order)] for order in ORDERS}
    assert by["trouble"] == [4, 3, 5, 2, 1, 0]
    assert by["rank"] == [0, 1, 2, 3, 4, 5]
    assert by["slowest"][0] == 2
    assert by["loss"][0] == 4
    assert by["staleness"][0] == 5
    assert {order[-1] for order in (by["trouble"], by["blocked"])} <= {0, 3}


@pytest.mark.parametrize("width", [40, 80, 100, 120, 160, 200, 300])
def test_the_columns_fill_the_width_and_no_more(width: int) -> None:
    columns = columns_for(width)
    used = sum(size for _, size in columns) + len(columns) - 1
    assert used <= max(width, 80)
    if 80 <= width <= 200:
        assert used == width


def test_progress_of_each_kind_of_budget() -> None:
    def of(**budget: float) -> Any:
        kinds = {"steps": 0, "epochs": 0.0, "commits": 0}
        workers = [worker(0), worker(1)]
        return progress(changed(settings={"budget": {**kinds, **budget}}, workers=workers, seconds_left=12.5))

    in_all = of(commits=1000)
    assert (in_all.fraction, in_all.text) == (0.24, "240 of 1,000 commits")
    assert in_all.seconds_left == 12.5
    each = of(steps=480)
    assert (each.fraction, each.text) == (0.25, "240 of 960, 480 a worker")
    assert of(steps=480, commits=300).fraction == 0.8
    assert (of(epochs=20).fraction, of(epochs=20).text) == (None, "20 epochs a worker")
    assert progress(changed()).seconds_left is None
    assert "gemps finish" in of().text


HOSTILE = "[/bold]\x1b[2J日本語" + "x" * 60


@pytest.mark.parametrize("glyphs", [BLOCKS, ASCII])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (120, 30), (40, 10), (20, 5)])
@pytest.mark.parametrize(("workers", "shards"), [(0, 0), (3, 3), (500, 256)])
def test_every_frame_has_exactly_the_size_of_the_terminal(
    width: int, height: int, workers: int, shards: int, glyphs: Glyphs
) -> None:
    crowd = [worker(rank, name=HOSTILE, commits=10**12, loss=1e-9, device=HOSTILE) for rank in range(workers)]
    servers = {**SHARDS, "servers": [{**SHARDS["servers"][0], "address": HOSTILE}] * shards}
    status = changed(workers=crowd, commits=10**12, commits_of_process=10**12, run_seconds=1e6, shards=servers)
    view = View("a-machine-with-a-long-name.example.org:50051", 1.0, status, 0.0)
    view.report(status, 0.0)
    for prepare in ("", "?", "end", "lost"):
        if prepare == "lost":
            view.helps, view.lost = False, "no answer " * 30
        elif prepare:
            view.press("help" if prepare == "?" else prepare)
        lines = frame(view, width, height, 3.0, glyphs)
        assert len(lines) == height
        assert {line.cell_len for line in lines} == {width}
        assert not any("\x1b" in line.plain for line in lines)
        assert prepare != "lost" or "NO ANSWER" in lines[0].plain or width < 80


def test_what_is_wrong_with_a_worker_is_a_word_not_a_colour_alone() -> None:
    silent = worker(0, condition="WORKER_CONDITION_SILENT", seconds_since_last_call=45.0)
    view = View("server:1", 1.0, changed(workers=[silent, worker(1)]), 0.0)
    lines = [line.plain for line in frame(view, 80, 24, 0.0, BLOCKS)]
    assert any("1 SILENT" in line for line in lines)
    (row,) = [line for line in lines if line.startswith("w0 ")]
    assert row.split()[2] == "SILENT"
    assert row.endswith(" 45 s")


def test_shards_stand_between_curves_and_workers() -> None:
    view = View("server:1", 1.0, changed(shards=SHARDS), 0.0)
    lines = [line.plain.rstrip() for line in frame(view, 80, 24, 0.0, BLOCKS)]
    first = lines.index("shard 0  ready    clock 241     3 MiB      0 to 1.54k       :50051")
    assert lines[first + 1].split()[:3] == ["shard", "1", "starting"]
    assert lines[first + 2].split()[:3] == ["shard", "2", "lost"]
    assert "workers 1" in lines[first + 3]
    assert not any(
        line.startswith("shard") for line in map(str, frame(View("s:1", 1.0, changed(), 0.0), 80, 24, 0.0, BLOCKS))
    )


def test_reports_that_stop_are_told_by_their_age() -> None:
    view = View("server:1", 1.0, changed(), 0.0)
    assert "TRAINING" in frame(view, 80, 24, 4.0, BLOCKS)[0].plain
    assert "NO REPORT 30 s" in frame(view, 80, 24, 30.0, BLOCKS)[0].plain


def test_each_quantity_is_explained_in_one_line_of_80_columns() -> None:
    longest = max(len(name) for name, _ in EXPLAINED) + 2
    assert all(longest + len(sentence) <= 80 and sentence.endswith(".") for _, sentence in EXPLAINED)
    view = View("server:1", 1.0, changed(), 0.0)
    view.press("help")
    lines = frame(view, 80, 24, 0.0, BLOCKS)
    assert all(any(line.plain.startswith(name) for line in lines) for name, _ in EXPLAINED)
