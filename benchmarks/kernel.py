"""How fast the update rules are, against a memory copy and against plain NumPy, in one run on one machine.

    python benchmarks/kernel.py [--parameters 4200000] [--threads 0] [--repetitions 15]

Each line is the best of the repetitions, which take turns, so that another process disturbs all of them alike. `copy`
is one np.copyto, on one thread, that moves as many bytes as the rule does: it reads half of them and writes half. (gem
reads theta, s, m and delta, 16 bytes a parameter, and writes theta, s and m, 12 bytes.)
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

import gem_core
from gem_core.rules.gem import GemState
from gem_core.rules.interface import UpdateRule
from gem_core.threads import configure_threads

# Bytes a parameter that a rule reads and writes.
TRAFFIC = {"gem": 28, "downpour": 20, "adaptive-staleness": 20}


def rule_commit(rule: UpdateRule, elements: int, parallel: bool) -> Callable[[], object]:
    """A commit of `rule` by one of its kernels, whatever the threshold between them says."""
    random = np.random.default_rng(0)
    parameters = random.standard_normal(elements, np.float32)
    delta = random.standard_normal(elements, np.float32) * np.float32(0.001)
    state = rule.new_worker(parameters)
    return lambda: rule._commit(parameters, state, delta, 1, parallel)


def plain_numpy_gem(elements: int) -> Callable[[], None]:
    """The four equations as one writes them first: a temporary for every operation."""
    random = np.random.default_rng(0)
    theta = random.standard_normal(elements, np.float32)
    delta = random.standard_normal(elements, np.float32) * np.float32(0.001)
    state = GemState(theta.copy(), np.zeros_like(theta))
    mu, epsilon = np.float32(0.9), np.float32(1e-12)

    def commit() -> None:
        nonlocal theta
        state.moment = mu * state.moment + delta
        pi = np.clip((np.abs(state.moment) - np.abs(theta - state.snapshot)) / (np.abs(delta) + epsilon), 0, 5)
        theta = theta + pi * delta
        state.snapshot = theta.copy()

    return commit


def copy(elements: int, traffic: int) -> Callable[[], None]:
    """One copy that reads and writes `traffic` bytes a parameter together."""
    source = np.ones(elements * traffic // 2, np.uint8)
    target = np.zeros_like(source)
    return lambda: np.copyto(target, source)


def best_seconds(contenders: dict[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """The shortest time of each, measured in turns."""
    best = dict.fromkeys(contenders, float("inf"))
    for run in contenders.values():
        run()
    for _ in range(repetitions):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=4_200_000, help="parameters of the model (default 4.2 M)")
    parser.add_argument("--threads", type=int, default=0, help="threads of the parallel kernel; 0: all (default)")
    parser.add_argument("--repetitions", type=int, default=15, help="times each is measured (default 15)")
    arguments = parser.parse_args()
    elements = arguments.parameters

    threads = configure_threads(arguments.threads)
    contenders: dict[str, Callable[[], object]] = {}
    for name in gem_core.rule_names():
        rule = gem_core.create_rule(name)
        rule.warm_up()
        contenders[f"{name}, {threads.number} threads"] = rule_commit(rule, elements, parallel=True)
        contenders[f"{name}, serial"] = rule_commit(rule, elements, parallel=False)
    contenders["gem, plain NumPy"] = plain_numpy_gem(elements)
    for traffic in sorted(set(TRAFFIC.values())):
        contenders[f"copy, {traffic} B/parameter"] = copy(elements, traffic)
    seconds = best_seconds(contenders, arguments.repetitions)

    print(f"{elements:,} parameters, {threads.layer}, best of {arguments.repetitions}")
    print(f"{'':32}{'ms':>10}{'ns/parameter':>14}{'/ its copy':>12}{'/ plain NumPy':>15}")
    plain = seconds["gem, plain NumPy"]
    for name, taken in seconds.items():
        traffic = TRAFFIC.get(name.split(",")[0])
        against_copy = f"{taken / seconds[f'copy, {traffic} B/parameter']:.2f}" if traffic else ""
        against_plain = f"{taken / plain:.3f}" if name.startswith("gem") else ""
        print(f"{name:32}{taken * 1e3:10.3f}{taken / elements * 1e9:14.2f}{against_copy:>12}{against_plain:>15}")


if __name__ == "__main__":
    main()
