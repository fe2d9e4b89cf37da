"""Notices workers that train on the same batches, by the first commit of each session.

Workers whose scripts seed their shuffling alike draw the same batches, and contribute little more than one of them
would. Later losses cannot show that: each worker holds parameters of its own version, so losses on the same batch
differ from the second or third commit on. But workers that joined before training began compute their first gradient at
the same version. If they computed it from the same batch, the deltas are equal bit for bit, and so are their checksums;
different deltas have equal checksums once in 2^32 pairs. This does not notice workers that join at different versions,
compute on devices that round differently, or have dropout of different seeds.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from gem_server.state.ledger import Content
from gem_server.version import Version

# First commits that are remembered: as many as there are sessions by default.
MOST_REMEMBERED = 1024
# Names in a warning, and warnings.
MOST_NAMES = 16
MOST_GROUPS = 4

TEXT = (
    "the first gradients of these workers are equal bit for bit, so they train on the same batches and add little to "
    "each other: let each worker shuffle in its own order, for example by torch.manual_seed(1000 * "
    "ps.run_settings.seed + ps.rank) in the with block, and add ps.rank to the seed of each sampler or generator that "
    "has its own"
)


@dataclass(slots=True)
class SameBatches:
    """Names of workers with the same first commit, at most MOST_NAMES of them."""

    names: list[str] = field(default_factory=list)


class FirstCommits:
    """Bounded record of first commits. Written by the applying task."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[Version, Content], SameBatches] = OrderedDict()
        self.groups: list[SameBatches] = []

    def applied(self, worker: str, base: Version, content: Content) -> str | None:
        """Record a session's first commit, whose delta is not zero; return another worker's name with an equal one.

        It is returned once for each group of workers.
        """
        group = self._known.setdefault((base, content), SameBatches())
        if len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)
        if worker in group.names or len(group.names) >= MOST_NAMES:
            return None
        group.names.append(worker)
        if len(group.names) != 2 or len(self.groups) >= MOST_GROUPS:
            return None
        self.groups.append(group)
        return group.names[0]
