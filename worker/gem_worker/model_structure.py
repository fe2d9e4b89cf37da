"""Notices that a model's modules or parameters were exchanged after it joined.

A step must not cost more the more modules a model has, so `ModelStructure` compares flat lists, whose loops run in C.
Only if they differ does it go through the modules, to name what changed, or to accept what is equivalent: an entry that
was removed and put back under its name.

What belongs to the script alone (`keep_local`) may change: submodules and parameters that hold no tensor of the layout.
"""

from collections.abc import Collection, Iterator
from itertools import chain
from operator import attrgetter, is_
from typing import Any, NamedTuple

from torch import nn

from gem_worker.errors import UnsupportedModelError

_contents_of = attrgetter("_modules", "_parameters")
_requires_grad = attrgetter("requires_grad")


class _ModuleRecord(NamedTuple):
    """A module as it was when the model joined; a parameter's flag says whether it was trained.

    `local`: names of its submodules and parameters that belong to the script; `children` and `parameters` lack them.
    """

    name: str
    module: nn.Module
    children: tuple[tuple[str, nn.Module | None], ...]
    parameters: tuple[tuple[str, nn.Parameter | None, bool], ...]
    local: frozenset[str]


class ModelStructure:
    """The submodules and parameters of `model` at the time of construction. Not thread-safe.

    Args:
        model: the model that has joined.
        shared: ids of the layout's tensors. What holds other tensors only belongs to the script.
    """

    def __init__(self, model: nn.Module, shared: Collection[int]) -> None:
        self._entries = tuple(_entries("", model, shared, set()))
        self._modules = [entry.module for entry in self._entries]
        self._frozen = [
            parameter
            for entry in self._entries
            for _, parameter, is_trained in entry.parameters
            if parameter is not None and not is_trained
        ]
        self._keys: list[tuple[str, ...]]
        self._values: list[nn.Module | nn.Parameter | None]
        self._remember()

    def refuse_changes(self) -> None:
        """Raise UnsupportedModelError if a submodule or a parameter was added, removed, replaced or unfrozen."""
        contents = self._contents()
        if (
            list(map(tuple, contents)) != self._keys
            or not all(map(is_, chain.from_iterable(map(dict.values, contents)), self._values))
            or any(map(_requires_grad, self._frozen))
        ):
            for entry in self._entries:
                _refuse_changes_of(entry)
            self._remember()  # equivalent, or changed where the script may: what to expect from now on

    def _remember(self) -> None:
        contents = self._contents()
        self._keys = list(map(tuple, contents))
        self._values = [value for one in contents for value in one.values()]

    def _contents(self) -> list[dict[str, Any]]:
        """The submodules of a module, its parameters, the submodules of the next one, and so on."""
        return list(chain.from_iterable(map(_contents_of, self._modules)))


def _entries(name: str, module: nn.Module, shared: Collection[int], seen: set[int]) -> Iterator[_ModuleRecord]:
    seen.add(id(module))
    local = {key for key, child in module._modules.items() if child is not None and _is_local(child, shared)}
    local |= {key for key, one in module._parameters.items() if one is not None and id(one) not in shared}
    children = tuple((key, child) for key, child in module._modules.items() if key not in local)
    parameters = tuple(
        (key, one, one is not None and one.requires_grad) for key, one in module._parameters.items() if key not in local
    )
    yield _ModuleRecord(name, module, children, parameters, frozenset(local))
    for key, child in children:
        if child is not None and id(child) not in seen:
            yield from _entries(f"{name}.{key}" if name else key, child, shared, seen)


def _is_local(module: nn.Module, shared: Collection[int]) -> bool:
    """Whether the module holds tensors, but none of the layout."""
    held = [id(one) for one in chain(module.parameters(), module.buffers())]
    return bool(held) and not any(one in shared for one in held)


def _refuse_changes_of(entry: _ModuleRecord) -> None:
    name, module, children, parameters, local = entry
    submodules = {key: child for key, child in module._modules.items() if key not in local}
    held = {key: one for key, one in module._parameters.items() if key not in local}
    if len(submodules) != len(children) or any(submodules.get(k) is not v for k, v in children):
        raise UnsupportedModelError(
            f"{name or 'the model'}: its submodules changed after joining; change the model before "
            "ParameterServer(...), or join again with the new one"
        )
    if len(held) != len(parameters):
        raise UnsupportedModelError(
            f"{name or 'the model'}: gained or lost a parameter after joining; change the model before "
            "ParameterServer(...), or join again with the new one"
        )
    for key, parameter, is_trained in parameters:
        current = held.get(key)
        full_name = f"{name}.{key}" if name else key
        if current is not parameter:
            raise UnsupportedModelError(
                f"{full_name}: another Parameter object took its place after joining (load_state_dict with "
                "assign=True does that); copy values into it instead: parameter.data.copy_(...)"
            )
        if current is not None and current.requires_grad and not is_trained:
            raise UnsupportedModelError(
                f"{full_name}: was frozen when the model joined and is not any more; unfreeze it before "
                "ParameterServer(...), or leave and join a new run"
            )
