"""TLS and tokens from the settings."""

from dataclasses import dataclass

from gem_server.errors import StartupError
from gem_server.security.access import Access
from gem_server.security.certificates import Certificates, read_certificates
from gem_server.security.tokens import Tokens, read_tokens
from gem_server.security.watched_files import UnusableFileError, WatchedFiles
from gem_server.settings import ServerSettings, is_loopback


@dataclass(frozen=True, slots=True)
class Protection:
    """TLS and token checks; None: not configured. `tokens`: those of `access`."""

    certificates: WatchedFiles[Certificates] | None
    access: Access | None
    tokens: WatchedFiles[Tokens] | None = None


def protect(settings: ServerSettings) -> Protection:
    """Read the configured files. Raises StartupError."""
    try:
        certificates, tokens = _certificates(settings), _tokens(settings)
    except UnusableFileError as error:
        raise StartupError(str(error)) from error
    return Protection(certificates, Access(tokens.current) if tokens is not None else None, tokens)


def describe(settings: ServerSettings) -> str:
    """Describe the protection for the log."""
    encrypted = "with TLS" if settings.tls.cert is not None else "without TLS"
    return f"{encrypted}, {' and '.join(_asked_for(settings)) or 'no credentials'} asked for"


def warning(settings: ServerSettings) -> str | None:
    """A warning if remote clients need no credentials."""
    if _asked_for(settings) or is_loopback(settings.host):
        return None
    return (
        f"anyone who can connect to {settings.bind} can train, read the parameters and end the run: set "
        "tls.tokens or tls.client_ca to a file, unless all in this network may"
    )


def _asked_for(settings: ServerSettings) -> list[str]:
    asked = [("client certificates", settings.tls.client_ca), ("tokens", settings.tls.tokens)]
    return [what for what, path in asked if path is not None]


def _certificates(settings: ServerSettings) -> WatchedFiles[Certificates] | None:
    certificate, key, client_ca = settings.tls.cert, settings.tls.key, settings.tls.client_ca
    if certificate is None or key is None:
        return None
    paths = [path for path in (certificate, key, client_ca) if path is not None]
    return WatchedFiles(paths, lambda: read_certificates(certificate, key, client_ca))


def _tokens(settings: ServerSettings) -> WatchedFiles[Tokens] | None:
    path = settings.tls.tokens
    return WatchedFiles([path], lambda: read_tokens(path)) if path is not None else None
