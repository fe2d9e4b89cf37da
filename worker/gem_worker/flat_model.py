"""A model whose parameters and gradients are parts of flat buffers' memory.

The loop may break views (`zero_grad(set_to_none=True)`, `LSTM.flatten_parameters()`); `collect_gradients` repairs them.
Not thread-safe.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from gem_core.layout import Layout, TensorKind
from gem_worker.errors import UnsupportedModelError
from gem_worker.model_buffers import ModelBuffers
from gem_worker.model_tensors import PARAMETER_TYPES, ModelTensor, inspect_model


@dataclass(frozen=True, slots=True)
class Group:
    """One type's elements [start, stop) of the PARAMETERs."""

    start: int
    stop: int
    parameters: Tensor
    gradients: Tensor


@dataclass(frozen=True, slots=True)
class TrainedTensor:
    """Parameter, its flat views, and its first element's index in the layout."""

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

    `inspected`: result of `inspect_model` on this model, unchanged since.
    """

    def __init__(self, model: nn.Module, inspected: tuple[Layout, tuple[ModelTensor, ...]] | None = None) -> None:
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
        self._structure = _structure(model)

    @property
    def is_plain(self) -> bool:
        """Whether the flat buffers equal the payload: all float32, row-major."""
        return len(self.groups) == 1 and self.groups[0].parameters.dtype is torch.float32 and not self._permuted

    @torch.no_grad()
    def collect_parameters(self) -> None:
        """Repair views of parameters, and find replaced buffers. Raises UnsupportedModelError for a changed model."""
        self._refuse_changes()
        for one in self.trained:
            if one.tensor.data_ptr() != one.values.data_ptr():
                _attach(one.name, one.tensor, one.values)
        self.buffers.collect()

    @torch.no_grad()
    def collect_gradients(self) -> None:
        """Repair all views; call once per step. A gradient of None counts as 0."""
        self.collect_parameters()
        for one in self.trained:
            parameter = one.tensor
            gradient = parameter.grad
            if _is_at(gradient, one.gradient):
                continue
            if gradient is None:
                one.gradient.zero_()
            elif gradient.is_sparse:
                one.gradient.zero_().add_(gradient)
            else:
                one.gradient.copy_(gradient)
            parameter.grad = _alone(one.gradient)

    @torch.no_grad()
    def move_gradients(self, place: Tensor) -> None:
        """Move a plain CPU model's gradients to `place`."""
        (group,) = self.groups
        place.copy_(group.gradients)
        self.groups = (replace(group, gradients=place),)
        moved = []
        for one in self.trained:
            gradient = _like(place, one.start, one.tensor)
            if _is_at(one.tensor.grad, one.gradient):
                one.tensor.grad = _alone(gradient)
            moved.append(replace(one, gradient=gradient))
        self.trained = tuple(moved)

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
            _row_major(one, out).copy_(one.gradient)

    @torch.no_grad()
    def read_parameters(self, out: Tensor) -> None:
        """Copy parameters to `out`, as in `read_gradients`."""
        for group in self.groups:
            out[group.start : group.stop].copy_(group.parameters)
        for one in self._permuted:
            _row_major(one, out).copy_(one.values)

    @torch.no_grad()
    def read_movement(self, since: Tensor, out: Tensor) -> None:
        """Write parameters minus `since` to `out`, as `read_parameters`."""
        for group in self.groups:
            _subtract(group.parameters, since[group.start : group.stop], out[group.start : group.stop])
        for one in self._permuted:
            _subtract(one.values, _row_major(one, since), _row_major(one, out))

    @torch.no_grad()
    def write_parameters(self, values: Tensor) -> None:
        """Copy float32 `values`, in layout order, to the parameters; pinned memory only if plain."""
        for group in self.groups:
            group.parameters.copy_(values[group.start : group.stop], non_blocking=True)
        for one in self._permuted:
            one.values.copy_(_row_major(one, values))

    def _refuse_changes(self) -> None:
        for name, module, children, parameters in self._structure:
            if len(module._modules) != len(children) or any(module._modules.get(k) is not v for k, v in children):
                raise UnsupportedModelError(
                    f"{name or 'the model'}: its submodules changed after joining; change the model before "
                    "ParameterServer(...), or join again with the new one"
                )
            if len(module._parameters) != len(parameters):
                raise UnsupportedModelError(
                    f"{name or 'the model'}: gained or lost a parameter after joining; change the model before "
                    "ParameterServer(...), or join again with the new one"
                )
            for key, parameter, trained in parameters:
                current = module._parameters.get(key)
                full_name = f"{name}.{key}" if name else key
                if current is not parameter:
                    raise UnsupportedModelError(
                        f"{full_name}: another Parameter object took its place after joining (load_state_dict with "
                        "assign=True does that); copy values into it instead: parameter.data.copy_(...)"
                    )
                if current is not None and current.requires_grad and not trained:
                    raise UnsupportedModelError(
                        f"{full_name}: was frozen when the model joined and is not any more; unfreeze it before "
                        "ParameterServer(...), or leave and join a new run"
                    )


def _attach(name: str, tensor: Tensor, view: Tensor) -> None:
    if tensor.device != view.device or tensor.dtype != view.dtype or tensor.shape != view.shape:
        raise UnsupportedModelError(
            f"{name}: was {_describe(view)} when the model joined and is {_describe(tensor)} now; move, convert or "
            "resize the model before ParameterServer(...)"
        )
    view.copy_(tensor)
    tensor.data = _alone(view)


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
    for dtype in PARAMETER_TYPES:
        members = [one for one in tensors if one.tensor.dtype is dtype]
        if not members:
            continue
        count = sum(one.spec.elements for one in members)
        group = Group(
            start,
            start + count,
            torch.empty(count, dtype=dtype, device=device),
            torch.zeros(count, dtype=dtype, device=device),
        )
        offset = 0
        for one in members:
            values, gradient = (_like(flat, offset, one.tensor) for flat in (group.parameters, group.gradients))
            values.copy_(one.tensor.detach())
            one.tensor.data = _alone(values)
            one.tensor.grad = _alone(gradient)
            trained.append(TrainedTensor(one.spec.name, one.tensor, values, gradient, start + offset))
            offset += one.spec.elements
        groups.append(group)
        start += count
    return tuple(groups), tuple(trained)


def _like(flat: Tensor, offset: int, tensor: Tensor) -> Tensor:
    return torch.as_strided(flat, tensor.shape, _dense_strides(tensor), offset)


def _dense_strides(tensor: Tensor) -> tuple[int, ...]:
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


def _row_major(one: TrainedTensor, flat: Tensor) -> Tensor:
    return flat[one.start : one.start + one.tensor.numel()].view(one.tensor.shape)


_Structure = tuple[
    str, nn.Module, tuple[tuple[str, nn.Module | None], ...], tuple[tuple[str, nn.Parameter | None, bool], ...]
]


def _structure(model: nn.Module) -> tuple[_Structure, ...]:
    return tuple(
        (
            name,
            module,
            tuple(module._modules.items()),
            tuple((key, one, one is not None and one.requires_grad) for key, one in module._parameters.items()),
        )
        for name, module in model.named_modules()
    )
