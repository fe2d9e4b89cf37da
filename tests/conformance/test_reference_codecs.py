"""The reference worker's own encoders and digest agree with the published vectors (proto/vectors)."""

import json
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from tests.conformance.reference_worker import (
    BFLOAT16,
    Tensor,
    canonical_text,
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


def test_bfloat16_is_rounded_as_in_the_vectors() -> None:
    found = cases("bfloat16.json")
    encoded = encode(BFLOAT16, floats([case["float32"] for case in found]))
    assert np.frombuffer(encoded, "<u2").tolist() == [case["bfloat16"] for case in found]
