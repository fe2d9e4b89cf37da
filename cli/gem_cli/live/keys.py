"""Decodes keys."""

# xterm, screen and Linux's console.
_SEQUENCES = {
    b"\x1b[A": "up", b"\x1bOA": "up", b"\x1b[B": "down", b"\x1bOB": "down",
    b"\x1b[5~": "page up", b"\x1b[6~": "page down",
    b"\x1b[H": "home", b"\x1bOH": "home", b"\x1b[1~": "home", b"\x1b[7~": "home",
    b"\x1b[F": "end", b"\x1bOF": "end", b"\x1b[4~": "end", b"\x1b[8~": "end",
}  # fmt: skip
_MEANING = {
    "k": "up", "j": "down", "b": "page up", " ": "page down", "g": "home", "G": "end",
    "q": "quit", "Q": "quit", "s": "sort", "?": "help", "h": "help",
}  # fmt: skip
_ESCAPE = 0x1B


class Keys:
    """Incremental decoder of key sequences."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def waits(self) -> bool:
        """Whether a sequence is incomplete."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[str]:
        """Key names, or "other"."""
        data, self._rest = self._rest + data, b""
        found = []
        while data:
            if data[0] != _ESCAPE:
                found.append(_MEANING.get(chr(data[0]), "other"))
                data = data[1:]
                continue
            length = _length(data)
            if length is None:
                self._rest = data
                break
            found.append(_SEQUENCES.get(data[:length], "other"))
            data = data[length:]
        return found

    def give_up(self) -> list[str]:
        """End an incomplete sequence."""
        rest, self._rest = self._rest, b""
        return ["other"] if rest else []


def _length(data: bytes) -> int | None:
    """None: incomplete."""
    if len(data) < 2:
        return None
    if data[1:2] == b"O":
        return 3 if len(data) >= 3 else None
    if data[1:2] != b"[":
        return 1
    for place, byte in enumerate(data[2:], start=2):
        if 0x40 <= byte <= 0x7E:  # ECMA-48, section 5.4: final byte
            return place + 1
    return None
