"""A model's BUFFERs: which of them changed since they last travelled, and their way into a payload and back.

Three values of each BUFFER matter here:

- the module's own, which the script may write, replace or resize whenever it likes;
- `known`: the server's, as far as this worker was told. The module's value differs from it where the script (or
  BatchNorm, or an observer) has changed a BUFFER;
- `now`: a copy of the module's at the newest `gather`. It becomes `known` when the server has applied the commit that
  brought it (`sent`).

Values are compared as bytes, so that NaN equals NaN and 0 differs from -0. Small BUFFERs are gathered, and compared in
one pass, so that the cost hardly grows with their number. On an accelerator all are gathered there, and cross to the
host in one copy. Large BUFFERs in host memory are compared where they lie.

A large one that has not changed for some steps, and whose version counter stands still, is most likely a mask or a
table, and is compared in one of `_TURNS` steps. It must be, because kernels such as native batch normalisation, NumPy
views and `.data` write without counting. So such a write travels some steps later, and a counted one at once.

A BUFFER whose shape, type or place changes, or that disappears, stays with this worker from then on: a stand-in takes
its place here, and nothing that the script does is overwritten.

Not thread-safe.
"""

import ctypes
import logging
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gem_core.selection import Selection
from gem_core.thresholds import LARGE_BUFFER_BYTES, PIECE_WORDS
from gem_worker.model_tensors import ModelTensor

# Steps after which a large BUFFER counts as constant, and those between two comparisons of it then.
_QUIET_STEPS = 16
_TURNS = 16
_SHOWN_NAMES = 4

_log = logging.getLogger(__name__)


class _Held:
    """A BUFFER of the model: `bytes` views its memory, wherever the script has put that."""

    __slots__ = ("address", "bytes", "name", "owners", "quiet_steps", "shape", "tensor", "type", "version")

    def __init__(self, one: ModelTensor) -> None:
        self.name = one.spec.name
        self.owners = one.owners
        self.shape, self.type = one.tensor.shape, one.tensor.dtype
        self.adopt(one.tensor)

    def adopt(self, tensor: Tensor) -> None:
        """Use this tensor from now on, made contiguous."""
        if not tensor.is_contiguous():
            tensor.data = tensor.data.contiguous()
        self.tensor = tensor
        self.address = tensor.data_ptr()
        self.version: int | None = None
        self.quiet_steps = 0
        # `.data`: writes do not count as the script's in autograd's checks.
        self.bytes = _bytes_of(tensor.data)

    def is_quiet(self) -> bool:
        """Whether the BUFFER has been constant, and nothing says that it was written since the last call."""
        version = None if self.tensor.is_inference() else self.tensor._version
        is_quiet = version is not None and version == self.version and self.quiet_steps >= _QUIET_STEPS
        self.version = version
        return is_quiet

    def find(self) -> Tensor | None:
        """Return the tensor that all owners have in its place now; None if one has none, or if they differ."""
        found = {id(tensor): tensor for tensor in (_tensor_at(module, key) for module, key in self.owners)}
        return next(iter(found.values())) if len(found) == 1 else None

    def accepts(self, tensor: Tensor | None) -> bool:
        """Whether a tensor can take the BUFFER's place."""
        return (
            tensor is not None
            and tensor.shape == self.shape
            and tensor.dtype == self.type
            and tensor.device == self.bytes.device
            and tensor.layout is torch.strided
        )


class _Copy:
    """Host memory for BUFFERs: one flat tensor, and views of its pieces by BUFFER."""

    def __init__(self, sizes: dict[int, int], *, is_pinned: bool) -> None:
        self.flat = torch.zeros(sum(sizes.values()), dtype=torch.uint8, device="cpu", pin_memory=is_pinned)
        self.array: NDArray[np.uint8] = self.flat.numpy()
        self.pieces = dict(zip(sizes, torch.split(self.flat, list(sizes.values())), strict=True))


class ModelBuffers:
    """The BUFFERs `tensors`, in layout order, on `device`.

    Attributes:
        byte_count: bytes of all.
    """

    def __init__(self, tensors: Sequence[ModelTensor], device: torch.device) -> None:
        self._device = device
        self._on_host = device.type == "cpu"
        self._all = [_Held(one) for one in tensors]
        self._watched = list(self._all)
        sizes = {index: one.bytes.numel() for index, one in enumerate(self._all) if one.bytes.numel()}
        self.byte_count = sum(sizes.values())
        large = {index for index, size in sizes.items() if self._on_host and size >= LARGE_BUFFER_BYTES}
        small = {index: size for index, size in sizes.items() if index not in large}
        is_pinned = device.type == "cuda"
        self._known = _Copy(small, is_pinned=is_pinned)
        self._now = _Copy(small, is_pinned=is_pinned)
        self._small = np.fromiter(small, np.intp, len(small))
        self._starts = np.cumsum([0, *small.values()])[:-1]
        self._differs = np.empty(self._known.array.size, bool)
        self._known_large = {index: torch.zeros(sizes[index], dtype=torch.uint8, device="cpu") for index in large}
        self._large_sent: list[tuple[int, Tensor]] = []
        self._on_device = None if self._on_host else torch.empty_like(self._now.flat, device=device)
        self._selected: tuple[bytes, Sequence[int], Selection | None] = (b"", [], None)

    def collect(self) -> None:
        """Find the BUFFERs that the script replaced or resized. Call it before the others."""
        lost = [one for one in self._watched if _has_moved(one) and not self._follow(one)]
        if lost:
            self._watched = [one for one in self._watched if one not in lost]
            names = ", ".join(one.name for one in lost[:_SHOWN_NAMES])
            more = f" and {len(lost) - _SHOWN_NAMES} more buffers" if len(lost) > _SHOWN_NAMES else ""
            _log.warning(
                "%s%s: changed shape, type or device after the model joined, or disappeared. From now on the values of "
                "this script stay with this worker, and the server keeps the last ones that it got. To share them, "
                "bring buffers to their final shape before ParameterServer(...), observers by a batch through the "
                "model; to keep a buffer out of the run from the start, register it with persistent=False",
                names,
                more,
            )

    @torch.no_grad()
    def gather(self) -> None:
        """Copy the module's values to `now`; on CUDA without waiting."""
        if not self._now.pieces:
            return
        sources = [self._all[index].bytes for index in self._now.pieces]
        if self._on_device is None:
            torch.cat(sources, out=self._now.flat)
        else:
            torch.cat(sources, out=self._on_device)
            self._now.flat.copy_(self._on_device, non_blocking=True)

    def changed(self) -> tuple[Sequence[int], Selection | None]:
        """Return the indices of the BUFFERs whose values at `gather` are not `known`, and the selection of them.

        The selection is the same object as long as the same ones change, and None if all must travel.
        """
        flags = np.zeros(len(self._all), bool)
        if self._small.size:
            np.not_equal(self._now.array, self._known.array, out=self._differs)
            flags[self._small] = np.logical_or.reduceat(self._differs, self._starts)
        for index, known in self._known_large.items():
            flags[index] = _has_changed(self._all[index], known, index)
        key = flags.tobytes()
        if self._selected[0] != key:
            indices = np.flatnonzero(flags).tolist()
            self._selected = key, indices, Selection.of(indices)
        return self._selected[1:]

    @torch.no_grad()
    def pack(self, selection: Selection | None, out: Tensor) -> None:
        """Write the selected values (None: all), as they were at `gather`, to the host tensor `out`: uint8, no gaps."""
        indices = range(len(self._all)) if selection is None else selection.indices()
        pieces = [(index, piece) for index in indices if (piece := self._at_gather(index)) is not None]
        self._large_sent, start = [], 0
        for index, piece in pieces:
            if index in self._known_large:
                self._large_sent.append((index, out[start : start + piece.numel()]))
            start += piece.numel()
        if pieces:
            torch.cat([piece for _, piece in pieces], out=out)

    def sent(self) -> None:
        """Take note that the server has what was packed last."""
        self._known, self._now = self._now, self._known
        for index, packed in self._large_sent:
            self._known_large[index].copy_(packed)
        self._large_sent = []

    @torch.no_grad()
    def accept_values(self, selection: Selection | None, rest: Tensor) -> None:
        """Take the server's values, packed in the host tensor `rest`; None: of all."""
        indices = range(len(self._all)) if selection is None else selection.indices()
        taken, start = [], 0
        for index in indices:
            stop = start + self._all[index].bytes.numel()
            if stop > start:
                piece = rest[start:stop]
                self._known_piece(index).copy_(piece)
                if index in self._now.pieces:  # it becomes `known`
                    self._now.pieces[index].copy_(piece)
                taken.append(index)
            start = stop
        self._put_known(taken)

    @torch.no_grad()
    def restore(self, indices: Iterable[int] | None = None) -> None:
        """Give the module `known` values again: of these BUFFERs, or of all."""
        indices = range(len(self._all)) if indices is None else indices
        self._put_known([index for index in indices if self._all[index].bytes.numel()])

    @torch.no_grad()
    def read(self, out: Tensor) -> None:
        """Copy the module's values of all BUFFERs to the host tensor `out`: uint8 [byte_count], in layout order."""
        start = 0
        for one in self._all:
            out[start : start + one.bytes.numel()].copy_(one.bytes)
            start += one.bytes.numel()

    @torch.no_grad()
    def write(self, values: Tensor) -> None:
        """Copy the values of all BUFFERs from `values`, as in `read`, to the module alone."""
        start = 0
        for one in self._all:
            one.bytes.copy_(values[start : start + one.bytes.numel()])
            start += one.bytes.numel()

    def _follow(self, one: _Held) -> bool:
        """Use what the script has put in a BUFFER's place, or a stand-in; return whether it is still the model's."""
        found = one.find()
        if found is not None and one.accepts(found):
            one.adopt(found)
            return True
        index = self._all.index(one)
        one.bytes = one.tensor = torch.empty_like(one.bytes) if not one.bytes.numel() else self._stand_in(index)
        return False

    def _stand_in(self, index: int) -> Tensor:
        return self._known_piece(index).to(self._device, copy=True)

    def _known_piece(self, index: int) -> Tensor:
        large = self._known_large.get(index)
        return self._known.pieces[index] if large is None else large

    def _at_gather(self, index: int) -> Tensor | None:
        return self._all[index].bytes if index in self._known_large else self._now.pieces.get(index)

    def _put_known(self, indices: Sequence[int]) -> None:
        if not indices:
            return
        targets = [self._all[index].bytes for index in indices]
        values = [self._known_piece(index) for index in indices]
        if self._on_host:
            for target, value in zip(targets, values, strict=True):
                target.copy_(value)
        else:  # one copy to the device
            flat = torch.cat(values).to(self._device)
            for target, value in zip(targets, torch.split(flat, [one.numel() for one in values]), strict=True):
                target.copy_(value)


def _tensor_at(module: nn.Module, key: str) -> Tensor | None:
    found = module._buffers.get(key)
    return module._parameters.get(key) if found is None else found


def _has_moved(one: _Held) -> bool:
    module, key = one.owners[0]
    current = module._buffers.get(key)
    if current is None:
        current = module._parameters.get(key)
    return current is not one.tensor or current.data_ptr() != one.address or current.shape != one.shape


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)


def _has_changed(one: _Held, known: Tensor, index: int) -> bool:
    is_due = not one.is_quiet() or (one.quiet_steps + index) % _TURNS == 0
    has_changed = is_due and _differ(_memory_of(one.bytes), known.numpy())
    one.quiet_steps = 0 if has_changed else one.quiet_steps + 1
    return has_changed


def _memory_of(tensor: Tensor) -> NDArray[np.uint8]:
    """A view of a host tensor's bytes, to be used at once. `Tensor.numpy` would forbid scripts to resize the tensor."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * tensor.numel()).from_address(tensor.data_ptr()))


def _differ(some: NDArray[np.uint8], others: NDArray[np.uint8]) -> bool:
    words = some.size // 8 * 8
    ours, theirs = some[:words].view(np.uint64), others[:words].view(np.uint64)
    for start in range(0, ours.size, PIECE_WORDS):
        block = slice(start, start + PIECE_WORDS)
        if np.not_equal(ours[block], theirs[block]).any():
            return True
    return bool(np.not_equal(some[words:], others[words:]).any())
