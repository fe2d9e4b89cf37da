"""The log: lines for people on a terminal, JSON lines with fields elsewhere, and ordinary logging for libraries."""

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gem_cli import logs
from gem_cli.logs import LogFormat, configure_logs
from gem_worker.client import Client
from gem_worker.progress import Progress

from tests.cli.processes import json_lines, served, stop
from tests.client.models import SMALL
from tests.client.real_server import begin


class Screen(io.StringIO):
    """A terminal, as far as a stream tells."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def root_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    for handler in handlers:  # or configuring would close those of pytest
        root.removeHandler(handler)
    yield
    for handler in list(root.handlers):
        root.removeHandler(handler)
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)


def logged(stream: io.StringIO, log_format: LogFormat) -> str:
    """What one warning with fields, and one error with a traceback, come out as; and what is below the level."""
    configure_logs(log_format, stream=stream)
    log = logging.getLogger("gem_server.somewhere")
    log.debug("not for anybody")
    log.warning("worker %s expired: %g s", "w1", 120, extra={"event": "expired", "worker": "w1", "seconds": 120.0})
    try:
        raise ValueError("a bug")
    except ValueError:
        log.exception("a call failed")
    return stream.getvalue()


@pytest.mark.parametrize("log_format", ["auto", "human"])
def test_people_get_a_line_a_message(log_format: LogFormat) -> None:
    lines = re.sub(r"\x1b\[\d*m", "", logged(Screen(), log_format)).splitlines()
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
    assert re.fullmatch(f"{stamp} WARNING worker w1 expired: 120 s", lines[0])
    assert re.fullmatch(f"{stamp} ERROR a call failed", lines[1])
    assert lines[2].startswith("Traceback")
    assert lines[-1] == "ValueError: a bug"


def test_colours_are_for_terminals() -> None:
    assert "\x1b[33mWARNING\x1b[0m" in logged(Screen(), "human")
    assert "\x1b" not in logged(io.StringIO(), "human")


@pytest.mark.parametrize(
    ("stream", "log_format"), [(io.StringIO(), "auto"), (io.StringIO(), "json"), (Screen(), "json")]
)
def test_programs_get_an_object_a_line_with_its_fields(stream: io.StringIO, log_format: LogFormat) -> None:
    expired, failed = json_lines(logged(stream, log_format))
    assert abs(expired.pop("time") - failed.pop("time")) < 60
    assert expired == {
        "level": "warning",
        "logger": "gem_server.somewhere",
        "message": "worker w1 expired: 120 s",
        "event": "expired",
        "worker": "w1",
        "seconds": 120.0,
    }
    assert failed["message"] == "a call failed"
    assert failed["exception"].endswith("ValueError: a bug")


def test_a_flood_of_lines_is_cut_short_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LINES_A_MINUTE", 3)
    now = 600.0
    monkeypatch.setattr(logs, "monotonic", lambda: now)
    out = io.StringIO()
    configure_logs("human", stream=out)
    for number in range(10):
        logging.getLogger("any").info("line %d", number)
    logging.getLogger("any").critical("the end")
    now += 60
    logging.getLogger("any").info("next %s", "minute")
    assert [line.partition("INFO ")[2] for line in out.getvalue().splitlines() if "INFO" in line] == [
        "line 0", "line 1", "line 2", "next minute (before it 8 lines were left out)"
    ]  # fmt: skip
    assert "CRITICAL the end" in out.getvalue()


def test_a_field_that_json_does_not_know_is_no_reason_to_lose_the_line() -> None:
    stream = io.StringIO()
    configure_logs("json", stream=stream)
    logging.getLogger("x").warning("kept", extra={"path": Path("/data"), "number": float("inf")})
    assert "/data" in json_lines(stream.getvalue())[0]["path"]


def test_a_server_whose_log_is_no_terminal_says_in_fields_what_happened(tmp_path: Path) -> None:
    with served(tmp_path, "--data-dir", str(tmp_path / "state"), env={"GEMPS_LOG_FORMAT": "auto"}) as (
        address,
        process,
    ):
        with Client(address, worker_name="w1", layout=SMALL) as client:
            begin(client, SMALL)
            client.leave("that was all")
        assert stop(process) == 0
    lines = json_lines((tmp_path / "server.log").read_text(encoding="utf-8"))
    assert all(line.keys() >= {"time", "level", "logger", "message"} for line in lines)
    by_event: dict[str, Any] = {line["event"]: line for line in lines if "event" in line}
    assert by_event.keys() >= {"serving", "joined", "training", "left", "checkpoint", "stopped"}
    assert by_event["serving"]["port"] == int(address.rpartition(":")[2])
    assert (by_event["joined"]["worker"], by_event["joined"]["rank"]) == ("w1", 0)
    assert by_event["left"]["reason"] == "that was all"
    assert by_event["checkpoint"]["clock"] == by_event["stopped"]["clock"] == 1


def test_a_worker_chooses_by_where_its_lines_go() -> None:
    for stream, log_format, is_json in (
        (io.StringIO(), "auto", True),
        (Screen(), "auto", False),
        (io.StringIO(), "human", False),
        (Screen(), "json", True),
    ):
        Progress("w1", 5.0, log_format, stream).joined(3)  # type: ignore[arg-type]  # one of the three
        line = stream.getvalue().strip()
        assert line == "[w1] joined: rank=3" if not is_json else json.loads(line)["rank"] == 3
