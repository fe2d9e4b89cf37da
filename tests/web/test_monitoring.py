"""What docker/monitoring brings, against a real run: Prometheus' own checks, alerts, and the Grafana dashboard."""

import asyncio
import json
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from gem_server.telemetry.problems import KINDS
from prometheus_client.parser import text_string_to_metric_families

from tests.waiting import eventually_async
from tests.web.scraping import metrics_text, run_with_everything
from tests.wire.conftest import Serve
from tests.wire.refusals import PATIENCE

FOLDER = Path(__file__).resolve().parents[2] / "docker" / "monitoring"
BOARD: dict[str, Any] = json.loads((FOLDER / "grafana" / "gemps.json").read_text(encoding="utf-8"))
ALERTS = (FOLDER / "alerts.yml").read_text(encoding="utf-8")

needs_prometheus = pytest.mark.skipif(
    shutil.which("promtool") is None or shutil.which("prometheus") is None,
    reason="there is no Prometheus here: apt-get install prometheus",
)


def promtool(*arguments: object, text: str | None = None) -> subprocess.CompletedProcess[str]:
    command = ["promtool", *map(str, arguments)]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=PATIENCE)


def expressions() -> Iterator[str]:
    """Of all panels, with the variables of the dashboard filled in as Grafana does."""
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            yield (target["expr"].replace("$instance", ".*").replace("$worker", ".*").replace("$__rate_interval", "1m"))


def alerts() -> dict[str, str]:
    """The text of each alert, by its name."""
    parts = re.split(r"^ +- (?:alert|record): ", ALERTS, flags=re.MULTILINE)[1:]
    return {part.partition("\n")[0]: part for part in parts if part.startswith("Gemps")}


def alert_expressions() -> list[str]:
    """Of alerts and recorded series, each in one line."""
    found = re.findall(r"^ +expr: (?:>-\n)?(.*?)\n(?= +(?:for|labels|- alert):)", ALERTS, re.MULTILINE | re.DOTALL)
    assert len(found) == ALERTS.count("expr:")
    return [" ".join(one.split()) for one in found]


def headings() -> set[str]:
    """What links to the page about alerts can name."""
    page = (FOLDER.parents[1] / "docs" / "alerts.md").read_text(encoding="utf-8")
    return {heading.lower() for heading in re.findall(r"^#+ ([\w-]+)$", page, re.MULTILINE)}


@asynccontextmanager
async def prometheus(target: str, folder: Path) -> AsyncIterator[str]:
    """A Prometheus that scrapes `target` each second, with the alerts; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    config = folder / "prometheus.yml"
    ours = (FOLDER / "prometheus.yml").read_text(encoding="utf-8")
    config.write_text(
        ours.replace("server:8080", target).replace("5s", "1s").replace("15s", "1s").replace(
            "alerts.yml", str(FOLDER / "alerts.yml")
        ),
        encoding="utf-8",
    )  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    )
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        await process.wait()


async def test_every_metric_that_is_asked_for_is_exported(serve: Serve, tmp_path: Path) -> None:
    text = await metrics_text(await run_with_everything(serve, tmp_path))
    exported = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    asked = set(re.findall(r"(?:gemps|process)_\w+", " ".join([*alert_expressions(), *expressions()]))) | {
        variable["query"]["query"].partition("(")[2].partition(",")[0].partition("{")[0]
        for variable in BOARD["templating"]["list"]
    }
    assert asked - exported == set()
    labels = {
        (sample.name, name, value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        for name, value in sample.labels.items()
    }
    chosen = re.findall(r'(gemps_\w+)\{(\w+)="(\w+)"\}', " ".join(alert_expressions()))
    assert len(chosen) == 6
    assert [one for one in chosen if one not in labels] == []
    page = (FOLDER.parents[1] / "docs" / "watching.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`(gemps_\w+[a-z])[`{]", page))
    assert len(told) > 15
    assert told - exported - {name.removesuffix("_bucket") for name in exported} == set()


def test_each_alert_has_a_severity_and_a_chapter_of_the_page() -> None:
    assert len(alerts()) == ALERTS.count("- alert:")
    for name, text in alerts().items():
        assert re.search(r"\n +severity: (critical|warning|info)\n", text), name
        (chapter,) = re.findall(r"\n +runbook: docs/alerts\.md#(\S.*)\n", text + "\n")
        assert chapter == "{{ $labels.kind }}" or chapter in headings(), name
        assert name.lower() in headings()


def test_each_kind_of_problem_has_a_chapter_of_the_page() -> None:
    assert [kind for kind in KINDS if kind not in headings()] == []


async def test_a_server_that_ends_with_its_run_waits_until_prometheus_has_seen_it(serve: Serve) -> None:
    serving = await serve(dashboard="127.0.0.1:0", commits=1, exit_when_finished=True)
    (worker,) = await serving.training(1)
    seen: list[str] = []

    async def scrape() -> None:
        while True:
            seen.append(await metrics_text(serving))
            await asyncio.sleep(3)

    scraping = asyncio.create_task(scrape())
    try:
        await eventually_async(lambda: len(seen) == 2)
        await worker.commit(worker.delta(0))
        await worker.leave()
        await asyncio.wait_for(serving.server.wait_until_done(), PATIENCE)
        assert 'gemps_run_state{state="finished"} 0.0' in seen[1]
        assert 'gemps_run_state{state="finished"} 1.0' in seen[2]
    finally:
        scraping.cancel()


def test_panels_do_not_lie_upon_each_other_and_each_says_what_it_shows() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        assert panel["description"].endswith("."), panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


@needs_prometheus
async def test_prometheus_finds_nothing_to_complain_of(serve: Serve, tmp_path: Path) -> None:
    checked = promtool("check", "metrics", text=await metrics_text(await run_with_everything(serve, tmp_path)))
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    for what, file in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        checked = promtool("check", what, FOLDER / file)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert "lint" not in checked.stdout + checked.stderr


@needs_prometheus
def test_alerts_begin_and_end_when_they_should() -> None:
    tests = Path(__file__).with_name("alerts.test.yml")
    checked = promtool("test", "rules", tests)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert [name for name in alerts() if f"alertname: {name}" not in tests.read_text(encoding="utf-8")] == []


@needs_prometheus
async def test_prometheus_scrapes_a_run_and_answers_what_the_dashboard_asks(serve: Serve, tmp_path: Path) -> None:
    serving = await run_with_everything(serve, tmp_path / "state")
    target = serving.server.dashboard_url.removeprefix("http://").rstrip("/")
    async with prometheus(target, tmp_path) as address, aiohttp.ClientSession() as session:

        async def ask(path: str, **parameters: str) -> Any:
            async with session.get(f"{address}/api/v1/{path}", params=parameters) as got:
                answer = await got.json()
            assert answer["status"] == "success", (parameters, answer)
            return answer["data"]

        async def value(query: str) -> float | None:
            result = (await ask("query", query=query))["result"]
            return float(result[0]["value"][1]) if result else None

        async def is_told() -> bool:
            try:
                return await value("gemps_commits_total") == 4 and bool(
                    await value("rate(process_cpu_seconds_total[1m])")
                )
            except (aiohttp.ClientError, AssertionError):
                return False  # it is starting

        await eventually_async(is_told, interval=0.2)
        for expression in expressions():
            assert await value(expression) is not None, expression
        rules = [rule for group in (await ask("rules"))["groups"] for rule in group["rules"]]
        assert len(rules) == ALERTS.count("expr:")
        assert {rule["name"]: rule.get("lastError", "") for rule in rules if rule.get("lastError")} == {}
        assert await value("up") == 1
