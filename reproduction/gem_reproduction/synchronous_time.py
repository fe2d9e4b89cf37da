"""Virtual time, without torch."""

from gem_simulator.durations import Durations
from gem_simulator.settings import SimulationSettings


def step_ends(settings: SimulationSettings, steps: int) -> list[float]:
    """When steps of all workers end."""
    durations, slower = Durations(settings.compute_time), settings.spans("slow")
    workers = [(durations.of(settings.seed, rank), slower.get(rank, 1.0)) for rank in range(settings.workers)]
    ends, now = [], 0.0
    for _ in range(steps):
        now += max(next(seconds) * factor for seconds, factor in workers)
        ends.append(now)
    return ends
