"""A model whose parameters and gradients are parts of flat buffers' memory.

The loop may break views (`zero_grad(set_to_none=True)`, `LSTM.flatten_parameters()`); `collect_gradients` repairs them.
Not thread-safe.
"""

import itertools
from dataclasses import dataclass, replace
from operator import attrgetter, is_

import torch
from torch import Tensor, nn

from gem_core.layout import Layout, TensorKind
from gem_worker.errors import UnsupportedModelError
from gem_worker.model_buffers import ModelBuffers
from gem_worker.model_structure import ModelStructure
from gem_worker.model_tensors import ModelTensor, inspect_model, paused_collection

_gradient_of = attrgetter("grad")


@dataclass(frozen=True, slots=True)
class Group:
    """Elements [start, stop) of the PARAMETERs, whose tensors have one type, and whose gradients have one type.

    The two types differ where the script set `grad_dtype`.
    """

    start: int
    stop: int
    parameters: Tensor
    gradients: Tensor


@dataclass(slots=True)
class TrainedTensor:
    """A trained parameter.

    Attributes:
        tensor: the model's Parameter, whose memory is that of `values`.
        values: its elements in the flat parameters.
        gradient: its elements in the flat gradients; this very object is the parameter's `grad`. `FlatModel` replaces
            it when the flat gradients move.
        start: the index of its first element in the layout.
    """

    name: str
    tensor: Tensor
    values: Tensor
    gradient: Tensor
    start: int

    @property
    def is_row_major(self) -> bool:
        """Whether flat memory has the payload's order, unlike channels_last."""
        return self.values.is_contiguous()


class FlatModel:
    """Model's parameters and gradients in flat buffers; its BUFFERs stay where they are (`buffers`).

    Drops existing gradients. Raises UnsupportedModelError.

    Each step compares all tensors with what they were, in loops that run in C, and goes through them one by one only
    if some differ: a model may have tens of thousands of tensors.

    Attributes:
        moved: numbers, in `trained`, of the parameters whose memory the script replaced, so that they were copied back
            into the flat buffers. The reader empties the set.
    """

    @paused_collection()
    def __init__(self, model: nn.Module, inspected: tuple[Layout, tuple[ModelTensor, ...]] | None = None) -> None:
        """Flatten `model`; `inspected` is the result of `inspect_model` on it, if it has not changed since."""
        self.model = model
        self.layout: Layout
        self.layout, tensors = inspected or inspect_model(model)
        by_kind = {kind: [one for one in tensors if one.spec.kind is kind] for kind in TensorKind}
        self.device: torch.device = tensors[0].tensor.device
        self.groups: tuple[Group, ...]
        self.trained: tuple[TrainedTensor, ...]
        self.groups, self.trained = _flatten_parameters(by_kind[TensorKind.PARAMETER], self.device)
        self._permuted = tuple(one for one in self.trained if not one.is_row_major)
        self.buffers = ModelBuffers(by_kind[TensorKind.BUFFER], self.device)
        self.tensors: tuple[ModelTensor, ...] = tensors
        self.moved: set[int] = set()
        self._structure = ModelStructure(model, frozenset(id(one.tensor) for one in tensors))
        self._parameters = [one.tensor for one in self.trained]
        self._addresses = list(map(Tensor.data_ptr, self._parameters))
        self._remember_gradients()

    @property
    def is_plain(self) -> bool:
        """Whether the flat buffers equal the payload: all float32, row-major."""
        if len(self.groups) != 1 or self._permuted:
            return False
        (group,) = self.groups
        return group.parameters.dtype is torch.float32 and group.gradients.dtype is torch.float32

    def collect_parameters(self) -> None:
        """Repair views of parameters, and find replaced buffers. Raises UnsupportedModelError for a changed model."""
        self._structure.refuse_changes()
        if list(map(Tensor.data_ptr, self._parameters)) != self._addresses:
            self._repair_parameters()
        self.buffers.collect()

    def collect_gradients(self) -> None:
        """Repair all views; call once per step. A gradient of None counts as 0.

        Raises UnsupportedModelError for a changed model.
        """
        self.collect_parameters()
        if (
            not all(map(is_, map(_gradient_of, self._parameters), self._gradients))
            or list(map(Tensor.data_ptr, self._gradients)) != self._gradient_addresses
            or list(map(Tensor.stride, self._gradients)) != self._gradient_strides
        ):
            self._repair_gradients()

    @paused_collection()
    @torch.no_grad()
    def move_gradients(self, place: Tensor) -> None:
        """Move a plain CPU model's gradients to `place`."""
        (group,) = self.groups
        place.copy_(group.gradients)
        self.groups = (replace(group, gradients=place),)
        for one in self.trained:
            gradient = own_view(place, one.start, one.values)
            if _is_at(one.tensor.grad, one.gradient):
                one.tensor.grad = gradient
            one.gradient = gradient
        self._remember_gradients()

    def zero_gradients(self) -> None:
        """Zero every gradient, keeping the views."""
        for group in self.groups:
            group.gradients.zero_()

    @torch.no_grad()
    def read_gradients(self, out: Tensor) -> None:
        """Copy gradients to `out`: float32 [layout.parameter_count], on the device."""
        for group in self.groups:
            out[group.start : group.stop].copy_(group.gradients)
        for one in self._permuted:
            row_major(one, out).copy_(one.gradient)

    @torch.no_grad()
    def read_parameters(self, out: Tensor) -> None:
        """Copy parameters to `out`, as in `read_gradients`."""
        for group in self.groups:
            out[group.start : group.stop].copy_(group.parameters)
        for one in self._permuted:
            row_major(one, out).copy_(one.values)

    @torch.no_grad()
    def read_movement(self, since: Tensor, out: Tensor) -> None:
        """Write parameters minus `since` to `out`, as `read_parameters`."""
        for group in self.groups:
            _subtract(group.parameters, since[group.start : group.stop], out[group.start : group.stop])
        for one in self._permuted:
            _subtract(one.values, row_major(one, since), row_major(one, out))

    @torch.no_grad()
    def has_moved(self, one: TrainedTensor, since: Tensor) -> bool:
        """Whether a tensor differs from its part of `since`: float32, in layout order."""
        return not torch.equal(one.values.float(), row_major(one, since))

    @torch.no_grad()
    def write_parameters(self, values: Tensor) -> None:
        """Copy float32 `values`, in layout order, to the parameters; pinned memory only if plain."""
        for group in self.groups:
            group.parameters.copy_(values[group.start : group.stop], non_blocking=True)
        for one in self._permuted:
            one.values.copy_(row_major(one, values))

    def _repair_parameters(self) -> None:
        for number, (one, address) in enumerate(zip(self.trained, self._addresses, strict=True)):
            if one.tensor.data_ptr() == address:
                continue
            if (
                one.values.data_ptr() != address
            ):  # it shares its storage with the parameter, which share_memory_() moves
                group = self._group_of(one)
                one.values = own_view(group.parameters, one.start - group.start, one.values)
            _attach(one.name, one.tensor, one.values)
            self.moved.add(number)

    def _remember_gradients(self) -> None:
        self._gradients = [one.gradient for one in self.trained]
        self._gradient_addresses = list(map(Tensor.data_ptr, self._gradients))
        self._gradient_strides = list(map(Tensor.stride, self._gradients))

    @torch.no_grad()
    def _repair_gradients(self) -> None:
        """Copy gradients that are elsewhere into the flat gradients, and make those the parameters' gradients again."""
        missing: list[Tensor] = []
        elsewhere: list[tuple[Tensor, Tensor]] = []
        has_replaced = False
        expected = zip(self._gradient_addresses, self._gradient_strides, strict=True)
        for one, (address, strides) in zip(self.trained, expected, strict=True):
            gradient, place = one.tensor.grad, one.gradient
            is_intact = not place.numel() or (place.data_ptr() == address and place.stride() == strides)
            if gradient is place and is_intact:
                continue
            if not is_intact:  # the script assigned other memory to its data
                group = self._group_of(one)
                place = own_view(group.gradients, one.start - group.start, one.values)
                has_replaced = True
            if gradient is None:
                missing.append(place)
            elif gradient.is_sparse:
                place.zero_().add_(gradient)
            elif not _is_at(gradient, place):
                elsewhere.append((place, gradient))
            one.gradient = place
        if missing:
            torch._foreach_zero_(missing)
        if elsewhere:
            torch._foreach_copy_([place for place, _ in elsewhere], [gradient for _, gradient in elsewhere])
        for one in self.trained:
            if one.tensor.grad is not one.gradient:
                _set_gradient(one)
        if has_replaced:
            self._remember_gradients()

    def _group_of(self, one: TrainedTensor) -> Group:
        """The group of a parameter that has elements."""
        return next(group for group in self.groups if one.start < group.stop)


@torch.no_grad()
def _attach(name: str, tensor: Tensor, view: Tensor) -> None:
    if tensor.device != view.device or tensor.dtype != view.dtype or tensor.shape != view.shape:
        raise UnsupportedModelError(
            f"{name}: was {_describe(view)} when the model joined and is {_describe(tensor)} now; move, convert or "
            "resize the model before ParameterServer(...)"
        )
    view.copy_(tensor)
    tensor.data = _alone(view)


def _set_gradient(one: TrainedTensor) -> None:
    try:
        one.tensor.grad = one.gradient
    except RuntimeError as error:
        raise UnsupportedModelError(
            f"{one.name}: its gradient was {_describe(one.gradient)} when the model joined and cannot be that now "
            f"({error}); set grad_dtype before ParameterServer(...)"
        ) from error


def _gradient_type(parameter: Tensor) -> torch.dtype:
    """The type for the flat gradient: `grad_dtype`, or one that holds any gradient if that is None."""
    chosen: torch.dtype | None = parameter.grad_dtype
    return torch.promote_types(parameter.dtype, torch.float32) if chosen is None else chosen


def own_view(flat: Tensor, offset: int, like: Tensor) -> Tensor:
    """The elements of `flat` from `offset` in the shape and memory format of `like`.

    They are a storage of their own over the same memory, as safetensors and pickle need.
    """
    strides = _dense_strides(like)
    if flat.device.type not in ("cpu", "cuda"):  # where a storage's address is no number, as with MPS
        return torch.as_strided(flat, like.shape, strides, flat.storage_offset() + offset)
    start = (flat.storage_offset() + offset) * flat.element_size()
    storage = flat.untyped_storage()[start : start + like.numel() * flat.element_size()]
    return torch.empty(0, dtype=flat.dtype, device=flat.device).set_(storage, 0, like.shape, strides)


def _alone(view: Tensor) -> Tensor:
    """The same memory in a storage of one tensor, as safetensors and pickle need."""
    if view.device.type not in ("cpu", "cuda"):  # where a storage's address is no number, as with MPS
        return view
    start = view.storage_offset() * view.element_size()
    storage = view.untyped_storage()[start : start + view.nbytes]
    return torch.empty(0, dtype=view.dtype, device=view.device).set_(storage, 0, view.shape, view.stride())


def _is_at(tensor: Tensor | None, view: Tensor) -> bool:
    """Whether it is `view`'s memory, which `Module.to` and `.data =` replace."""
    return (
        tensor is not None
        and tensor.layout is torch.strided
        and tensor.data_ptr() == view.data_ptr()
        and tensor.stride() == view.stride()
    )


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} on {tensor.device}"


def _flatten_parameters(
    tensors: list[ModelTensor], device: torch.device
) -> tuple[tuple[Group, ...], tuple[TrainedTensor, ...]]:
    groups, trained, start = [], [], 0
    for (dtype, gradient_type), members in itertools.groupby(
        tensors, key=lambda one: (one.tensor.dtype, _gradient_type(one.tensor))
    ):
        some = list(members)
        count = sum(one.spec.elements for one in some)
        group = Group(
            start,
            start + count,
            torch.empty(count, dtype=dtype, device=device),
            torch.zeros(count, dtype=gradient_type, device=device),
        )
        flattened, offset = [], 0
        for one in some:
            values, gradient = (own_view(flat, offset, one.tensor) for flat in (group.parameters, group.gradients))
            flattened.append(TrainedTensor(one.spec.name, one.tensor, values, gradient, start + offset))
            offset += one.spec.elements
        torch._foreach_copy_([one.values for one in flattened], [one.tensor.detach() for one in flattened])
        for trained_tensor in flattened:
            trained_tensor.tensor.data = trained_tensor.values
            trained_tensor.tensor.grad = trained_tensor.gradient
        trained += flattened
        groups.append(group)
        start += count
    return tuple(groups), tuple(trained)


def _dense_strides(tensor: Tensor) -> tuple[int, ...]:
    if tensor.is_contiguous():
        return tensor.stride()
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return torch.empty(tensor.shape, device="meta").stride()
            expected *= size
    return tensor.stride()


def _subtract(values: Tensor, since: Tensor, out: Tensor) -> None:
    if values.dtype is torch.float32:
        torch.sub(values, since, out=out)
    else:  # torch.sub would cast
        out.copy_(values).sub_(since)


def row_major(one: TrainedTensor, flat: Tensor) -> Tensor:
    """The elements of `flat` (in layout order) that are this parameter's, in its shape."""
    return flat[one.start : one.start + one.tensor.numel()].view(one.tensor.shape)
