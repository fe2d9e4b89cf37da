"""Slow, independent implementations that judge the fast ones: plain Python for bytes, float64 for the mathematics."""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]


def crc32c(data: bytes, crc: int = 0) -> int:
    """Bit by bit, with Castagnoli's polynomial in reversed order (RFC 3720, appendix B.4)."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def word_sum(payload: bytes) -> int:
    """The definition in shared_memory.proto, one word after the other."""
    padded = payload + bytes(-len(payload) % 4)
    words = struct.unpack(f"<{len(padded) // 4}I", padded)
    mixed = [word * 0x9E3779B1 % (1 << 32) for word in words]
    return sum((2 * index + 1) * (word ^ word >> 15) for index, word in enumerate(mixed)) % (1 << 32)


def layout_digest(tensors: list[dict[str, object]]) -> str:
    """The digest of layout.proto, from plain dictionaries, in hexadecimal."""
    text = "gemps-layout-1\n"
    for tensor in tensors:
        shape = list(tensor["shape"])  # type: ignore[call-overload]
        names = [tensor["name"], *sorted(tensor.get("aliases", []), key=lambda name: name.encode())]  # type: ignore[call-overload]
        text += f"{tensor['kind']} {tensor['element_type']} {len(shape)}:" + ",".join(map(str, shape))
        if tensor["kind"] == "frozen":
            text += f" {tensor['sha256']}"
        for name in names:
            text += f" {len(name.encode())}:{name}"
        text += "\n"
    return hashlib.sha256(text.encode()).hexdigest()


def float32(value: float) -> float:
    """`value` rounded to the nearest float32."""
    return float(np.float32(value))


def bfloat16_bits(value: float) -> int:
    """The upper half of the float32 `value`, rounded half to even, by comparing the distances to both neighbours."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    below, rest = bits >> 16, bits & 0xFFFF
    if rest > 0x8000 or (rest == 0x8000 and below % 2 == 1):
        return below + 1
    return below


def _quantised(values: list[float], levels: int) -> tuple[float, list[int]]:
    scale = float32(float32(max(abs(value) for value in values)) / levels)
    # Python's round() rounds half to even; the quotient is a float32, as both operands are.
    return scale, [max(-levels, min(levels, round(float32(value / scale)))) if scale else 0 for value in values]


def int4_block(values: list[float]) -> bytes:
    """One block of float32 values (transfer.proto, INT4_BLOCK)."""
    scale, q = _quantised(values, 7)
    pairs = zip(q[::2], [*q[1::2], 0], strict=False)
    return struct.pack("<f", scale) + bytes(low % 16 + 16 * (high % 16) for low, high in pairs)


def sparse_block(values: list[float]) -> bytes:
    """One block of float32 values (transfer.proto, SPARSE_BLOCK)."""
    scale, q = _quantised(values, 31)
    groups = [range(start, min(start + 4, len(values))) for start in range(0, len(values), 4)]
    chosen = [max(group, key=lambda index: (abs(values[index]), -index)) for group in groups]
    return struct.pack("<f", scale) + bytes(
        index - group.start + 4 * (q[index] % 64) for index, group in zip(chosen, groups, strict=True)
    )


@dataclass
class GemSettings:
    """Settings of `gem`, with the defaults of docs/design.md, section 2."""

    momentum: float = 0.9
    kappa: float = 1.0
    pi_min: float = 0.0
    pi_max: float = 5.0
    epsilon: float = 1e-12
    signed_gap: int = 0

    def in_float32(self) -> list[np.float32]:
        return [np.float32(v) for v in (self.momentum, self.kappa, self.pi_min, self.pi_max, self.epsilon)]


@dataclass
class Outcome:
    """New theta and moment, the applied update, pi and the drift, elementwise."""

    theta: NDArray[np.floating]
    moment: NDArray[np.floating]
    update: NDArray[np.floating]
    pi: NDArray[np.floating]
    drift: NDArray[np.floating]


def gem(
    theta: NDArray[np.floating],
    snapshot: NDArray[np.floating],
    moment: NDArray[np.floating],
    delta: NDArray[np.floating],
    settings: GemSettings,
    dtype: type[np.floating],
) -> Outcome:
    """The equations of docs/rules.md, one NumPy operation after the other, in `dtype`."""
    mu, kappa, pi_min, pi_max, epsilon = (dtype(value) for value in settings.in_float32())
    theta, snapshot, moment, delta = (array.astype(dtype) for array in (theta, snapshot, moment, delta))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        moment = mu * moment + delta
        drift = theta - snapshot
        # Where delta is 0 its sign does not matter.
        gap = np.maximum(dtype(0), np.where(delta < 0, -drift, drift)) if settings.signed_gap else np.abs(drift)
        pi = (kappa * np.abs(moment) - gap) / (np.abs(delta) + epsilon)
        pi = np.where(pi < pi_min, pi_min, pi)
        pi = np.where(pi > pi_max, pi_max, pi)
        update = pi * delta
        theta = theta + update
    return Outcome(theta, moment, update, pi, drift)


def divided(
    theta: NDArray[np.floating],
    snapshot: NDArray[np.floating],
    delta: NDArray[np.floating],
    divisor: int,
    dtype: type[np.floating],
) -> Outcome:
    """`theta + delta / divisor`: adaptive-staleness, and with divisor 1 downpour, in `dtype`."""
    theta, snapshot, delta = (array.astype(dtype) for array in (theta, snapshot, delta))
    update = delta / dtype(divisor)
    pi = np.full_like(delta, 1 / divisor)
    return Outcome(theta + update, np.zeros_like(delta), update, pi, theta - snapshot)


def norm(values: NDArray[np.floating]) -> float:
    """Euclidean, in float64."""
    return math.sqrt(float(np.sum(values.astype(np.float64) ** 2)))
