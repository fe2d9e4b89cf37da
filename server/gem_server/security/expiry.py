"""Reads when certificates expire.

Python's `ssl` reports it for certificate authorities only, and the server does not need the package `cryptography`. So
this module reads the fields of X.509:

    Certificate ::= SEQUENCE { tbsCertificate SEQUENCE {
        version [0] OPTIONAL, serialNumber, signature, issuer, validity SEQUENCE { notBefore, notAfter }, ... }, ... }

OpenSSL has accepted the files before. A certificate that this module cannot read is left out.
"""

import re
import ssl
from datetime import UTC, datetime

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_VERSION_TAG, _UTC_TIME_TAG, _GENERALIZED_TIME_TAG = 0xA0, 0x17, 0x18
_FORMATS = {_UTC_TIME_TAG: "%y%m%d%H%M%SZ", _GENERALIZED_TIME_TAG: "%Y%m%d%H%M%SZ"}
# serialNumber, signature and issuer
_FIELDS_BEFORE_VALIDITY = 3


def find_expiries(pem: bytes) -> list[float]:
    """Return the ends of validity of a file's certificates, in seconds since 1970."""
    found = []
    for text in _PEM.findall(pem):
        try:
            found.append(_not_after(ssl.PEM_cert_to_DER_cert(text.decode("ascii"))))
        except (ValueError, IndexError, KeyError):
            continue
    return found


def _not_after(certificate: bytes) -> float:
    _, body, _ = _element(certificate)
    _, fields, _ = _element(body)
    tag, _, rest = _element(fields)
    if tag == _VERSION_TAG:
        fields = rest
    for _ in range(_FIELDS_BEFORE_VALIDITY):
        _, _, fields = _element(fields)
    _, validity, _ = _element(fields)
    _, _, rest = _element(validity)
    tag, value, _ = _element(rest)
    return datetime.strptime(value.decode("ascii"), _FORMATS[tag]).replace(tzinfo=UTC).timestamp()


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """Split the first DER element off: its tag, its content, and what follows it."""
    tag, length, start = data[0], data[1], 2
    if length & 0x80:  # the length of the length
        start += length & 0x7F
        length = int.from_bytes(data[2:start], "big")
    if len(data) < start + length:
        raise ValueError("an element ends beyond its data")
    return tag, data[start : start + length], data[start + length :]
