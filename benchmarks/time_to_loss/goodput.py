"""Share of the failure-free steps that is kept when hosts fail; needs root.

Workers fail after 60 s on average, the server after 600 s, each by SIGKILL to all its processes, and start again at
once. A step waits 0.1 s, as for a GPU, and processor time is not limited. Kept: commits in the newest snapshot of the
parameters (gemps, `--durability commit`), or its step (DDP, a checkpoint every 10 steps). torchrun's rendezvous does
not fail. A pair of runs in --output is not repeated.
"""

import argparse
import json
import signal
import sys
import tempfile
from pathlib import Path

from benchmarks.time_to_loss.contenders import DURABLE, PLAIN_DDP, Contender
from benchmarks.time_to_loss.failures import random
from benchmarks.time_to_loss.fleet import Fleet
from benchmarks.time_to_loss.verdicts import judged_goodput
from benchmarks.time_to_loss.worlds import UNLIMITED, WORKERS, made

WORKER_SECONDS, SERVER_SECONDS = 60.0, 600.0
PAUSE = 0.1
CONTENDERS = {contender.name: contender for contender in (DURABLE, PLAIN_DDP)}


def main() -> None:
    """Run in turn, and print shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0, help="of a run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("runs/goodput.json"), help="JSON")
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces and groups are removed
    results = json.loads(given.output.read_text(encoding="utf-8")) if given.output.exists() else []
    for seed in range(given.rounds):
        for contender in (CONTENDERS[name] for name in given.contenders):
            if any((one["contender"], one["seed"]) == (contender.name, seed) for one in results):
                continue
            free, _ = kept(contender, given.seconds, {}, seed)
            means = dict.fromkeys(range(1, WORKERS + 1), WORKER_SECONDS)
            if contender is DURABLE:
                means[0] = SERVER_SECONDS
            steps, failures = kept(contender, given.seconds, means, seed)
            found = {"seconds": given.seconds, "free": free, "steps": steps, "failures": failures}
            results.append({"contender": contender.name, "seed": seed, **found})
            print(results[-1], flush=True)
            given.output.parent.mkdir(parents=True, exist_ok=True)
            given.output.write_text(json.dumps(results, indent=1), encoding="utf-8")
    print(*judged_goodput(results), sep="\n")


def kept(contender: Contender, seconds: float, means: dict[int, float], seed: int) -> tuple[int, int]:
    """Steps in the newest model, and failures. means: seconds between those of a host."""
    rate = contender.rates[0] if contender.rates else 0.0
    settings = {"RATE": f"{rate}", "SEED": f"{seed}", "WORKLOAD": "text", "PAUSE": f"{PAUSE}"}
    failures = random(means, seed) if means else iter(())
    with (
        tempfile.TemporaryDirectory(prefix="gemps-goodput-") as folder,
        made(UNLIMITED) as hosts,
        Fleet(contender, UNLIMITED, hosts, Path(folder), settings).running(failures) as fleet,
    ):
        steps = 0
        while fleet.seconds < seconds and not fleet.why:
            fleet.poll()
            for _, step, path in fleet.snapshots():
                steps = step
                path.unlink()
        if fleet.why:
            raise SystemExit(fleet.why)
        return steps, fleet.failed


if __name__ == "__main__":
    main()
