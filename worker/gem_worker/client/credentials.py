"""TLS for the channel; token for each call."""

import contextlib
import re
import socket
import ssl
import threading
from pathlib import Path
from typing import Any, Self

import grpc
from typing_extensions import override

from gem_core.regular_files import read_bytes
from gem_worker.client.errors import CredentialsError
from gem_worker.client.settings import SYSTEM_AUTHORITIES, TOKEN_RULE, TOKEN_SHAPE, ClientSettings

Metadata = tuple[tuple[str, str], ...]

_CONNECT_SECONDS = 5.0


class Credentials:
    """Raises CredentialsError for unusable files."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._tls = _tls(settings)
        self.token = Token(settings)
        # Whether the token may leave this machine.
        self.protected = bool(settings.tls_ca) or settings.insecure

    def name_in_certificate(self, host: str) -> str | None:
        """The name that the server's certificate must have; None: the host.

        A host's name may end with a dot, which makes it absolute for DNS. Names in certificates, and in the handshake
        (RFC 6066, section 3), have no such dot.
        """
        name = self.settings.tls_server_name or (host if host.endswith(".") else "")
        return name.removesuffix(".") or None

    def tls(self) -> grpc.ChannelCredentials | None:
        """Reread the files; None: no TLS."""
        with contextlib.suppress(CredentialsError):  # being replaced: keep the last
            self._tls = _tls(self.settings)
        return self._tls


def tls_context(settings: ClientSettings) -> ssl.SSLContext | None:
    """TLS for a lane connection; None: no TLS. Raises OSError."""
    if not settings.tls_ca:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if settings.tls_ca == SYSTEM_AUTHORITIES:
        context.load_default_certs()
    else:
        context.load_verify_locations(settings.tls_ca)
    if settings.tls_cert is not None and settings.tls_key is not None:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    return context


def explain_wrong_name(address: str, settings: ClientSettings) -> str:
    """Name those in the certificate."""
    names = ", ".join(_names_in_certificate(address, settings)) or "other names"
    if settings.tls_server_name:
        return (
            f"its certificate is for {names}, not for {settings.tls_server_name}; correct "
            "GEMPS_CLIENT_TLS_SERVER_NAME, or leave it out"
        )
    return f"its certificate is for {names}; connect by one of them, or give it in GEMPS_CLIENT_TLS_SERVER_NAME"


def _names_in_certificate(address: str, settings: ClientSettings) -> list[str]:
    """[]: unknown."""
    host, _, port = address.rpartition(":")
    try:
        context = tls_context(settings)
        if context is None:
            return []
        context.check_hostname = False
        with (
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS) as plain,
            context.wrap_socket(plain) as connection,
        ):
            found = connection.getpeercert() or {}
    except (OSError, ValueError):
        return []
    return [str(one[1]) for one in found.get("subjectAltName", ())]


def _tls(settings: ClientSettings) -> grpc.ChannelCredentials | None:
    if not settings.tls_ca:
        return None
    root = None if settings.tls_ca == SYSTEM_AUTHORITIES else _authority(Path(settings.tls_ca))
    if settings.tls_cert is None or settings.tls_key is None:
        return grpc.ssl_channel_credentials(root)
    return grpc.ssl_channel_credentials(root, *_own(settings.tls_cert, settings.tls_key))


class Token:
    """Token, reread when its file changes. Thread-safe; not in repr."""

    def __init__(self, settings: ClientSettings) -> None:
        self._path = settings.token_file
        self._lock = threading.Lock()
        self._seen: tuple[int, int, int] | None = None
        self._value = settings.token.get_secret_value() if settings.token is not None else ""
        self._sent = ""
        if self._path is not None:
            self._read_if_changed(self._path)

    def __bool__(self) -> bool:
        return bool(self._value)

    @property
    def value(self) -> str:
        """The token, or ""."""
        return self._value

    def metadata(self) -> Metadata:
        """Current metadata."""
        with self._lock:
            self._reread_if_changed()
            self._sent = self._value
            return (("authorization", f"Bearer {self._value}"),)

    def has_changed(self) -> bool:
        """Whether it changed since the last call."""
        with self._lock:
            self._reread_if_changed()
            return self._value != self._sent

    def _reread_if_changed(self) -> None:
        if self._path is None:
            return
        try:
            self._read_if_changed(self._path)
        except CredentialsError:
            return  # being replaced: keep the last

    def _read_if_changed(self, path: Path) -> None:
        try:
            found = path.stat()
        except OSError as error:
            raise _unreadable(path, "token_file", error) from None
        identity = (found.st_mtime_ns, found.st_size, found.st_ino)
        if identity == self._seen:
            return
        value = _read_secret(path, "token_file").decode("latin-1").strip()
        if not re.fullmatch(TOKEN_SHAPE, value):
            raise CredentialsError(f"GEMPS_CLIENT_TOKEN_FILE {path} must hold a token and nothing else: {TOKEN_RULE}")
        self._seen, self._value = identity, value


class ChannelWithToken(grpc.Channel):
    """Add the token to each call; gRPC's call credentials require TLS."""

    def __init__(self, channel: grpc.Channel, token: Token) -> None:
        self._channel = channel
        self._token = token

    @override
    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        return _CallWithToken(self._channel.unary_unary(*args, **kwargs), self._token)

    @override
    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        return _CallWithToken(self._channel.unary_stream(*args, **kwargs), self._token)

    @override
    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        return _CallWithToken(self._channel.stream_unary(*args, **kwargs), self._token)

    @override
    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        return _CallWithToken(self._channel.stream_stream(*args, **kwargs), self._token)

    @override
    def subscribe(self, *args: Any, **kwargs: Any) -> None:
        self._channel.subscribe(*args, **kwargs)

    @override
    def unsubscribe(self, *args: Any, **kwargs: Any) -> None:
        self._channel.unsubscribe(*args, **kwargs)

    @override
    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _CallWithToken:
    def __init__(self, call: Any, token: Token) -> None:
        self._call = call
        self._token = token

    def __call__(self, request: Any, timeout: float | None = None) -> Any:
        return self._call(request, timeout=timeout, metadata=self._token.metadata())

    def future(self, request: Any, timeout: float | None = None) -> Any:
        return self._call.future(request, timeout=timeout, metadata=self._token.metadata())


def _authority(path: Path) -> bytes:
    pem = _read_secret(path, "tls_ca")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem.decode("latin-1"))
    except (ssl.SSLError, ValueError):
        raise CredentialsError(
            f"GEMPS_CLIENT_TLS_CA {path} holds no certificate in PEM: give that of the authority which signed the "
            "server's"
        ) from None
    return pem


def _own(certificate: Path, key: Path) -> tuple[bytes, bytes]:
    pair = _read_secret(key, "tls_key"), _read_secret(certificate, "tls_cert")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, password=lambda: "")
    except ssl.SSLError:
        raise CredentialsError(
            f"GEMPS_CLIENT_TLS_CERT {certificate} and GEMPS_CLIENT_TLS_KEY {key} are no pair of a certificate and its "
            "private key, both in PEM and the key without a password: give those that belong together"
        ) from None
    return pair


def _read_secret(path: Path, name: str) -> bytes:
    try:
        return read_bytes(path)
    except OSError as error:
        raise _unreadable(path, name, error) from None


def _unreadable(path: Path, name: str, error: OSError) -> CredentialsError:
    return CredentialsError(
        f"GEMPS_CLIENT_{name.upper()} {path} cannot be read ({error.strerror}): check its path and rights"
    )
