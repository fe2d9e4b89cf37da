from __future__ import annotations

import tracemalloc

import pytest

from gem_core import ElementType, Layout, LayoutError, TensorKind, TensorRole, TensorSpec

PARAMETER, BUFFER, FROZEN = TensorKind.PARAMETER, TensorKind.BUFFER, TensorKind.FROZEN
SHA256 = bytes(range(32))
F32, I64 = ElementType.FLOAT32, ElementType.INT64


def tensor(name: str, shape: tuple[int, ...] = (2,), kind: TensorKind = PARAMETER, **more: object) -> TensorSpec:
    return TensorSpec(name, shape, more.pop("element_type", F32), kind, **more)  # type: ignore[arg-type]


def test_sizes_are_counted_by_kind() -> None:
    layout = Layout(
        [
            tensor("w", (10, 64)),
            tensor("b", (10,), element_type=ElementType.BFLOAT16),
            tensor("mean", (3,), BUFFER),
            tensor("steps", (), BUFFER, element_type=I64),
            tensor("frozen", (2**40, 2**40), FROZEN, element_type=ElementType.FLOAT64, sha256=SHA256),
        ]
    )
    assert layout.parameter_count == 650
    assert layout.buffer_bytes == 12 + 8
    assert [t.name for t in layout.parameters] == ["w", "b"]
    assert [t.name for t in layout.buffers] == ["mean", "steps"]
    assert [t.byte_count for t in layout.tensors[:4]] == [2560, 20, 12, 8]


def test_object_bytes_are_about_what_it_takes_in_memory() -> None:
    tracemalloc.start()
    layout = Layout(
        TensorSpec(f"layer.{i}.weight", (1000 + i, 3000), F32, PARAMETER, (f"{i}:\u4e2d",)) for i in range(2000)
    )
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.7 * taken < layout.object_bytes < 1.5 * taken


def test_canonical_text_is_the_one_that_the_proto_documents() -> None:
    layout = Layout([tensor("weight", (10, 64)), tensor("bias", (10,)), tensor("steps", (), BUFFER, element_type=I64)])
    assert layout.canonical_text() == (
        "gemps-layout-1\nparameter float32 2:10,64 6:weight\nparameter float32 1:10 4:bias\nbuffer int64 0: 5:steps\n"
    )


def test_linear_layer_has_the_digest_that_the_proto_documents() -> None:
    layout = Layout([tensor("weight", (10, 64)), tensor("bias", (10,))])
    assert layout.digest.hex() == "449a6fa3eb844edeeae86b5af711a95fd0f0d0b32182c7b1bd07ff0d88f97e0c"


def test_role_is_of_the_shape_unless_the_tensor_is_an_embedding() -> None:
    specs = [tensor("scalar", ()), tensor("bias"), tensor("weight", (2, 1)), tensor("kernel", (2, 2, 3, 3))]
    specs += [tensor("table", (5, 2), is_embedding=True), tensor("mean", (2, 2), BUFFER)]
    roles = [one.role for one in Layout(specs).tensors]
    vector, matrix, embedding = TensorRole.VECTOR, TensorRole.MATRIX, TensorRole.EMBEDDING
    assert roles == [vector, vector, matrix, matrix, embedding, matrix]


def test_role_is_described_but_not_part_of_the_digest() -> None:
    plain, embedding = (Layout([tensor("table", (5, 2), is_embedding=known)]) for known in (False, True))
    assert plain == embedding
    assert plain.first_difference(embedding) is None
    assert "role" not in plain.describe()[0]
    restored = Layout.from_description(embedding.describe())
    assert restored.tensors[0].role is TensorRole.EMBEDDING
    assert Layout.from_description(plain.describe()).tensors[0].role is TensorRole.MATRIX


def test_scalars_and_empty_tensors_and_empty_layouts_are_legal() -> None:
    assert Layout([tensor("scalar", ())]).parameter_count == 1
    assert Layout([tensor("empty", (4, 0, 3))]).parameter_count == 0
    assert Layout([]).parameter_count == 0


def test_order_of_aliases_does_not_matter() -> None:
    one = Layout([tensor("w", aliases=("z", "B", "a"))])
    other = Layout([tensor("w", aliases=("a", "z", "B"))])
    assert one == other
    assert hash(one) == hash(other)
    assert one.tensors[0].aliases == ("B", "a", "z")
    assert one.first_difference(other) is None


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([tensor("")], "tensor 0: a name of 0 bytes; use 1 to 1024"),
        ([tensor("x" * 1025)], "a name of 1025 bytes"),
        ([tensor("é" * 513)], "a name of 1026 bytes"),
        ([tensor("a\nb")], r"the control character U\+000A at position 2: rename it"),
        ([tensor("w\u202eb")], r"the invisible character U\+202E \(RIGHT-TO-LEFT OVERRIDE\) at position 2: rename it"),
        ([tensor("w", aliases=("v\u2028",))], r"U\+2028 \(LINE SEPARATOR\)"),
        ([tensor("a\x7f")], "control character"),
        ([tensor("a\x85")], "control character"),
        ([tensor("__metadata__")], "safetensors' own: rename it"),
        ([tensor("\ud800")], "not valid Unicode"),
        ([tensor("w"), tensor("w")], r"tensor 1: the name 'w' is also a name of tensor 0; .*aliases"),
        ([tensor("w"), tensor("v", aliases=("w",))], "tensor 1: the name 'w' is also a name of tensor 0"),
        ([tensor("w", aliases=("w",))], "tensor 0: the name 'w' is also a name of tensor 0"),
        ([tensor("w", aliases=("",))], "a name of 0 bytes"),
        ([tensor("w", (1,) * 17)], "'w'.*: 17 dimensions, more than 16: reshape"),
        ([tensor("w", (-1,))], "'w'.*: dimension -1"),
        ([tensor("w", (2**63,))], "'w'.*: dimension 9223372036854775808"),
        ([tensor("w", (1.5,))], "'w'.*: dimension 1.5"),  # type: ignore[arg-type]
        ([tensor("w", (True,))], "'w'.*: dimension True"),
        ([tensor("w", (2**40, 2**40))], r"more than 2\*\*63 bytes"),
        ([tensor("steps", element_type=I64)], "'steps'.*PARAMETER of type int64.*declare it a BUFFER"),
        ([tensor("m", kind=BUFFER), tensor("w")], "'w'.*a parameter after a buffer; list all PARAMETERs first"),
        ([tensor("c", kind=FROZEN, sha256=SHA256), tensor("m", kind=BUFFER)], "'m'.*a buffer after a frozen"),
        ([tensor("c", kind=FROZEN)], "'c'.*sha256 has 0 bytes; send 32 of a FROZEN tensor, else none"),
        ([tensor("c", kind=FROZEN, sha256=SHA256[1:])], "'c'.*sha256 has 31 bytes"),
        ([tensor("w", sha256=SHA256)], "'w'.*sha256 has 32 bytes"),
        (
            [tensor("m", kind=BUFFER, element_type=ElementType.OTHER)],
            "'m'.*a buffer of type other cannot be sent: use another type",
        ),
        ([tensor(f"t{i}") for i in range(65_537)], "65537 tensors, more than 65536"),
    ],
)
def test_illegal_layouts_are_refused_with_the_tensor_and_the_fix(tensors: list[TensorSpec], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        Layout(tensors)


def test_names_may_hold_anything_that_people_can_see() -> None:
    names = ["größe", "a b", "均值", "🙂", "k\u00a0v", "x" * 1024]
    assert [t.name for t in Layout([tensor(name) for name in names]).tensors] == names


RUN = [tensor("w", (10, 64)), tensor("b", (10,)), tensor("m", (3,), BUFFER)]


@pytest.mark.parametrize(
    ("index", "replacement", "message"),
    [
        (0, tensor("v", (10, 64)), "tensor 0: the run has parameter 'w' .*, this model has parameter 'v'"),
        (1, tensor("b", (11,)), r"tensor 1: the run has parameter 'b' \(float32, shape \[10\]\), .*shape \[11\]"),
        (1, tensor("b", (10,), element_type=ElementType.FLOAT16), r"tensor 1: .*'b' \(float32.*'b' \(float16"),
        (2, tensor("m", (3,), FROZEN, sha256=SHA256), "tensor 2: the run has buffer 'm'.*this model has frozen 'm'"),
        (0, tensor("w", (10, 64), aliases=("tied",)), "tensor 0: .*also called 'tied'"),
    ],
)
def test_first_difference_names_the_tensor_and_how_it_differs(
    index: int, replacement: TensorSpec, message: str
) -> None:
    theirs = list(RUN)
    theirs[index] = replacement
    difference = Layout(RUN).first_difference(Layout(theirs))
    assert difference is not None
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(difference)


def test_first_difference_of_frozen_tensors_names_both_digests_and_the_fix() -> None:
    ours, theirs = (
        Layout([tensor("w"), tensor("base.weight", (3, 4), FROZEN, sha256=sha256)]) for sha256 in (SHA256, SHA256[::-1])
    )
    assert ours.first_difference(theirs) == (
        "tensor 1: the values of frozen 'base.weight' (float32, shape [3, 4]) have SHA-256 000102030405 in the run and "
        "1f1e1d1c1b1a here: load the same base weights in each worker (or seed PyTorch before the model is built), or "
        "name it in keep_local= or send_frozen= of ParameterServer if the workers change it"
    )
    assert Layout.from_description(ours.describe()) == ours != theirs


def test_layouts_that_differ_in_values_of_frozen_tensors_only_are_told_from_others() -> None:
    def layout(*digests: bytes, shape: tuple[int, ...] = (3, 4)) -> Layout:
        frozen = (tensor(f"f{i}", shape, FROZEN, sha256=digest) for i, digest in enumerate(digests))
        return Layout([tensor("w"), *frozen])

    ours = layout(SHA256, SHA256, SHA256)
    assert ours.frozen_differences(layout(SHA256, SHA256, SHA256)) == ()
    other = layout(SHA256[::-1], SHA256, SHA256[::-1])
    assert ours.frozen_differences(other) == (1, 3)
    for different in (layout(SHA256, SHA256), layout(SHA256, SHA256, SHA256[::-1], shape=(4, 3))):
        assert ours.frozen_differences(different) is None
    trained = Layout([tensor("v"), *ours.tensors[1:]])
    assert ours.frozen_differences(trained) is None


def test_description_with_a_constant_of_older_versions_is_refused_with_the_fix() -> None:
    described = [*Layout([tensor("w")]).describe(), {"name": "base", "kind": "constant"}]
    with pytest.raises(
        LayoutError, match="'base' is a CONSTANT of an older gemps: use that version, or begin a new run"
    ):
        Layout.from_description(described)


def test_first_difference_says_which_layout_ends_first() -> None:
    longer, shorter = Layout(RUN), Layout(RUN[:2])
    assert longer.first_difference(shorter) == (
        "tensor 2: the run has buffer 'm' (float32, shape [3]), this model ends before it"
    )
    assert shorter.first_difference(longer) == (
        "tensor 2: this model has buffer 'm' (float32, shape [3]), the run ends before it"
    )


def test_parameters_are_located_beyond_empty_tensors() -> None:
    layout = Layout([tensor("a", (3,)), tensor("empty", (0,)), tensor("b", ()), tensor("c", (2, 2))])
    found = [(t.name, index) for t, index in map(layout.locate_parameter, range(layout.parameter_count))]
    assert found == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0), ("c", 1), ("c", 2), ("c", 3)]
    for outside in (-1, 8):
        with pytest.raises(IndexError):
            layout.locate_parameter(outside)


def test_largest_number_of_tensors_is_legal() -> None:
    # Anything quadratic in the number of tensors would run into the test's time limit here.
    layout = Layout([tensor(f"layer.{i}.weight", (8, 8)) for i in range(65_536)])
    assert layout.parameter_count == 65_536 * 64
    assert layout.locate_parameter(layout.parameter_count - 1)[0].name == "layer.65535.weight"
