"""docs/time-to-loss.md, from its results there: `python -m time_to_loss.page FILE`; runs nothing.

Prints the README's table.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from time_to_loss.verdicts import judged, judged_goodput, summary, table
from time_to_loss.workload import WORKLOADS
from time_to_loss.worlds import SHARE, SLOW_LINK, WORKERS

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS, COMPARED, GOODPUT = (DOCS / f"{name}.json" for name in ("time-to-loss", "time-to-loss-compared", "goodput"))
DIGITS_LIMIT = 120

TEXT = """\
<!-- Written by time_to_loss.page in benchmarks/ from docs/time-to-loss.json and docs/goodput.json. -->
# Time to a loss

Seconds until a transformer of 137 thousand parameters ([model, text and optimizer](own-optimizer.md)) has a held-out
loss of {target:g} nats a byte, with {workers} workers and batches of {batch} windows each, from the moment when all
are ready. Median of {rounds} rounds, lowest and highest; MB that all hosts sent. Where the target
was not reached, the last loss that was evaluated. A run has 300 s; those of Flower, torch-rpc (but for `slow-network`)
and post-local SGD have 200 s. What has no cell has no valid run.

{table}

### Goals

They were set before the runs. The table chose what they compare: the fastest gemps, the fastest other and DDP. These
ran again, in turn, in one run with {compared_rounds} rounds:

{compared_table}

Ratios of medians, of DDP or the fastest other to the fastest gemps:

{verdicts}

Bytes are compared between kinds of gemps: the ratio is that of wire types, of exchanges every 8 steps and of the
direction.

- gemps' kinds were added one after another: 4 local steps after 8 had missed the goal of `all-together` with 4.97,
  `spectral` after averaged-rms-4 had missed that of `slow-network` with 7.98. Then `ddp-muon` was added, because
  `spectral` uses Muon's orthogonalisation. Its steps take 1.75 times as long as `ddp`'s, by
  bytes a second; PyTorch's Muon orthogonalises in bfloat16, at every step. No contender but gemps has Muon and fewer
  exchanges.
- Flower's fast round of `all-together` is round 0, in which the slow worker fails first.
- In `failures` gemps reaches the loss with three workers, before the one that was killed is back.
- torchrun drops a silent host after 15 s, and then restarts all processes; a host that comes back imports PyTorch
  twice, in torchrun and in the worker. torch-rpc cannot replace a process. In `all-together` PyTorch probably takes
  the slow host about 60 s, so that the next failure comes before DDP trains again.
- The ratios contain optimizer, batch and asynchrony: all but those to `ddp-muon` are against AdamW; gemps updates with
  gradients of {batch} windows, DDP and torch-rpc with those of {batch} from each worker, and DDP clips their mean.
- gemps' rates were found in simulations, for each number of local steps. All AdamW share two, of which text mostly
  chose the lower and digits the higher, so a better one may lie beyond. The fastest of several kinds of gemps counts,
  of Flower there is one.
- With 0.3 of a core the CPU time of small steps decides; on whole cores or GPUs DDP may be faster than gemps.

## Digits

The same for scikit-learn's digits, with the paper's CNN: 88 thousand parameters, batches of {digits.batch}, a held-out
loss of {digits.target:g}; {digits_rounds} rounds of {digits_limit} s. The goals are the same. Losses are
evaluated once a second. In `failures` all end before the first failure, in `all-together` only
gemps-averaged-rms-4-sparse does.

{digits_table}

Again, in one run with 3 rounds, and then up to {digits_compared_rounds} of `all-together`:

{digits_compared_table}

{digits_verdicts}

The goal of `all-together` is missed: 5.99 in the table, 4.81 after 3 rounds in turn, 3.91 after 9. A rate above those
searched helps gemps there, in two rounds that the table lacks (0.0012: 8.4 and 12.6 s; 0.0027: 6.4 and 5.3 s), but
`equal`, where rates are searched, shows no difference: 4.1 s. The kind with 8 local steps came last: with 4 the ratio
of bytes was 19.1.

## Goodput

Steps that are kept when a worker fails after 60 s on average (with 4, every 15 s) and the server after 600 s, of those
without failures; median of 3 runs in turn, of 150 s, lowest and highest. Each process starts again at once; a step
waits 0.1 s, and processor time is not limited. gemps has `--durability commit`. DDP waits for all 4 hosts, and fails
about as often as torchrun drops a silent one:

{goodput}

A start takes about 2 s, most of it to import PyTorch.

As root, on Linux with network namespaces and control groups; here 2 shared cores of a virtual machine:

```sh show
make bench-time                            # text: hours
make bench-time ARGS="--workload digits --limit 120"
make bench-time ARGS="--worlds slow-network --contenders ddp gemps-spectral-4-sparse"
make bench-time ARGS="--compared-in docs/time-to-loss.json --output runs/compared.json"   # an hour
make bench-time ARGS="--compared-in docs/time-to-loss.json --output runs/compared.json --workload digits --limit 120"
make goodput ARGS="--seconds 150"
```

The first command installs the others' packages (`make bench-time ARGS=--help` lists worlds and contenders). Runs that
are already in the output file are skipped, so an interrupted contest can be resumed.

## Worlds

Each worker, and the server or the rendezvous, is a host: a network namespace, and a control group with {share:g} of a
core from the start of training, with which a process that starts again needs about 15 s for PyTorch. The servers of
gemps, torch rpc and Flower compute on theirs, and DDP's rendezvous does not.

- `equal`: all alike, a fast network.
- `slow-worker`: one worker has a quarter of the others' share.
- `slow-network`: each host's link has {megabits:g} Mbit/s and {milliseconds:g} ms, so {twice:g} ms between two hosts.
- `failures`: a worker's host is killed every 60 s, the first after 10 s, and starts again 20 s later; in round n worker
  n is the first. What ends by itself starts again after 1 s.
- `all-together`: all three. Worker 0 is slow.

## Contenders

Each has the best of its learning rates, from runs in the world `equal` with another seed (in brackets the seconds, or
the loss after {search_limit:g} s):

{searched}

For digits:

{digits_searched}

- All clip gradients to norm 1.
- `gemps`: the server's GEM; `averaged-rms`: with `--precondition averaged-rms --weight-decay 0.1`; `spectral`: that
  with `--direction spectral`; `H`: with `--local-steps H`; `adamw-H`: AdamW in the workers, which exchange every H
  steps; `sparse`: with `--delta-wire sparse --parameter-wire int4`.
- `ddp`: PyTorch DDP with gloo under torchrun, AdamW, a checkpoint every 10 steps (every 100 where nothing fails),
  without broadcasts of buffers, which are constant here; `post-local-sgd-H`: with `PostLocalSGDOptimizer`, averaging
  every H steps after 100; `fp16`, `powersgd-4`: with these communication hooks, the second of rank 4, after 10 steps;
  `muon`: `torch.optim.Muon` for the blocks' matrices, with the factor for AdamW's rates, and AdamW for the rest.
  `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` is set: without it torchrun 2.15
  [hung](https://github.com/pytorch/pytorch/issues/135712) here when a host came back.
- `torch-rpc`: the parameter server of PyTorch's tutorial on batch RPC processing, with AdamW; over TCP.
- `flower-fedavg-32`: rounds of 32 local steps of AdamW. `ray-train`: DDP in Ray Train. `torchft-ddp`: torchft 0.2.0,
  averages among the workers that live.
- Not here: hivemind, whose workers find each other without a server, and NVFlare, rounds as Flower's.
"""


def searched(runs: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Rows of the search."""
    yield "| contender | rates |"
    yield "|---|---|"
    for name in dict.fromkeys(one["contender"] for one in runs):
        cells = (
            f"{one['rate']:g} ({one['seconds']:.0f} s)" if one["seconds"] else f"{one['rate']:g} ({_last(one):.2f})"
            for one in runs
            if one["contender"] == name
        )
        yield f"| {name} | {', '.join(cells)} |"


def _last(one: Mapping[str, Any]) -> float:
    return float(one["curve"][-1][1]) if one["curve"] else float("nan")


def page(results: Mapping[str, Any], compared: Mapping[str, Any], goodput: Sequence[Mapping[str, Any]]) -> str:
    """The page."""
    text, digits = (_parts(results, compared, workload) for workload in ("text", "digits"))
    megabits, delay = SLOW_LINK
    return TEXT.format(
        target=WORKLOADS["text"].target,
        batch=WORKLOADS["text"].batch,
        workers=WORKERS,
        **text,
        **{f"digits_{name}": value for name, value in digits.items()},
        digits=WORKLOADS["digits"],
        digits_limit=DIGITS_LIMIT,
        goodput="\n".join(f"- {line}" for line in judged_goodput(goodput)),
        share=SHARE,
        megabits=megabits,
        milliseconds=1000 * delay,
        twice=2000 * delay,
        search_limit=60,
    )


def _parts(results: Mapping[str, Any], compared: Mapping[str, Any], workload: str) -> dict[str, object]:
    runs, search, again = (
        [one for one in found if one["workload"] == workload]
        for found in (results["runs"], results["search"], compared["runs"])
    )
    return {
        "rounds": len({one["seed"] for one in runs}),
        "table": table(runs),
        "compared_rounds": len({one["seed"] for one in again}),
        "compared_table": table(again),
        "verdicts": "\n".join(f"- {line}" for line in judged(again)),
        "searched": "\n".join(searched(search)),
    }


def main() -> None:
    """Write it."""
    results, *others = (json.loads(path.read_text(encoding="utf-8")) for path in (RESULTS, COMPARED, GOODPUT))
    Path(sys.argv[1]).write_text(page(results, *others), encoding="utf-8")
    print(summary([one for one in results["runs"] if one["workload"] == "text"]))


if __name__ == "__main__":
    main()
