"""Warnings of workers on the terminal of the program that started them: each once, with names, and within bounds."""

import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gem_cli.training.reporters import Reporter
from gem_cli.training.worker_warnings import GATHER_SECONDS, MOST_BYTES, MOST_SHOWN, WorkerWarnings
from gem_worker.warning_file import LOGGERS, MOST_CHARACTERS, MOST_WARNINGS, VARIABLE, WarningFile, hand_over_warnings


class Lines(Reporter):
    """Keeps what a terminal would show."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def close(self) -> None: ...

    def phase(self, name: str, text: str) -> None: ...

    def event(self, name: str, text: str, **particulars: Any) -> None:
        assert name == "warning"
        assert particulars["warning"] in text
        self.lines.append(text)

    def status(self, status: Any) -> None: ...


class Seen:
    """A run's warnings on a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.terminal = Lines()
        self.warnings = WorkerWarnings(self.terminal, clock=lambda: self.now)

    def file(self, worker: str) -> Path:
        return Path(self.warnings.environment(worker)[VARIABLE])

    def write(self, worker: str, message: str, key: str | None = None) -> None:
        with self.file(worker).open("a") as file:
            file.write(json.dumps({"key": key or message, "message": message}) + "\n")

    def after(self, seconds: float) -> list[str]:
        self.now += seconds
        self.warnings.poll()
        return self.terminal.lines


@pytest.fixture
def seen() -> Iterator[Seen]:
    found = Seen()
    yield found
    found.warnings.close()


@pytest.fixture
def logger(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """A logger of gemps in a worker whose warnings are handed over."""
    monkeypatch.setenv(VARIABLE, str(seen.file("worker-0")))
    hand_over_warnings()
    hand_over_warnings()
    yield logging.getLogger(LOGGERS[0]).getChild("parameter_server")
    for name in LOGGERS:
        one = logging.getLogger(name)
        for handler in [*one.handlers]:
            if isinstance(handler, WarningFile):
                one.removeHandler(handler)


def test_a_warning_of_gemps_is_shown_once_and_a_script_keeps_its_own(seen: Seen, logger: logging.Logger) -> None:
    logger.info("not a warning")
    logging.getLogger("script").warning("of the script")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("of the script, too", stacklevel=1)
    for count in range(3):
        logger.warning("skipped %d of %s", count, "epoch 1")
    logger.warning("%s", "one event")
    logger.error("%s", "another event")
    assert seen.after(0.0) == []
    assert seen.after(GATHER_SECONDS) == [
        "warning: worker-0: skipped 0 of epoch 1",
        "warning: worker-0: one event",
        "warning: worker-0: another event",
    ]
    logger.warning("skipped %d of %s", 4, "epoch 2")
    assert len(seen.after(GATHER_SECONDS)) == 3


def test_a_warning_still_goes_to_stderr_if_nothing_else_prints_it(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger.warning("with the handlers of pytest")
    assert not capsys.readouterr().err
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    logger.warning("without")
    assert capsys.readouterr().err == "without\n"


def test_a_file_that_cannot_be_written_ends_nothing(seen: Seen, logger: logging.Logger) -> None:
    seen.file("worker-0").parent.rmdir()
    logger.warning("to nowhere")
    assert seen.after(GATHER_SECONDS) == []
    seen.file("worker-0").parent.mkdir()


def test_the_same_warning_of_several_workers_is_one_line_with_their_names(seen: Seen) -> None:
    for number in range(7):
        seen.write(f"worker-{number}", f"gradient {number} is missing", key="gradient %d is missing")
        seen.after(0.1)
    for number in (0, 1):
        seen.write(f"worker-{number}", "of two")
    seen.after(0.0)
    assert seen.after(GATHER_SECONDS) == [
        "warning: worker-0, worker-1, worker-2, worker-3 and 3 more: gradient 0 is missing",
        "warning: worker-0 and worker-1: of two",
    ]
    seen.write("worker-8", "gradient 8 is missing", key="gradient %d is missing")
    assert len(seen.after(GATHER_SECONDS)) == 2


def problem(kind: str, severity: str, workers: list[str], seconds: float) -> dict[str, Any]:
    text = f"it is so for {seconds} s"
    return {"kind": kind, "severity": severity, "workers": workers, "text": text, "fix": "look", "seconds": seconds}


def test_critical_problems_and_equal_batches_are_told_once_with_names(seen: Seen) -> None:
    for second in range(3):
        found = [
            problem("same-batches", "PROBLEM_SEVERITY_WARNING", ["a", "b\x1b[2J"], second),
            problem("silent-workers", "PROBLEM_SEVERITY_WARNING", ["a"], second),
            problem("disk-space", "PROBLEM_SEVERITY_CRITICAL", [], second),
        ]
        seen.warnings.status({"problems": found})
    assert seen.after(GATHER_SECONDS) == [
        "warning: a and b\\x1b[2J: it is so for 0 s. Look",
        "warning: the server: it is so for 0 s. Look",
    ]


def test_what_waits_is_shown_at_the_end_and_the_files_are_gone(seen: Seen) -> None:
    seen.write("worker-0", "at the last moment")
    folder = seen.file("worker-0").parent
    seen.warnings.close()
    assert seen.terminal.lines == ["warning: worker-0: at the last moment"]
    assert not folder.exists()


def test_characters_that_change_a_terminal_are_replaced(seen: Seen) -> None:
    seen.write("worker-0", "a\nb\x1b[31mc\u202ed\u2028e\r\u200bf")
    assert seen.after(GATHER_SECONDS) == []  # waits from when it was read
    assert seen.after(GATHER_SECONDS) == [r"warning: worker-0: a b\x1b[31mc\u202ed\u2028e\r\u200bf"]


def test_files_are_not_trusted(seen: Seen) -> None:
    """Lines that are none, of wrong types, deep, unfinished, too long, too many, or in a file without an end."""
    texts = ["nothing", "[]", '{"key": 1, "message": "a"}', '{"message": "b"}', "[" * 5000, '{"key": {}, "message": 0}']
    seen.file("worker-0").write_bytes("\n".join([*texts, ""]).encode() + b"\xff\xfe\n" + b'{"key": "c", "mess')
    seen.write("worker-1", "x" * (2 * MOST_CHARACTERS))
    for number in range(2 * MOST_SHOWN):
        seen.write("worker-2", f"warning {number}")
    seen.file("worker-3").write_bytes(b" " * (2 * MOST_BYTES) + b'{"key": "far", "message": "far"}\n')
    seen.after(0.0)
    lines = seen.after(GATHER_SECONDS)
    assert len(lines) == MOST_SHOWN
    assert max(map(len, lines)) < MOST_CHARACTERS + 50
    assert not any("far" in line for line in lines)
    with seen.file("worker-2").open("a") as file:
        file.write("y" * MOST_BYTES)
    seen.write("worker-2", "behind the bound")
    assert len(seen.after(GATHER_SECONDS)) == MOST_SHOWN


def test_a_process_hands_over_a_bounded_number_of_different_warnings(seen: Seen, logger: logging.Logger) -> None:
    for number in range(3 * MOST_WARNINGS):
        logger.warning(f"warning {number}: " + "z" * 5000)
    assert len(seen.file("worker-0").read_text().splitlines()) == MOST_WARNINGS
    assert seen.file("worker-0").stat().st_size < MOST_BYTES
