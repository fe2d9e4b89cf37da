"""A secondary's credentials for the primary."""

from pathlib import Path
from typing import NamedTuple

from gem_core.regular_files import read_bytes
from gem_server.errors import StartupError


class ShardCredentials(NamedTuple):
    """PEM files as bytes, and a token; empty: none."""

    ca: bytes = b""
    certificate: bytes = b""
    key: bytes = b""
    token: str = ""


def read_shard_credentials(folder: Path | None) -> ShardCredentials:
    """From `gemps certs`, for an operator. Raises StartupError."""
    if folder is None:
        return ShardCredentials()
    certificate, key, token = (
        _file_bytes(folder / name, required=False) for name in ("client.crt", "client.key", "token")
    )
    return ShardCredentials(
        _file_bytes(folder / "ca.crt", required=True), certificate, key, token.decode("latin-1").strip()
    )


def _file_bytes(path: Path, *, required: bool) -> bytes:
    try:
        return read_bytes(path) if required or path.exists() else b""
    except OSError as error:
        raise StartupError(
            f"--primary-credentials: {path} cannot be read ({error.strerror}): give the operator folder of gemps certs"
        ) from None
