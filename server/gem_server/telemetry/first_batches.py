"""Notices workers that train on the same batches, by fingerprints of the first ones.

Workers whose scripts seed their shuffling alike draw the same batches in the same order, and contribute little more
than one of them would. Losses cannot show that: workers hold parameters of different versions, so that losses on the
same batch differ. Therefore, a worker reports fingerprints of the inputs of its model in its first commits once, with a
Heartbeat, and equal ones are equal batches. A worker whose inputs never change says nothing by that.
"""

from collections import OrderedDict

# Commits whose batches a worker reports (session.proto).
REPORTED = 5
# Reports that are remembered: as many as there are sessions by default.
MOST_REMEMBERED = 1024
# Names in a group, and groups.
MOST_NAMES = 16
MOST_GROUPS = 4

TEXT = "these workers train on the same batches in the same order, so they add little to each other"
FIX = (
    "let each worker shuffle in its own order, for example by torch.manual_seed(1000 * ps.run_settings.seed + ps.rank) "
    "in the with block, and add ps.rank to the seed of each sampler or generator that has its own"
)


class FirstBatches:
    """Bounded record of reports. Written by the event loop's thread."""

    def __init__(self) -> None:
        self.reports: OrderedDict[tuple[int, ...], list[str]] = OrderedDict()
        self.groups: list[list[str]] = []

    def reported(self, worker: str, batches: tuple[int, ...]) -> None:
        """Take a worker's report; two workers with the same begin a group, to which further ones are added."""
        if len(batches) != REPORTED or len(set(batches)) == 1:
            return
        names = self.reports.setdefault(batches, [])
        if len(self.reports) > MOST_REMEMBERED:
            self.reports.popitem(last=False)
        if worker in names or len(names) >= MOST_NAMES:
            return
        names.append(worker)
        if len(names) == 2 and len(self.groups) < MOST_GROUPS:
            self.groups.append(names)
