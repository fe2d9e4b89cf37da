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
    asked = set(re.findall(r"(?:gemps|process)_\w+", ALERTS + " ".join(expressions()))) | {
        variable["query"]["query"].partition("(")[2].partition(",")[0].partition("{")[0]
        for variable in BOARD["templating"]["list"]
    }
    assert asked - exported == set()
    page = (FOLDER.parents[1] / "docs" / "watching.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`(gemps_\w+[a-z])[`{]", page))
    assert len(told) > 15
    assert told - exported - {name.removesuffix("_bucket") for name in exported} == set()


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
        assert len(rules) == ALERTS.count("- alert:")
        assert {rule["name"]: rule.get("lastError", "") for rule in rules if rule.get("lastError")} == {}
        assert await value("up") == 1
