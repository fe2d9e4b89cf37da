"""The dashboard's page and its events, from a real server."""

import asyncio
import json
import posixpath
import re
import socket
from pathlib import Path

import aiohttp
import pytest
from gem_server.errors import StartupError
from gem_server.web import dashboard, web_server
from gem_server.web.web_server import HEADERS
from gemps.plain_values import to_dict

from tests.waiting import eventually_async
from tests.web.viewers import Viewer, url, viewing
from tests.wire.conftest import Serve
from tests.wire.refusals import PATIENCE
from tests.wire.serving import Serving

WEB = Path(dashboard.__file__).parent


@pytest.fixture
async def shown(serve: Serve) -> Serving:
    """A server with a dashboard."""
    return await serve(dashboard="127.0.0.1:0")


async def answer(serving: Serving, path: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    """(status, type, text)."""
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url(serving, path), headers=headers) as response,
    ):
        for name, value in HEADERS.items():
            assert response.headers.get(name) == value or response.status >= 400
        return response.status, response.content_type, await response.text(errors="replace")


# --- the page


async def test_page_and_all_that_it_asks_for_come_from_this_server(shown: Serving) -> None:
    status, kind, page = await answer(shown, "")
    assert (status, kind) == (200, "text/html")
    asked = re.findall(r'(?:src|href)="([^"#]+)"', page)
    assert {"style.css", "js/main.js", "vendored/uPlot.min.css", "icon.svg"} <= set(asked)
    for path in asked:
        assert (await answer(shown, path))[0] == 200, path
    _, kind, style = await answer(shown, "style.css")
    assert kind == "text/css"
    for path in re.findall(r'url\("([^"]+)"\)', style):
        assert (await answer(shown, path))[0] == 200, path


async def test_modules_import_only_modules_that_are_served(shown: Serving) -> None:
    seen: set[str] = set()
    left = {"js/main.js"}
    while left:
        path = left.pop()
        status, kind, source = await answer(shown, path)
        assert (status, kind) == (200, "text/javascript"), path
        seen.add(path)
        imported = {posixpath.join(posixpath.dirname(path), other) for other in re.findall(r'from "([^"]+)"', source)}
        left |= {posixpath.normpath(other) for other in imported} - seen
    assert "vendored/uPlot.esm.js" in seen
    assert seen >= {f"js/{path.name}" for path in (WEB / "static" / "js").iterdir()}


async def test_nothing_on_the_page_has_a_style_or_a_script_that_its_policy_forbids(shown: Serving) -> None:
    _, _, page = await answer(shown, "")
    assert re.findall(r"\sstyle=|\son\w+=|<style|<script(?![^>]*\ssrc=)", page) == []


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_page_and_events_can_only_be_read(shown: Serving, method: str) -> None:
    for path in ("", "events", "metrics", "js/main.js"):
        assert (await answer(shown, path, method))[0] == 405


async def test_head_asks_for_no_events(shown: Serving) -> None:
    assert (await answer(shown, "events", "HEAD"))[:2] == (200, "text/event-stream")
    assert (await answer(shown, "", "HEAD"))[0] == 200


@pytest.mark.parametrize("path", ["", "events", "metrics", "js/main.js"])
async def test_names_that_a_stranger_could_point_here_are_refused(shown: Serving, path: str) -> None:
    status, _, text = await answer(shown, path, Host="rebound.example")
    assert status == 421
    assert "--dashboard-hosts" in text


@pytest.mark.parametrize("path", ["..", "../dashboard.py", "%2e%2e/dashboard.py", "js", "package.json", "/etc/passwd"])
async def test_no_other_file_is_served(shown: Serving, path: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url(shown).rstrip("/").rpartition(":")[2]))
    writer.write(f"GET /{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert (await reader.readline()).split()[1] in (b"404", b"400")
    writer.close()


async def test_metrics_are_there_too(shown: Serving) -> None:
    status, kind, text = await answer(shown, "metrics")
    assert (status, kind) == (200, "text/plain")
    assert "gemps_commits_total" in text


def test_vendored_files_are_of_the_pinned_versions_and_have_their_licences() -> None:
    pinned = json.loads((WEB / "package.json").read_text(encoding="utf-8"))["dependencies"]
    locked = json.loads((WEB / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert {name: locked[f"node_modules/{name}"]["version"] for name in pinned} == pinned
    assert all(locked[f"node_modules/{name}"]["integrity"].startswith("sha512-") for name in pinned)
    vendored = WEB / "static" / "vendored"
    assert f"uPlot (v{pinned['uplot']})" in (vendored / "uPlot.esm.js").read_text(encoding="utf-8")[:1000]
    assert "MIT" in (vendored / "uPlot.LICENSE").read_text(encoding="utf-8")
    assert "Open Font License" in (vendored / "inter.LICENSE").read_text(encoding="utf-8").title()


# --- events


async def test_viewer_is_told_the_status_again_and_again(shown: Serving) -> None:
    (worker,) = await shown.training(1)
    async with viewing(shown) as (viewer,):
        await worker.commit(worker.delta(1), loss=2.5)
        while (status := await viewer.next("status"))["commits"] == 0:
            pass
    assert (status["run_state"], status["settings"]["rule"]) == ("RUN_STATE_TRAINING", "gem")
    (seen,) = status["workers"]
    assert (seen["commits"], seen["loss"], seen["condition"]) == (1, 2.5, "WORKER_CONDITION_WELL")
    assert sum(seen["staleness"]["counts"]) == 1
    assert status["staleness"]["bounds"] == to_dict(await shown.status())["staleness"]["bounds"]
    assert status["workers_left_out"] == 0


async def test_history_comes_whole_first_and_then_what_is_new(shown: Serving) -> None:
    (worker,) = await shown.training(1)
    await worker.commit(worker.delta(1), loss=1.0)
    async with viewing(shown) as (viewer,):
        first = await viewer.next("history")
        assert first["whole"]
        assert first["has_factors"]
        known = [one["ends"] for one in first["intervals"]]
        while len(known) < 2:
            news = await viewer.next("history")
            assert not news["whole"]
            known += [one["ends"] for one in news["intervals"]]
    assert known == sorted(set(known))
    kept = [one.ends for one in shown.server.telemetry.history.intervals]
    assert known == kept[: len(known)]


async def test_history_is_told_whole_again_when_the_server_joins_intervals(shown: Serving) -> None:
    (worker,) = await shown.training(1)
    await worker.commit(worker.delta(1))
    async with viewing(shown) as (viewer,):
        assert (await viewer.next("history"))["whole"]
        shown.server.telemetry.history.joins += 1
        while not (await viewer.next("history"))["whole"]:
            pass


async def test_figures_that_json_does_not_have_are_null(shown: Serving) -> None:
    (worker,) = await shown.training(1)
    await worker.commit(worker.delta(1), loss=float("nan"))
    async with viewing(shown) as (viewer,):
        status = await viewer.next("status")
    assert status["workers"][0]["loss"] is None
    assert status["loss"] is None


async def test_rule_without_factors_says_so(serve: Serve) -> None:
    serving = await serve(dashboard="127.0.0.1:0", rule="downpour")
    async with viewing(serving) as (viewer,):
        assert (await viewer.next("history"))["has_factors"] is False


async def test_of_too_many_workers_those_that_need_a_look_are_told(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "MAX_WORKERS", 2)
    serving = await serve(dashboard="127.0.0.1:0", session_timeout=1.0)
    workers = await serving.training(4)
    for worker in workers:
        await worker.commit(worker.delta(1))  # on a stream that stays open, so that they live on
    await workers[3].close()
    async with viewing(serving) as (viewer,):
        conditions: list[str] = []
        while "WORKER_CONDITION_GONE" not in conditions:
            status = await viewer.next("status")
            conditions = [one["condition"] for one in status["workers"]]
    assert [one["rank"] for one in status["workers"]] == [0, 3]
    assert status["workers_left_out"] == 2


async def test_no_more_viewers_than_there_is_room_for(shown: Serving) -> None:
    async with viewing(shown, dashboard.MAX_VIEWERS) as viewers:
        for method in ("GET", "HEAD"):
            status, _, text = await answer(shown, "events", method)
            assert status == 503
            assert method == "HEAD" or "gemps status --watch" in text
        viewers[0].response.close()
        async with asyncio.timeout(PATIENCE):
            while (await answer(shown, "events", "HEAD"))[0] == 503:
                pass
        await viewers[1].next("status")


async def test_with_no_viewer_nothing_is_made_for_one(shown: Serving) -> None:
    before = asyncio.all_tasks()
    async with viewing(shown):
        assert asyncio.all_tasks() > before
    await eventually_async(lambda: asyncio.all_tasks() <= before)
    async with viewing(shown) as (viewer,):  # and the next one is served as the first was
        assert (await viewer.next("history"))["whole"]


async def test_viewer_that_does_not_read_is_cut_off_and_holds_up_nobody(
    shown: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "MAX_VIEWERS", 2)
    monkeypatch.setattr(dashboard, "INTERVAL_SECONDS", 0.002)
    monkeypatch.setattr(dashboard, "SHORTEST_SECONDS", 0.001)
    monkeypatch.setattr(dashboard, "SHARE_OF_PROCESSOR", 1.0)
    monkeypatch.setattr(dashboard, "SEND_BUFFER_BYTES", 4096)
    port = int(url(shown).rstrip("/").rpartition(":")[2])
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.setblocking(False)
    await asyncio.get_running_loop().sock_connect(deaf, ("127.0.0.1", port))
    deaf.send(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with viewing(shown) as (viewer,), asyncio.timeout(PATIENCE):
        while (await answer(shown, "events", "HEAD"))[0] == 200:
            await viewer.next("status")
        while (await answer(shown, "events", "HEAD"))[0] == 503:
            await viewer.next("status")
        await viewer.next("status")
    deaf.close()


async def test_server_stops_at_once_with_viewers_and_they_are_told(serve: Serve) -> None:
    serving = await serve(dashboard="127.0.0.1:0")
    async with viewing(serving, 3) as viewers:
        async with asyncio.timeout(PATIENCE):
            await serving.stop()
        for viewer in viewers:
            assert (await names_until_the_end(viewer))[-2:] == ["end", ""]


async def names_until_the_end(viewer: Viewer) -> list[str]:
    names = []
    while not names or names[-1]:
        names.append((await viewer.event())[0])
    return names


async def test_last_thing_that_viewers_see_of_a_run_is_its_end(serve: Serve) -> None:
    serving = await serve(dashboard="127.0.0.1:0", commits=1, exit_when_finished=True)
    (worker,) = await serving.training(1)
    async with viewing(serving) as (viewer,):
        await worker.commit(worker.delta(1))
        await worker.leave()
        await serving.server.wait_until_done()
        await serving.stop()
        last = None
        while (event := await viewer.event())[0]:
            last = event[1] if event[0] == "status" else last
    assert last["run_state"] == "RUN_STATE_FINISHED"
    assert last["commits"] == 1


async def test_port_in_use_is_refused_with_the_fix(serve: Serve) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(StartupError, match=r"--dashboard .*choose another address"):
            await serve(dashboard=f"127.0.0.1:{taken.getsockname()[1]}")


async def test_connections_that_say_nothing_end_and_are_bounded(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(web_server, "SILENT_SECONDS", 1.0)
    shown = await serve(dashboard="127.0.0.1:0")
    port = int(url(shown).rstrip("/").rpartition(":")[2])
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""  # at once: there is no room
        writer.close()
        for reader, writer in silent:
            assert await reader.read() == b""
            writer.close()
    assert (await answer(shown, ""))[0] == 200


async def test_body_of_a_request_is_not_read(shown: Serving) -> None:
    port = int(url(shown).rstrip("/").rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n")
    async with asyncio.timeout(PATIENCE):
        text = await reader.read()  # to its end: the server closes, and waits for no body
    assert text.split()[1] == b"405"
    writer.close()


async def test_a_flood_of_requests_waits(shown: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "REQUESTS_PER_SECOND", 10)
    monkeypatch.setattr(web_server, "BURST_SECONDS", 0.1)
    begun = asyncio.get_running_loop().time()
    statuses = await asyncio.gather(*(answer(shown, path) for path in ("", "metrics", "nothing", "")))
    assert [status for status, _, _ in statuses] == [200, 200, 404, 200]
    assert asyncio.get_running_loop().time() - begun > 0.25  # the first is in the burst, three wait 0.1 s each
