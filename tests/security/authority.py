"""Certificates: good ones, and all the kinds of bad ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

TODAY = datetime.now(UTC)


@dataclass(frozen=True)
class Pair:
    """PEM."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """(certificate, key), replaced as a tool that renews them would."""
        paths = folder / f"{name}.crt", folder / f"{name}.key"
        for path, content in zip(paths, (self.certificate, self.key), strict=True):
            replace(path, content)
        return paths


def replace(path: Path, content: bytes | str) -> Path:
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(content if isinstance(content, bytes) else content.encode())
    return new.replace(path)


class Authority:
    """Signs certificates; its own is in `file`."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(self._name, self._key, days=30)
        own = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.pem = own.sign(self._key, SHA256()).public_bytes(Encoding.PEM)
        self.file = replace(folder / f"{name}.crt", self.pem)

    def pair(self, subject: str, names: Sequence[str] = ("localhost", "127.0.0.1"), days: int = 30) -> Pair:
        """A certificate that ends in so many days; a negative number makes one that has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        named = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
        builder = self._builder(named, key, days).add_extension(
            x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False
        )
        return Pair(
            builder.sign(self._key, SHA256()).public_bytes(Encoding.PEM),
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        )

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(TODAY - timedelta(days=60))
            .not_valid_after(TODAY + timedelta(days=days))
        )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
