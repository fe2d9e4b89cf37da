"""A gRPC stream as CommitTransport."""

from typing import Final

from gemps.framing import COMMIT_REQUEST_CHUNK, Buffer, split_message
from gemps.limits import WHOLE_PAYLOAD_BYTES
from gemps.v1 import commit_pb2
from grpc.aio import ServicerContext

from gem_core.chunking import Assembler
from gem_server.errors import Reason, RefusedError
from gem_server.flow.calls import TornUploadError
from gem_server.state.sessions import TransportKind


class GrpcTransport:
    """See CommitTransport."""

    kind: Final = TransportKind.GRPC

    def __init__(self, context: "ServicerContext[bytes, bytes]") -> None:
        self._context = context

    async def receive(self) -> tuple[commit_pb2.CommitRequest, Buffer | None] | None:
        """See CommitTransport."""
        raw: bytes | object = await self._context.read()
        if not isinstance(raw, bytes):  # grpc.aio.EOF
            return None
        return split_message(commit_pb2.CommitRequest, raw, COMMIT_REQUEST_CHUNK)

    async def receive_into(self, sink: Assembler, proceed: bytes) -> int:
        """See CommitTransport."""
        if proceed:
            await self._context.write(proceed)
        while (received := await self.receive()) is not None:
            footer = process_message(sink, *received)
            if footer is not None:
                return footer
        raise TornUploadError("the commit")

    async def write(self, head: bytes, data: Buffer, *, last: bool) -> None:
        """See PayloadWriter."""
        await self._context.write(b"".join((head, data)))


def too_large_first_message() -> RefusedError:
    """Return the refusal of a message that has a header and more of a payload than may travel with it."""
    return RefusedError(
        Reason.OUT_OF_ORDER,
        "send this commit's header alone and wait for proceed; only a payload of at most "
        f"{WHOLE_PAYLOAD_BYTES} bytes may travel in the header's message, and then chunk and footer must both be in it",
    )


def process_message(sink: Assembler, message: commit_pb2.CommitRequest, data: Buffer | None) -> int | None:
    """Process a message that follows `proceed`. Returns the CRC32C of its footer, if it has one."""
    if message.HasField("header"):
        raise RefusedError(
            Reason.OUT_OF_ORDER,
            "a header came before the footer of the commit before it: finish one commit, then start the next",
        )
    if data is not None:
        sink.add(data)
    return message.footer.crc32c if message.HasField("footer") else None
