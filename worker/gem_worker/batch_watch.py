"""Fingerprints of the first batches, by which the server notices workers that train on the same ones.

A hook sees the tensors that the model is called with in training, until FIRST_COMMITS commits are made. Then it is
removed, so that later steps cost nothing. A fingerprint is a checksum of shapes and of a sample of the values, so it
tells nothing of the data. The watch is for advice only: whatever it cannot read ends it, silently.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

# Commits whose batches are reported: chance, and a first batch that is fixed on purpose, do not make so many equal.
FIRST_COMMITS = 5
# Values of a tensor that a fingerprint covers, spread over all of it, and tensors of one call.
SAMPLED_VALUES = 4096
SAMPLED_TENSORS = 16


class BatchWatch:
    """Watches a model's inputs. Call `committed` after each commit until it returns something."""

    def __init__(self, model: nn.Module) -> None:
        self._hook = _Hook()
        self._found: list[int] = []
        self._handle: RemovableHandle | None = None
        try:
            self._handle = model.register_forward_pre_hook(self._hook, with_kwargs=True)
        except RuntimeError:  # a ScriptModule has no hooks
            self._hook.is_broken = True

    def committed(self) -> tuple[int, ...] | None:
        """Fingerprints of FIRST_COMMITS commits; none if the inputs cannot be seen; None if commits are missing."""
        fingerprint = self._hook.pop_checksum()
        if fingerprint is not None:
            self._found.append(fingerprint)
            if len(self._found) < FIRST_COMMITS:
                return None
        self.close()
        return () if fingerprint is None else tuple(self._found)

    def close(self) -> None:
        """Remove the hook. Idempotent."""
        self._hook.is_broken = True
        if self._handle is not None:
            self._handle.remove()


class _Hook:
    """A class of its own, because a copy or a pickle of the model includes its hooks."""

    def __init__(self) -> None:
        self.is_broken = False
        self._checksum = self._calls = 0

    def pop_checksum(self) -> int | None:
        """Checksum of the calls since the last one; None: there was none, or one could not be read."""
        found = self._checksum if self._calls and not self.is_broken else None
        self._checksum = self._calls = 0
        return found

    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        # A compiled graph must not contain this: the hook is removed soon.
        if torch.compiler.is_compiling() or self.is_broken or not (model.training and torch.is_grad_enabled()):
            return
        try:
            for number, tensor in enumerate(_tensors_in((*args, *kwargs.values()))):
                if number < SAMPLED_TENSORS:
                    self._checksum = zlib.crc32(_sample(tensor), self._checksum)
                    self._calls += 1
        except Exception:
            self.is_broken = True


def _tensors_in(values: Iterable[Any], depth: int = 3) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif depth and isinstance(value, Mapping):
            yield from _tensors_in(value.values(), depth - 1)
        elif depth and isinstance(value, list | tuple):
            yield from _tensors_in(value, depth - 1)


def _sample(tensor: Tensor) -> bytes:
    """Shape and a sample of the values."""
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("a copy to the host cannot be captured")
    flat = tensor.detach().reshape(-1)
    step = max(1, flat.numel() // SAMPLED_VALUES)
    values = flat[::step].cpu().contiguous().view(torch.uint8).numpy()
    return repr(tuple(tensor.shape)).encode() + values.tobytes()
