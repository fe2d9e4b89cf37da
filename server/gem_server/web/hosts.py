"""Host header check against DNS rebinding."""

import ipaddress
import socket
from collections.abc import Iterable


class Hosts:
    """Accepts localhost, this machine's name, numeric addresses, and `names`."""

    def __init__(self, names: Iterable[str]) -> None:
        own = socket.gethostname()
        self._names = {"localhost", own.lower(), own.partition(".")[0].lower(), *(name.lower() for name in names)}

    def __contains__(self, header: object) -> bool:
        if not isinstance(header, str):
            return False
        host = header.rpartition(":")[0] if _has_port(header) else header
        host = host.lower().rstrip(".")
        if host in self._names or host.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            return False
        return True


def _has_port(header: str) -> bool:
    _, colon, port = header.rpartition(":")
    return bool(colon) and port.isdigit() and not header.endswith("]")
