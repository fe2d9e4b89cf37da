"""A checkpoint: a directory, created atomically.

    DATA_DIR/checkpoints/000000001000-0/        clock and a unique number
        model.safetensors      the model's state_dict, in its types
        float32.safetensors    exact values of 16-bit parameters
        rule.safetensors       vectors that the rule keeps of the run, numbered
        state.json             version, layout, budget, workers, ledger, the rule's scalars
        checksums.json         CRC32C of each MiB of these files
    DATA_DIR/latest -> checkpoints/000000001000-0

Private: the ledger holds session ids.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize, serialize_file
from safetensors import TensorSpec as FileTensor

from gem_core import ElementType, Layout, TensorSpec
from gem_core.aligned import aligned_copy, aligned_empty
from gem_core.checksum import crc32c
from gem_core.regular_files import open_regular, read_bytes, read_text
from gem_core.shards import Shard
from gem_server.durability.files import Files
from gem_server.errors import StartupError

FORMAT = "gemps-checkpoint-2"
MODEL_FILE, EXACT_FILE, STATE_FILE = "model.safetensors", "float32.safetensors", "state.json"
RULE_FILE = "rule.safetensors"
CHECKSUMS_FILE = "checksums.json"
CHECKED_BLOCK = 1024 * 1024
LATEST = "latest"

# safetensors' type names, written and read.
_WRITTEN = {
    ElementType.FLOAT32: ("float32", "F32"),
    ElementType.FLOAT64: ("float64", "F64"),
    ElementType.FLOAT16: ("float16", "F16"),
    ElementType.BFLOAT16: ("bfloat16", "BF16"),
    ElementType.INT8: ("int8", "I8"),
    ElementType.INT16: ("int16", "I16"),
    ElementType.INT32: ("int32", "I32"),
    ElementType.INT64: ("int64", "I64"),
    ElementType.UINT8: ("uint8", "U8"),
    ElementType.BOOL: ("bool", "BOOL"),
}
_HALVES = (ElementType.FLOAT16, ElementType.BFLOAT16)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state at one point; `state`: JSON values.

    `parameters`, `rule_vectors`: float32[layout.parameter_count]; `buffers`: bytes in layout order.
    """

    layout: Layout
    clock: int
    parameters: NDArray[np.float32]
    buffers: bytes
    state: dict[str, Any]
    rule_vectors: tuple[NDArray[np.float32], ...] = ()


def write_checkpoint(
    data_dir: Path, checkpoint: Checkpoint, files: Files | None = None, keep: Path | None = None, *, alone: bool = False
) -> Path:
    """Write the latest checkpoint; return its directory. Raises OSError.

    Deletes others except the one before, which may be open, and `keep`; `alone`: these, too.
    """
    files = files or Files()
    parent = data_dir / "checkpoints"
    if not parent.exists():
        files.make_directory(parent)
        files.sync(data_dir)
    place = _unused_path(parent, checkpoint.clock)
    before = (data_dir / LATEST).resolve()
    unfinished = parent / ".unfinished"
    files.remove(unfinished)
    files.make_directory(unfinished)
    try:
        write_tensors(unfinished, checkpoint)
        document = {"format": FORMAT, "clock": checkpoint.clock, "layout": checkpoint.layout.describe()}
        if (part := checkpoint.layout.part) is not None:
            document |= {"shard": f"{part.index}/{part.count}", "model": part.whole.describe()}
        (unfinished / STATE_FILE).write_text(json.dumps(document | checkpoint.state), encoding="utf-8")
        _write_checksums(unfinished)
        for file in unfinished.iterdir():
            file.chmod(0o600)
            files.sync(file)
        files.sync(unfinished)
        files.rename(unfinished, place)
        files.sync(parent)
        _point_latest(files, data_dir, place)
    except BaseException:
        files.remove(unfinished)
        raise
    _remove_others(files, parent, keep={place.name} if alone else {place.name, before.name, keep.name if keep else ""})
    return place


def read_latest(data_dir: Path) -> Checkpoint | None:
    """The latest checkpoint, if any. Raises StartupError."""
    place = data_dir / LATEST
    if not place.is_symlink() and not place.exists():
        return None
    return read_checkpoint(place)


def read_checkpoint(place: Path) -> Checkpoint:
    """Read a checkpoint's directory. Raises StartupError."""
    try:
        _check(place.resolve(strict=True))
        document = json.loads(read_text(place / STATE_FILE))
        if document.pop("format", None) != FORMAT:
            raise StartupError(f"{place / STATE_FILE}: not a checkpoint of this version of gemps ({FORMAT})")
        layout = _layout(document)
        clock = int(document.pop("clock"))
        parameters, buffers = _read_tensors(place, layout)
        rule_vectors = _read_vectors(place / RULE_FILE, layout.parameter_count)
        document.pop("moments", None)  # of workers, which earlier versions kept in workers.safetensors
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise StartupError(f"the checkpoint {place.resolve()} cannot be read: {error}") from error
    return Checkpoint(layout, clock, parameters, buffers, document, rule_vectors)


def all_checkpoints(data_dir: Path) -> list[tuple[int, Path]]:
    """Clocks and directories, oldest first."""
    places = [path for path in (data_dir / "checkpoints").glob("*") if re.fullmatch(r"\d+-\d+", path.name)]
    return sorted((int(path.name.partition("-")[0]), path) for path in places)


def read_state(place: Path) -> tuple[Layout, dict[str, Any]]:
    """Read layout and state, without tensors. Raises StartupError."""
    try:
        document = json.loads(read_text(place / STATE_FILE))
        return _layout(document), document
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StartupError(f"the checkpoint {place} cannot be read: {error}") from error


def _layout(document: dict[str, Any]) -> Layout:
    layout = Layout.from_description(document.pop("layout"))
    if (shard := document.pop("shard", None)) is None:
        return layout
    return Shard.parse(shard).layout_of(Layout.from_description(document.pop("model")))


def write_tensors(directory: Path, checkpoint: Checkpoint) -> None:
    """Write the tensor files. Raises OSError."""
    model: dict[str, FileTensor] = {}
    exact: dict[str, FileTensor] = {}
    alive: list[NDArray[Any]] = []  # keeps their memory

    def tensor(spec: TensorSpec, element_type: ElementType, data: NDArray[Any]) -> FileTensor:
        alive.append(data)
        return FileTensor(
            dtype=_WRITTEN[element_type][0], shape=list(spec.shape), data_ptr=data.ctypes.data, data_len=data.nbytes
        )

    start = 0
    for spec in checkpoint.layout.parameters:
        values = checkpoint.parameters[start : start + spec.elements]
        start += spec.elements
        for name in (spec.name, *spec.aliases):
            model[name] = tensor(spec, spec.element_type, _as_type(values, spec.element_type))
        if spec.element_type in _HALVES:
            exact[spec.name] = tensor(spec, ElementType.FLOAT32, values)
    rest = np.frombuffer(checkpoint.buffers, np.uint8)
    start = 0
    for spec in checkpoint.layout.buffers:
        data = rest[start : start + spec.byte_count]
        start += spec.byte_count
        for name in (spec.name, *spec.aliases):
            model[name] = tensor(spec, spec.element_type, data)
    # One entry: safetensors' order of several varies by process, but equal runs must write equal bytes.
    _serialize(model, directory / MODEL_FILE, {"format": "pt"})
    if exact:
        _serialize(exact, directory / EXACT_FILE, {"gemps_clock": str(checkpoint.clock)})
    kept = {
        str(number): FileTensor(
            dtype="float32", shape=[vector.size], data_ptr=vector.ctypes.data, data_len=vector.nbytes
        )
        for number, vector in enumerate(checkpoint.rule_vectors)
    }
    if kept:
        _serialize(kept, directory / RULE_FILE, {"gemps_clock": str(checkpoint.clock)})


def _serialize(tensors: dict[str, FileTensor], file: Path, metadata: dict[str, str]) -> None:
    try:
        serialize_file(tensors, file, metadata)
    except SafetensorError as error:
        # The errno is only in safetensors' text.
        told = re.search(r"os error (\d+)", str(error))
        if told is None:
            raise
        raise OSError(int(told[1]), os.strerror(int(told[1])), str(file)) from error


def _write_checksums(directory: Path) -> None:
    sums = {file.name: [crc32c(block) for block in _blocks(file)] for file in sorted(directory.iterdir())}
    text = json.dumps(sums)
    own = crc32c(text.encode())
    (directory / CHECKSUMS_FILE).write_text(f"{text}\n{own:08x}\n", encoding="utf-8")


def _check(directory: Path) -> None:
    file = directory / CHECKSUMS_FILE
    text, _, own = read_bytes(file).partition(b"\n")
    if own != f"{crc32c(text):08x}\n".encode():
        raise _damaged(file, 0)
    for name, expected in json.loads(text).items():
        found = [crc32c(block) for block in _blocks(directory / name)]
        for number, wanted in enumerate(expected):
            if number >= len(found) or found[number] != wanted:
                raise _damaged(directory / name, number * CHECKED_BLOCK)
        if len(found) > len(expected):
            raise _damaged(directory / name, len(expected) * CHECKED_BLOCK)


def _damaged(file: Path, offset: int) -> StartupError:
    return StartupError(
        f"the checkpoint file {file} is damaged in the {CHECKED_BLOCK // 1024} KiB from offset {offset}: bring this "
        "checkpoint back from a backup, point `latest` to the one before it in checkpoints/ (and lose what came after "
        "that), or begin a new run in another --data-dir"
    )


def _blocks(file: Path) -> Iterator[bytes]:
    with os.fdopen(open_regular(file), "rb") as stream:
        while block := stream.read(CHECKED_BLOCK):
            yield block


def _read_tensors(directory: Path, layout: Layout) -> tuple[NDArray[np.float32], bytes]:
    model = _read(directory / MODEL_FILE)
    exact = _read(directory / EXACT_FILE) if (directory / EXACT_FILE).exists() else {}
    parameters = aligned_empty(layout.parameter_count)
    start = 0
    for spec in layout.parameters:
        half = spec.element_type in _HALVES
        data = _tensor_bytes(exact if half else model, spec, ElementType.FLOAT32 if half else spec.element_type)
        wide = spec.element_type is ElementType.FLOAT64
        parameters[start : start + spec.elements] = np.frombuffer(data, np.float64 if wide else np.float32)
        start += spec.elements
    rest = b"".join(_tensor_bytes(model, spec, spec.element_type) for spec in layout.buffers)
    return parameters, rest


def _read_vectors(file: Path, length: int) -> tuple[NDArray[np.float32], ...]:
    stored = _read(file) if file.exists() else {}
    found = [stored[str(number)] for number in range(len(stored))]
    if any((one["dtype"], list(one["shape"])) != ("F32", [length]) for one in found):
        raise ValueError(f"the vectors in {file.name} are not float32 of the model's size")
    return tuple(aligned_copy(np.frombuffer(one["data"], np.float32)) for one in found)


def _read(file: Path) -> dict[str, Any]:
    return dict(deserialize(read_bytes(file)))  # type: ignore[no-untyped-call]


def _tensor_bytes(tensors: dict[str, Any], spec: TensorSpec, element_type: ElementType) -> bytes:
    stored = tensors[spec.name]
    if stored["dtype"] != _WRITTEN[element_type][1] or tuple(stored["shape"]) != spec.shape:
        raise ValueError(f"tensor {spec.name} is {stored['dtype']} {stored['shape']}, not as the layout says")
    return bytes(stored["data"])


def _as_type(values: NDArray[np.float32], element_type: ElementType) -> NDArray[Any]:
    if element_type is ElementType.FLOAT64:
        return values.astype(np.float64)
    if element_type is ElementType.FLOAT16:
        largest = np.float32(np.finfo(np.float16).max)
        return np.clip(values, -largest, largest).astype(np.float16)
    if element_type is ElementType.BFLOAT16:
        bits = values.view(np.uint32)
        return ((bits + (np.uint32(0x7FFF) + (bits >> 16 & np.uint32(1)))) >> np.uint32(16)).astype(np.uint16)
    return values


def _unused_path(parent: Path, clock: int) -> Path:
    number = 0
    while (place := parent / f"{clock:012d}-{number}").exists():
        number += 1
    return place


def _point_latest(files: Files, data_dir: Path, place: Path) -> None:
    fresh = data_dir / f".{LATEST}"
    files.remove(fresh)
    files.link(fresh, place.relative_to(data_dir))
    files.rename(fresh, data_dir / LATEST)
    files.sync(data_dir)


def _remove_others(files: Files, parent: Path, keep: set[str]) -> None:
    for path in [*parent.iterdir()]:
        if path.name not in keep and re.fullmatch(r"\d+-\d+", path.name):
            files.remove(path)
