"""TensorBoard sink without TensorFlow."""

import json
import time
from collections.abc import Mapping
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto
from typing_extensions import override

from gem_cli.sinks.interface import RunInfo, Scalars, Sink


class TensorBoardSink(Sink):
    """Event file by clock."""

    def __init__(self, run: RunInfo) -> None:
        self._writer = EventFileWriter(str(run.folder / "tensorboard"))
        lines = "".join(f"    {line}\n" for line in json.dumps(run.settings, indent=2).splitlines())
        self._add(0, [_text("settings", lines)])

    @override
    def write(self, clock: int, seconds: float, scalars: Scalars) -> None:
        self._add(clock, [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()])

    def close(self, summary: Mapping[str, Any]) -> None:
        """Write the test accuracy and close."""
        if summary.get("accuracy") is not None:
            final = Summary.Value(tag="test/accuracy", simple_value=summary["accuracy"])
            self._add(int(summary.get("version", 0)), [final])
        self._writer.close()

    def _add(self, clock: int, values: list[Summary.Value]) -> None:
        self._writer.add_event(Event(wall_time=time.time(), step=clock, summary=Summary(value=values)))


def _text(tag: str, markdown: str) -> Summary.Value:
    tensor = make_tensor_proto([markdown.encode()], dtype="string")
    return Summary.Value(tag=tag, metadata=create_summary_metadata(tag, ""), tensor=tensor)
