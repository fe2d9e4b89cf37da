"""Selects and orders a model's tensors for training.

Names are those of `model.state_dict()` without the prefixes of wrappers such as `torch.compile` (wrappers.py); tied
weights are one entry with aliases. The order is part of the layout's digest:

1. PARAMETERs (`requires_grad`): float32, float64, float16, bfloat16, each in state_dict order.
2. BUFFERs by descending element size, for alignment. Non-persistent ones stay local.
3. FROZEN: `requires_grad=False`, and tensors that the state_dict makes of a frozen module (quantisation state).

A script can claim tensors that do not train (`ScriptTensors`): they stay in this worker, or travel as BUFFERs.
"""

import gc
import hashlib
import math
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gem_core.errors import LayoutError
from gem_core.layout import SHA256_BYTES, ElementType, Layout, TensorKind, TensorSpec
from gem_core.thresholds import TENSOR_PIECE
from gem_worker.errors import UnsupportedModelError
from gem_worker.wrappers import has_fsdp, plain_names

_ELEMENT_TYPES = {one.value: one for one in ElementType}
PARAMETER_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# Modules whose weight has a row for each token or class.
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


@dataclass(frozen=True, slots=True)
class ScriptTensors:
    """Tensors that do not train and that the script changes itself, such as a target network or an EMA teacher.

    A pattern is a tensor's name, the name of a module (all tensors below it), or either with wildcards as in `fnmatch`.

    Attributes:
        keep_local: patterns of the tensors that stay in this worker. They are not part of the layout: not compared, not
            sent, and not in the run's files.
        send_frozen: patterns of the frozen tensors that travel as BUFFERs: the run has the value of the newest commit.
    """

    keep_local: tuple[str, ...] = ()
    send_frozen: tuple[str, ...] = ()

    def refuse_unknown(self, names: Collection[str]) -> None:
        """Raise UnsupportedModelError for a pattern that matches none of `names`."""
        for argument, patterns in (("keep_local", self.keep_local), ("send_frozen", self.send_frozen)):
            for pattern in patterns:
                if not any(_matches(name, (pattern,)) for name in names):
                    raise UnsupportedModelError(
                        f"{argument}: no tensor of the model is called {pattern!r}, and no module: give names as in "
                        "model.state_dict(), but without prefixes of wrappers, or the name of a module"
                    )

    def are_local(self, names: Iterable[str]) -> bool:
        """Whether the tensor of these names stays in this worker."""
        return any(_matches(name, self.keep_local) for name in names)

    def are_sent(self, names: Iterable[str]) -> bool:
        """Whether the tensor of these names travels, although it is frozen."""
        return any(_matches(name, self.send_frozen) for name in names)


NO_SCRIPT_TENSORS = ScriptTensors()


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*") for pattern in patterns)


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """A tensor's layout entry, object, and (module, attribute) owners."""

    spec: TensorSpec
    tensor: Tensor
    owners: tuple[tuple[nn.Module, str], ...]


@contextmanager
def paused_collection() -> Iterator[None]:
    """Pause Python's garbage collector.

    What is made for each tensor stays alive, and looking for garbage among it again and again takes half of the time
    of joining if a model has tens of thousands of tensors.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@paused_collection()
def inspect_model(
    model: nn.Module, script_tensors: ScriptTensors = NO_SCRIPT_TENSORS, *, hashes: bool = True
) -> tuple[Layout, tuple[ModelTensor, ...]]:
    """Layout and tensors of `model`, in that order. Raises UnsupportedModelError.

    `script_tensors` says which tensors the script claims. Without `hashes`, zeros stand for the SHA-256 of FROZEN
    tensors.
    """
    owners = _owners(model)
    for name, tensor in _named_tensors(model):
        if not script_tensors.are_local((name,)):
            _refuse_unready(name, tensor)
    names = _names(model, owners, script_tensors)
    script_tensors.refuse_unknown({name for names_of_one in names.values() for name in names_of_one})
    tensors = []
    for identity, (name, *aliases) in names.items():
        tensor = owners[identity][0]
        kind = _kind(tensor, owners[identity][1])
        is_local, is_sent = script_tensors.are_local((name, *aliases)), script_tensors.are_sent((name, *aliases))
        if is_local or is_sent:
            _refuse_trained(name, kind, "keep_local" if is_local else "send_frozen")
        if is_local:
            continue
        if is_sent:
            kind = TensorKind.BUFFER
        element_type = _element_type(name, tensor, kind)
        is_embedding = any(isinstance(module, EMBEDDINGS) for module, _ in owners[identity][1])
        digest = b""
        if kind is TensorKind.FROZEN:
            digest = _sha256(tensor) if hashes else bytes(SHA256_BYTES)
        spec = TensorSpec(name, tuple(tensor.shape), element_type, kind, tuple(aliases), is_embedding, digest)
        tensors.append(ModelTensor(spec, tensor, tuple(owners[identity][1])))
    _refuse_together(model, tensors, script_tensors)
    tensors.sort(key=_position)
    try:
        return Layout(one.spec for one in tensors), tuple(tensors)
    except LayoutError as error:
        raise UnsupportedModelError(str(error)) from error


def refuse_non_finite(tensors: Iterable[ModelTensor]) -> None:
    """Raise UnsupportedModelError for parameters with NaN or infinity, which servers reject."""
    tensors = [one for one in tensors if one.tensor.is_floating_point() and one.tensor.numel()]
    if _are_finite([one.tensor.detach() for one in tensors]):
        return
    for one in tensors:
        if not bool(torch.isfinite(one.tensor.detach()).all()):
            raise UnsupportedModelError(f"{one.spec.name}: holds values that are not finite; initialise it")


def _are_finite(tensors: list[Tensor]) -> bool:
    """Whether all values are finite. May be False for float64 values that float32 cannot represent."""
    if not tensors:
        return True
    largest = [one.float() for one in torch._foreach_norm(tensors, math.inf)]
    return bool(torch.stack(largest).isfinite().all())


def _named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    found: dict[str, Tensor] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for tensors in (module._parameters, module._buffers):
            for key, tensor in tensors.items():
                if tensor is not None:
                    found[f"{prefix}.{key}" if prefix else key] = tensor
    plain = plain_names(model, found)
    return ((plain[name], tensor) for name, tensor in found.items())


def _owners(model: nn.Module) -> dict[int, tuple[Tensor, list[tuple[nn.Module, str]]]]:
    found: dict[int, tuple[Tensor, list[tuple[nn.Module, str]]]] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for key, tensor in tensors.items():
                if tensor is not None:
                    found.setdefault(id(tensor), (tensor, []))[1].append((module, key))
    return found


def _names(
    model: nn.Module, owners: dict[int, tuple[Tensor, list[tuple[nn.Module, str]]]], script_tensors: ScriptTensors
) -> dict[int, list[str]]:
    names: dict[int, list[str]] = {}
    state = model.state_dict(keep_vars=True)
    plain = plain_names(model, state)
    for name, value in state.items():
        if id(value) not in owners and script_tensors.are_local((plain[name],)):
            continue  # for example the extra state of a module that stays in this worker
        if not isinstance(value, Tensor):
            raise UnsupportedModelError(
                f"{name}: the state_dict holds a {type(value).__name__} here (extra state, or quantised weights), "
                "and only tensors can be shared: train the model without it, and quantise after training"
            )
        if id(value) not in owners and _is_of_frozen_module(model, name):
            _refuse_unready(name, value)
            owners[id(value)] = value, []
        if id(value) not in owners:
            fix = (
                "FullyShardedDataParallel gathers it from its shards, and each worker of a run holds the whole model: "
                "pass the model without FSDP"
                if has_fsdp(model)
                else "remove the state_dict hook that makes it"
            )
            raise UnsupportedModelError(
                f"{name}: state_dict() makes this tensor anew, it is no parameter or buffer of the model; {fix}"
            )
        names.setdefault(id(value), []).append(plain[name])
    parameters = dict(model.named_parameters())
    plain = plain_names(model, parameters)
    for name, tensor in parameters.items():
        if id(tensor) not in names and not script_tensors.are_local((plain[name],)):
            raise UnsupportedModelError(
                f"{name}: is a parameter but not in the state_dict, so no checkpoint could hold it; "
                "remove the hook or override that leaves it out"
            )
    return names


def _is_of_frozen_module(model: nn.Module, name: str) -> bool:
    module = model
    for part in name.split("."):
        if part not in module._modules:
            break
        module = module.get_submodule(part)
    own = [one for one in module._parameters.values() if one is not None]
    return bool(own) and not any(one.requires_grad for one in own)


def _kind(tensor: Tensor, owners: list[tuple[nn.Module, str]]) -> TensorKind:
    if isinstance(tensor, nn.Parameter):
        return TensorKind.PARAMETER if tensor.requires_grad else TensorKind.FROZEN
    return TensorKind.BUFFER if owners else TensorKind.FROZEN


def _refuse_trained(name: str, kind: TensorKind, argument: str) -> None:
    if kind is TensorKind.PARAMETER:
        raise UnsupportedModelError(
            f"{name}: {argument} is for tensors that do not train, and this one has requires_grad=True: call "
            "requires_grad_(False) on it before ParameterServer(...), or leave it out"
        )


def _sha256(tensor: Tensor) -> bytes:
    digest = hashlib.sha256()
    flat = tensor.detach().resolve_conj().contiguous().view(-1)
    for piece in (flat,) if len(flat) <= TENSOR_PIECE else torch.split(flat, TENSOR_PIECE):
        digest.update(piece.cpu().view(torch.uint8).numpy().data)
    return digest.digest()


def _refuse_unready(name: str, tensor: Tensor) -> None:
    if is_lazy(tensor):
        raise UnsupportedModelError(
            f"{name}: is not initialised yet (a lazy module); run one batch through the model before it joins"
        )
    if tensor.is_meta:
        raise UnsupportedModelError(
            f"{name}: is on the meta device and has no values; use model.to_empty(device=...) and initialise it"
        )
    if getattr(tensor, "is_quantized", False):
        raise UnsupportedModelError(f"{name}: is quantised; train in floating point and quantise after training")
    if tensor.layout is not torch.strided:
        raise UnsupportedModelError(f"{name}: is a sparse tensor; make it dense with .to_dense()")
    # A Parameter's own type is that of its data, unless the data is plain.
    if type(tensor) not in (nn.Parameter, Tensor) and type(tensor.data) is not Tensor:
        raise UnsupportedModelError(
            f"{name}: is a {type(tensor.data).__name__}, not a plain tensor; build the model without sharding or "
            "tensor subclasses, each worker holds the whole of it"
        )


def _element_type(name: str, tensor: Tensor, kind: TensorKind) -> ElementType:
    if kind is TensorKind.FROZEN:
        return _ELEMENT_TYPES.get(str(tensor.dtype).removeprefix("torch."), ElementType.OTHER)
    if tensor.is_complex():
        raise UnsupportedModelError(
            f"{name}: is complex; hold it as a real tensor with a last dimension of 2, and use "
            "torch.view_as_complex(...)"
        )
    if kind is TensorKind.PARAMETER and tensor.dtype not in PARAMETER_TYPES:
        raise UnsupportedModelError(
            f"{name}: parameters of type {tensor.dtype} cannot be trained; convert it with .float()"
        )
    try:
        return ElementType(str(tensor.dtype).removeprefix("torch."))
    except ValueError:
        raise UnsupportedModelError(
            f"{name}: type {tensor.dtype} cannot travel; convert it, or register the buffer with persistent=False"
        ) from None


def _refuse_together(model: nn.Module, tensors: list[ModelTensor], script_tensors: ScriptTensors) -> None:
    if not any(one.spec.kind is TensorKind.PARAMETER for one in tensors):
        raise UnsupportedModelError(
            f"{type(model).__name__}: has no parameter with requires_grad=True, so there is nothing to train"
        )
    _refuse_sent([one for one in tensors if one.spec.kind is not TensorKind.FROZEN])
    frozen = {id(one.tensor) for one in tensors if one.spec.kind is TensorKind.FROZEN}
    frozen |= {id(tensor) for name, tensor in _named_tensors(model) if script_tensors.are_local((name,))}
    _refuse_shared_memory(model, frozen)


def _refuse_sent(sent: list[ModelTensor]) -> None:
    """Raise UnsupportedModelError if these are on several devices, or if elements of one share memory."""
    first = sent[0]
    for one in sent:
        if one.tensor.device != first.tensor.device:
            raise UnsupportedModelError(
                f"{one.spec.name}: is on {one.tensor.device} but {first.spec.name} on {first.tensor.device}; "
                f'move the whole model to one device: model.to("{first.tensor.device}")'
            )
        if one.spec.kind is TensorKind.PARAMETER and _overlaps_itself(one.tensor):
            raise UnsupportedModelError(
                f"{one.spec.name}: several of its elements share memory (an expanded tensor); use .contiguous()"
            )


def _refuse_shared_memory(model: nn.Module, frozen: set[int]) -> None:
    """Raise UnsupportedModelError if two objects share memory, unless both are frozen. `frozen`: their ids."""
    ranges = sorted(
        (tensor.data_ptr(), tensor.data_ptr() + _extent(tensor) * tensor.element_size(), id(tensor), name)
        for name, tensor in _named_tensors(model)
        if tensor.numel()
    )
    # Of frozen tensors, which may share memory, and of the others: the range that ends last.
    furthest: dict[bool, tuple[int, int, str]] = {}
    for start, end, identity, name in ranges:
        is_frozen = identity in frozen
        for of_frozen, (end_before, other, other_name) in furthest.items():
            if start < end_before and identity != other and not (is_frozen and of_frozen):
                raise UnsupportedModelError(
                    f"{other_name} and {name}: share memory but are two objects, so training would pull them apart; "
                    "tie them by assigning the same Parameter object to both, or copy one with .clone()"
                )
        if is_frozen not in furthest or end > furthest[is_frozen][0]:
            furthest[is_frozen] = end, identity, name


def _extent(tensor: Tensor) -> int:
    """The number of elements from the first to the last one in memory; the tensor has some."""
    if tensor.is_contiguous():
        return tensor.numel()
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _overlaps_itself(tensor: Tensor) -> bool:
    return tensor.numel() > 0 and _extent(tensor) < tensor.numel()


def _position(one: ModelTensor) -> tuple[int, int, str]:
    if one.spec.kind is TensorKind.PARAMETER:
        return 0, PARAMETER_TYPES.index(one.tensor.dtype), ""
    if one.spec.kind is TensorKind.BUFFER:
        return 1, -one.tensor.element_size(), str(one.tensor.dtype)
    return 2, 0, ""
