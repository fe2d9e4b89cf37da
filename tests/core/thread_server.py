"""A process of its own with four threads: says, for one commit after the other, what every number of threads makes.

Numba fixes the largest number of threads and the threading layer when a process starts, so the test process cannot
change them. Reads a JSON object a line (rule, kind, length, seed), answers a list of digests of parameters, state and
statistics: for the serial kernel, then for 1, 2, 3 and 4 threads.
"""

from __future__ import annotations

import hashlib
import json
import sys

from gem_core import RuleState, create_rule
from gem_core.rules import interface
from gem_core.threads import configure_threads
from tests.core.samples import make_sample

RULES = {name: create_rule(name) for name in ("gem", "downpour", "adaptive-staleness")}


def digest(rule_name: str, kind: str, length: int, seed: int) -> str:
    """Of everything that two commits of one worker leave behind."""
    sample = make_sample(kind, length, seed)
    theta = sample.theta.copy()
    state: RuleState
    if rule_name == "gem":
        state = RuleState(sample.snapshot.copy(), (sample.moment.copy(),))
    else:
        state = RuleState(sample.snapshot.copy())
    statistics = [RULES[rule_name].commit(theta, state, delta, 2) for delta in (sample.delta, sample.moment)]
    digested = hashlib.sha256(theta.tobytes() + state.snapshot.tobytes() + repr(statistics).encode())
    for vector in state.vectors:
        digested.update(vector.tobytes())
    return digested.hexdigest()


def main() -> None:
    print(configure_threads().layer, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        commit = (request["rule"], request["kind"], request["length"], request["seed"])
        interface.PARALLEL_FROM = 10**9
        answer = [digest(*commit)]
        interface.PARALLEL_FROM = 1
        for threads in (1, 2, 3, 4):
            configure_threads(threads)
            answer.append(digest(*commit))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
