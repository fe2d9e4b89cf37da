"""Device selection."""

import torch

from gem_worker.errors import TaskError


def device_for(host_rank: int, choice: str = "auto") -> torch.device:
    """A worker's device.

    `choice`: "auto" (CUDA device `host_rank` modulo their number, else CPU), "cuda" (CUDA required), "cuda:1", "cpu" or
    "mps". Raises TaskError if the device does not exist.
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


def describe_device(choice: str) -> str:
    """Return the device's name for logs, before `host_rank` is known."""
    if choice in ("auto", "cuda") and torch.cuda.is_available():
        return "cuda:0" if torch.cuda.device_count() == 1 else "cuda"
    return "cpu" if choice == "auto" else choice
