"""Compute times as text (docs/simulation.md). Draws follow from seed and rank."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from gem_simulator.errors import SimulationError

# (generator, rank) to sampler.
_Draws = Callable[[Random, int], Callable[[], float]]


class Durations:
    """Parsed compute times. Raises SimulationError."""

    def __init__(self, text: str) -> None:
        self._draws = _draws(text)

    def of(self, seed: int, rank: int) -> Iterator[float]:
        """Yield seconds per gradient, endlessly."""
        draw = self._draws(Random(f"compute time {seed} {rank}"), rank)  # noqa: S311
        while True:
            yield draw()


def _draws(text: str) -> _Draws:
    kind, _, rest = text.partition(":")
    if kind == "trace":
        return _recorded(Path(rest))
    numbers = _numbers(text, rest)
    match kind, numbers:
        case "constant", [value]:
            return _constant(value)
        case "lognormal", [median, sigma]:
            return _lognormal(median, sigma)
        case "exponential", [mean]:
            return _exponential(mean)
        case "speeds", [_, *_]:
            return _speeds(numbers)
    raise _unknown(text)


def _constant(value: float) -> _Draws:
    return lambda random, rank: lambda: value


def _lognormal(median: float, sigma: float) -> _Draws:
    return lambda random, rank: lambda: median * math.exp(sigma * random.gauss(0.0, 1.0))


def _exponential(mean: float) -> _Draws:
    return lambda random, rank: lambda: random.expovariate(1 / mean)


def _speeds(seconds: list[float]) -> _Draws:
    return lambda random, rank: lambda: seconds[rank % len(seconds)]


def _recorded(path: Path) -> _Draws:
    from gem_simulator.recorded import compute_times  # imports Numba

    times = compute_times(path)
    everybody = [seconds for found in times.values() for seconds in found]
    return lambda random, rank: lambda: random.choice(times.get(rank) or everybody)


def _numbers(text: str, rest: str) -> list[float]:
    try:
        numbers = [float(part) for part in rest.split(",")]
    except ValueError:
        raise _unknown(text) from None
    if not all(math.isfinite(number) and number > 0 for number in numbers):
        raise SimulationError(f"compute time {text!r}: its numbers must be finite and more than 0")
    return numbers


def _unknown(text: str) -> SimulationError:
    return SimulationError(
        f"compute time {text!r} is not known: write constant:SECONDS, lognormal:MEDIAN,SIGMA, exponential:MEAN, "
        "speeds:SECONDS,SECONDS,... or trace:FILE"
    )
