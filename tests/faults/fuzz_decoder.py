"""Lets a coverage-guided fuzzer (atheris, libFuzzer) loose on what the server does with the bytes of a request.

    python -m tests.faults.fuzz_decoder [-runs=N] [-seed=N] [FOLDER_OF_INPUTS ...] [further options of libFuzzer]

The server's own handlers run in this process, with all that is behind them, on a context that stands for gRPC's. An
input is a number, for the method and for one of two servers (one trains, one has no parameters), then messages, each
after its length (two bytes). After each input the server must be as it was, or as a valid commit or upload makes it,
and the answer one of the contract's; otherwise the program ends, with the input in a file. Needs `pip install atheris`.
"""

import asyncio
import contextlib
import logging
import struct
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import atheris
import grpc
from gem_server.settings import ServerSettings
from gemps.v1 import commit_pb2, parameters_pb2

from tests.faults.almost_right import MODEL, Request, completes, templates
from tests.wire.calls import METHODS, path_of
from tests.wire.transfer import crc32c
from tests.wire.worker import RawWorker

# Numba compiles these itself, and cannot compile what atheris makes of them.
KERNELS = [f"gem_core.rules.{path.stem}" for path in (Path(__file__).parents[2] / "gem_core/rules").glob("*.py")]
with atheris.instrument_imports(include=["gemps", "gem_server", "gem_core"], exclude=KERNELS):
    from gem_server.server import Server

NAMES = list(METHODS)


def encode(request: Request, server: int) -> bytes:
    """The input that makes this request, to one of the two servers."""
    parts = [struct.pack("<H", len(raw)) + raw for raw in request.messages]
    return bytes([server * len(NAMES) + NAMES.index(request.method)]) + b"".join(parts)


def decode(data: bytes) -> tuple[Request, int]:
    """The request of an input, and the server that gets it."""
    number = data[0] if data else 0
    request = Request(NAMES[number % len(NAMES)], tuple(_messages(data[1:])))
    return request, number // len(NAMES) % 2


def _messages(data: bytes) -> Iterator[bytes]:
    while len(data) >= 2:
        (length,) = struct.unpack_from("<H", data)
        yield data[2 : 2 + length]
        data = data[2 + length :]


class Context:
    """What a handler sees of gRPC: a caller that has sent these messages, half-closed, and goes after some answers."""

    def __init__(self, raws: Sequence[bytes], patience: int) -> None:
        self._raws = list(raws)
        self._patience = patience
        self.written: list[bytes] = []
        self.code = grpc.StatusCode.OK

    async def read(self) -> Any:
        return self._raws.pop(0) if self._raws else grpc.aio.EOF

    async def write(self, message: bytes) -> None:
        self.written.append(message)
        if len(self.written) == self._patience:
            raise asyncio.CancelledError

    async def abort(self, code: grpc.StatusCode, details: str, trailing: Any) -> None:
        self.code = code
        raise grpc.aio.AbortError(details)

    async def send_initial_metadata(self, metadata: Any) -> None:
        """Nobody reads it."""

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


class Target:
    """A server, one session that the fuzzer knows, and what it must not change."""

    def __init__(self, server: Server, own: RawWorker) -> None:
        self.own = own
        self._server = server
        self._services = server.service()
        self._before = self._state()

    @classmethod
    async def make(cls, *, with_parameters: bool) -> "Target":
        server = Server(ServerSettings(bind="127.0.0.1:0"))
        own = RawWorker(f"127.0.0.1:{await server.start()}", MODEL, "fuzzer")
        await own.join()
        if with_parameters:
            await own.initialize()
            await own.pull()
            await own.commit(own.delta(1))
        await own.close()
        return cls(server, own)

    async def check(self, request: Request) -> bool:
        """Serve the request, and judge what became of it; False when this target is used up."""
        if request.is_meant(self.own):
            return True
        context = await self._call(request)
        assert context.code not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN), request
        await self._tidy_up()
        after = self._state()
        if after == self._before:
            return True
        # Then it was valid after all: the fuzzer is good at checksums.
        kind = {"Commit": commit_pb2.CommitRequest, "Initialize": parameters_pb2.InitializeRequest}[request.method]
        assert context.code is grpc.StatusCode.OK or request.method == "Commit", request
        assert completes(request.messages, kind), request
        self._before = after
        return request.method == "Commit"

    async def _call(self, request: Request) -> Context:
        kind = METHODS[request.method]
        details = SimpleNamespace(method=path_of(request.method), invocation_metadata=())
        handler = next(handler for one in self._services if (handler := one.service(details)) is not None)
        serve = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        context = Context(request.messages, patience=1 if request.method == "WatchStatus" else 100)
        first = None if kind.client_streaming else b"".join(request.messages[:1])
        with contextlib.suppress(grpc.aio.AbortError, asyncio.CancelledError):
            await serve(first, context)
        return context

    async def _tidy_up(self) -> None:
        sessions = self._server.sessions
        for session in sessions.live():
            if session.session_id != self.own.session_id:
                sessions.leave(session)
        if not sessions.live():
            await self._call(Request("Join", (self.own.join_request().SerializeToString(),)))
            await self._call(Request("Pull", (self.own.pull_request().SerializeToString(),)))

    def _state(self) -> tuple[object, ...]:
        server = self._server
        central, (session,) = server.central, server.sessions.live()
        assert (server.staging.free, server.staging.waiting, len(server.queue)) == (server.staging.capacity, 0, 0)
        parameters = crc32c(central.parameters.tobytes()) if central.layout is not None else None
        return (central.version, parameters, server.run.commits, server.run.state, session.entry.last_applied)


class Fuzzing:
    """Takes inputs. A target whose first parameters the fuzzer has found is replaced."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self.targets = [self._make(0), self._make(1)]

    def _make(self, number: int) -> Target:
        return self._loop.run_until_complete(Target.make(with_parameters=number == 0))

    def seeds(self) -> Iterator[bytes]:
        """Inputs to begin with: a request of each kind, to each server."""
        for number, target in enumerate(self.targets):
            for template in templates(target.own):
                raws = tuple(message.SerializeToString() for message in template.messages)
                yield encode(Request(template.method, raws), number)

    def take(self, data: bytes) -> None:
        """One input."""
        request, number = decode(data)
        if not self._loop.run_until_complete(self.targets[number].check(request)):
            self.targets[number] = self._make(number)


def main() -> None:
    logging.disable(logging.WARNING)
    fuzzing = Fuzzing()
    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(fuzzing.seeds()):
            (Path(folder) / str(number)).write_bytes(seed)
        atheris.Setup([*sys.argv, folder], fuzzing.take)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
