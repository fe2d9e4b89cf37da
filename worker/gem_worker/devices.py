"""Which device a worker computes on."""

import torch

from gem_worker.errors import TaskError


def device_for(host_rank: int, choice: str = "auto") -> torch.device:
    """The device of the worker with rank `host_rank` on its host.

    Args:
        host_rank: `Membership.host_rank`; several workers of a host share its CUDA devices evenly by it.
        choice: "auto" (cuda:(host_rank mod the number of devices), or the CPU where there is none), "cuda" (the same,
            but CUDA is required), "cuda:1", "cpu" or "mps".

    Raises:
        TaskError: there is no such device here.
    """
    kind, _, number = choice.partition(":")
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu":
        return torch.device("cpu")
    if kind == "mps":
        if not torch.backends.mps.is_available():
            raise TaskError("there is no MPS device here; use --device auto")
        return torch.device("mps")
    if kind != "cuda":
        raise TaskError(f"{choice!r} is no device; use auto, cpu, cuda, cuda:NUMBER or mps")
    if not torch.cuda.is_available():
        why = "this torch was built without CUDA" if torch.version.cuda is None else "torch finds no CUDA device here"
        raise TaskError(f"--device {choice}: {why}; use --device auto or cpu")
    count = torch.cuda.device_count()
    index = int(number) if number else host_rank % count
    if index >= count:
        raise TaskError(f"--device {choice}: this machine has {count} CUDA device(s), numbered from 0")
    return torch.device("cuda", index)


def describe(choice: str) -> str:
    """What the run's status shows for `choice` before the rank on the host is known."""
    if choice in ("auto", "cuda") and torch.cuda.is_available():
        return "cuda:0" if torch.cuda.device_count() == 1 else "cuda"
    return "cpu" if choice == "auto" else choice
