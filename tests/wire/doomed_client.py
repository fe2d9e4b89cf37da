"""A client process that begins a commit, says how far it got, and waits to be killed.

    python doomed_client.py ADDRESS MESSAGES_FILE COUNT

MESSAGES_FILE holds the serialised CommitRequests, each after its length (4 bytes, little-endian). COUNT of them are
sent; after the first one the server's answer (proceed) is awaited, if there are more.
"""

import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc


def read_messages(path: Path) -> list[bytes]:
    data = path.read_bytes()
    messages = []
    while data:
        (length,) = struct.unpack_from("<I", data)
        messages.append(data[4 : 4 + length])
        data = data[4 + length :]
    return messages


def write_messages(path: Path, messages: list[bytes]) -> None:
    path.write_bytes(b"".join(struct.pack("<I", len(message)) + message for message in messages))


def main(address: str, path: str, count: str) -> None:
    messages = read_messages(Path(path))[: int(count)]
    proceed = threading.Event()
    sent = threading.Event()

    def requests() -> Iterator[bytes]:
        yield messages[0]
        if len(messages) > 1:
            proceed.wait()
        yield from messages[1:]
        # gRPC asks for the next message when the last one is on its way.
        sent.set()
        threading.Event().wait()

    with grpc.insecure_channel(address) as channel:
        call = channel.stream_stream("/gemps.v1.ParameterServerService/Commit")(requests())
        if len(messages) > 1:
            next(call)
            proceed.set()
        sent.wait()
        print("sent", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
