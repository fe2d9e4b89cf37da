"""Process logging on stderr.

structlog formats; programs read the `extra=` fields.
"""

import logging
import sys
from time import monotonic
from typing import Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from gem_core.visible_text import escape_invisible

LogFormat = Literal["auto", "human", "json"]

_COLOURS = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[31m"}
_PLAIN = "\x1b[0m"
# Enough for 1024 joining workers.
LINES_A_MINUTE = 5000


def configure_logs(log_format: LogFormat, *, level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Configure logging to `stream` or stderr."""
    out = stream if stream is not None else sys.stderr
    is_json = log_format == "json" or (log_format == "auto" and not out.isatty())
    handler = logging.StreamHandler(out)
    handler.addFilter(_Bound())
    handler.setFormatter(_json_lines() if is_json else _lines_for_people(in_colour=out.isatty()))
    logging.basicConfig(level=level, handlers=[handler], force=True)


class _Bound(logging.Filter):
    """Limits the rate and counts dropped lines."""

    def __init__(self) -> None:
        super().__init__()
        self._minute = self._count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        minute = int(monotonic() // 60)
        if minute != self._minute:
            left_out, self._minute, self._count = self._count - LINES_A_MINUTE, minute, 0
            if left_out > 0:
                record.msg, record.args = f"{record.getMessage()} (before it {left_out} lines were left out)", ()
        self._count += 1
        return self._count <= LINES_A_MINUTE or record.levelno >= logging.CRITICAL


def _json_lines() -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[_when, structlog.stdlib.add_log_level, structlog.stdlib.add_logger_name, _message, _FIELDS],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
    )


def _lines_for_people(*, in_colour: bool) -> logging.Formatter:
    standard = logging.Formatter()

    def when(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        event["time"] = standard.formatTime(event["_record"])
        return event

    def render(_: WrappedLogger, __: str, event: EventDict) -> str:
        name = event["level"].upper()
        colour = _COLOURS.get(name, "") if in_colour else ""
        # Texts of peers cannot move the cursor, or begin lines of their own. In JSON they are escaped anyway.
        message = escape_invisible(str(event["message"]))
        line = f"{event['time']} {colour}{name}{_PLAIN if colour else ''} {message}"
        return f"{line}\n{event['exception']}" if "exception" in event else line

    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[when, structlog.stdlib.add_log_level, _message],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            render,
        ],
    )


_FIELDS: Processor = structlog.stdlib.ExtraAdder()


def _when(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    event["time"] = round(event["_record"].created, 3)
    return event


def _message(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    event["message"] = event.pop("event")
    return event
