"""What has not changed does not travel: a commit has some of the BUFFERs, and its reply those that its worker lacks."""

from pathlib import Path

import numpy as np
import pytest
from gemps.v1 import transfer_pb2

from tests.wire.conftest import Serve
from tests.wire.model import LARGE, Model, Tensor, Values
from tests.wire.serving import Serving
from tests.wire.sharing import Sharing, needs_shared_memory
from tests.wire.transfer import runs_of
from tests.wire.worker import Outcome, RawWorker

pytestmark = pytest.mark.usefixtures("each_transport")

MODEL = Model(
    (
        Tensor("weight", (5, 4)),
        Tensor("mask", (6,), "buffer"),
        Tensor("mean", (3,), "buffer"),
        Tensor("count", (), "buffer", "int64"),
        Tensor("flags", (5,), "buffer", "bool"),
    )
)
MASK, MEAN, COUNT, FLAGS = range(4)
INFINITE = np.float32([0, -np.inf, 0, -np.inf, 0, 0]).tobytes()


def cut(rest: bytes, model: Model = MODEL) -> list[bytes]:
    """The bytes of each BUFFER."""
    pieces = []
    for tensor in model.of_kind("buffer"):
        pieces.append(rest[: tensor.byte_count])
        rest = rest[tensor.byte_count :]
    return pieces


async def commit(worker: RawWorker, seed: int, brings: dict[int, bytes] | None) -> Outcome:
    """A commit with these values of BUFFERs; None: without a selection, and with all BUFFERs that `seed` makes."""
    delta = worker.delta(seed)
    if brings is None:
        return await worker.commit(delta)
    prepared = worker.prepare(Values(delta.parameters, b"".join(brings.values())), selected=list(brings))
    return await worker.commit_on_new_stream(prepared)


def brought(outcome: Outcome) -> dict[str, bytes] | None:
    """The BUFFERs in a reply; None: it says nothing of them, and has all."""
    assert outcome.reply.header is not None
    if not outcome.reply.header.HasField("buffers"):
        assert outcome.reply.model is MODEL
        return None
    buffers = outcome.reply.model.of_kind("buffer")
    pieces = cut(outcome.reply.values.rest, outcome.reply.model)
    return {tensor.name: piece for tensor, piece in zip(buffers, pieces, strict=True)}


async def central(serving: Serving) -> list[bytes]:
    return cut((await serving.values(MODEL)).rest)


async def test_a_commit_changes_the_buffers_that_it_brings_and_its_reply_leaves_them_out(serving: Serving) -> None:
    (worker,) = await serving.training(1, MODEL)
    before = await central(serving)
    mean, flags = np.float32([1, 2, 3]).tobytes(), b"\1\0\1\0\1"
    outcome = await commit(worker, 1, {MEAN: mean, FLAGS: flags})
    assert brought(outcome) == {}
    assert await central(serving) == [before[MASK], mean, before[COUNT], flags]


@pytest.mark.parametrize("selected", [(), (MASK, MEAN, COUNT, FLAGS)], ids=["none", "all"])
async def test_none_or_all_of_the_buffers_may_be_selected(serving: Serving, selected: tuple[int, ...]) -> None:
    (worker,) = await serving.training(1, MODEL)
    before, other = await central(serving), cut(worker.delta(5).rest)
    outcome = await commit(worker, 1, {index: other[index] for index in selected})
    assert brought(outcome) == {}
    assert await central(serving) == (other if selected else before)


async def test_a_reply_brings_what_other_workers_changed_since_the_base_and_nothing_else(serving: Serving) -> None:
    first, second = await serving.training(2, MODEL)
    eight, nine = (np.int64(number).tobytes() for number in (8, 9))
    mean = np.float32([4, 5, 6]).tobytes()
    await commit(first, 1, {MEAN: mean, COUNT: eight})
    assert brought(await commit(second, 2, {MEAN: bytes(12)})) == {"count": eight}
    assert brought(await commit(second, 3, {})) == {}
    assert brought(await commit(first, 4, {COUNT: nine})) == {"mean": bytes(12)}
    assert brought(await commit(second, 5, {})) == {"count": nine}
    assert (await central(serving))[1:3] == [bytes(12), nine]


async def test_a_worker_that_sends_all_replaces_all_and_only_what_differs_counts_as_changed(serving: Serving) -> None:
    simple, selective = await serving.training(2, MODEL)
    assert simple.held is not None
    given = simple.held.values.rest
    count = np.int64(77).tobytes()
    await commit(selective, 1, {COUNT: count})
    outcome = await simple.commit(Values(simple.delta(2).parameters, given))
    assert outcome.reply.values.rest == given
    assert brought(await commit(selective, 3, {})) == {"count": cut(given)[COUNT]}
    await simple.commit(Values(simple.delta(4).parameters, given))
    assert brought(await commit(selective, 5, {})) == {}


async def test_a_repeat_and_a_pull_bring_all_buffers(serving: Serving) -> None:
    (worker,) = await serving.training(1, MODEL)
    mean = np.float32([1, 2, 3]).tobytes()
    prepared = worker.prepare(Values(worker.delta(1).parameters, mean), selected=[MEAN])
    await worker.commit_on_new_stream(prepared)
    stream = worker.commit_stream()
    repeated = await stream.outcome_of_repeat(prepared)
    assert repeated.verdict.duplicate
    assert brought(repeated) is None
    assert cut(repeated.reply.values.rest)[MEAN] == mean
    assert cut((await worker.pull()).values.rest)[MEAN] == mean


async def test_a_commit_with_a_selection_against_an_old_base_is_refused(serving: Serving) -> None:
    (worker,) = await serving.training(1, MODEL)
    old = worker.version
    await commit(worker, 1, {})
    prepared = worker.prepare(Values(worker.delta(2).parameters), selected=[], base_version=old)
    await serving.refuses(worker, prepared, "STALE_BASE")


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param([0], id="odd"),
        pytest.param([1, 0], id="empty run"),
        pytest.param([0, 1, 0, 1], id="two runs side by side"),
        pytest.param([4, 1], id="beyond the last"),
        pytest.param([0, 5], id="too many"),
        pytest.param([2**32 - 1, 2**32 - 1], id="huge"),
        pytest.param([1] * 514, id="long"),
    ],
)
async def test_an_illegal_selection_is_refused(serving: Serving, runs: list[int]) -> None:
    (worker,) = await serving.training(1, MODEL)
    selection = transfer_pb2.BufferSelection(runs=runs)
    await serving.refuses(worker, worker.prepare(worker.delta(1), buffers=selection), "MALFORMED")


async def test_a_payload_of_another_size_than_its_selection_is_refused(serving: Serving) -> None:
    (worker,) = await serving.training(1, MODEL)
    wrong = worker.prepare(worker.delta(1), buffers=transfer_pb2.BufferSelection(runs=[0, 1]))
    refusal = await serving.refuses(worker, wrong, "SIZE_MISMATCH")
    assert "must have 104 bytes" in refusal.message


async def test_a_value_that_is_not_finite_is_accepted_as_long_as_it_does_not_change(serving: Serving) -> None:
    worker = await serving.joined(MODEL)
    first = MODEL.random_values(0)
    await worker.initialize(Values(first.parameters, INFINITE + first.rest[len(INFINITE) :]))
    given = (await worker.pull()).values.rest
    assert cut(given)[MASK] == INFINITE
    delta = worker.delta(1).parameters
    assert (await worker.commit(Values(delta, given))).verdict.sequence == 1
    assert brought(await commit(worker, 2, {MASK: INFINITE})) == {}
    finite = np.float32([0, -9, 0, -9, 0, 0]).tobytes()
    for selected in (None, [MASK]):
        bad = INFINITE[::-1] if selected is None else np.float32([np.nan] * 6).tobytes()
        rest = (np.float32([np.inf] * 6).tobytes() + given[len(bad) :]) if selected is None else bad
        assert (
            "'mask', element 0"
            in (
                await serving.refuses(worker, worker.prepare(Values(delta, rest), selected=selected), "BAD_VALUE")
            ).message
        )
    await commit(worker, 3, {MASK: finite})
    rest = INFINITE + given[len(INFINITE) :]
    await serving.refuses(worker, worker.prepare(Values(delta, rest)), "BAD_VALUE")


@pytest.mark.parametrize("chunks", [1, 5, 6])
async def test_a_reply_without_all_buffers_that_is_torn_is_completed_by_a_pull_with_all(
    serve: Serve, chunks: int
) -> None:
    """The parameters are the same bytes in both; where BUFFERs had begun, the pull begins anew."""
    serving = await serve(chunk_bytes=40_000)
    worker, other = await serving.training(2, LARGE)
    before, after = (cut(values.rest, LARGE) for values in (await serving.values(LARGE), other.delta(9)))
    await other.commit(other.delta(9))
    stream = worker.commit_stream()
    parameters = worker.delta(1).parameters
    await stream.send_commit(worker.prepare(Values(parameters), selected=[]))
    torn = (await stream.outcome(stop_after=chunks)).reply
    assert torn.header is not None
    changed = [index for index, pieces in enumerate(zip(before, after, strict=True)) if pieces[0] != pieces[1]]
    assert torn.header.buffers.runs == runs_of(changed)
    untorn = await serving.read(LARGE)
    torn.model = LARGE
    if torn.received > LARGE.parameter_bytes(torn.wire_type):
        torn.payload, torn.crc32c = bytearray(), 0
    whole = await worker.resume(torn)
    assert bytes(whole.payload) == bytes(untorn.payload)
    assert (await worker.commit(worker.delta(3))).verdict.sequence == 2


async def test_the_log_has_all_buffers_of_a_commit_that_brought_some(serve: Serve, tmp_path: Path) -> None:
    serving = await serve(data_dir=tmp_path, durability="commit")
    (worker,) = await serving.training(1, MODEL)
    expected = await central(serving)
    expected[MEAN] = np.float32([1, 2, 3]).tobytes()
    await commit(worker, 1, {MEAN: expected[MEAN]})
    await serving.close()
    await serving.stop()
    again = await serve(data_dir=tmp_path, durability="commit", resume=True)
    assert await central(again) == expected
    (worker,) = await again.training(1, MODEL)
    assert brought(await commit(worker, 2, {})) == {}


@needs_shared_memory
async def test_shared_memory_has_all_buffers_at_their_places_and_the_reply_says_which_are_new(
    serve: Serve, tmp_path: Path
) -> None:
    serving = await serve(shared_memory_socket=tmp_path / "memory")
    worker, other = await serving.training(2, LARGE)
    shared = await Sharing.of(worker)
    await worker.pull()
    buffers = LARGE.of_kind("buffer")
    changed = cut(other.delta(7).rest, LARGE)
    await other.commit_on_new_stream(other.prepare(Values(other.delta(1).parameters, changed[0]), selected=[0]))
    for selected, new in (([1], [0, 1]), ([], None)):
        delta = Values(worker.delta(2).parameters, b"".join(changed[index] for index in selected))
        prepared = worker.prepare(delta, selected=selected)
        shared.write(prepared.payload)
        handle = shared.handle(byte_count=len(prepared.payload))
        verdict, head, payload = await shared_exchange(shared, prepared.with_header(wire_type=5, shared_memory=handle))
        assert head.buffers.runs == ([] if new is None else new)
        assert head.HasField("buffers")
        sent = sum(buffers[index].byte_count for index in ([0] if new else []))
        assert head.byte_count == LARGE.parameter_bytes(1) + sent
        assert payload == bytes((await serving.read(LARGE)).payload)
        worker.sequence, worker.version = verdict.sequence, head.version
    shared.close()


async def shared_exchange(shared: Sharing, prepared: object) -> tuple[object, transfer_pb2.ParametersHeader, bytes]:
    stream = shared.worker.commit_stream()
    await stream.send(prepared.opening())
    message = await stream.receive()
    assert message is not None
    await stream.end()
    place = message.parameters.shared_memory
    memory = shared.snapshots[place.region]
    return message.verdict, message.parameters, memory[place.offset : place.offset + place.byte_count]
