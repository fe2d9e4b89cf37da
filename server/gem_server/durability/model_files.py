"""A large model.safetensors as several files with an index, as Hugging Face's `from_pretrained` reads them."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gem_core.regular_files import open_regular
from gem_server.durability.checkpoint import MODEL_FILE
from gem_server.errors import StartupError

INDEX_FILE = f"{MODEL_FILE}.index.json"
FILE_BYTES = 5_000_000_000
_COPIED_BYTES = 16 << 20


def split_model(model: Path, folder: Path, file_bytes: int = FILE_BYTES) -> Path:
    """Copy the tensors of `model` to files of at most `file_bytes` in `folder`, or one tensor; return the index.

    Raises StartupError if the folder holds an index, OSError.
    """
    index = folder / INDEX_FILE
    if index.exists():
        raise StartupError(f"{index} exists: choose another folder")
    with os.fdopen(open_regular(model), "rb") as source:
        length = int.from_bytes(source.read(8), "little")
        described = json.loads(source.read(length))
        metadata = described.pop("__metadata__", {})
        groups = list(_groups(described, file_bytes))
        folder.mkdir(parents=True, exist_ok=True)
        names = [f"model-{number:05}-of-{len(groups):05}.safetensors" for number in range(1, len(groups) + 1)]
        for name, group in zip(names, groups, strict=True):
            _copy_tensors(folder / name, source, 8 + length, group, metadata)
    sizes = [end - start for group in groups for start, end in (one["data_offsets"] for one in group.values())]
    weights = {tensor: name for name, group in zip(names, groups, strict=True) for tensor in group}
    index.write_text(json.dumps({"metadata": {"total_size": sum(sizes)}, "weight_map": weights}), encoding="utf-8")
    return index


def _groups(described: dict[str, Any], file_bytes: int) -> Iterator[dict[str, Any]]:
    group: dict[str, Any] = {}
    held = 0
    for name, tensor in sorted(described.items(), key=lambda item: item[1]["data_offsets"]):
        start, end = tensor["data_offsets"]
        if group and held + end - start > file_bytes:
            yield group
            group, held = {}, 0
        group[name] = tensor
        held += end - start
    if group:
        yield group


def _copy_tensors(file: Path, source: Any, data: int, group: dict[str, Any], metadata: dict[str, str]) -> None:
    first = min(tensor["data_offsets"][0] for tensor in group.values())
    last = max(tensor["data_offsets"][1] for tensor in group.values())
    moved = {
        name: {**tensor, "data_offsets": [at - first for at in tensor["data_offsets"]]}
        for name, tensor in group.items()
    }
    header = json.dumps({"__metadata__": metadata, **moved}).encode()
    header += b" " * (-len(header) % 8)
    with file.open("xb") as target:
        target.write(len(header).to_bytes(8, "little") + header)
        source.seek(data + first)
        for at in range(first, last, _COPIED_BYTES):
            target.write(source.read(min(_COPIED_BYTES, last - at)))
