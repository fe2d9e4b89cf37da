"""Copying out of memory that others write to: what is judged and summed up is what was copied."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gem_core import BadValueError, ElementType, Layout, SizeMismatchError, TensorKind, TensorSpec
from gem_core.aligned import aligned_empty
from gem_core.checked_copy import checked_copy
from gem_core.checksum import word_sum
from tests.core import slow

LIMIT = np.float32(1e30)


def layout(*sizes: int) -> Layout:
    return Layout(
        TensorSpec(f"tensor{index}", (size,), ElementType.FLOAT32, TensorKind.PARAMETER)
        for index, size in enumerate(sizes)
    )


def copied(values: NDArray[np.float32], *sizes: int) -> tuple[NDArray[np.float32], int]:
    target = np.full_like(values, 7)
    total = checked_copy(values, target, layout(*(sizes or (values.size,))))
    return target, total


@given(st.binary(max_size=300), st.integers(0, 75))
def test_word_sum_is_what_the_proto_says_and_adds_up_over_parts(payload: bytes, words: int) -> None:
    split = min(4 * words, len(payload) // 4 * 4)
    assert word_sum(payload) == slow.word_sum(payload)
    parts = word_sum(payload[:split]) + word_sum(payload[split:], words_before=split // 4)
    assert parts % (1 << 32) == word_sum(payload)


def test_word_sum_of_more_than_one_step_is_that_of_the_whole() -> None:
    payload = np.random.default_rng(0).bytes(3 * 1024 * 1024 + 5)
    assert word_sum(payload) == slow.word_sum(payload)


def test_word_sum_tells_every_single_bit() -> None:
    payload = bytearray(np.random.default_rng(1).bytes(64))
    before = word_sum(payload)
    for bit in range(8 * len(payload)):
        payload[bit // 8] ^= 1 << bit % 8
        assert word_sum(payload) != before
        payload[bit // 8] ^= 1 << bit % 8


@settings(deadline=None)  # the first call compiles
@given(st.lists(st.floats(-float(LIMIT), float(LIMIT), width=32), max_size=80))
def test_legal_values_arrive_bit_by_bit(values: list[float]) -> None:
    source = np.array(values, np.float32)
    target, total = copied(source)
    assert target.tobytes() == source.tobytes()
    assert total == word_sum(source.tobytes())


def test_the_largest_legal_values_denormals_and_minus_zero_pass() -> None:
    source = np.array([LIMIT, -LIMIT, 0.0, -0.0, 1e-45, -1e-45, np.finfo(np.float32).tiny], np.float32)
    target, _ = copied(source)
    assert target.tobytes() == source.tobytes()


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf, np.nextafter(LIMIT, np.float32(np.inf)), -3e38])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_an_illegal_value_is_found_at_each_place(bad: float, size: int) -> None:
    for index in {0, size // 2, size - 1}:
        source = np.zeros(size, np.float32)
        source[index] = bad
        with pytest.raises(BadValueError, match=f"'tensor0', element {index}, is"):
            copied(source)


def test_the_tensor_is_named_that_holds_the_value() -> None:
    source = np.zeros(10, np.float32)
    source[6] = np.inf
    with pytest.raises(BadValueError, match=r"'tensor1', element 2, is inf: skip steps"):
        copied(source, 4, 6)


@given(st.lists(st.floats(width=32), min_size=1, max_size=80), st.floats(-4, 4, width=32))
@settings(deadline=None)
def test_scaled_values_are_float32_products_and_judged_as_such(values: list[float], scale: float) -> None:
    source = np.array(values, np.float32)
    with np.errstate(all="ignore"):
        wanted = source * np.float32(scale)
    target = np.empty_like(source)
    if np.all(np.abs(wanted) <= LIMIT):
        assert checked_copy(source, target, layout(source.size), scale) == word_sum(wanted)
        assert target.tobytes() == wanted.tobytes()
    else:
        with pytest.raises(BadValueError):
            checked_copy(source, target, layout(source.size), scale)


@pytest.mark.parametrize("scale", [None, 1.0])
def test_whatever_is_written_meanwhile_what_arrives_is_what_was_summed_up(scale: float | None) -> None:
    """Another thread writes all the while (the kernel holds no lock): each copy is legal, and its sum is its own."""
    size = 1 << 20
    source = np.zeros(size, np.float32)
    stop = threading.Event()

    def scribble() -> None:
        random = np.random.default_rng(2)
        while not stop.is_set():
            source[:] = random.choice([0.5, -2.0, np.nan, 3.0], size=1) if random.random() < 0.3 else random.random()

    thread = threading.Thread(target=scribble)
    thread.start()
    seen: set[bool] = set()
    try:
        for _ in range(300):
            target = aligned_empty(size)
            try:
                total = checked_copy(source, target, layout(size), scale)
            except BadValueError:
                seen.add(False)
                assert not np.isfinite(target).all()
            else:
                seen.add(True)
                assert np.isfinite(target).all()
                assert total == word_sum(target)
    finally:
        stop.set()
        thread.join()
    assert seen == {True, False}


@pytest.mark.parametrize("scale", [None, -0.5])
@pytest.mark.parametrize("shift", [0, 1, 4])
@pytest.mark.parametrize("size", [1, 15, 16, 17, 6181])
def test_the_same_arrives_at_any_alignment(size: int, shift: int, scale: float | None) -> None:
    """Whether the target begins where a cache line begins (shift 0) or not."""
    source = np.random.default_rng(size).normal(size=size).astype(np.float32)
    around = aligned_empty(size + shift + 16)
    around[:] = 7
    target = around[shift : shift + size]
    total = checked_copy(source, target, layout(size), scale)
    wanted = source if scale is None else source * np.float32(scale)
    assert target.tobytes() == wanted.tobytes()
    assert total == word_sum(wanted)
    assert (around[:shift] == 7).all()
    assert (around[shift + size :] == 7).all()


def test_an_illegal_product_is_found_at_each_place() -> None:
    size = 101
    for index in range(size):
        source = np.zeros(size, np.float32)
        source[index] = np.nan
        with pytest.raises(BadValueError, match=f"'tensor0', element {index}, is"):
            checked_copy(source, aligned_empty(size), layout(size), 2.0)


def test_another_size_is_refused_and_nothing_is_copied() -> None:
    target = np.full(4, 7, np.float32)
    for size in (3, 5):
        with pytest.raises(SizeMismatchError, match=f"{size} values are to be copied to 4"):
            checked_copy(np.zeros(size, np.float32), target, layout(4))
    assert (target == 7).all()


def test_arrays_that_are_no_vectors_in_one_piece_are_refused_and_nothing_is_copied() -> None:
    target = np.full(4, 7, np.float32)
    read_only = target[:]
    read_only.flags.writeable = False
    for source in (np.zeros((2, 2), np.float32), np.zeros(8, np.float32)[::2]):
        with pytest.raises(TypeError, match="No matching definition"):
            checked_copy(source, target, layout(4))
    with pytest.raises(TypeError, match="readonly array"):
        checked_copy(np.zeros(4, np.float32), read_only, layout(4))
    assert (target == 7).all()
