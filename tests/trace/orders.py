"""Traces that are only orders, and the order that a trace has; both as text: "p0 p1 c1 c0 c0".

p2: the first pull of a session of rank 2. c2: a commit of rank 2.
"""

from pathlib import Path

from gem_trace import TraceWriter, read_records
from gem_trace.files import map_file
from gem_trace.format import FORMAT


def write_order(path: Path, order: str, clock: int = 1) -> Path:
    """Append a start of a server with the parameters of this clock, and what came then."""
    writer = TraceWriter(path)
    writer.append({"event": "started", "format": FORMAT})
    for rank in range(10):
        writer.append({"event": "joined", "session": rank + 1, "rank": rank})
    writer.append({"event": "parameters", "run": "a run", "clock": clock})
    for turn in order.split():
        session = int(turn[1:]) + 1
        if turn[0] == "p":
            writer.append({"event": "pulled", "session": session, "reset": True})
        else:
            clock += 1
            writer.append({"event": "committed", "session": session, "clock": clock}, [memoryview(bytes(100))])
    writer.close()
    return path


def order_of(path: Path) -> str:
    """What the trace of one server says, whoever wrote it."""
    ranks: dict[int, int] = {}
    found = []
    for record in read_records(map_file(path)):
        event = record.event
        if event["event"] == "joined":
            ranks[event["session"]] = event["rank"]
        elif event["event"] == "pulled" and event["reset"]:
            found.append(f"p{ranks[event['session']]}")
        elif event["event"] == "committed":
            found.append(f"c{ranks[event['session']]}")
    return " ".join(found)


def commits_of(order: str) -> list[int]:
    """The ranks, in the order of their commits."""
    return [int(turn[1:]) for turn in order.split() if turn[0] == "c"]
