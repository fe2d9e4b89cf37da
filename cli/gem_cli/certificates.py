"""Creates certificates. Imports `cryptography`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3650
# Tolerates clock skew.
_CLOCKS_DIFFER = timedelta(days=2)


@dataclass(frozen=True, slots=True)
class Pair:
    """PEM certificate and private key."""

    certificate: bytes
    key: bytes


class Authority:
    """Issues certificates."""

    def __init__(self, pair: Pair) -> None:
        """Load an authority; raises ValueError when invalid."""
        self.pair = pair
        self._certificate = x509.load_pem_x509_certificate(pair.certificate)
        key = load_pem_private_key(pair.key, None)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != self._certificate.public_key():
            raise ValueError("the key does not belong to the certificate")
        self._key = key

    @classmethod
    def make(cls) -> "Authority":
        """Generate a new authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _named("gemps authority")
        builder = (
            _builder(name, name, key, AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
        )
        return cls(_pair(builder.sign(key, SHA256()), key))

    def for_server(self, names: Sequence[str], days: int) -> Pair:
        """Issue a certificate for hosts and addresses."""
        found = [x509.IPAddress(ip_address(name)) if is_address(name) else x509.DNSName(name) for name in names]
        return self._sign(names[0], x509.SubjectAlternativeName(found), ExtendedKeyUsageOID.SERVER_AUTH, days)

    def for_client(self, name: str, days: int) -> Pair:
        """Issue a client certificate."""
        return self._sign(
            name, x509.SubjectAlternativeName([x509.DNSName(name)]), ExtendedKeyUsageOID.CLIENT_AUTH, days
        )

    def _sign(self, name: str, names: x509.SubjectAlternativeName, purpose: x509.ObjectIdentifier, days: int) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(_named(name), self._certificate.subject, key, days)
            .add_extension(names, critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        return _pair(builder.sign(self._key, SHA256()), key)


def names_of(certificate: bytes) -> list[str]:
    """Certificate's names; raises ValueError."""
    try:
        found = x509.load_pem_x509_certificate(certificate).extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
    except x509.ExtensionNotFound as error:
        raise ValueError(error) from None
    return [str(name.value) for name in found.value]


def is_address(name: str) -> bool:
    """Whether `name` is an address."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])  # X.509 limit


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
