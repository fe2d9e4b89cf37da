"""The dashboard in a real browser, beside a real training (`pytest -m browser`).

One training of four workers, looked at by one Chromium; the tests are in the order of its life. What it looks like is
kept in the folder GEMPS_TEST_SCREENSHOTS, or in the one for temporary files.
"""

import http.client
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from gem_server.web.dashboard import MAX_VIEWERS

from tests.cli.processes import CLEAN, command
from tests.waiting import eventually
from tests.web.browser import Browser, missing

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

WORKERS = 4
SESSION_TIMEOUT = 15.0  # seconds, after which a worker that was killed is gone
SILENT_AFTER = 10.0  # and silent; gem_server/telemetry/condition.py
CURVES = {"loss", "pi", "rate", "fairness", "wait", "drift", "memory"}
PANELS = CURVES | {"workers", "tensors", "staleness", "share", "facts"}
WIDTHS = (380, 1440)
SCHEMES = ("dark", "light")
LOOKS = [(width, scheme) for width in WIDTHS for scheme in SCHEMES]


@dataclass
class TrainingRun:
    """A `gemps train` with a dashboard."""

    process: subprocess.Popen[str]
    address: str
    url: str

    def workers(self) -> dict[str, psutil.Process]:
        """Processes of the workers, by name."""
        found = {}
        for child in psutil.Process(self.process.pid).children(recursive=True):
            if (name := child.environ().get("GEMPS_WORKER_NAME")) is not None:
                found[name] = child
        return found


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingRun]:
    """Of the paper's network, for longer than the tests take, evaluated now and then."""
    process = subprocess.Popen(
        command(
            "train", "--json", "--workers", str(WORKERS), "--task", "digits28", "--steps", "1000000",
            "--dashboard", "0", f"--set=session_timeout={SESSION_TIMEOUT}",
            "--run-dir", str(tmp_path_factory.mktemp("runs") / "run"),
        ),
        env=CLEAN, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        told: dict[str, dict[str, Any]] = {}
        while not told.get("status", {}).get("status", {}).get("commits"):
            event = json.loads(process.stdout.readline())
            told[event["event"]] = event
        # What it tells further is read, and nobody needs it.
        threading.Thread(target=process.stdout.read, daemon=True).start()
        running = TrainingRun(process, told["started"]["server"], told["dashboard"]["url"])
        evaluate = ["evaluate", "--server", running.address, "--task", "digits28", "--report"]
        subprocess.run(command(*evaluate), env=CLEAN, check=True, capture_output=True)
        yield running
    finally:
        for one in [*psutil.Process(process.pid).children(recursive=True), process]:
            one.kill()
        process.wait(60)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    opened = Browser()
    yield opened
    opened.close()


@pytest.fixture
def page(browser: Browser, training: TrainingRun) -> Browser:
    """The page, with data in every panel, wide and dark."""
    browser.open(training.url)
    browser.until(f"({EMPTY}).length === 0")
    return browser


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = os.environ.get("GEMPS_TEST_SCREENSHOTS")
    path = Path(folder) if folder else tmp_path_factory.mktemp("screenshots")
    path.mkdir(parents=True, exist_ok=True)
    return path


# Panels that say that something is missing.
EMPTY = "[...document.querySelectorAll('.panel')].filter((one) => one.querySelector('.missing:not([hidden])'))"
COMMITS = "Number(document.querySelector('#course b:nth-of-type(2)').textContent.replace(/\\s/g, ''))"
# Canvases on which nothing is drawn.
BLANK = """
[...document.querySelectorAll('.panel canvas')].filter((one) => {
  const seen = one.getContext('2d').getImageData(0, 0, one.width, one.height).data;
  return !seen.some((value, index) => index % 4 === 3 && value > 0);
}).length
"""


def test_page_updates_live(page: Browser) -> None:
    for _ in range(2):
        before = page.see(COMMITS)
        page.until(f"{COMMITS} > {before}")
    assert page.text("#link") == "live"
    assert page.text("#run-state") == "training"
    assert page.problems() == []


def test_every_panel_has_data(page: Browser) -> None:
    assert set(page.see("[...document.querySelectorAll('.panel:not([hidden])')].map((one) => one.id)")) == PANELS
    assert page.see(BLANK) == 0
    for tile in ("loss", "accuracy", "rate", "staleness", "pi", "blocked", "jain", "workers"):
        assert any(figure.isdigit() for figure in page.text(f"#tile-{tile}")), tile
    for panel in sorted(CURVES):
        values = page.see(f"[...document.querySelectorAll('#{panel} .legend b')].map((one) => one.textContent)")
        assert values, panel
        assert all(any(figure.isdigit() for figure in value) for value in values), (panel, values)
    assert (
        len(page.see("[...document.querySelectorAll('#workers-table tbody tr')].map((one) => one.innerText)"))
        == WORKERS
    )
    assert page.problems() == []


def test_the_speed_tile_shows_the_newest_value_of_its_chart(page: Browser) -> None:
    both = "['#tile-rate', '#rate .legend b'].map((one) => document.querySelector(one).textContent)"
    for _ in range(3):
        before = page.see(COMMITS)
        page.until(f"{COMMITS} > {before}")
        tile, chart = page.see(both)
        assert tile == chart


def test_every_quantity_is_explained_where_it_stands(page: Browser) -> None:
    unexplained = "one => !one.querySelector('.about')?.textContent.trim().endsWith('.')"
    assert page.see(f"[...document.querySelectorAll('.tile, .facts > div')].filter({unexplained}).length") == 0
    assert (
        page.see(
            "[...document.querySelectorAll('.panel:not(#facts)')].filter((one) => !one.querySelector('.about')).length"
        )
        == 0
    )
    page.see("document.querySelector('.legend-of-columns summary').focus()")
    page.press("Enter")
    columns = page.see("document.querySelectorAll('#workers-table th').length")
    assert (
        page.see("[...document.querySelectorAll('#columns dd')].filter((one) => one.offsetHeight > 0).length")
        == columns
    )


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_it_fits_its_window_and_is_accessible(page: Browser, pictures: Path, width: int, scheme: str) -> None:
    page.resize(width, 900)
    page.prefer(scheme)
    page.until(f"document.documentElement.clientWidth === {width}")
    assert page.see("document.documentElement.scrollWidth") == width
    light = page.see("getComputedStyle(document.body).backgroundColor").removeprefix("rgb(").split(",")[0]
    assert (int(light) > 128) == (scheme == "light")
    page.until(f"{BLANK} === 0")
    page.keep(pictures / f"{scheme}-{width}.png")
    assert page.serious() == []
    assert page.problems() == []


def test_colours_can_be_chosen_and_are_kept(page: Browser, training: TrainingRun) -> None:
    page.click("#theme")
    assert page.text("#theme").endswith("light")
    assert page.see("getComputedStyle(document.body).colorScheme") == "light"
    page.reload()
    page.until("document.documentElement.dataset.theme === 'light'")
    page.click("#theme")
    assert page.see("getComputedStyle(document.body).colorScheme") == "dark"


def test_curves_and_heat_map_are_read_with_the_keyboard(page: Browser) -> None:
    page.see("document.querySelector('#loss .plot').focus()")
    page.press("Home")
    page.until("document.querySelector('#loss .moment').textContent.startsWith('at ')")
    first = page.text("#loss .moment")
    page.press("End")
    page.until(f"document.querySelector('#loss .moment').textContent !== {json.dumps(first)}")
    page.press("Escape")
    page.until("document.querySelector('#loss .moment').textContent === ''")
    for panel, words in (("tensors", "mean pi"), ("staleness", "commits"), ("share", "of all")):
        page.see(f"document.querySelector('#{panel} .view').focus()")
        page.press("ArrowLeft")
        page.until(f"document.querySelector('#{panel} .readout').textContent.includes({json.dumps(words)})")
    assert page.problems() == []


def test_curves_can_be_had_as_tables_and_on_a_log_scale(page: Browser) -> None:
    page.see("[...document.querySelectorAll('#loss .tool')].find((one) => one.textContent === 'table').focus()")
    page.press("Enter")
    page.until("document.querySelectorAll('#loss .as-table tbody tr').length > 1")
    assert page.see("document.querySelectorAll('#loss .as-table thead th').length") == 4
    page.press("Enter")
    page.until("document.querySelector('#loss .as-table').hidden")
    page.see("[...document.querySelectorAll('#loss .tool')].find((one) => one.textContent === 'log').click()")
    page.until(f"{BLANK} === 0")
    assert page.problems() == []


def test_table_is_sorted_with_the_keyboard(page: Browser) -> None:
    page.see("document.querySelectorAll('#workers-table th button')[4].focus()")
    page.press("Enter")
    assert page.see("document.querySelectorAll('#workers-table th')[4].ariaSort") == "ascending"
    page.press("Enter")
    assert page.see("document.querySelectorAll('#workers-table th')[4].ariaSort") == "descending"
    cells = "[...document.querySelectorAll('#workers-table td:nth-child(5)')]"
    values = page.see(f"{cells}.map((one) => Number(one.innerText.replace(/\\s/g, '')))")
    assert values == sorted(values, reverse=True)


def test_every_control_is_reached_with_the_tabulator(page: Browser) -> None:
    page.see("document.activeElement.blur()")
    reached = set()
    for _ in range(80):
        page.press("Tab")
        reached.add(page.see("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
    controls = "[...document.querySelectorAll('button, summary, .plot, .view')].filter((one) => one.offsetParent)"
    assert set(page.see(f"{controls}.map((one) => [...document.querySelectorAll('*')].indexOf(one))")) <= reached


def status_of_events(url: str) -> int:
    """Whether a further viewer would be let in: 200, or 503."""
    asking = http.client.HTTPConnection(url.removeprefix("http://").rstrip("/"))
    try:
        asking.request("HEAD", "/events")
        return asking.getresponse().status
    finally:
        asking.close()


def test_page_says_when_there_are_too_many_viewers_and_gets_in_when_one_goes(
    browser: Browser, training: TrainingRun
) -> None:
    browser.open("about:blank")
    others: list[http.client.HTTPConnection] = []
    try:
        while len(others) < MAX_VIEWERS:
            other = http.client.HTTPConnection(training.url.removeprefix("http://").rstrip("/"))
            other.request("GET", "/events")
            if other.getresponse().status == 200:  # else the page before is still being taken for a viewer
                others.append(other)
        browser.open(training.url)
        browser.until("document.querySelector('#link').innerText === 'too many viewers'")
        assert "close another page" in browser.text("#notices")
        others.pop().close()
        browser.until("document.querySelector('#link').innerText === 'live'")
    finally:
        for other in others:
            other.close()
    # Until the server sees that they have gone.
    eventually(lambda: status_of_events(training.url) == 200, patience=SILENT_AFTER, interval=0.1)
    browser.problems()  # the browser tells of the answer 503 as well


def test_killed_worker_is_marked_within_its_time_out(page: Browser, training: TrainingRun, pictures: Path) -> None:
    name, process = sorted(training.workers().items())[1]
    row = f"[...document.querySelectorAll('#workers-table tr')].find((one) => one.innerText.startsWith('{name}'))"
    process.kill()
    began = time.monotonic()
    page.until(f"{row}.dataset.condition === 'silent'", SILENT_AFTER + 10)
    assert "Not heard of for" in page.see(f"{row}.innerText")
    page.until(f"{row}.dataset.condition === 'gone'", SESSION_TIMEOUT + 10)
    assert time.monotonic() - began < SESSION_TIMEOUT + 10
    assert page.see(f"{row}.querySelector('.state svg path').getAttribute('d')") != page.see(
        "document.querySelector('#workers-table tr:not([data-condition]) .state svg path').getAttribute('d')"
    )
    page.until(f"document.querySelector('#notices').innerText.includes('{name}: the sessions of 1 worker expired')", 10)
    assert page.text("#tile-workers") == str(WORKERS - 1)
    page.keep(pictures / "killed-worker.png", whole=False)
    for width, scheme in LOOKS:
        page.resize(width, 900)
        page.prefer(scheme)
        assert page.see("document.documentElement.scrollWidth") == width
        assert page.serious() == []
    assert page.problems() == []


def test_page_says_when_the_server_ends(page: Browser, training: TrainingRun, pictures: Path) -> None:
    training.process.send_signal(2)
    page.until("document.querySelector('#link').dataset.link === 'lost'")
    page.until("document.querySelector('#notices').innerText.includes('The server has ended')")
    assert page.see(COMMITS) > 0, "what was seen last still stands"
    assert page.serious() == []
    page.keep(pictures / "ended.png", whole=False)


@pytest.fixture
def still(browser: Browser, tmp_path: Path) -> Iterator[Browser]:
    """The page of a server without workers, whose scripts a test can call."""
    ready = tmp_path / "ready.json"
    arguments = ["serve", "--bind", "127.0.0.1:0", "--dashboard", "0", "--ready-file", str(ready)]
    process = subprocess.Popen(command(*arguments), env=CLEAN, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: ready.exists() or process.poll() is not None)
        browser.open(json.loads(ready.read_text(encoding="utf-8"))["dashboard"], scheme="light")
        browser.until("document.querySelector('#run-state').innerText === 'waiting'")
        yield browser
    finally:
        process.kill()
        process.wait(60)


def test_rates_are_over_ten_seconds_or_a_longer_interval_and_end_with_the_servers_own(still: Browser) -> None:
    script = """import('/js/run.js').then(({ Run }) => {
      const run = new Run();
      const intervals = (length, commits) => commits.map(
        (one, at) => ({ begins: length * at, ends: length * (at + 1), commits: one }));
      const found = [];
      run.status = { run_seconds: 13.5, commits_per_second: 99 };
      run.intervals = intervals(1, [5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 15, 15, 15]);
      found.push(run.rates);
      run.status.run_seconds = 13; // the run is finished, as its last interval is
      found.push(run.rates);
      run.status.run_seconds = 80;
      run.intervals = intervals(30, [300, 600]);
      found.push(run.rates);
      run.intervals = [];
      found.push(run.rates);
      return found;
    })"""
    training, finished, long, empty = still.see(script)
    assert training == [[*range(1, 14), 13.5], [5] * 10 + [6, 7, 8, 99]]
    assert finished == [[*range(1, 14)], [5] * 10 + [6, 7, 99]]
    assert long == [[30, 60, 80], [10, 20, 99]]
    assert empty == [[], []]


def test_the_line_of_the_mean_does_not_cross_the_numbers_of_the_bars(still: Browser) -> None:
    """Where it passes a number there are strokes of digits, which are shorter than a dash of five pixels."""
    script = """Promise.all([import('/js/share.js'), import('/js/dom.js')]).then(async ([{ Share }, { make }]) => {
      const panel = make('section', { class: 'panel' }, make('h2', {}, 'commits'));
      panel.style.width = '600px';
      document.body.append(panel);
      const share = new Share(panel);
      share.set([188, 188, 188, 188, 200, 200].map((commits, at) => ({ name: `worker-${at}`, commits })));
      for (let frame = 0; frame < 3; frame += 1) await new Promise((done) => requestAnimationFrame(done));
      const { canvas } = share;
      const longest = (from, to) => {
        const [y, dark] = [Math.round(share.floor - ((share.floor - 18) * share.mean) / share.most), []];
        const seen = canvas.getContext('2d').getImageData(from, y, to - from, 1).data;
        for (let x = 0; x < to - from; x += 1) dark.push(seen[4 * x + 3] > 200 && seen[4 * x] < 60);
        return Math.max(...dark.map(Number).join('').split('0').map((one) => one.length));
      };
      const column = canvas.width / 6;
      return [Math.round(column / 2 - 14), Math.round(column / 2 + 14), 0, canvas.width].reduce((all, _, at, places) =>
        at % 2 ? [...all, longest(places[at - 1], places[at])] : all, []);
    })"""
    beside_number, everywhere = still.see(script)
    assert everywhere >= 5, "the line is there"
    assert beside_number < 5


def test_page_goes_on_when_a_server_is_back_and_says_what_is_missing(browser: Browser, tmp_path: Path) -> None:
    """A page that is opened while there is nothing to see, and stays open through a restart of the server."""
    ready = tmp_path / "ready.json"

    def serve(*more: str) -> subprocess.Popen[bytes]:
        ready.unlink(missing_ok=True)
        arguments = ["serve", "--bind", "127.0.0.1:0", "--ready-file", str(ready), *more]
        process = subprocess.Popen(command(*arguments), env=CLEAN, stderr=subprocess.DEVNULL)
        eventually(lambda: ready.exists() or process.poll() is not None)
        assert ready.exists()
        return process

    said = "[...document.querySelectorAll('.missing')].filter((one) => one.offsetHeight).map((one) => one.innerText)"
    first = serve("--dashboard", "0")
    try:
        url = json.loads(ready.read_text(encoding="utf-8"))["dashboard"]
        browser.open(url)
        browser.until("document.querySelector('#run-state').innerText === 'waiting'")
        browser.until(f"{said}.length === 11 && {said}.every((one) => one.startsWith('Waiting for workers'))")
        assert browser.serious() == []
        first.terminate()
        first.wait(60)
        browser.until("document.querySelector('#link').dataset.link === 'lost'")
        browser.problems()  # that nobody is there is told by the browser as well
        second = serve("--dashboard", url.removeprefix("http://").rstrip("/"), "--rule", "downpour")
        try:
            browser.until("document.querySelector('#link').dataset.link === 'live'")
            assert browser.text("#tile-pi-name") == "Mean factor"
        finally:
            second.kill()
            second.wait(60)
    finally:
        first.kill()
        first.wait(60)
