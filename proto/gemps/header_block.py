"""Header blocks of HTTP/2 (RFC 7541, HPACK), as far as one gRPC call between two honest ends needs them.

Written without compression. Read without a dynamic table (http2.py tells the peer to keep none), and without Huffman
codes, which gRPC's own library uses for nothing but binary values, and not for those when asked. Whatever else comes is
UnknownEncodingError, upon which gRPC itself takes the call over.
"""

from collections.abc import Iterable

# Entries of RFC 7541, appendix A, that say anything to either end of a call.
_STATIC = {
    1: (":authority", b""),
    2: (":method", b"GET"),
    3: (":method", b"POST"),
    4: (":path", b"/"),
    5: (":path", b"/index.html"),
    6: (":scheme", b"http"),
    7: (":scheme", b"https"),
    8: (":status", b"200"),
    9: (":status", b"204"),
    10: (":status", b"206"),
    11: (":status", b"304"),
    12: (":status", b"400"),
    13: (":status", b"404"),
    14: (":status", b"500"),
    23: ("authorization", b""),
    31: ("content-type", b""),
}
_STATIC_ENTRIES = 61


class UnknownEncodingError(Exception):
    """A header block that is not for this reader."""


def write_headers(headers: Iterable[tuple[str, str | bytes]]) -> bytes:
    """A block of literals that nobody is to index."""
    block = bytearray()
    for name, value in headers:
        block.append(0x10)  # never indexed: one of them may be a token
        for text in (name.encode("ascii"), value if isinstance(value, bytes) else value.encode("latin-1")):
            _put_integer(block, len(text), 7)
            block += text
    return bytes(block)


def read_headers(block: bytes) -> dict[str, bytes]:
    """Names and values; of a name that comes twice the last one. Other names of the static table are left out.

    Raises UnknownEncodingError.
    """
    headers: dict[str, bytes] = {}
    position = 0
    while position < len(block):
        first = block[position]
        if first & 0x80:
            index, position = _integer(block, position, 7)
            _check_static(index)
            if index in _STATIC:
                name, value = _STATIC[index]
                headers[name] = value
        elif first & 0xE0 == 0x20:
            _, position = _integer(block, position, 5)  # the size of the table that there is not
        else:
            index, position = _integer(block, position, 6 if first & 0x40 else 4)
            if index:
                _check_static(index)
                name = _STATIC[index][0] if index in _STATIC else ""
            else:
                raw, position = _string(block, position)
                name = raw.decode("latin-1")
            value, position = _string(block, position)
            if name:
                headers[name] = value
    return headers


def _check_static(index: int) -> None:
    if not 1 <= index <= _STATIC_ENTRIES:
        raise UnknownEncodingError("an entry of a table that was not allowed")


def _string(block: bytes, position: int) -> tuple[bytes, int]:
    if position >= len(block):
        raise UnknownEncodingError("a block that is cut short")
    if block[position] & 0x80:
        raise UnknownEncodingError("Huffman codes")
    length, position = _integer(block, position, 7)
    if length > len(block) - position:
        raise UnknownEncodingError("a block that is cut short")
    return block[position : position + length], position + length


def _integer(block: bytes, position: int, bits: int) -> tuple[int, int]:
    """RFC 7541, section 5.1."""
    most = (1 << bits) - 1
    value = block[position] & most
    position += 1
    if value < most:
        return value, position
    for shift in range(0, 28, 7):
        if position >= len(block):
            break
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise UnknownEncodingError("a number that does not end")


def _put_integer(block: bytearray, value: int, bits: int) -> None:
    most = (1 << bits) - 1
    if value < most:
        block.append(value)
        return
    block.append(most)
    value -= most
    while value > 0x7F:
        block.append(value & 0x7F | 0x80)
        value >>= 7
    block.append(value)
