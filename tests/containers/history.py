"""What became of every commit: the workers' logs beside the ledger of the checkpoint.

A worker that logs every step (`--log-interval 0 --log-format json`) writes down which version each of its commits made:
(incarnation, clock). A server that comes back goes on from a clock that it logs; what its predecessor applied beyond
that clock is lost, and all up to there survives.
"""

import re
from collections import Counter
from typing import Any, NamedTuple

Version = tuple[int, int]


class History(NamedTuple):
    """Applied commits as the workers know them."""

    surviving: dict[str, int]  # of each worker, counted from its log
    lost: int  # acknowledged, and gone with a crash
    twice: list[Version]  # versions that two log lines claim to have made
    incarnations: int


def history(worker_logs: dict[str, list[dict[str, Any]]], server_log: str, final_clock: int) -> History:
    """Count what survived: per worker, from the logs alone.

    Args:
        worker_logs: JSON lines of each worker, by name.
        server_log: the log of the server over all its starts.
        final_clock: of the last checkpoint.
    """
    made: list[tuple[float, Version, str]] = [
        (line["time"], (line["incarnation"], line["clock"]), name)
        for name, lines in worker_logs.items()
        for line in lines
        if line["event"] == "training" and "clock" in line
    ]
    first_seen: dict[int, float] = {}
    for time, (incarnation, _), _ in sorted(made):
        first_seen.setdefault(incarnation, time)
    order = sorted(first_seen, key=first_seen.__getitem__)
    resumed_at = [int(clock) for clock in re.findall(r"resuming at clock (\d+)", server_log)]
    assert len(resumed_at) == len(order) - 1, "a start of the server in which nobody trained cannot be told apart"
    survives_until = dict(zip(order, [*resumed_at, final_clock], strict=True))
    surviving = Counter(name for _, (incarnation, clock), name in made if clock <= survives_until[incarnation])
    return History(
        surviving=dict(surviving),
        lost=len(made) - surviving.total(),
        twice=[version for version, times in Counter(version for _, version, _ in made).items() if times > 1],
        incarnations=len(order),
    )
