"""A client process that begins transfers, says how far it got, and waits to be killed.

    python doomed_client.py ADDRESS METHOD AUTHORITY MESSAGES_FILE ...

METHOD is Commit, Initialize or Lane, AUTHORITY a PEM file or empty: no TLS. Each
MESSAGES_FILE holds the serialised requests of one stream, each after its length (4 bytes, little-endian), and for the
lane the HELLO before them; after a commit's first one the server's answer (proceed) is awaited, if there are more.
"""

import socket
import ssl
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc

SERVICE = "/gemps.v1.WorkerService"


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


class Transfer:
    """One stream that goes nowhere."""

    def __init__(self, channel: grpc.Channel, method: str, messages: list[bytes]) -> None:
        self._messages = messages
        self._proceed = threading.Event()
        self._sent = threading.Event()
        if method == "Commit":
            self._call = channel.stream_stream(f"{SERVICE}/{method}")(self._requests())
        else:
            self._proceed.set()
            self._call = channel.stream_unary(f"{SERVICE}/{method}").future(self._requests())

    def wait(self) -> None:
        """Until all is on its way."""
        if len(self._messages) > 1 and not self._proceed.is_set():
            next(self._call)
            self._proceed.set()
        self._sent.wait()

    def _requests(self) -> Iterator[bytes]:
        yield self._messages[0]
        if len(self._messages) > 1:
            self._proceed.wait()
        yield from self._messages[1:]
        # gRPC asks for the next message when the last one is on its way.
        self._sent.set()
        threading.Event().wait()


class LaneTransfer:
    """The same on the lane."""

    def __init__(self, address: str, authority: str, messages: list[bytes]) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        if authority:
            tls = ssl.create_default_context(cafile=authority)
            self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        self._hello, *self._messages = messages

    def wait(self) -> None:
        """Until all is on its way."""
        self._send(1, self._hello)
        self._receive()
        for number, message in enumerate(self._messages):
            self._send(3, message)
            if number == 0 and len(self._messages) > 1:
                self._receive()

    def _send(self, kind: int, body: bytes) -> None:
        self._socket.sendall(struct.pack("<IB", len(body), kind) + body)

    def _receive(self) -> bytes:
        size, _ = struct.unpack("<IB", self._exactly(5))
        return self._exactly(size)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self._socket.recv(count - len(data))
            assert piece, "the server closed the connection"
            data += piece
        return data


def open_channel(address: str, authority: str) -> grpc.Channel:
    if not authority:
        return grpc.insecure_channel(address)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(Path(authority).read_bytes()))


def main(address: str, method: str, authority: str, *files: str) -> None:
    if method == "Lane":
        lanes = [LaneTransfer(address, authority, read_messages(Path(file))) for file in files]
        for lane in lanes:
            lane.wait()
        print("sent", flush=True)
        threading.Event().wait()
    with open_channel(address, authority) as channel:
        transfers = [Transfer(channel, method, read_messages(Path(file))) for file in files]
        for transfer in transfers:
            transfer.wait()
        print("sent", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
