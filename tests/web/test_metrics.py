"""/metrics, as Prometheus reads it."""

import re
from collections.abc import Mapping

import aiohttp
import pytest
from gem_server.errors import StartupError
from gem_server.settings import ServerSettings
from gem_server.telemetry import problems as rules
from gem_server.web.metrics import MAX_WORKERS
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

from tests.waiting import eventually_async
from tests.web.viewers import url
from tests.wire.conftest import Serve
from tests.wire.serving import Serving


async def get(serving: Serving, path: str = "metrics", **headers: str) -> tuple[int, str, Mapping[str, str]]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(url(serving, path), headers=headers) as response,
    ):
        return response.status, await response.text(), response.headers


async def scraped(serving: Serving) -> dict[str, Metric]:
    status, text, headers = await get(serving)
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain")
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(family: Metric, **labels: str) -> float:
    (found,) = [sample.value for sample in family.samples if sample.labels == labels]
    return found


async def test_a_run_as_prometheus_sees_it(serve: Serve) -> None:
    serving = await serve(dashboard="127.0.0.1:0", run="digits")
    first, second = await serving.training(2)
    for step in range(3):
        await first.commit(first.delta(step), loss=2.0, samples=10)
    await second.commit(second.delta(9), loss=1.0, samples=10)
    found = await scraped(serving)
    assert value(found["gemps_commits"]) == 4
    assert value(found["gemps_training_loss"]) == 1.5
    assert value(found["gemps_run_info"], name="digits", id=(await serving.status()).run_id) == 1
    assert value(found["gemps_run_state"], state="training") == 1
    assert value(found["gemps_run_state"], state="waiting") == 0
    assert value(found["gemps_workers"]) == 2
    assert value(found["gemps_worker_conditions"], condition="well") == 2
    names = [worker.name for worker in (await serving.status()).workers]
    assert value(found["gemps_worker_commits"], worker=names[0]) == 3
    assert value(found["gemps_worker_samples"], worker=names[1]) == 10
    staleness = {sample.labels.get("le"): sample.value for sample in found["gemps_staleness_commits"].samples}
    assert (staleness["0"], staleness["2"], staleness["3"], staleness["+Inf"]) == (3, 3, 4, 4)
    assert [value(found["gemps_worker_scaled_commits"], worker=name) for name in names] == [0, 0]
    assert [value(found["gemps_worker_quarantined"], worker=name) for name in names] == [0, 0]
    assert value(found["gemps_memory_anonymous_bytes"]) > 1e6
    assert "process_cpu_seconds" in found


async def test_problems_are_counted_by_kind_and_severity(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MISSING_SECONDS", 0.0)
    serving = await serve(dashboard="127.0.0.1:0")

    async def has_problem() -> bool:
        family = (await scraped(serving))["gemps_problems"]
        return value(family, kind="missing-workers", severity="warning") == 1

    await eventually_async(has_problem, interval=0.2)
    family = (await scraped(serving))["gemps_problems"]
    assert sum(sample.value for sample in family.samples) == 1
    assert value(family, kind="disk-space", severity="critical") == 0


async def test_names_and_units_follow_prometheus_conventions(serve: Serve) -> None:
    serving = await serve(dashboard="127.0.0.1:0")
    await serving.training(1)
    for name, family in (await scraped(serving)).items():
        if not name.startswith("gemps"):
            continue
        assert family.documentation.endswith("."), name
        assert family.type in ("gauge", "counter", "histogram", "info"), name
        assert not name.endswith(("_total", "_milliseconds", "_percent", "_count", "_mib")), name
        if family.type == "counter":
            assert all(sample.name.endswith(("_total", "_created")) for sample in family.samples), name


async def test_before_training_nothing_is_made_up(serve: Serve) -> None:
    found = await scraped(await serve(dashboard="127.0.0.1:0"))
    assert value(found["gemps_run_state"], state="waiting") == 1
    assert "gemps_training_loss" not in found
    assert "gemps_checkpoint_age_seconds" not in found


async def test_a_name_that_a_worker_made_up_harms_nobody(serve: Serve) -> None:
    serving = await serve(dashboard="127.0.0.1:0")
    name = 'a"b\\c}{d'
    await serving.joined(name=name)
    assert value((await scraped(serving))["gemps_worker_commits"], worker=name) == 0


async def test_series_of_workers_are_bounded(serve: Serve) -> None:
    serving = await serve(dashboard="127.0.0.1:0")
    for index in range(MAX_WORKERS + 3):
        await serving.joined(name=f"worker-{index}")
    found = await scraped(serving)
    assert value(found["gemps_workers"]) == MAX_WORKERS + 3
    assert len(found["gemps_worker_commits"].samples) == MAX_WORKERS


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 421),
        ("evil.example:80", 421),
        ("localhost.evil.example", 421),
        ("localhost", 200),
        ("LOCALHOST.:9", 200),
        ("[::1]:9", 200),
        ("192.0.2.7", 200),
        ("proxy.example:443", 200),
    ],
)
async def test_who_comes_by_a_name_that_is_not_ours_is_refused(serve: Serve, host: str, status: int) -> None:
    serving = await serve(dashboard="127.0.0.1:0", dashboard_hosts="proxy.example, other.example")
    assert (await get(serving, Host=host))[0] == status


async def test_answers_have_headers_that_keep_pages_apart(serve: Serve) -> None:
    serving = await serve(dashboard="127.0.0.1:0")
    for path, expected in (("metrics", 200), ("", 200), ("nothing", 404), ("../etc/passwd", 404)):
        status, _, headers = await get(serving, path)
        assert status == expected
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"


async def test_a_taken_address_ends_the_start_with_the_fix(serve: Serve) -> None:
    serving = await serve(dashboard="127.0.0.1:0")
    taken = url(serving).removeprefix("http://").rstrip("/")
    with pytest.raises(StartupError, match=f"--dashboard {taken}: cannot listen there .* choose another address"):
        await serve(dashboard=taken)


@pytest.mark.parametrize(
    ("setting", "value", "fix"),
    [
        ("dashboard", "localhost", "write for example 8080, 127.0.0.1:8080"),
        ("dashboard", "8080.5", "write for example 8080"),
        ("dashboard", "127.0.0.1:99999", "99999 is no port: choose a number from 1 to 65535"),
        ("dashboard_hosts", "http://run.example.org/", "write run.example.org, without http:// or port"),
        ("dashboard_hosts", "run.example.org, run:80", "run:80"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_the_fix(setting: str, value: str, fix: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(fix)):
        ServerSettings(**{setting: value})


def test_a_port_alone_is_one_of_this_machine() -> None:
    settings = ServerSettings(dashboard="8080")
    assert settings.dashboard == "127.0.0.1:8080"
    assert ServerSettings(dashboard="[::1]:8080").dashboard == "[::1]:8080"
