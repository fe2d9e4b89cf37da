"""wire_casts against gem_core's codecs, bit by bit: one rule (transfer.proto), two implementations."""

import numpy as np
import pytest
import torch
from gem_worker import wire_casts
from gem_worker.wire_casts import LARGEST_SENT, HostDecoder, HostEncoder
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from gem_core.wire_types import WireType, encoded_bytes
from gem_core.wire_types import decode as core_decode
from gem_core.wire_types import encode as core_encode

WIRE_TYPES = [one for one in WireType if one is not WireType.SHARED_MEMORY]
FINITE = st.floats(-(2.0**99), 2.0**99, width=32, allow_subnormal=True)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that there are many, however many threads share them."""
    monkeypatch.setattr(wire_casts, "PIECE", 1024)


def torch_encode(wire_type: WireType, values: NDArray[np.float32]) -> NDArray[np.uint8]:
    out = torch.empty(encoded_bytes(wire_type, len(values)), dtype=torch.uint8)
    wire_casts.encode(wire_type, torch.from_numpy(values), out)
    return out.numpy()


def host_encode(wire_type: WireType, values: NDArray[np.float32], factor: float = 1) -> tuple[NDArray[np.uint8], bool]:
    out = torch.empty(encoded_bytes(wire_type, len(values)), dtype=torch.uint8)
    usable = HostEncoder(wire_type, torch.from_numpy(values), out).encode(factor)
    return out.numpy(), usable


def assert_same_bytes_both_ways(wire_type: WireType, values: NDArray[np.float32]) -> None:
    encoded = torch_encode(wire_type, values)
    assert encoded.tobytes() == bytes(core_encode(wire_type, values))
    by_pieces, usable = host_encode(wire_type, values)
    assert by_pieces.tobytes() == encoded.tobytes()
    assert usable == all(np.abs(values, dtype=np.float64) <= LARGEST_SENT)
    by_torch = torch.empty(len(values))
    wire_casts.decode(wire_type, torch.from_numpy(encoded), by_torch)
    on_host = torch.empty(len(values))
    HostDecoder(wire_type, torch.from_numpy(encoded), on_host).decode()
    assert on_host.numpy().tobytes() == by_torch.numpy().tobytes()
    by_core = np.empty(len(values), np.float32)
    assert core_decode(wire_type, encoded, by_core) is None
    assert by_torch.numpy().tobytes() == by_core.tobytes()


@pytest.mark.parametrize("wire_type", WIRE_TYPES)
@pytest.mark.parametrize("length", [300, 40_000])
def test_what_rounding_took_is_the_values_minus_the_decoded_ones(
    wire_type: WireType, length: int, small_pieces: None
) -> None:
    values = torch.randn(length) * torch.logspace(-42, 3, length)
    payload = torch.from_numpy(torch_encode(wire_type, values.numpy()))
    sent = torch.empty(length)
    wire_casts.decode(wire_type, payload, sent)
    expected = values - sent
    wire_casts.subtract(wire_type, payload, values)
    assert torch.equal(values, expected)


@pytest.mark.parametrize("wire_type", [one for one in WIRE_TYPES if one is not WireType.SPARSE_BLOCK])
@pytest.mark.parametrize("length", [300, 40_000])
def test_a_decoder_is_for_whatever_comes_to_its_place(wire_type: WireType, length: int) -> None:
    payload, out = torch.empty(encoded_bytes(wire_type, length), dtype=torch.uint8), torch.empty(length)
    decoder = HostDecoder(wire_type, payload, out)
    for value in (1.0, -2.0):
        wire_casts.encode(wire_type, torch.full((length,), value), payload)
        decoder.decode()
        assert torch.equal(out, torch.full((length,), value))


@pytest.mark.parametrize("wire_type", WIRE_TYPES)
@settings(max_examples=150, deadline=None)
@given(values=hnp.arrays(np.float32, st.integers(1, 600), elements=FINITE))
def test_any_finite_values_give_the_same_bytes_as_the_core(wire_type: WireType, values: NDArray[np.float32]) -> None:
    assert_same_bytes_both_ways(wire_type, values)


@pytest.mark.parametrize("wire_type", WIRE_TYPES)
@pytest.mark.parametrize("length", [1, 255, 256, 257, 512, 300_001])
def test_random_values_of_many_lengths_give_the_same_bytes_as_the_core(wire_type: WireType, length: int) -> None:
    values = np.random.default_rng(length).standard_normal(length).astype(np.float32)
    assert_same_bytes_both_ways(wire_type, values)


@pytest.mark.parametrize("wire_type", WIRE_TYPES)
def test_zeros_halves_denormals_and_giants_give_the_same_bytes_as_the_core(wire_type: WireType) -> None:
    ties = np.arange(-127, 128, dtype=np.float32) + np.float32(0.5)
    smallest = np.float32(1.4e-45) * np.arange(-300, 300, dtype=np.float32)
    special = np.array([0.0, -0.0, 65503.9, 65504, 65519.9, 65520, 7e4, -5e29, 5e29, 2.0**-24, 2.0**-25], np.float32)
    for values in (np.zeros(300, np.float32), ties, np.append(ties, np.float32(127)), smallest, special):
        assert_same_bytes_both_ways(wire_type, values)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("wire_type", WIRE_TYPES)
@pytest.mark.parametrize("factor", [-0.01, 1 / 3, 1e-30, 0.0, 1e6])
def test_the_factor_is_rounded_into_the_values_before_they_are_encoded(wire_type: WireType, factor: float) -> None:
    values = np.random.default_rng(1).standard_normal(1_400 * 256 + 9).astype(np.float32)
    encoded, usable = host_encode(wire_type, values, factor)
    assert encoded.tobytes() == bytes(core_encode(wire_type, values * np.float32(factor)))
    assert usable


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("wire_type", WIRE_TYPES)
@pytest.mark.parametrize("position", [0, 200_000, 399_999])
def test_one_value_that_no_server_takes_is_seen_wherever_it_is(wire_type: WireType, position: int) -> None:
    values = np.ones(400_000, np.float32)
    for good in (4.9e29, -4.9e29, 7e4):
        values[position] = good
        assert host_encode(wire_type, values)[1]
    for bad in (np.nan, -np.nan, np.inf, -np.inf, 5.1e29, -5.1e29, 3e38):
        values[position] = bad
        assert not host_encode(wire_type, values)[1]


def test_float32_may_be_scaled_where_it_lies() -> None:
    values = torch.arange(300_000, dtype=torch.float32)
    expected = values * -0.3
    assert HostEncoder(WireType.FLOAT32, values, values.view(torch.uint8)).encode(-0.3)
    assert torch.equal(values, expected)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("wire_type", WIRE_TYPES)
@pytest.mark.parametrize("length", [0, 5, 300, 300_001])
def test_an_encoder_is_for_whatever_comes_to_its_place(wire_type: WireType, length: int) -> None:
    values, out = torch.empty(length), torch.empty(encoded_bytes(wire_type, length), dtype=torch.uint8)
    encoder = HostEncoder(wire_type, values, out)
    for number, magnitude in enumerate((1.0, 1e-43, 0.0, 2e30, 1.0)):
        others = np.random.default_rng(number).uniform(-magnitude, magnitude, length).astype(np.float32)
        if length:
            others[-1] = magnitude
        values.copy_(torch.from_numpy(others))
        usable = encoder.encode(-0.5)
        assert usable == (magnitude < 2e30 or not length)
        assert not usable or out.numpy().tobytes() == bytes(core_encode(wire_type, others * np.float32(-0.5)))


@pytest.mark.parametrize("wire_type", WIRE_TYPES)
def test_what_pytorch_makes_by_default_makes_no_difference(wire_type: WireType) -> None:
    values = np.random.default_rng(0).standard_normal(1_000).astype(np.float32)
    expected = bytes(core_encode(wire_type, values * np.float32(-0.1)))
    for default in (torch.float64, torch.bfloat16):
        torch.set_default_dtype(default)
        try:
            encoded, usable = host_encode(wire_type, values, -0.1)
        finally:
            torch.set_default_dtype(torch.float32)
        assert usable
        assert encoded.tobytes() == expected


def test_a_payload_in_shared_memory_has_no_encoding() -> None:
    with pytest.raises(ValueError, match="SHARED_MEMORY"):
        wire_casts.encode(WireType.SHARED_MEMORY, torch.zeros(1), torch.zeros(4, dtype=torch.uint8))
