"""How long computing a gradient takes: a distribution for each worker, as text that people write.

    constant:1            always one second
    lognormal:1,0.5       median 1 second; the logarithm's standard deviation is 0.5
    exponential:1         mean 1 second
    speeds:1,1,4          worker 0 takes 1 second, worker 1 as well, worker 2 takes 4, worker 3 takes 1 again, ...
    trace:FILE            as recorded: what a worker of the same rank took (of all workers, where there was none)

Pure but for `trace:`, which reads its file when it is made. All numbers follow from the seed and the worker's rank.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from gem_simulator.errors import SimulationError

# From a worker's generator and rank to what draws its next number of seconds.
_Draws = Callable[[Random, int], Callable[[], float]]


class Durations:
    """Made from its text (see the module).

    Raises:
        SimulationError: the text is none of these, or the file cannot be read as a trace.
    """

    def __init__(self, text: str) -> None:
        self._draws = _draws(text)

    def of(self, seed: int, rank: int) -> Iterator[float]:
        """Seconds of a worker's steps, one after the other, without end."""
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
    from gem_simulator.recorded import compute_times  # reading traces loads Numba, which a command's start need not

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
