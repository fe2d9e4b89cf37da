"""Outcomes of runs that nobody ran."""

import math
from collections.abc import Mapping, Sequence

from gem_reproduction.figures import Group, choose
from gem_reproduction.figures.interface import Verdict
from gem_reproduction.outcomes import Medians, Outcome
from gem_reproduction.runs import Scope
from gem_simulator.evaluation import Evaluation

CHANCE = math.log(10)


def outcome(
    loss: float = 0.1, *, validation: Sequence[float] = (0.1,), times: Sequence[tuple[float, float]] = ()
) -> Outcome:
    """A run with this loss at its end, and on the way `validation` losses or (virtual time, training loss)."""
    way = [Evaluation(0, at, training, 0.1, 0.9) for at, training in times]
    way += [Evaluation(0, 1000.0, loss, one, 0.9) for one in validation]
    return Outcome(
        way,
        CHANCE,
        tenths=[loss] * 10,
        middle=2 * loss,
        mean_pi=1.0,
        blocked_fraction=0.5,
        medians=Medians(["a"], [0], [0.5], [[0.5]]),
    )


def groups(figure: str, outcomes: Mapping[str, Outcome], otherwise: Outcome) -> dict[str, Group]:
    """For each name of the figure's runs one outcome."""
    (chosen,) = choose([figure])
    names = chosen.runs(Scope(quick=True, steps=1, seeds=1))
    found = {name: Group([outcomes.get(name, otherwise)]) for name in names}
    assert outcomes.keys() <= found.keys()
    return found


def verdicts(figure: str, outcomes: Mapping[str, Outcome], otherwise: Outcome) -> list[Verdict]:
    """What the figure makes of them."""
    (chosen,) = choose([figure])
    return chosen.judge(groups(figure, outcomes, otherwise))


def met(figure: str, outcomes: Mapping[str, Outcome], otherwise: Outcome) -> list[bool]:
    """Of each claim."""
    return [one.met for one in verdicts(figure, outcomes, otherwise)]
