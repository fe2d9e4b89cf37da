"""TLS certificates."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from gem_server.security.expiry import find_expiries
from gem_server.security.watched_files import UnusableFileError, read_text


@dataclass(frozen=True, slots=True)
class Certificates:
    """Matching PEM texts and their TLS context.

    client_ca: None if clients need no certificates.
    expiries: when the first certificate of each file expires, in seconds since 1970, by the setting and its file.
    """

    certificate: bytes
    key: bytes = field(repr=False)
    client_ca: bytes | None
    context: ssl.SSLContext
    expiries: dict[str, float]


def read_certificates(certificate: Path, key: Path, client_ca: Path | None) -> Certificates:
    """Validate the files. Raises UnusableFileError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    texts = {f"tls.cert {certificate}": read_text(certificate, "tls.cert").encode()}
    if client_ca is not None:
        texts[f"tls.client_ca {client_ca}"] = read_text(client_ca, "tls.client_ca").encode()
    ends = {place: find_expiries(text) for place, text in texts.items()}
    found = Certificates(
        texts[f"tls.cert {certificate}"],
        read_text(key, "tls.key").encode(),
        texts.get(f"tls.client_ca {client_ca}"),
        context,
        {place: min(dates) for place, dates in ends.items() if dates},
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
