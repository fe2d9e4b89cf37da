"""docs/time-to-loss.md, from its results there: `python -m benchmarks.time_to_loss.page FILE`; runs nothing.

Prints the README's table.
"""

import json
import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.time_to_loss.verdicts import judged, judged_goodput, summary, table
from benchmarks.time_to_loss.workload import WORKLOADS
from benchmarks.time_to_loss.worlds import SHARE, SLOW_LINK, WORKERS

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS, COMPARED, GOODPUT = (DOCS / f"{name}.json" for name in ("time-to-loss", "time-to-loss-compared", "goodput"))
IMAGES = "fashion-mnist"
NOT_RUN = "It has not been run yet."
DECIMALS_BELOW = 10  # seconds

TEXT = """\
<!-- Written by `python -m benchmarks.time_to_loss.page` from docs/time-to-loss.json and docs/goodput.json. -->
# Time to a loss

Seconds until a transformer of 137 thousand parameters (gemps' own, 2 layers of width 64) has a held-out loss of
{target:g} nats a byte of pydoc_data.topics, with {workers} workers and batches of {batch} windows of 64 bytes
each, from the moment when all are ready. Median of {rounds} rounds, lowest and highest; MB that all hosts sent. Where
the target was not reached, the last loss that was evaluated. A run has 300 s; those of Flower, torch-rpc (but for
`slow-network`) and post-local SGD have 200 s. Empty: not run, or not valid.

{table}

### Goals

They were set before the runs: the fastest contender that is not gemps needs at least 1.0 (`equal`), 5 (`slow-worker`),
8 (`slow-network`), 4 (`failures`) and 5 times (`all-together`) as long as `gemps`, which has no option at all. `gemps`
and the fastest other of each world run again, in turn, in one run:

{again}

Ratios of medians:

{verdicts}

- `gemps` ran in the second table only, on a machine that tests used as well, at a low priority. `gemps-plain` ran
  earlier, with wire types float32; `gemps-adamw` has not run with text yet. Kinds of gemps that ran then with a
  preconditioner in the server, and with `--direction spectral`, are no contenders any more, because [both have
  left](transformer.md).
- `slow-network`: gemps has chosen 4 bits a value, but a step, which takes about 30 ms on the fast network, still waits
  about 50 ms for its exchange. The goal would need less time than gemps takes on the fast network. With the run's
  `--local-steps` workers exchange less often; gemps does not choose them by itself.
- One worker alone is no contender: the loss is the same for all, and what several workers gain is in
  [other tables](choosing.md#by-number-of-workers).
- Muon's steps take 1.75 times as long as `ddp`'s, by bytes a second; PyTorch's Muon orthogonalises in bfloat16, at
  every step.
- Flower's fast round of `all-together` is round 0, in which the slow worker fails first.
- torchrun drops a silent host after 15 s, and then restarts all processes; a host that comes back imports PyTorch
  twice, in torchrun and in the worker. torch-rpc cannot replace a process. In `all-together` PyTorch probably takes
  the slow host about 60 s, so that the next failure comes before DDP trains again.
- The ratios contain optimizer, batch and asynchrony: gemps updates with gradients of {batch} windows, DDP and torch-rpc
  with those of {batch} from each worker, and DDP clips their mean.
- All AdamW share two rates, of which mostly the lower won.
- With 0.3 of a core the CPU time of small steps decides; on whole cores or GPUs DDP may be faster than gemps.

## Fashion-MNIST

The same for [Fashion-MNIST](command-line.md#fashion-mnist), with the paper's CNN: 164 thousand parameters, batches of
{images.batch}, a loss of {images.target:g} over the first {images.held_out} held-out images, evaluated every
{images.evaluation_seconds:g} s. One process with AdamW reaches it after about 1 750 steps. The goals are the same.

{images_results}

## Goodput

Steps that are kept when a worker fails after 60 s on average (with 4, every 15 s) and the server after 600 s, of those
without failures; median of 3 runs in turn, of 150 s, lowest and highest. Each process starts again at once; a step
waits 0.1 s, and processor time is not limited. gemps has `--durability commit`. DDP waits for all 4 hosts, and fails
about as often as torchrun drops a silent one. gemps' runs had a preconditioner in the server, which has left since:

{goodput}

A start takes about 2 s, most of it to import PyTorch.

## Run it

It needs root, and Linux with network namespaces and control groups. Used here: 2 shared cores of a virtual machine.

```sh show
python -m benchmarks.time_to_loss   # text: hours
apt-get install dataset-fashion-mnist   # Debian's package, 31 MB; the next line reads it
python -m benchmarks.time_to_loss --workload fashion-mnist
python -m benchmarks.time_to_loss --worlds slow-network --contenders ddp gemps
python -m benchmarks.time_to_loss --compared-in docs/time-to-loss.json --output runs/compared.json   # an hour
python -m benchmarks.time_to_loss.goodput --seconds 150
```

The others' packages are those of `make bench`, which installs them; `--help` lists worlds and contenders. Runs that
are already in the output file, `runs/time-to-loss.json`, are skipped, so an interrupted contest can be resumed.

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

Each but `gemps`, which has none, has the best of its learning rates in the world `equal`, with other seeds (in brackets
the mean of the seconds, or of the loss after {search_limit:g} s). Text was searched with one seed, without doubling the
highest rate while it won:

{searched}

For Fashion-MNIST:

{images_searched}

- All clip gradients to norm 1. AdamW has weight decay 0.1.
- `gemps`: scripts without an optimizer and a server without options; `gemps-adamw`: the script's AdamW is handed to
  `ParameterServer(optimizer=...)`, the server has no options; `gemps-plain`: `--rule gem` with a searched `--eta`, as
  in the paper.
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

IMAGES_RESULTS = """\
Rounds: {rounds}, of 150 s, on a machine that tests used as well, at a low priority. It was ended before `failures` and
`all-together`.

{table}

{verdicts}

Without an optimizer gemps needs two to three times as many steps here as with AdamW: its one learning rate was chosen
by what a run ends at, not by how fast it begins ([the study](default.md)). So keep the script's optimizer."""


def searched(runs: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Rows of the search."""
    yield "| contender | rates |"
    yield "|---|---|"
    for name in dict.fromkeys(one["contender"] for one in runs):
        rates: dict[float, list[Mapping[str, Any]]] = {}
        for one in runs:
            if one["contender"] == name:
                rates.setdefault(one["rate"], []).append(one)
        yield f"| {name} | {', '.join(f'{rate:g} ({_mean(found)})' for rate, found in rates.items())} |"


def _mean(runs: Sequence[Mapping[str, Any]]) -> str:
    """Of the seconds, or of the last loss where a seed did not reach the target."""
    if all(one["seconds"] for one in runs):
        seconds = statistics.fmean(one["seconds"] for one in runs)
        return f"{seconds:.1f} s" if seconds < DECIMALS_BELOW else f"{seconds:.0f} s"
    return f"{statistics.fmean(one['curve'][-1][1] if one['curve'] else math.nan for one in runs):.2f}"


def page(results: Mapping[str, Any], compared: Mapping[str, Any], goodput: Sequence[Mapping[str, Any]]) -> str:
    """The page."""
    text, images = (_parts(results, compared, workload) for workload in ("text", IMAGES))
    has_run = any(one["workload"] == IMAGES for one in results["runs"])
    megabits, delay = SLOW_LINK
    return TEXT.format(
        target=WORKLOADS["text"].target,
        batch=WORKLOADS["text"].batch,
        workers=WORKERS,
        **text,
        images=WORKLOADS[IMAGES],
        images_results=IMAGES_RESULTS.format(**images) if has_run else NOT_RUN,
        images_searched=images["searched"] if has_run else NOT_RUN,
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
        "again": table(again) if again else NOT_RUN,
        "verdicts": "\n".join(f"- {line}" for line in judged(again or runs)),
        "searched": "\n".join(searched(search)),
    }


def main() -> None:
    """Write it."""
    results, *others = (json.loads(path.read_text(encoding="utf-8")) for path in (RESULTS, COMPARED, GOODPUT))
    Path(sys.argv[1]).write_text(page(results, *others), encoding="utf-8")
    print(summary([one for one in others[0]["runs"] if one["workload"] == "text"]))


if __name__ == "__main__":
    main()
