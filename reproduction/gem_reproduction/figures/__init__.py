"""Finds the figures of the paper by their names."""

from collections.abc import Sequence

from gem_reproduction.errors import ReproductionError
from gem_reproduction.figures.better_default import BetterDefault
from gem_reproduction.figures.equal_samples import EqualSamples
from gem_reproduction.figures.exchanges import Exchanges
from gem_reproduction.figures.figure_1 import Figure1a, Figure1b, Figure1c, Figure1d
from gem_reproduction.figures.figure_2 import Figure2
from gem_reproduction.figures.figure_3 import Figure3
from gem_reproduction.figures.figure_4 import Figure4
from gem_reproduction.figures.figure_5 import Figure5
from gem_reproduction.figures.figure_6 import Figure6
from gem_reproduction.figures.figure_7 import Figure7
from gem_reproduction.figures.figure_8 import Figure8
from gem_reproduction.figures.figures_9_10 import Figure9, Figure10
from gem_reproduction.figures.heterogeneity import Heterogeneity
from gem_reproduction.figures.interface import Figure, Group, Verdict
from gem_reproduction.figures.rules import Rules
from gem_reproduction.figures.sweeps import Sweeps
from gem_reproduction.figures.wire_types import WireTypes

__all__ = ["ALL", "BEYOND", "Figure", "Group", "Verdict", "choose", "figure_names"]

# Names that stand for groups of figures.
ALL = "all"
BEYOND = "beyond"

_BEYOND: dict[str, Figure] = {
    figure.name: figure for figure in (Rules(), Sweeps(), WireTypes(), Heterogeneity(), BetterDefault(), EqualSamples())
}

_FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        Figure1a(), Figure1b(), Figure1c(), Figure1d(), Figure2(), Figure3(), Figure4(), Figure5(), Figure6(),
        Figure7(), Figure8(), Figure9(), Figure10(), Exchanges(), *_BEYOND.values(),
    )
}  # fmt: skip


def figure_names() -> tuple[str, ...]:
    """Return the names of all figures."""
    return tuple(_FIGURES)


def choose(names: Sequence[str]) -> list[Figure]:
    """Return the named figures in the registry's order. Raises ReproductionError for an unknown name."""
    groups = {
        ALL: tuple(name for name in _FIGURES if name not in _BEYOND),
        BEYOND: tuple(_BEYOND),
        "1": ("1a", "1b", "1c", "1d"),
    }
    chosen: set[str] = set()
    for name in names:
        if name not in groups and name not in _FIGURES:
            raise ReproductionError(
                f"there is no figure {name!r}: choose among {', '.join(_FIGURES)}, {ALL} or {BEYOND}"
            )
        chosen.update(groups.get(name, (name,)))
    return [figure for name, figure in _FIGURES.items() if name in chosen]
