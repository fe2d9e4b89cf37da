"""TLS certificates."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from gem_server.security.expiry import find_expiries
from gem_server.security.watched_files import UnusableFileError, read_text


@dataclass(frozen=True, slots=True)
class Certificates:
    """Matching PEM texts and their TLS context. `client_ca` None: no client certificates required."""

    certificate: bytes
    key: bytes = field(repr=False)
    client_ca: bytes | None
    context: ssl.SSLContext

    @property
    def expiries(self) -> dict[str, float]:
        """When the first certificate of each file expires, in seconds since 1970, by the name of the setting."""
        ends = {"tls.cert": find_expiries(self.certificate), "tls.client_ca": find_expiries(self.client_ca or b"")}
        return {name: min(found) for name, found in ends.items() if found}


def read_certificates(certificate: Path, key: Path, client_ca: Path | None) -> Certificates:
    """Validate the files. Raises UnusableFileError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    found = Certificates(
        read_text(certificate, "tls.cert").encode(),
        read_text(key, "tls.key").encode(),
        read_text(client_ca, "tls.client_ca").encode() if client_ca is not None else None,
        context,
    )
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, _EncryptedKeyError) as error:  # also ssl.SSLError
        raise UnusableFileError(
            f"tls.cert {certificate} and tls.key {key} are no pair of a certificate and its private key, both in "
            f"PEM and the key without a password ({_reason(error)}): give those that belong together"
        ) from None
    if found.client_ca is not None:
        try:
            context.load_verify_locations(cadata=found.client_ca.decode())
            context.verify_mode = ssl.CERT_REQUIRED
        except ssl.SSLError as error:
            raise UnusableFileError(
                f"tls.client_ca {client_ca} holds no certificate in PEM ({_reason(error)}): give that of the "
                "authority which signed the clients' certificates"
            ) from None
    return found


class _EncryptedKeyError(Exception):
    pass


def _no_password() -> str:
    raise _EncryptedKeyError("the key has a password")


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error).replace("_", " ").lower()
