"""A gRPC stream as CommitTransport."""

from typing import Final

from gemps.framing import COMMIT_REQUEST_CHUNK, Buffer, split_message
from gemps.v1 import commit_pb2
from grpc.aio import ServicerContext

from gem_core.chunking import Assembler
from gem_server.errors import Reason, RefusedError
from gem_server.flow.calls import TornUploadError
from gem_server.flow.commit_service import Footer
from gem_server.service import messages
from gem_server.state.sessions import TransportKind


class GrpcTransport:
    """See CommitTransport."""

    kind: Final = TransportKind.GRPC

    def __init__(self, context: "ServicerContext[bytes, bytes]") -> None:
        self._context = context

    async def receive(self) -> tuple[commit_pb2.CommitRequest, int, Buffer | None] | None:
        """See CommitTransport."""
        raw: bytes | object = await self._context.read()
        if not isinstance(raw, bytes):  # grpc.aio.EOF
            return None
        return split_message(commit_pb2.CommitRequest, raw, COMMIT_REQUEST_CHUNK)

    async def receive_into(self, sink: Assembler, proceed: bytes) -> Footer:
        """See CommitTransport."""
        await self._context.write(proceed)
        while (received := await self.receive()) is not None:
            footer = process_message(sink, *received)
            if footer is not None:
                return footer
        raise TornUploadError("the commit")

    async def write(self, head: bytes, data: Buffer, *, last: bool) -> None:
        """See PayloadWriter."""
        await self._context.write(b"".join((head, data)))


def process_message(
    sink: Assembler, message: commit_pb2.CommitRequest, offset: int, data: Buffer | None
) -> Footer | None:
    """Process a message after `proceed`; return any footer."""
    if message.HasField("header"):
        raise RefusedError(
            Reason.OUT_OF_ORDER,
            "a header came before the footer of the commit before it: finish one commit, then start the next",
        )
    if data is not None:
        sink.add(offset, data)
    return messages.footer_from(message.footer) if message.HasField("footer") else None
