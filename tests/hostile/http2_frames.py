"""HTTP/2 frames by hand (RFC 9113, RFC 7541), for what no client library would send."""

import struct
from collections.abc import Mapping

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
INITIAL_WINDOW_SIZE = 4
SERVICE = "/gemps.v1.WorkerService/"
OBSERVERS = "/gemps.v1.ObserverService/"
HEALTH = "/grpc.health.v1.Health/Check"


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def settings(values: Mapping[int, int] | None = None) -> bytes:
    return frame(SETTINGS, payload=b"".join(struct.pack(">HI", *one) for one in (values or {}).items()))


def opening(values: Mapping[int, int] | None = None, window: int = 0) -> bytes:
    """What a client sends first; `window`: bytes by which the connection's window is enlarged."""
    enlarged = frame(WINDOW_UPDATE, payload=struct.pack(">I", window)) if window else b""
    return PREFACE + settings(values) + enlarged


def _text(value: bytes) -> bytes:
    """A string literal without Huffman coding."""
    if len(value) < 127:
        return bytes([len(value)]) + value
    rest, encoded = len(value) - 127, bytearray([127])
    while rest >= 128:
        encoded.append(rest % 128 | 128)
        rest //= 128
    return bytes(encoded) + bytes([rest]) + value


def fields(values: Mapping[str, str]) -> bytes:
    """A header block of literals that no table keeps."""
    return b"".join(b"\0" + _text(name.encode()) + _text(value.encode()) for name, value in values.items())


def call_fields(path: str, authority: str, **others: str) -> bytes:
    """The header block of a gRPC call."""
    pseudo = {":method": "POST", ":scheme": "http", ":path": path, ":authority": authority}
    named = {name.replace("_", "-"): value for name, value in others.items()}
    return fields(pseudo | {"te": "trailers", "content-type": "application/grpc"} | named)


def call(stream: int, block: bytes, *, flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags, stream, block)


def message(stream: int, content: bytes, *, announced: int | None = None, flags: int = 0) -> bytes:
    """A gRPC message, or the beginning of one of `announced` bytes; in frames of at most 16 KiB."""
    data = struct.pack(">BI", 0, len(content) if announced is None else announced) + content
    cuts = [data[start : start + 16_384] for start in range(0, len(data), 16_384)]
    return b"".join(
        frame(DATA, flags if number == len(cuts) - 1 else 0, stream, cut) for number, cut in enumerate(cuts)
    )
