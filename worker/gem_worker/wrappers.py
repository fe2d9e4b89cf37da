"""Names of a model's tensors without the prefixes that wrappers add.

`torch.compile`, `DataParallel`, `DistributedDataParallel`, FSDP, activation checkpointing and Lightning Fabric put a
module around the user's module. Most of them hold it as a submodule, whose attribute name then is part of each
tensor's name: the weight `0.weight` of a compiled model is `_orig_mod.0.weight` in its state_dict. The layout and the
files of a run use the names of the model without wrappers, so that compiled and plain workers train together and a
file fits both models.

A wrapper is known by its class, never by the attribute's name: `module`, for example, is also a name that users give
to their own submodules, and such a name stays. Not wrappers are a LightningModule and a PEFT model, whose attribute
names are part of their own files, and `AveragedModel`, which holds a copy of a model together with a counter of its
own.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

_FSDP = "torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel"

# (module, class, attribute of the wrapped module). Classes are looked up in sys.modules: an object of a class exists
# only where its module has been imported, and importing torch.compile's module alone takes about a second.
_WRAPPERS = (
    ("torch._dynamo.eval_frame", "OptimizedModule", "_orig_mod"),
    ("torch.nn.parallel.data_parallel", "DataParallel", "module"),
    ("torch.nn.parallel.distributed", "DistributedDataParallel", "module"),
    (*_FSDP, "_fsdp_wrapped_module"),
    # The base class of activation checkpointing's and offloading's wrappers.
    ("torch.distributed.algorithms._checkpoint.checkpoint_wrapper", "ActivationWrapper", "_checkpoint_wrapped_module"),
    ("lightning.fabric.wrappers", "_FabricModule", "_original_module"),
    ("lightning_fabric.wrappers", "_FabricModule", "_original_module"),
)


def plain_names(model: "nn.Module", state: "Mapping[str, Tensor]") -> dict[str, str]:
    """Map each name in `state` to the tensor's name in the model without wrappers.

    `state` is `model.state_dict(keep_vars=True)`. Its values tell which of two readings of a name is right if a hook
    of the state_dict has already removed a prefix.
    """
    wrapped = _wrapped_modules(model)
    if not wrapped:
        return {name: name for name in state}
    return {name: _plain_name(wrapped, model, name, tensor) for name, tensor in state.items()}


def has_fsdp(model: "nn.Module") -> bool:
    """Whether FullyShardedDataParallel wraps a part of the model. Its state_dict consists of gathered copies."""
    module, name = _FSDP
    fsdp = getattr(sys.modules.get(module), name, None)
    return fsdp is not None and any(isinstance(one, fsdp) for one in model.modules())


def _wrapped_modules(model: "nn.Module") -> dict[int, str]:
    """Attribute of the wrapped module by the id of its wrapper, for all wrappers in `model`."""
    found = [
        (wrapper, attribute)
        for module, name, attribute in _WRAPPERS
        if (wrapper := getattr(sys.modules.get(module), name, None)) is not None
    ]
    classes = tuple(wrapper for wrapper, _ in found)
    return {
        id(module): next(attribute for wrapper, attribute in found if isinstance(module, wrapper))
        for module in model.modules()
        if isinstance(module, classes)
    }


def _plain_name(wrapped: Mapping[int, str], model: "nn.Module", name: str, tensor: "Tensor") -> str:
    parts = name.split(".")
    # A tensor that state_dict() makes is not in the model: then the module that it is named after decides.
    plain = _find(wrapped, model, parts, tensor) or _find(wrapped, model, parts, None)
    return ".".join(plain or parts)


def _find(
    wrapped: Mapping[int, str], module: "nn.Module", parts: Sequence[str], tensor: "Tensor | None"
) -> list[str] | None:
    """Plain name of `tensor`, in parts, where the state_dict calls it `parts` below `module`; None if it is not there.

    If `tensor` is None, anything that is not in a submodule counts as found.
    """
    first, *rest = parts
    attribute = wrapped.get(id(module))
    if attribute is not None:
        child = module._modules[attribute]
        assert child is not None
        names_child = first == attribute and bool(rest)
        # The second reading is that of a state_dict whose hooks have removed the wrapper's prefix.
        for reading in (rest, parts) if names_child else (parts,):
            found = _find(wrapped, child, reading, tensor)
            if found is not None:
                return found
    submodule = module._modules.get(first)
    if rest and submodule is not None:
        found = _find(wrapped, submodule, rest, tensor)
        return None if found is None else [first, *found]
    if tensor is None:
        return list(parts)
    is_here = not rest and (module._parameters.get(first) is tensor or module._buffers.get(first) is tensor)
    return [first] if is_here else None
