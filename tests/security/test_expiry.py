"""When certificates expire, as this reads it and as `cryptography` does."""

import pytest
from cryptography import x509
from gem_server.security.expiry import find_expiries

from tests.security.authority import TODAY, Authority


def end_of(pem: bytes) -> float:
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()


def test_all_certificates_of_a_file_are_read(authority: Authority) -> None:
    pems = [authority.pair("a", days=3).certificate, authority.pem, authority.pair("b", days=-3).certificate]
    assert find_expiries(b"# a comment\n" + b"\n".join(pems)) == [end_of(pem) for pem in pems]


@pytest.mark.parametrize("year", [2048, 2050, 2150])  # X.509 writes years from 2050 on in another form
def test_any_year(authority: Authority, year: int) -> None:
    pem = authority.pair("a", days=365 * (year - TODAY.year)).certificate
    assert find_expiries(pem) == [end_of(pem)]


def test_what_is_no_certificate_is_left_out(authority: Authority) -> None:
    good = authority.pair("a").certificate
    body = b"\n".join(good.splitlines()[1:-1])
    for damaged in (body[:40], b"MAA=", b"", b"!!!!", b"MIIB"):
        broken = b"-----BEGIN CERTIFICATE-----\n" + damaged + b"\n-----END CERTIFICATE-----\n"
        assert find_expiries(broken + good) == [end_of(good)]
    assert find_expiries(b"") == []
