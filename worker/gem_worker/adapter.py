"""Reads and writes PEFT adapters.

Its description (`InitializeHeader.adapter`) is a JSON object, compressed with zlib: `config`, the content of
adapter_config.json, and `tensors`, from PEFT's names to the layout's.
"""

import base64
import copy
import json
import logging
import sys
import zlib
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gem_core.layout import TensorKind
from gem_core.regular_files import read_text
from gem_worker.client import ADAPTER_BYTES
from gem_worker.errors import TaskError
from gem_worker.wrappers import plain_names

if TYPE_CHECKING:
    from torch import Tensor, nn

    from gem_worker.model_tensors import ModelTensor

# Of a description's JSON: ten times the longest known.
_MAX_JSON_BYTES = 4 << 20
_MAX_NAMES = 4
_SHOWN_NAMES = 3
_log = logging.getLogger(__name__)


def describe_adapter(model: "nn.Module", tensors: Collection["ModelTensor"]) -> bytes:
    """Description of the active adapter in `model`; b"" without one, or if it lacks a trained tensor."""
    # A model of PEFT's classes has imported it.
    peft: Any = sys.modules.get("peft")
    found = next((one for one in model.modules() if peft is not None and isinstance(one, peft.PeftModel)), None)
    if found is None:
        return b""
    sent = {id(one.tensor): one.spec.name for one in tensors if one.spec.kind is not TensorKind.FROZEN}
    adapter = found.active_adapter
    # Without embedding layers: PEFT would ask a server for the base model.
    own = peft.get_peft_model_state_dict(
        found, found.state_dict(keep_vars=True), adapter_name=adapter, save_embedding_layers=False
    )
    plain = plain_names(found, own)
    names = {plain[name]: sent[id(tensor)] for name, tensor in own.items() if id(tensor) in sent}
    targets = set(names.values())
    outside = [
        one.spec.name for one in tensors if one.spec.kind is TensorKind.PARAMETER and one.spec.name not in targets
    ]
    if names and outside:
        _warn_of_missing(outside, adapter)
        return b""
    description, why = b"", _why_not(names, len(own))
    if not why:
        config = _config_to_save(found, adapter)
        try:
            text = json.dumps({"config": config.to_dict(), "tensors": names}, default=sorted, sort_keys=True)
        except (TypeError, ValueError, RecursionError) as error:
            why = f"it is no JSON: {error}"
        else:
            description = zlib.compress(text.encode())
            if len(description) > ADAPTER_BYTES:
                why = f"it has {len(description)} bytes, more than {ADAPTER_BYTES}"
    if why:
        _log.warning(
            "the run cannot keep the adapter's configuration (%s): save the adapter with model.save_pretrained()", why
        )
        return b""
    return description


def _warn_of_missing(outside: list[str], adapter: str) -> None:
    more = f" and {len(outside) - _SHOWN_NAMES} more" if len(outside) > _SHOWN_NAMES else ""
    _log.warning(
        "the run cannot export an adapter: %s%s would be missing, which PEFT does not save with the adapter %r; "
        "train one adapter only, with other layers in its modules_to_save",
        ", ".join(outside[:_SHOWN_NAMES]),
        more,
        adapter,
    )


def _why_not(names: dict[str, str], own: int) -> str:
    """Return why the adapter's tensors cannot be described; empty if they can. `own`: how many tensors PEFT saves."""
    if not names:
        return "PEFT makes its tensors on saving, or none trains"
    if len(names) < own:
        return f"{own - len(names)} of its tensors do not train"
    if max(Counter(names.values()).values()) > _MAX_NAMES:
        return f"it has a tensor under more than {_MAX_NAMES} names"
    return ""


def _config_to_save(model: Any, adapter: str) -> Any:
    """Return the adapter's configuration as PEFT's `save_pretrained` completes it before it writes the file."""
    config = copy.copy(model.peft_config[adapter])
    base = model.get_base_model()
    config.inference_mode = True
    config.base_model_name_or_path = config.base_model_name_or_path or base.__dict__.get("name_or_path")
    if config.task_type is None:
        config.auto_mapping = {"base_model_class": type(base).__name__, "parent_library": type(base).__module__}
    return config


def read_description(model_file: Path) -> bytes:
    """Description in the folder of `model_file`; b"" without one. Raises TaskError."""
    folder = model_file if model_file.is_dir() else model_file.parent
    for state in (folder / "state.json", folder / "latest" / "state.json"):
        if state.exists():
            try:
                return base64.b64decode(json.loads(read_text(state)).get("adapter", ""))
            except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
                raise TaskError(f"{state} cannot be read: {error}") from error
    return b""


def write_adapter(folder: Path, description: bytes, tensors: dict[str, "Tensor"], source: str) -> None:
    """Write adapter_model.safetensors and adapter_config.json of `tensors`, by the layout's names.

    Raises TaskError, naming `source`, if it has no adapter.
    """
    from safetensors.torch import save_file

    if not description:
        raise TaskError(
            f"{source} has no adapter: its model is not PEFT's, or trains tensors outside one adapter (the first "
            "worker's log names them); load its model.safetensors instead"
        )
    try:
        found = json.loads(zlib.decompressobj().decompress(description, _MAX_JSON_BYTES))
        names = found["tensors"]
        if max(Counter(names.values()).values()) > _MAX_NAMES:
            raise ValueError(f"a tensor has more than {_MAX_NAMES} names")
        for name in names:
            name.encode()
        chosen = {name: tensors[own] for name, own in names.items()}
        config = json.dumps(dict(found["config"]), indent=2, sort_keys=True)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error) as error:
        raise TaskError(f"the adapter's description in {source} is not one of this version of gemps") from error
    chosen = {name: tensor.clone().contiguous() for name, tensor in chosen.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(chosen, folder / "adapter_model.safetensors", {"format": "pt"})
        (folder / "adapter_config.json").write_text(f"{config}\n", encoding="utf-8")
    except OSError as error:
        raise TaskError(f"the adapter cannot be written to {folder}: {error.strerror}") from error
