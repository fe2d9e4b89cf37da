"""A worker of PyTorch DDP under torchrun.

    python -m benchmarks.time_to_loss.ddp_worker [--period H | --hook NAME | --muon]

With a period: post-local SGD, as `torch.distributed.optim.PostLocalSGDOptimizer` documents it. After a restart
training continues from a checkpoint of rank 0, as torchrun documents.
"""

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from benchmarks.time_to_loss.worker_context import WorkerContext
from benchmarks.time_to_loss.workload import Muon, adamw

CHECKPOINT_STEPS = 10
WARMUP_STEPS = 100
POWER_SGD_RANK, POWER_SGD_START = 4, 10


def main() -> None:
    """Train until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--period", type=int, default=1, help="steps between averages of the models")
    parser.add_argument("--hook", choices=["fp16", "powersgd"], help="compresses gradients")
    parser.add_argument("--muon", action="store_true", help="for matrices, instead of AdamW")
    given = parser.parse_args()
    context = WorkerContext.from_environment()
    dist.init_process_group("gloo")
    train(context, lambda model: _parallel(model, given.hook), given.period, Muon if given.muon else adamw)


def _parallel(model: nn.Module, hook: str | None) -> DistributedDataParallel:
    # The models' buffers are constant.
    parallel = DistributedDataParallel(model, broadcast_buffers=False)
    if hook == "fp16":
        parallel.register_comm_hook(None, fp16_compress_hook)
    elif hook == "powersgd":
        state = PowerSGDState(None, matrix_approximation_rank=POWER_SGD_RANK, start_powerSGD_iter=POWER_SGD_START)
        parallel.register_comm_hook(state, powerSGD_hook)
    return parallel


def train(
    context: WorkerContext,
    parallel: Callable[[nn.Module], Any],
    period: int = 1,
    new_optimizer: Callable[[nn.Module, float], Any] = adamw,
) -> None:
    """Train until killed, in a process group."""
    inner = context.model()
    optimizer = new_optimizer(inner, context.rate)
    checkpoint, first = context.folder / "checkpoint.safetensors", 1
    if checkpoint.exists():
        first = 1 + _load(checkpoint, inner, optimizer)
    model = parallel(inner)
    if period > 1:
        averager = PeriodicModelAverager(period=period, warmup_steps=WARMUP_STEPS)
        averager.step = first - 1
        # Each process runs on its own host, so a subgroup has one process.
        alone, _ = dist.new_subgroups(group_size=1)
        state = PostLocalSGDState(process_group=None, subgroup=alone, start_localSGD_iter=WARMUP_STEPS)  # type: ignore[no-untyped-call]
        state.iter = first - 1
        model.register_comm_hook(state, post_localSGD_hook)
        optimizer = PostLocalSGDOptimizer(optim=optimizer, averager=averager)
    batches = context.begin()
    for step in itertools.count(first):
        optimizer.zero_grad()
        context.gradient(model, batches)
        optimizer.step()
        if step <= WARMUP_STEPS or (step - 1 - WARMUP_STEPS) % period == 0:
            context.show(inner, step)
        if step % CHECKPOINT_STEPS == 0 and dist.get_rank() == 0:
            _save(checkpoint, inner, optimizer, step)


def _save(path: Path, model: nn.Module, optimizer: Any, step: int) -> None:
    inner = optimizer.optim if isinstance(optimizer, PostLocalSGDOptimizer) else optimizer
    tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
    for number, state in inner.state_dict()["state"].items():
        tensors |= {f"optimizer/{number}/{name}": value for name, value in state.items()}
    partial = path.with_suffix(".part")
    save_file(tensors | {"step": torch.tensor(step)}, partial)
    partial.rename(path)


def _load(path: Path, model: nn.Module, optimizer: Any) -> int:
    """Return the step."""
    tensors = load_file(path)
    step = int(tensors.pop("step"))
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimizer/"):
            _, number, name = key.split("/")
            state.setdefault(int(number), {})[name] = value
    model.load_state_dict({key.removeprefix("model/"): tensors[key] for key in tensors if key.startswith("model/")})
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    return step


if __name__ == "__main__":
    main()
