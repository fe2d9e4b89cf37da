"""The published test vectors (proto/vectors) agree with slow, independent implementations, and with the core.

Whoever writes a worker in another language checks it against the same files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gem_core import ElementType, Layout, TensorKind, TensorSpec, WireType, crc32c
from gem_core.wire_types import decode, encode
from tests.core import slow

VECTORS = Path(__file__).parents[2] / "proto" / "vectors"


def cases(name: str) -> list[Any]:
    found = json.loads((VECTORS / name).read_text())["cases"]
    assert found
    return [pytest.param(case, id=case["name"]) for case in found]


@pytest.mark.parametrize("case", cases("layout_digest.json"))
def test_layout_digests_are_those_of_the_vectors(case: dict[str, Any]) -> None:
    layout = Layout(
        TensorSpec(
            tensor["name"],
            tuple(tensor["shape"]),
            ElementType(tensor["element_type"]),
            TensorKind(tensor["kind"]),
            tuple(tensor.get("aliases", ())),
            sha256=bytes.fromhex(tensor.get("sha256", "")),
        )
        for tensor in case["tensors"]
    )
    assert layout.digest.hex() == case["digest"] == slow.layout_digest(case["tensors"])


@pytest.mark.parametrize("case", cases("crc32c.json"))
def test_checksums_are_those_of_the_vectors(case: dict[str, Any]) -> None:
    data = bytes.fromhex(case["hex"]) if "hex" in case else bytes(i * i % 251 for i in range(4099))
    assert crc32c(data) == case["crc32c"] == slow.crc32c(data)


def test_bfloat16_rounding_is_that_of_the_vectors() -> None:
    found = json.loads((VECTORS / "bfloat16.json").read_text())["cases"]
    values = np.array([case["float32"] for case in found], np.uint32).view(np.float32)
    expected = [case["bfloat16"] for case in found]
    assert len(found) >= 10
    assert [slow.bfloat16_bits(float(value)) for value in values] == expected
    assert np.frombuffer(encode(WireType.BFLOAT16, values), "<u2").tolist() == expected


@pytest.mark.parametrize(
    ("case", "wire_type", "slow_block"),
    [
        pytest.param(case, wire_type, slow_block, id=f"{name}: {case['name']}")
        for name, wire_type, slow_block in (
            ("int4_block", WireType.INT4_BLOCK, slow.int4_block),
            ("sparse_block", WireType.SPARSE_BLOCK, slow.sparse_block),
        )
        for case in json.loads((VECTORS / f"{name}.json").read_text())["cases"]
    ],
)
def test_coarse_blocks_are_those_of_the_vectors(
    case: dict[str, Any], wire_type: WireType, slow_block: Callable[[list[float]], bytes]
) -> None:
    values = np.array(case["float32"], np.uint32).view(np.float32)
    slowly = b"".join(slow_block(values[start : start + 256].tolist()) for start in range(0, len(values), 256))
    assert encode(wire_type, values).hex() == case["encoded"] == slowly.hex()
    out = np.empty(len(values), np.float32)
    assert decode(wire_type, memoryview(slowly), out) is None
    assert out.view(np.uint32).tolist() == case["decoded"]
