"""A model as a worker in any language would see it: layout, payload and chunk borders, written from the proto alone.

Nothing here comes from gem_core: what the server and this page both got from the protos must agree.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from gemps.v1 import layout_pb2, transfer_pb2
from numpy.typing import NDArray

FLOAT32 = transfer_pb2.WIRE_TYPE_FLOAT32
BFLOAT16 = transfer_pb2.WIRE_TYPE_BFLOAT16
SHARED_MEMORY = transfer_pb2.WIRE_TYPE_SHARED_MEMORY
INT4_BLOCK = transfer_pb2.WIRE_TYPE_INT4_BLOCK
PARAMETER_WIRE_TYPES = (FLOAT32, BFLOAT16)
DELTA_WIRE_TYPES = (*PARAMETER_WIRE_TYPES, INT4_BLOCK)

BLOCK = 256
BLOCK_BYTES = 4 + BLOCK // 2
KINDS = ("parameter", "buffer", "frozen")
# NumPy has no bfloat16: its bits travel as uint16.
DTYPES = {
    "float32": "<f4",
    "float64": "<f8",
    "float16": "<f2",
    "bfloat16": "<u2",
    "int8": "i1",
    "int16": "<i2",
    "int32": "<i4",
    "int64": "<i8",
    "uint8": "u1",
    "bool": "u1",
}


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple[int, ...] = ()
    kind: str = "parameter"
    type: str = "float32"
    aliases: tuple[str, ...] = ()
    role: int = 0
    sha256: bytes = b""

    @property
    def elements(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def byte_count(self) -> int:
        return self.elements * np.dtype(DTYPES[self.type]).itemsize

    def to_proto(self) -> layout_pb2.TensorSpec:
        return layout_pb2.TensorSpec(
            name=self.name,
            shape=self.shape,
            element_type=layout_pb2.ElementType.Value(f"ELEMENT_TYPE_{self.type.upper()}"),
            kind=layout_pb2.TensorKind.Value(f"TENSOR_KIND_{self.kind.upper()}"),
            aliases=self.aliases,
            role=self.role,
            sha256=self.sha256,
        )

    def canonical_line(self) -> str:
        names = [self.name, *sorted(self.aliases, key=str.encode)]
        counted = " ".join(f"{len(name.encode())}:{name}" for name in names)
        digest = f"{self.sha256.hex()} " if self.kind == "frozen" else ""
        return f"{self.kind} {self.type} {len(self.shape)}:{','.join(map(str, self.shape))} {digest}{counted}\n"


@dataclass(frozen=True)
class Values:
    """What a payload holds: float32 parameters, then the bytes of all other tensors that travel with them."""

    parameters: NDArray[np.float32]
    rest: bytes = b""


@dataclass(frozen=True)
class Model:
    tensors: Sequence[Tensor] = field(default_factory=tuple)

    def to_proto(self) -> layout_pb2.Layout:
        return layout_pb2.Layout(tensors=[tensor.to_proto() for tensor in self.tensors])

    @cached_property
    def canonical_text(self) -> str:
        return "gemps-layout-1\n" + "".join(tensor.canonical_line() for tensor in self.tensors)

    @cached_property
    def digest(self) -> bytes:
        return hashlib.sha256(self.canonical_text.encode()).digest()

    def with_tensor(self, index: int, **changes: object) -> "Model":
        tensors = list(self.tensors)
        tensors[index] = replace(tensors[index], **changes)
        return Model(tensors)

    def selecting(self, indices: Sequence[int]) -> "Model":
        """A model of the payloads that have only these BUFFERs; its digest is another one's."""
        buffers = self.of_kind("buffer")
        return Model([*self.of_kind("parameter"), *(buffers[index] for index in indices)])

    def of_kind(self, kind: str) -> list[Tensor]:
        return [tensor for tensor in self.tensors if tensor.kind == kind]

    @cached_property
    def parameter_count(self) -> int:
        return sum(tensor.elements for tensor in self.of_kind("parameter"))

    def parameter_bytes(self, wire_type: int) -> int:
        count = self.parameter_count
        if wire_type == INT4_BLOCK:
            return -(-count // 2) + 4 * (-(-count // BLOCK))
        return count * {FLOAT32: 4, BFLOAT16: 2}[wire_type]

    def byte_count(self, wire_type: int = FLOAT32) -> int:
        return self.parameter_bytes(wire_type) + sum(t.byte_count for t in self.of_kind("buffer"))

    def encode(self, values: Values, wire_type: int = FLOAT32) -> bytes:
        """Return the payload that carries these values, with the parameters in the wire type."""
        return encode_parameters(values.parameters, wire_type) + values.rest

    def decode(self, payload: bytes, wire_type: int = FLOAT32) -> Values:
        border = self.parameter_bytes(wire_type)
        return Values(decode_parameters(payload[:border], wire_type, self.parameter_count), bytes(payload[border:]))

    def borders(self, wire_type: int = FLOAT32) -> list[tuple[int, int, int]]:
        """(first byte, byte after the last, unit) of each region in which a chunk may be cut at multiples of unit."""
        unit = {FLOAT32: 4, BFLOAT16: 2, INT4_BLOCK: BLOCK_BYTES}[wire_type]
        regions = [(0, self.parameter_bytes(wire_type), unit)]
        for tensor in self.of_kind("buffer"):
            first = regions[-1][1]
            regions.append((first, first + tensor.byte_count, np.dtype(DTYPES[tensor.type]).itemsize))
        return regions

    def is_border(self, offset: int, wire_type: int = FLOAT32) -> bool:
        return any(
            offset == last or (first <= offset < last and (offset - first) % unit == 0)
            for first, last, unit in self.borders(wire_type)
        )

    def cut(self, chunk_bytes: int, wire_type: int = FLOAT32) -> Iterator[tuple[int, int]]:
        """(start, end) of consecutive chunks of at most chunk_bytes, each ending at a border."""
        cuts = [0]
        for first, last, unit in self.borders(wire_type):
            while cuts[-1] + chunk_bytes < last:
                end = cuts[-1] + chunk_bytes
                if end < first:
                    break
                cuts.append(first + (end - first) // unit * unit)
        total = self.byte_count(wire_type)
        if cuts[-1] != total:
            cuts.append(total)
        return pairwise(cuts)

    def random_values(self, seed: int, *, scale: float = 1.0) -> Values:
        """Finite values in every tensor, different for every seed."""
        generator = np.random.default_rng(seed)
        parameters = (generator.standard_normal(self.parameter_count) * scale).astype(np.float32)
        rest = b"".join(_random_bytes(tensor, generator) for tensor in self.of_kind("buffer"))
        return Values(parameters, rest)


@dataclass(frozen=True)
class ShardModel(Model):
    """What one shard holds of a model (shards.proto): its range of the PARAMETERs, and the last one the BUFFERs."""

    whole: Model = field(default_factory=Model)
    index: int = 0
    count: int = 1

    @classmethod
    def of(cls, whole: Model, index: int, count: int) -> "ShardModel":
        buffers = whole.of_kind("buffer") if index == count - 1 else []
        first, last = (shard_cut(whole, number, count) for number in (index, index + 1))
        return cls([Tensor("range", (last - first,)), *buffers], whole, index, count)

    @cached_property
    def canonical_text(self) -> str:
        return self.whole.canonical_text + f"shard {self.index}/{self.count}\n"

    def part(self, values: Values) -> Values:
        """What this shard holds of the whole model's values."""
        first, last = (shard_cut(self.whole, number, self.count) for number in (self.index, self.index + 1))
        return Values(values.parameters[first:last], values.rest if self.index == self.count - 1 else b"")


def shard_cut(whole: Model, index: int, count: int) -> int:
    """The first element of a shard; behind the last shard, the number of elements."""
    elements = whole.parameter_count
    return elements if index == count else elements * index // count // BLOCK * BLOCK


def _random_bytes(tensor: Tensor, generator: np.random.Generator) -> bytes:
    if tensor.type in ("float16", "float32", "float64"):
        return generator.standard_normal(tensor.elements).astype(DTYPES[tensor.type]).tobytes()
    # Small bit patterns are finite in bfloat16, and legal in every integer type and in bool.
    return generator.integers(0, 2, tensor.elements).astype(DTYPES[tensor.type]).tobytes()


def encode_parameters(parameters: NDArray[np.float32], wire_type: int) -> bytes:
    if wire_type == FLOAT32:
        return parameters.astype("<f4").tobytes()
    if wire_type == BFLOAT16:
        bits = parameters.astype("<f4").view(np.uint32).astype(np.uint64)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    blocks = []
    for start in range(0, len(parameters), BLOCK):
        block = parameters[start : start + BLOCK]
        scale = np.float32(np.abs(block).max()) / np.float32(7)
        quotient = np.rint(block / scale) if scale > 0 else np.zeros_like(block)
        q = np.append(quotient, np.zeros(len(block) % 2)).astype(np.int8).view(np.uint8) & 15
        blocks.append(np.float32(scale).tobytes() + (q[::2] | q[1::2] << 4).tobytes())
    return b"".join(blocks)


def decode_parameters(data: bytes, wire_type: int, count: int) -> NDArray[np.float32]:
    if wire_type == FLOAT32:
        return np.frombuffer(data, "<f4").astype(np.float32)
    if wire_type == BFLOAT16:
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    decoded = np.empty(count, np.float32)
    for number, start in enumerate(range(0, count, BLOCK)):
        length = min(BLOCK, count - start)
        at = number * BLOCK_BYTES
        scale = np.frombuffer(data, "<f4", 1, at)[0]
        pairs = np.frombuffer(data, np.int8, -(-length // 2), at + 4)
        q = np.stack([pairs << 4 >> 4, pairs >> 4], axis=1).reshape(-1)[:length]
        decoded[start : start + length] = q.astype(np.float32) * scale
    return decoded


SHA256 = bytes(range(32))
# Fits into one message: commits travel whole.
SMALL = Model(
    (
        Tensor("weight", (7, 90), aliases=("head.weight",)),
        Tensor("bias", (5,)),
        Tensor("running_mean", (5,), "buffer"),
        Tensor("steps", (), "buffer", "int64"),
        Tensor("frozen", (3,), "frozen", "float16", sha256=SHA256),
    )
)
# 200 KiB: too large to travel whole, a handful of chunks for tests that cut at each.
LARGE = Model(
    (
        Tensor("weight", (200, 256)),
        Tensor("bias", (77,), type="float64"),
        Tensor("running_var", (64,), "buffer"),
        Tensor("flags", (3,), "buffer", "bool"),
        Tensor("batches", (), "buffer", "int64"),
        Tensor("embedding", (300_000,), "frozen", "bfloat16", sha256=SHA256),
    )
)
