"""How a model is cut into shards."""

import pytest

from gem_core.errors import LayoutError
from gem_core.layout import ElementType, Layout, TensorKind, TensorRole, TensorSpec
from gem_core.shards import ALIGNMENT, Shard

F32, PARAMETER = ElementType.FLOAT32, TensorKind.PARAMETER
MODEL = Layout(
    [
        TensorSpec("embedding", (1000, 3), F32, PARAMETER, is_embedding=True),
        TensorSpec("matrix", (100, 50), F32, PARAMETER),
        TensorSpec("bias", (777,), F32, PARAMETER),
        TensorSpec("mean", (5,), F32, TensorKind.BUFFER),
        TensorSpec("frozen", (3,), F32, TensorKind.FROZEN, sha256=bytes(32)),
    ]
)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 34])
def test_ranges_cover_the_vector_at_borders_of_blocks(count: int) -> None:
    ranges = [Shard(index, count).range_of(MODEL.parameter_count) for index in range(count)]
    assert [held.start for held in ranges[1:]] == [held.stop for held in ranges[:-1]]
    assert (ranges[0].start, ranges[-1].stop) == (0, MODEL.parameter_count)
    assert all(held.start % ALIGNMENT == 0 and held.stop > held.start for held in ranges)


@pytest.mark.parametrize("count", [2, 3, 7, 34])
def test_layouts_of_shards_keep_sizes_and_roles(count: int) -> None:
    layouts = [Shard(index, count).layout_of(MODEL) for index in range(count)]
    for index, layout in enumerate(layouts):
        held = Shard(index, count).range_of(MODEL.parameter_count)
        assert layout.parameter_count == held.stop - held.start
        assert layout.whole is MODEL
        assert bool(layout.buffers) == (index == count - 1)
    roles = {name: {one.role for layout in layouts for one in layout.parameters if one.name == name} for name in
             ("embedding", "matrix", "bias")}  # fmt: skip
    assert roles == {
        "embedding": {TensorRole.EMBEDDING},
        "matrix": {TensorRole.MATRIX},
        "bias": {TensorRole.VECTOR},
    }
    assert len({layout.digest for layout in layouts}) == count


def test_layouts_of_different_models_differ_on_each_shard() -> None:
    other = Layout([*MODEL.tensors[:-1], TensorSpec("frozen", (3,), F32, TensorKind.FROZEN, sha256=b"\1" * 32)])
    ours, theirs = Shard(0, 2).layout_of(MODEL), Shard(0, 2).layout_of(other)
    assert ours != theirs
    assert ours.first_difference(theirs) == "tensors of other shards"


def test_digest_of_a_shard_covers_a_line_more_than_the_models() -> None:
    assert Shard(1, 2).layout_of(MODEL).canonical_text() == f"{MODEL.canonical_text()}shard 1/2\n"


def test_one_shard_is_the_whole_model() -> None:
    assert Shard().layout_of(MODEL) is MODEL


def test_too_many_shards_are_refused() -> None:
    with pytest.raises(LayoutError, match="too few for 35 shards of 256 or more: use fewer"):
        Shard(0, 35).layout_of(MODEL)


@pytest.mark.parametrize("text", ["", "1", "1/", "/2", "2/2", "-1/2", "0/0", "0/257", "a/b", "0/2/3"])
def test_other_texts_are_no_shards(text: str) -> None:
    with pytest.raises(ValueError, match="write 0/4, 1/4, 2/4 and 3/4 for four servers"):
        Shard.parse(text)


def test_shards_are_written_as_they_are_read() -> None:
    assert str(Shard.parse("3/7")) == "3/7"
