"""The reference worker's own encoders and digest agree with the published vectors (proto/vectors)."""

import json
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest

from tests.conformance.reference_worker import (
    BFLOAT16,
    FLOAT16,
    INT8_BLOCK,
    Tensor,
    TornCallError,
    canonical_text,
    decode,
    digest_of,
    encode,
)

VECTORS = Path(__file__).parents[2] / "proto" / "vectors"


def cases(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((VECTORS / name).read_text(encoding="utf-8"))["cases"]
    assert found
    return found


def floats(bits: list[int]) -> Any:
    return np.array(bits, np.uint32).view(np.float32)


def test_digests_are_those_of_the_vectors() -> None:
    for case in cases("layout_digest.json"):
        layout = [
            Tensor(
                one["name"],
                tuple(one["shape"]),
                one["element_type"],
                one["kind"],
                tuple(one.get("aliases", ())),
                one.get("sha256", ""),
            )
            for one in case["tensors"]
        ]
        assert digest_of(canonical_text(layout)).hex() == case["digest"], case["name"]


def test_its_checksums_are_those_of_the_vectors() -> None:
    for case in cases("crc32c.json"):
        data = bytes.fromhex(case["hex"]) if "hex" in case else bytes(i * i % 251 for i in range(4099))
        assert google_crc32c.value(data) == case["crc32c"], case["name"]


@pytest.mark.parametrize(("wire_type", "name"), [(FLOAT16, "float16"), (BFLOAT16, "bfloat16")])
def test_halves_are_rounded_as_in_the_vectors(wire_type: int, name: str) -> None:
    found = cases(f"{name}.json")
    encoded = encode(wire_type, floats([case["float32"] for case in found]))
    assert np.frombuffer(encoded, "<u2").tolist() == [case[name] for case in found]


def test_int8_blocks_are_those_of_the_vectors() -> None:
    for case in cases("int8_block.json"):
        values = floats(case["float32"])
        assert encode(INT8_BLOCK, values).hex() == case["encoded"], case["name"]
        decoded = decode(INT8_BLOCK, bytes.fromhex(case["encoded"]), values.size)
        assert np.abs(decoded - values).max() <= np.abs(values).max() / 127 + 1e-43  # denormals


@pytest.mark.parametrize("encoded", ["000080bf7f", "0000807f7f", "0000c07f7f", "0000803f80"])
def test_an_illegal_block_is_refused(encoded: str) -> None:
    with pytest.raises(TornCallError):
        decode(INT8_BLOCK, bytes.fromhex(encoded), 1)
