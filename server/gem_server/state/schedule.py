"""Learning rate schedules, and the text form in which `--eta-schedule` gives one.

constant              eta stays as it is (the default)
cosine                falls as a cosine to 0, until the end of the run
cosine:5000           falls until commit 5000
cosine:5000:0.001     falls to 0.001 instead of 0; cosine:end:0.001 does so until the end of the run
step:400:0.1          is multiplied by 0.1 after every 400 commits; step:400 has the factor 0.1
warmup:200,cosine     rises linearly over 200 commits first; warmup:200 alone then stays constant
"""

import math
from dataclasses import dataclass
from typing import Literal, Self

_EXAMPLES = "write for example cosine, cosine:5000:0.001, step:400:0.1 or warmup:200,cosine"
_END_OF_RUN = "end"


@dataclass(frozen=True, slots=True)
class EtaSchedule:
    """Eta as a function of the clock (applied commits).

    Warm-up of W commits: at clock c < W, the schedule's value times (c + 1) / W; then decay. The cosine ends after
    `decay_commits` (0: with the run).
    """

    kind: Literal["constant", "step", "cosine"]
    eta: float
    warmup: int = 0
    step_every: int = 0
    step_factor: float = 0.1
    decay_commits: int = 0
    eta_min: float = 0.0

    @classmethod
    def parse(cls, text: str, eta: float) -> Self:
        """Return the schedule that `text` describes, for a learning rate that begins at `eta`.

        Raises ValueError, which names the part that is wrong and shows a right example.
        """
        parts = [part.strip() for part in text.split(",")]
        warmup = 0
        if parts[0].startswith("warmup"):
            warmup = _warmup(parts.pop(0))
        if len(parts) > 1:
            raise ValueError(f"{text!r} has more than a warm-up and one schedule: {_EXAMPLES}")
        part = parts[0] if parts else "constant"
        match part.split(":"):
            case ["constant"]:
                return cls("constant", eta, warmup)
            case ["cosine"]:
                return cls("cosine", eta, warmup)
            case ["cosine", until]:
                return cls("cosine", eta, warmup, decay_commits=_until(until, part))
            case ["cosine", until, least]:
                return cls("cosine", eta, warmup, decay_commits=_until(until, part), eta_min=_eta_min(least, eta, part))
            case ["step", every]:
                return cls("step", eta, warmup, step_every=_commits(every, part))
            case ["step", every, factor]:
                return cls("step", eta, warmup, step_every=_commits(every, part), step_factor=_factor(factor, part))
        raise ValueError(f"{part!r} is no schedule: {_EXAMPLES}")

    @property
    def ends_with_the_run(self) -> bool:
        """Whether it needs to know when the run ends, that is a budget."""
        return self.kind == "cosine" and not self.decay_commits

    def at(self, commits: int, end: int = 0) -> float:
        """Eta after `commits` of `end`."""
        eta = self.eta
        if self.kind == "step":
            eta = self.eta * self.step_factor ** (max(0, commits - self.warmup) // self.step_every)
        elif self.kind == "cosine":
            done = min(1.0, max(0, commits - self.warmup) / max(1, (self.decay_commits or end) - self.warmup))
            eta = self.eta_min + (self.eta - self.eta_min) * (1 + math.cos(math.pi * done)) / 2
        if commits < self.warmup:
            eta *= (commits + 1) / self.warmup
        return eta


def _warmup(part: str) -> int:
    match part.split(":"):
        case ["warmup", commits]:
            return _commits(commits, part)
    raise ValueError(f"{part!r} is no warm-up: write the number of commits, for example warmup:200")


def _until(text: str, part: str) -> int:
    return 0 if text == _END_OF_RUN else _commits(text, part)


def _factor(text: str, part: str) -> float:
    factor = _number(text, part)
    if not 0 < factor <= 1:
        raise ValueError(f"{part!r}: the factor is {factor:g}, and must be above 0 and at most 1, as in step:400:0.1")
    return factor


def _eta_min(text: str, eta: float, part: str) -> float:
    least = _number(text, part)
    if not 0 <= least <= eta:
        raise ValueError(f"{part!r}: eta would end at {least:g}; write a number from 0 to eta, which is {eta:g}")
    return least


def _commits(text: str, part: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise ValueError(f"{part!r}: {text!r} is no number of commits; {_EXAMPLES}")
    return int(text)


def _number(text: str, part: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"{part!r}: {text!r} is no number; {_EXAMPLES}")
    return found
