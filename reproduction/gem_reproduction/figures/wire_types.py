"""Loss by wire types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, get_args

import numpy as np
from gem_worker.settings import WholeWireName
from typing_extensions import override

from gem_reproduction.figures.arrivals import failed, shorter, words
from gem_reproduction.figures.interface import Figure, Group, Verdict
from gem_reproduction.runs import Run, Scope

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_WORKERS = 8
_TYPES: tuple[WholeWireName, ...] = get_args(WholeWireName)
# Relative L; seeds vary it by a few hundredths.
_DELTAS, _BOTH = 1.1, 1.25


class WireTypes(Figure):
    """All pairs of types."""

    name = "wire-types"
    title = f"wire-types · Fewer bits on the wire, {_WORKERS} workers"
    claim = "Deltas may travel in any type at no cost; parameters may travel in 16 bits."
    about = (
        "Not a figure of the paper. The moments, the snapshots and the central variable stay float32: s is what the "
        "server sent before it was rounded. The quick form has one seed."
    )
    remark = (
        "Every pair of types ends within half a percent of float32 both ways, as long as the server keeps s unrounded."
    )
    size = (6.4, 4.4)

    @override
    def subtitle(self, scope: Scope) -> str:
        return words(shorter(scope), "round-robin")

    @override
    def runs(self, scope: Scope) -> dict[str, tuple[Run, ...]]:
        return {
            _wire_name(delta, parameters): shorter(scope).simulations(
                workers=_WORKERS, delta_wire=delta, parameter_wire=parameters
            )
            for delta in _TYPES
            for parameters in _TYPES
        }

    @override
    def judge(self, found: Mapping[str, Group]) -> list[Verdict]:
        exact = found[_wire_name("float32", "float32")].loss
        table = {
            f"deltas {delta}": {
                f"L, parameters {parameters}": found[_wire_name(delta, parameters)].loss for parameters in _TYPES
            }
            | {
                f"accuracy, parameters {parameters}": found[_wire_name(delta, parameters)].accuracy
                for parameters in _TYPES
            }
            | {"failed": float(sum(failed(found[_wire_name(delta, parameters)]) for parameters in _TYPES))}
            for delta in _TYPES
        }
        return [
            Verdict(
                f"with float32 parameters, L of every type of deltas is at most {_DELTAS} times that of float32",
                all(found[_wire_name(delta, "float32")].loss <= _DELTAS * exact for delta in _TYPES),
                table,
                must_hold=False,
            ),
            Verdict(
                f"with parameters in 16 bits, L of every type of deltas is at most {_BOTH} times that of float32 both "
                "ways",
                all(found[_wire_name(delta, "bfloat16")].loss <= _BOTH * exact for delta in _TYPES),
                {
                    f"deltas {delta}": {
                        f"L / float32's, parameters {parameters}": found[_wire_name(delta, parameters)].loss / exact
                        for parameters in _TYPES
                    }
                    for delta in _TYPES
                },
                must_hold=False,
            ),
        ]

    @override
    def draw(self, found: Mapping[str, Group], canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        values = np.array([[found[_wire_name(delta, one)].loss for one in _TYPES] for delta in _TYPES])
        image = axes.imshow(values, cmap="Blues")
        for (row, column), value in np.ndenumerate(values):
            colour = "white" if value > np.mean([values.min(), values.max()]) else "black"
            axes.text(column, row, f"{value:.3g}", ha="center", va="center", fontsize=9, color=colour)
        axes.set_xticks(range(len(_TYPES)), _TYPES, fontsize=8)
        axes.set_yticks(range(len(_TYPES)), _TYPES, fontsize=8)
        axes.set_xlabel("parameters", fontsize=9)
        axes.set_ylabel("deltas", fontsize=9)
        canvas.colorbar(image, ax=axes, label="final training loss, L")


def _wire_name(delta: str, parameters: str) -> str:
    return f"deltas {delta}, parameters {parameters}"
