"""`load`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

from gem_core.regular_files import read_bytes, read_text
from gem_launch.tables import Table, table

if TYPE_CHECKING:
    from torch import nn

_TYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


class RunFilesError(ValueError):
    """No readable run, or another model."""


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """A run's files.

    Attributes:
        path: folder of the parameters.
        parameters: with buffers; bfloat16 as float32.
        settings: empty for a checkpoint, as `intervals`.
        version: None: unknown.
        intervals: `HistoryInterval`s (history.proto).
    """

    path: Path
    parameters: Mapping[str, NDArray[Any]] = field(repr=False)
    settings: Mapping[str, Any] = field(repr=False)
    version: int | None
    intervals: list[dict[str, Any]] = field(repr=False)

    def history(self) -> Table:
        """Intervals as a pandas frame; without pandas as a list of dicts."""
        return table(self.intervals)

    def load_into(self, model: "nn.Module") -> None:
        """Copy the parameters and buffers into the model; its frozen tensors keep their values.

        The model may be wrapped, or have wrapped submodules, as by `torch.compile` or `DataParallel`: the files have
        the names of the plain model, which are found in the wrapped one, too.

        Raises:
            RunFilesError: the files hold another model. Nothing was copied.
        """
        import torch
        from gem_worker.wrappers import plain_names

        tensors = {name: torch.from_numpy(array) for name, array in self.parameters.items()}
        state = model.state_dict(keep_vars=True)
        plain = plain_names(model, state)
        held = {plain[name]: tensor for name, tensor in state.items()}
        trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
        buffers = {id(buffer) for buffer in model.buffers()}
        needed = {name for name, tensor in held.items() if id(tensor) in trained | buffers}
        shared = tensors.keys() & held.keys()
        wrong = {
            "it lacks": needed - tensors.keys(),
            "the model lacks": tensors.keys() - held.keys(),
            "of other shapes": {name for name in shared if tensors[name].shape != held[name].shape},
        }
        if any(wrong.values()):
            details = "; ".join(f"{what}: {_few(names)}" for what, names in wrong.items() if names)
            raise RunFilesError(f"{self.path} holds another model than this {type(model).__name__}: {details}")
        named = {name: tensors[plain[name]] for name in state if plain[name] in tensors}
        unexpected = model.load_state_dict(named, strict=False).unexpected_keys
        if unexpected:
            raise RunFilesError(
                f"{self.path} was not loaded into this {type(model).__name__}, whose load_state_dict() does not know "
                f"names of its own state_dict(): {_few(set(unexpected))}; load into the model that it wraps instead"
            )


def load(run: Path | str) -> LoadedRun:
    """Read a run folder of `gemps train`, a server's `data_dir` or a checkpoint. Raises RunFilesError."""
    folder = Path(run)
    place = next((one for one in (folder / "latest", folder) if (one / "model.safetensors").exists()), None)
    if place is None:
        why = "holds no model.safetensors" if folder.is_dir() else "is no folder"
        raise RunFilesError(f"{folder} {why}: give a run folder of gemps train, a server's data_dir or a checkpoint")
    try:
        parameters = _read_tensors(place / "model.safetensors")
        summary = _read_json(folder / "summary.json")
        history = _read_json(folder / "history.json")
        version = _version(place, summary)
    except (OSError, ValueError, SafetensorError) as error:
        raise RunFilesError(f"{folder} cannot be read: {error}") from None
    return LoadedRun(place, parameters, summary.get("settings", {}), version, history.get("intervals", []))


def _few(names: set[str]) -> str:
    shown = sorted(names)[:4]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")


def _version(place: Path, summary: Mapping[str, Any]) -> int | None:
    of_best = _read_json(place / "best.json").get("version", {}).get("clock")
    of_state = _read_json(place / "state.json").get("clock")
    return next((int(one) for one in (of_state, of_best, summary.get("version")) if one is not None), None)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(read_text(path))
    return found


def _read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    stored: list[tuple[str, dict[str, Any]]] = deserialize(read_bytes(path))  # type: ignore[no-untyped-call]
    return {name: _array(one) for name, one in stored}


def _array(stored: Mapping[str, Any]) -> NDArray[Any]:
    data, shape = bytearray(stored["data"]), stored["shape"]  # writable
    if stored["dtype"] == "BF16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(shape)
    return np.frombuffer(data, _TYPES[stored["dtype"]]).reshape(shape)
