"""Layouts: which are legal, and that two that differ never mix; the refusal names the first tensor that differs."""

from dataclasses import replace

import pytest
from gemps.v1 import layout_pb2, parameters_pb2, session_pb2

from gem_core import TensorRole
from tests.wire.model import DTYPES, SHA256, SMALL, Model, Tensor
from tests.wire.refusals import Refusal, answered_or_refused, refused
from tests.wire.serving import Serving
from tests.wire.transfer import MIB

WEIGHT = Tensor("weight", (2, 3))
FROZEN = Tensor("c", (3,), "frozen", sha256=SHA256)


async def refuse_layout(serving: Serving, layout: layout_pb2.Layout, *words: str) -> None:
    refusal = await refused(serving.worker().join(layout=layout), "INVALID_LAYOUT")
    for word in words:
        assert word in refusal.message
    assert not (await serving.status()).workers


@pytest.mark.parametrize(
    ("tensors", "word"),
    [
        pytest.param([], "no tensors", id="no-tensors"),
        pytest.param([WEIGHT, Tensor("bias"), WEIGHT], "weight", id="duplicate-name"),
        pytest.param([WEIGHT, Tensor("tied", aliases=("weight",))], "weight", id="alias-of-another-tensors-name"),
        pytest.param([Tensor("a", aliases=("x",)), Tensor("b", aliases=("x",))], "x", id="alias-twice"),
        pytest.param([Tensor("a", aliases=("x", "x"))], "x", id="alias-twice-in-one-tensor"),
        pytest.param([Tensor("own", aliases=("own",))], "own", id="alias-is-its-own-name"),
        pytest.param([Tensor("mean", kind="buffer"), WEIGHT], "weight", id="buffer-before-parameter"),
        pytest.param([WEIGHT, FROZEN, Tensor("mean", kind="buffer")], "mean", id="frozen-first"),
        pytest.param([replace(FROZEN, sha256=b"")], "sha256", id="frozen-without-digest"),
        pytest.param([replace(FROZEN, sha256=SHA256 + b"x")], "sha256", id="long-digest"),
        pytest.param([replace(WEIGHT, sha256=SHA256)], "sha256", id="digest-of-a-parameter"),
        pytest.param([Tensor("mean", kind="buffer", type="other")], "mean", id="buffer-of-another-type"),
        pytest.param([Tensor("deep", (1,) * 17)], "deep", id="17-dimensions"),
        pytest.param([Tensor("count", type="int64")], "count", id="integer-parameter"),
        pytest.param([Tensor("flag", type="bool")], "flag", id="bool-parameter"),
        pytest.param([Tensor("")], "name", id="empty-name"),
        pytest.param([Tensor("n" * 1025)], "1024", id="long-name"),
        pytest.param([Tensor("ü" * 513)], "1024", id="name-long-in-bytes"),
        pytest.param([Tensor("a\nb")], "control", id="control-character"),
        pytest.param([Tensor("good", aliases=("a\x00b",))], "control", id="control-character-in-an-alias"),
        pytest.param([Tensor("good", aliases=("",))], "name", id="empty-alias"),
    ],
)
async def test_layout_that_is_not_legal_is_refused(serving: Serving, tensors: list[Tensor], word: str) -> None:
    await refuse_layout(serving, Model(tensors).to_proto(), word)


@pytest.mark.parametrize(
    "shape",
    [(2**63, 4), (2**32, 2**32), (2**64 - 1,), (2**40, 2**40, 2**40), (2**16,) * 16],
    ids=lambda shape: "x".join(map(str, shape)),
)
async def test_shape_whose_elements_overflow_is_refused(serving: Serving, shape: tuple[int, ...]) -> None:
    await refuse_layout(serving, Model([Tensor("huge", shape)]).to_proto(), "huge")


async def test_layout_whose_sum_of_elements_overflows_is_refused(serving: Serving) -> None:
    tensors = [Tensor(f"t{i}", (2**60,)) for i in range(16)]
    worker = serving.worker()
    await refused(worker.join(layout=Model(tensors).to_proto()), "INVALID_LAYOUT", "MEMORY")


async def test_65537_tensors_are_refused(serving: Serving) -> None:
    await refuse_layout(serving, Model([Tensor(f"{i:x}") for i in range(65_537)]).to_proto(), "65")


async def test_65536_tensors_are_taken(serving: Serving) -> None:
    model = Model([Tensor(f"{i:x}") for i in range(65_536)])
    await serving.training(1, model)
    assert (await serving.status()).tensor_count == 65_536


@pytest.mark.parametrize("field", ["element_type", "kind"])
@pytest.mark.parametrize("number", [0, 77])
async def test_unknown_element_type_or_kind_is_refused(serving: Serving, field: str, number: int) -> None:
    tensor = WEIGHT.to_proto()
    setattr(tensor, field, number)
    await refuse_layout(serving, layout_pb2.Layout(tensors=[tensor]), "weight")


async def test_join_without_a_layout_is_refused(serving: Serving) -> None:
    request = session_pb2.JoinRequest(session_id=b"\x01" * 16, worker_name="w")
    worker = serving.worker()
    await refused(worker.stub.Join(request), "INVALID_LAYOUT", "MALFORMED")


async def test_2_mib_of_empty_tensors_are_refused(serving: Serving) -> None:
    """They are cheap to send, and expensive to parse one by one."""
    worker = serving.worker()
    request = worker.join_request()
    request.ClearField("layout")
    empty_tensors = b"\x0a\x00" * MIB
    layout = b"\x22" + b"\x80\x80\x80\x01" + empty_tensors
    assert len(empty_tensors) == 2 * MIB
    assert layout_pb2.Layout.FromString(empty_tensors[:4]) == layout_pb2.Layout(tensors=[{}, {}])
    await refused(worker.stub.Join(request.SerializeToString() + layout), "INVALID_LAYOUT", "MALFORMED")
    await serving.training(1)


async def test_digest_is_of_the_canonical_text() -> None:
    """The example of layout.proto, torch.nn.Linear(64, 10), checks this folder's own model against the contract."""
    linear = Model([Tensor("weight", (10, 64)), Tensor("bias", (10,))])
    assert linear.digest.hex() == "449a6fa3eb844edeeae86b5af711a95fd0f0d0b32182c7b1bd07ff0d88f97e0c"
    assert Tensor("steps", (), "buffer", "int64").canonical_line() == "buffer int64 0: 5:steps\n"


async def test_a_role_may_be_given_or_left_out(serving: Serving) -> None:
    """Workers in other languages may omit it in a run with PyTorch's workers. The first worker's roles count."""
    bare = Model([Tensor("table", (5, 2))])
    told = Model([Tensor("table", (5, 2), role=layout_pb2.TENSOR_ROLE_EMBEDDING)])
    unknown = Model([Tensor("table", (5, 2), role=77)])
    assert bare.digest == told.digest
    await serving.training(1, told)
    await serving.training(1, bare)
    await serving.training(1, unknown)
    assert serving.server.central.layout.tensors[0].role is TensorRole.EMBEDDING


@pytest.mark.parametrize(
    "tensors",
    [
        pytest.param([Tensor("scalar")], id="scalar"),
        pytest.param([Tensor("deep", (1,) * 16)], id="16-dimensions"),
        pytest.param([WEIGHT, Tensor("none", (0, 5))], id="tensor-without-elements"),
        pytest.param([Tensor("none", (0, 5))], id="no-elements"),
        pytest.param([Tensor("steps", (3,), "buffer", "int64")], id="no-parameter"),
        pytest.param([replace(FROZEN, type="int8")], id="frozen-alone"),
        pytest.param([Tensor("n" * 1024, aliases=("ü" * 512,))], id="long-names"),
        pytest.param(
            [Tensor("a b", (2,)), Tensor("重み", (1,), aliases=("β", "a"))], id="names-with-blanks-and-unicode"
        ),
        pytest.param([Tensor("p", (3,), type="bfloat16"), Tensor("q", (2,), type="float64")], id="parameter-types"),
        pytest.param([WEIGHT, *(Tensor(f"b.{t}", (3,), "buffer", t) for t in DTYPES)], id="all-buffer-types"),
        pytest.param(
            [WEIGHT, *(replace(FROZEN, name=f"c.{t}", type=t) for t in (*DTYPES, "other"))], id="all-frozen-types"
        ),
    ],
)
async def test_legal_layouts_train_and_have_the_digest_of_the_canonical_text(
    serving: Serving, tensors: list[Tensor]
) -> None:
    """`pull` and `commit` compare layout_digest and byte counts with this folder's own."""
    model = Model(tensors)
    (worker,) = await serving.training(1, model)
    read = await serving.read(model, with_layout=True)
    assert [_described(tensor) for tensor in read.header.layout.tensors] == [_described(t.to_proto()) for t in tensors]
    delta = worker.delta(1)
    outcome = await worker.commit(delta)
    assert outcome.reply.values.rest == delta.rest
    assert (await serving.status()).layout_digest == model.digest


def _described(tensor: layout_pb2.TensorSpec) -> tuple[object, ...]:
    """The order of aliases says nothing (the canonical text sorts them)."""
    return tensor.name, tuple(tensor.shape), tensor.element_type, tensor.kind, sorted(tensor.aliases)


@pytest.mark.parametrize(
    ("other", "tensor", "found"),
    [
        pytest.param(SMALL.with_tensor(1, name="offset"), "bias", "offset", id="name"),
        pytest.param(SMALL.with_tensor(1, shape=(5, 1)), "bias", "5", id="shape"),
        pytest.param(SMALL.with_tensor(0, shape=(90, 7)), "weight", "90", id="transposed"),
        pytest.param(SMALL.with_tensor(2, type="float64"), "running_mean", "float64", id="type"),
        pytest.param(SMALL.with_tensor(2, kind="parameter"), "running_mean", "parameter", id="kind"),
        pytest.param(SMALL.with_tensor(0, aliases=()), "weight", "head.weight", id="alias"),
        pytest.param(SMALL.with_tensor(4, sha256=SHA256[::-1]), "frozen", "load the same base weights", id="values"),
        pytest.param(Model(SMALL.tensors[:-1]), "frozen", "", id="missing-at-the-end"),
        pytest.param(Model(SMALL.tensors[1:]), "weight", "", id="missing-at-the-start"),
        pytest.param(Model([*SMALL.tensors, replace(FROZEN, name="more")]), "more", "", id="extra"),
    ],
)
async def test_worker_with_another_layout_is_refused_with_the_first_tensor_that_differs(
    serving: Serving, other: Model, tensor: str, found: str
) -> None:
    (worker,) = await serving.training(1)
    async with serving.unchanged(worker):
        refusal = await refused(serving.worker(other).join(), "LAYOUT_MISMATCH")
        assert tensor in refusal.message
        assert found in refusal.message
        # A program reads it from the metadata ("metadata names the first tensor that differs").
        assert tensor in str(refusal.metadata)


async def test_worker_that_committed_before_may_return_with_other_frozen_values(serving: Serving) -> None:
    """Its script has changed them. Join answers with the run's digest, which the headers of transfers have, too."""
    changed = SMALL.with_tensor(4, sha256=SHA256[::-1])
    (first,) = await serving.training(1)
    await refused(serving.worker(changed, first.name).join(), "LAYOUT_MISMATCH")  # no commit yet
    await first.commit(first.delta(1))
    await first.leave()
    returned = serving.worker(changed, first.name)
    answers = [await returned.join(), await returned.join()]
    for answer in answers:
        assert (answer.layout_digest, list(answer.changed_frozen)) == (SMALL.digest, [4])
    assert answers[0].rank == first.membership.rank
    returned.model = SMALL
    await returned.pull()  # which compares layout_digest
    await returned.commit(returned.delta(2))
    await returned.leave()
    assert not (await serving.worker(SMALL, first.name).join()).changed_frozen
    await refused(serving.worker(changed, "another").join(), "LAYOUT_MISMATCH")


async def test_log_says_which_worker_may_not_join_and_why_once(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    await serving.training(1)
    other = SMALL.with_tensor(0, name="elsewhere")
    for _ in range(3):
        await refused(serving.worker(other, name="ada").join(), "LAYOUT_MISMATCH")
    told = [text for text in caplog.messages if "may not join" in text]
    assert len(told) == 1
    assert "worker ada may not join from 127.0.0.1:" in told[0]
    assert "elsewhere" in told[0]


async def test_session_joined_with_another_layout_before_one_was_bound_is_refused_afterwards(serving: Serving) -> None:
    """Whoever initializes first binds the layout; the other model's worker learns it at its next call."""
    other = await serving.joined(SMALL.with_tensor(1, name="offset"))
    (worker,) = await serving.training(1)
    async with serving.unchanged(worker):
        commit = other.prepare(other.delta(1), base_version=worker.version)
        for call in (other.pull(), other.commit_on_new_stream(commit)):
            refusal = await refused(call, "LAYOUT_MISMATCH")
            assert "bias" in refusal.message


async def test_upload_under_way_with_another_layout_does_not_win_when_one_is_bound(serving: Serving) -> None:
    """It may be told ALREADY_INITIALIZED like everyone else; the pull that follows says what differs."""
    model = SMALL.with_tensor(1, name="offset")
    other = await serving.joined(model)
    stream = other.initialize_stream()
    messages = other.upload(model.random_values(1))
    await stream.send(messages[0])
    (worker,) = await serving.training(1)
    async with serving.unchanged(worker):
        for message in messages[1:]:
            await stream.send(message)
        await stream.half_close()
        answer = await answered_or_refused(stream.answer(), "LAYOUT_MISMATCH")
        assert isinstance(answer, Refusal) or answer.outcome == parameters_pb2.INITIALIZE_OUTCOME_ALREADY_INITIALIZED
        assert "bias" in (await refused(other.pull(), "LAYOUT_MISMATCH")).message


async def test_long_names_do_not_make_the_details_too_large(serving: Serving) -> None:
    """Trailers beyond 8 KiB break; `refused` asserts details below 4 KiB."""
    model = Model([Tensor("ü" * 512, (1,) * 16, aliases=tuple(f"{i}" * 1000 for i in range(8)))])
    await serving.training(1, model)
    await refused(serving.worker(model.with_tensor(0, name="ö" * 512)).join(), "LAYOUT_MISMATCH")
    await refused(serving.worker(model.with_tensor(0, aliases=())).join(), "LAYOUT_MISMATCH")


async def test_layout_of_the_first_upload_becomes_the_runs_whoever_joined_first(serving: Serving) -> None:
    models = [Model([Tensor("weight", (size,))]) for size in (1, 2, 3)]
    workers = [await serving.joined(model) for model in models]
    await workers[1].initialize()
    assert (await serving.read(models[1])).clock == 1
    await refused(workers[0].pull(), "LAYOUT_MISMATCH")
    await workers[1].pull()
