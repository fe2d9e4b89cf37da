"""Requests that declare, or count, far more than there is: refused, and nothing of them is kept."""

import os
from itertools import product
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest

from tests.faults.processes import count, kill, start
from tests.figures import Figures
from tests.wire.calls import METHODS, answer_to
from tests.wire.model import SMALL, Model, Tensor
from tests.wire.processes import ServerProcess
from tests.wire.refusals import refused
from tests.wire.transfer import MIB
from tests.wire.worker import RawWorker

TERABYTE = 1 << 40
# What the program gives back goes to the system at once. Without this the C library keeps some MiB of it for what comes
# next, and nobody can tell from outside what the program itself still holds.
NO_SPARE_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
WARM_UP = 3
REASONS = ("MALFORMED", "OUT_OF_ORDER", "SIZE_MISMATCH", "INVALID_LAYOUT", "LAYOUT_MISMATCH", "MEMORY")

# The method, and the message.
Request: TypeAlias = tuple[str, bytes]


def submessage(number: int, data: bytes = b"") -> bytes:
    length, rest = bytearray(), len(data)
    while rest > 0x7F:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([number << 3 | 2, *length, rest]) + data


def join_of(worker: RawWorker, layout: bytes) -> Request:
    """A Join of a new worker with this layout, serialised."""
    request = worker.join_request(session_id=os.urandom(16), worker_name="giant")
    request.ClearField("layout")
    return "Join", request.SerializeToString() + submessage(4, layout)


def layout_of(*tensors: Tensor) -> bytes:
    return Model(tensors).to_proto().SerializeToString()


# A commit's first message on the lane: lane.proto. A model as small as this one's has a smaller buffer.
LANE_BYTES = 8 << 10


def first_giants(worker: RawWorker) -> dict[str, Request]:
    """For a server without parameters, which knows the worker: requests, by what they declare or count."""
    upload = worker.upload(SMALL.random_values(1))[0]
    upload.header.byte_count = TERABYTE
    return {
        "a first model of 1 TB": join_of(worker, layout_of(Tensor("weight", (TERABYTE // 4,)))),
        "first parameters of 1 TB": ("Initialize", upload.SerializeToString()),
    }


def giants(worker: RawWorker) -> dict[str, Request]:
    """The same for a server that has parameters."""
    commit = worker.prepare(worker.delta(1), byte_count=TERABYTE).opening()
    requests = {
        "a model of 1 TB": join_of(worker, layout_of(Tensor("weight", (TERABYTE // 4,)))),
        "a tensor of 2^1008 elements": join_of(worker, layout_of(Tensor("weight", (1 << 63,) * 16))),
        "a delta of 1 TB": ("Commit", commit.SerializeToString()),
        "1 000 000 tensors": join_of(worker, submessage(1) * 1_000_000),
    }
    for method, number in product([method.name for method in METHODS.values()], range(1, count(2, 6))):
        requests[f"empty submessages {number} to {method}"] = method, submessage(number) * MIB
    return requests


async def refuse(stub: Any, request: Request) -> str:
    """Sends a request that must be refused; the reason."""
    method, message = request
    return (await refused(answer_to(stub, method, message), *REASONS)).reason


async def kept(server: ServerProcess, request: Request, stub: Any = None) -> float:
    """How much more anonymous memory the server has after the refusal than before: the median of many, in MiB.

    `stub`: with the call in question, where it is another than the server's.
    """
    stub = stub or server.stub
    for _ in range(WARM_UP):
        await refuse(stub, request)
    more = []
    for _ in range(count(5, 25)):
        before = await anonymous_bytes(server)
        await refuse(stub, request)
        more.append((await anonymous_bytes(server) - before) / MIB)
    return median(more)


async def anonymous_bytes(server: ServerProcess) -> int:
    """Now that the server has had a moment to end the call whose status the caller has."""
    await server.status()
    return server.anonymous_bytes()


@pytest.mark.timeout(1800)
async def test_request_of_giants_is_refused_and_nothing_of_it_is_kept(tmp_path: Path, figures: Figures) -> None:
    server = await start(tmp_path / "data", environment=NO_SPARE_MEMORY)
    try:
        worker = await server.joined()
        found = {name: await kept(server, request) for name, request in first_giants(worker).items()}
        assert (await server.status()).version.clock == 0
        await worker.initialize()
        await worker.pull()
        before = await server.central(SMALL)
        found |= {name: await kept(server, request) for name, request in giants(worker).items()}
        worker.uses_lane = True
        on_lane = SimpleNamespace(Commit=worker.commit_call)
        for name, (method, message) in giants(worker).items():
            if method == "Commit":
                # As much of it as the lane takes: more is an illegal frame, of which nothing is read.
                fits = message[:LANE_BYTES]
                found[f"{name}, on the lane"] = await kept(server, (method, fits), on_lane)
        assert await server.central(SMALL) == before
        assert [one.name for one in (await server.status()).workers] == [worker.name]
        await server.next_commit_works(worker)
    finally:
        await kill(server)
    worst = max(found, key=lambda name: found[name])
    figures(
        "1 TB declared; 1 000 000 tensors; 2 MiB of empty submessages",
        f"{len(found)} requests, each refused {WARM_UP + count(5, 25)} times; anonymous memory after the refusal: "
        f"at most {found[worst]:.2f} MiB more than before (the median of {worst})",
    )
    assert found[worst] < 1, {name: more for name, more in found.items() if more >= 1}
