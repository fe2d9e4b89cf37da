"""A commit with an illegal value, or in a wire type that was not settled, is refused, and changes nothing."""

import numpy as np
import pytest

from tests.wire.model import BFLOAT16, FLOAT32, INT4_BLOCK, LARGE, SMALL, Model, Tensor, Values
from tests.wire.serving import Serving
from tests.wire.transfer import MIB, Commit, cut_payload, footer_of
from tests.wire.worker import RawWorker

pytestmark = pytest.mark.usefixtures("each_transport_and_tls")

KIB = 1024


async def one_worker(serving: Serving, model: Model, **join_fields: object) -> RawWorker:
    (worker,) = await serving.training(1, model, **join_fields)
    return worker


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e31, -1e31])
@pytest.mark.parametrize("index", [0, 634], ids=["first", "last"])
async def test_illegal_float32_is_refused(serving: Serving, value: float, index: int) -> None:
    worker = await one_worker(serving, SMALL)
    delta = worker.delta(1)
    delta.parameters[index] = value
    refusal = await serving.refuses(worker, worker.prepare(delta), "BAD_VALUE")
    assert ("weight" if index == 0 else "bias") in refusal.message


@pytest.mark.parametrize("index", [0, 40_000, 51_276])
async def test_illegal_value_in_any_chunk_is_refused(serving: Serving, index: int) -> None:
    worker = await one_worker(serving, LARGE)
    delta = worker.delta(1)
    delta.parameters[index] = np.nan
    await serving.refuses(worker, worker.prepare(delta, chunk_bytes=40 * KIB), "BAD_VALUE")


async def test_illegal_bfloat16_is_refused(serving: Serving) -> None:
    """NaN, the infinities, and a finite value above 1e30."""
    worker = await one_worker(serving, SMALL, delta_wire_types=[BFLOAT16])
    good = worker.prepare(worker.delta(1))
    for bits in (b"\xc0\x7f", b"\x80\x7f", b"\x80\xff", b"\x4a\x72"):
        payload = good.payload[:20] + bits + good.payload[22:]
        chunks = cut_payload(payload, MIB)
        await serving.refuses(worker, _next(worker, payload, chunks), "BAD_VALUE")


@pytest.mark.parametrize(
    ("offset", "illegal"),
    [
        pytest.param(4, b"\x08", id="minus-8"),
        pytest.param(132 * 2 + 4 + 50, b"\x80", id="minus-8-in-the-last-block"),
        pytest.param(132 * 2 + 4 + 61, b"\x10", id="number-after-the-last-element"),
        pytest.param(0, np.float32(np.nan).tobytes(), id="scale-nan"),
        pytest.param(0, np.float32(np.inf).tobytes(), id="scale-infinite"),
        pytest.param(132, np.float32(-1e-3).tobytes(), id="scale-negative"),
        pytest.param(0, np.float32(1e30).tobytes(), id="scale-times-7-above-1e30"),
    ],
)
async def test_illegal_int4_block_is_refused(serving: Serving, offset: int, illegal: bytes) -> None:
    worker = await one_worker(serving, SMALL, delta_wire_types=[INT4_BLOCK])
    good = worker.prepare(worker.delta(1)).payload
    payload = good[:offset] + illegal + good[offset + len(illegal) :]
    chunks = cut_payload(payload, MIB)
    await serving.refuses(worker, _next(worker, payload, chunks), "BAD_VALUE")


def _next(worker: RawWorker, payload: bytes, chunks: list[bytes]) -> Commit:
    header = worker.prepare(worker.delta(1)).header
    return Commit(header, payload, chunks, footer_of(payload))


@pytest.mark.parametrize(
    ("type_", "nan"),
    [
        ("float32", np.float32(np.nan).tobytes()),
        ("float64", np.float64(np.inf).tobytes()),
        ("float16", np.float16(np.nan).tobytes()),
        ("bfloat16", b"\xc0\x7f"),
    ],
)
async def test_non_finite_value_in_a_floating_point_buffer_is_refused(serving: Serving, type_: str, nan: bytes) -> None:
    model = Model(
        (Tensor("weight", (3,)), Tensor("count", (), "buffer", "int64"), Tensor("mean", (4,), "buffer", type_))
    )
    worker = await one_worker(serving, model)
    delta = worker.delta(1)
    assert len(nan) * 4 == model.tensors[2].byte_count
    wrong = Values(delta.parameters, delta.rest[: -len(nan)] + nan)
    refusal = await serving.refuses(worker, worker.prepare(wrong), "BAD_VALUE")
    assert "mean" in refusal.message


async def test_any_bits_are_legal_in_an_integer_buffer(serving: Serving) -> None:
    model = Model((Tensor("weight", (3,)), Tensor("count", (2,), "buffer", "int64")))
    worker = await one_worker(serving, model)
    # As floating point these bits would be NaN.
    outcome = await worker.commit(Values(worker.delta(1).parameters, b"\xff" * 16))
    assert outcome.reply.values.rest == b"\xff" * 16


# -- wire types --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire_type", [0, 2, BFLOAT16, 4, INT4_BLOCK, 77])
async def test_wire_type_that_join_did_not_settle_is_refused(serving: Serving, wire_type: int) -> None:
    worker = await one_worker(serving, SMALL)
    assert worker.delta_wire_type == FLOAT32
    commit = worker.prepare(worker.delta(1))
    byte_count = SMALL.byte_count(wire_type) if wire_type in (BFLOAT16, INT4_BLOCK) else len(commit.payload)
    await serving.refuses(worker, commit.with_header(wire_type=wire_type, byte_count=byte_count), "WIRE_TYPE")


async def test_float32_is_refused_where_join_settled_another_wire_type(serving: Serving) -> None:
    worker = await one_worker(serving, SMALL, delta_wire_types=[BFLOAT16])
    payload = SMALL.encode(worker.delta(1), FLOAT32)
    commit = _next(worker, payload, cut_payload(payload, MIB))
    await serving.refuses(worker, commit.with_header(wire_type=FLOAT32, byte_count=len(payload)), "WIRE_TYPE")
