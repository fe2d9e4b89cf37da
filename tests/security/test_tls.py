"""Encryption and identities: who may connect at all, and what those are told who may not."""

from pathlib import Path
from typing import Any

import pytest
from gem_server.errors import StartupError
from gem_worker.client import CredentialsError, ServerUnavailableError, UntrustedServerError

from tests.client.conftest import Connect, Proxied, Serve
from tests.client.models import LARGE, SMALL, payload
from tests.client.real_server import RealServer, begin
from tests.security.authority import Authority, replace
from tests.security.conftest import Observe
from tests.waiting import eventually

Settings = dict[str, Any]


def test_a_worker_trains_over_tls(serve: Serve, connect: Connect, tls: Settings, tls_client: Settings) -> None:
    server = serve(**tls)
    client = connect(server.address, LARGE, **tls_client).client
    into = begin(client, LARGE)
    for _ in range(5):
        assert client.commit(payload(LARGE, 1.0), into).applied
    client.leave("done")
    assert server.clock() == 6
    assert (server.parameters() == 5.0).all()


def test_a_server_that_another_authority_vouches_for_is_refused_at_once(
    serve: Serve, connect: Connect, tls: Settings, stranger: Authority
) -> None:
    client = connect(serve(**tls).address, SMALL, tls_ca=str(stranger.file)).client
    with pytest.raises(UntrustedServerError, match=r"not accepted \(.*issuer.*GEMPS_CLIENT_TLS_CA"):
        client.join()


def test_an_expired_certificate_of_the_server_is_refused(
    serve: Serve, connect: Connect, authority: Authority, tls_client: Settings, tmp_path: Path
) -> None:
    certificate, key = authority.pair("server", days=-1).write(tmp_path, "expired")
    client = connect(serve(tls_cert=certificate, tls_key=key).address, SMALL, **tls_client).client
    with pytest.raises(UntrustedServerError, match="expired"):
        client.join()


def test_a_server_of_another_name_is_refused_unless_the_name_is_said(
    serve: Serve, connect: Connect, observe: Observe, authority: Authority, tls_client: Settings, tmp_path: Path
) -> None:
    certificate, key = authority.pair("server", ["parameters.example"]).write(tmp_path, "other")
    server = serve(tls_cert=certificate, tls_key=key)
    with pytest.raises(UntrustedServerError, match=r"is for parameters\.example; connect by .*_TLS_SERVER_NAME$"):
        connect(server.address, SMALL, **tls_client).client.join()
    with pytest.raises(UntrustedServerError, match=r"for parameters\.example, not for parameter; correct GEMPS_CLIENT"):
        observe(server.address, tls_server_name="parameter", **tls_client).get_status()
    assert observe(server.address, tls_server_name="parameters.example", **tls_client).get_status()


def test_a_client_with_tls_is_told_that_the_server_has_none(
    serve: Serve, connect: Connect, tls_client: Settings
) -> None:
    with pytest.raises(UntrustedServerError, match="speaks no TLS"):
        connect(serve().address, SMALL, **tls_client).client.join()


def test_a_client_without_tls_gets_no_answer_and_a_hint(serve: Serve, observe: Observe, tls: Settings) -> None:
    with pytest.raises(ServerUnavailableError, match="GEMPS_CLIENT_TLS_CA"):
        observe(serve(**tls).address).get_status()


def test_with_mutual_tls_only_certificates_of_its_authority_come_in(
    serve: Serve,
    observe: Observe,
    tls: Settings,
    tls_client: Settings,
    authority: Authority,
    stranger: Authority,
    tmp_path: Path,
) -> None:
    server = serve(**tls, tls_client_ca=authority.file)
    own = {}
    for name, pair in {
        "good": authority.pair("worker"),
        "foreign": stranger.pair("worker"),
        "expired": authority.pair("worker", days=-1),
    }.items():
        certificate, key = pair.write(tmp_path, name)
        own[name] = {"tls_cert": certificate, "tls_key": key}
    assert observe(server.address, **tls_client, **own["good"]).get_status()
    for bad in ({}, own["foreign"], own["expired"]):
        with pytest.raises(ServerUnavailableError, match="GEMPS_CLIENT_TLS_CERT"):
            observe(server.address, **tls_client, **bad).get_status()


def test_a_renewed_certificate_is_used_while_a_worker_trains(
    serve: Serve, connect: Connect, observe: Observe, tls: Settings, tls_client: Settings, stranger: Authority
) -> None:
    server = serve(**tls)
    client = connect(server.address, SMALL, **tls_client).client
    into = begin(client, SMALL)
    new = stranger.pair("server")
    replace(tls["tls_key"], new.key)
    replace(tls["tls_cert"], new.certificate)

    def is_shown() -> bool:
        """Whether somebody new is shown the new certificate."""
        assert client.commit(payload(SMALL, 1.0), into).applied
        try:
            observe(server.address, tls_ca=str(stranger.file)).get_status()
        except UntrustedServerError:
            return False
        return True

    eventually(is_shown)
    with pytest.raises(UntrustedServerError):
        observe(server.address, **tls_client).get_status()
    assert client.commit(payload(SMALL, 1.0), into).applied


def test_a_clients_renewed_certificate_is_used_for_its_next_connection(
    serve: Serve,
    connect: Connect,
    tls: Settings,
    tls_client: Settings,
    authority: Authority,
    stranger: Authority,
    tmp_path: Path,
) -> None:
    certificate, key = authority.pair("worker").write(tmp_path, "worker")
    server = serve(**tls, tls_client_ca=authority.file, data_dir=tmp_path / "state")
    client = connect(server.address, SMALL, tls_cert=certificate, tls_key=key, **tls_client).client
    into = begin(client, SMALL)
    assert client.commit(payload(SMALL, 1.0), into).applied
    stranger.pair("worker").write(tmp_path, "worker")
    again = server.again(tls_client_ca=stranger.file, resume=True)
    try:
        assert not client.commit(payload(SMALL, 1.0), into).applied  # a gradient of the server before
        assert client.commit(payload(SMALL, 1.0), into).applied
    finally:
        again.stop()


def test_a_verdict_that_was_cut_off_is_told_again_by_a_server_that_came_back_with_another_authority(
    serve: Serve, connect: Connect, proxied: Proxied, tls: Settings, authority: Authority, stranger: Authority,
    tmp_path: Path,
) -> None:  # fmt: skip
    """Everybody's certificates were renewed between the commit and its verdict: it is applied once."""
    own, own_key = authority.pair("worker").write(tmp_path, "worker")
    believed = replace(tmp_path / "believed.crt", authority.pem)
    server = serve(**tls, tls_client_ca=authority.file, data_dir=tmp_path / "state", durability="commit")
    proxy = proxied(server)
    replaced: list[RealServer] = []

    def replace_all(seconds: float) -> None:
        if not replaced:
            assert server.clock() == 3
            stranger.pair("server").write(tmp_path, "server")
            stranger.pair("worker").write(tmp_path, "worker")
            replace(believed, stranger.pem)
            replaced.append(server.again(tls_client_ca=stranger.file, resume=True))

    told = {"tls_ca": str(believed), "tls_cert": own, "tls_key": own_key}
    client = connect(proxy.address, SMALL, sleep=replace_all, **told).client
    into = begin(client, SMALL)
    assert client.commit(payload(SMALL, 1.0), into).applied
    proxy.cut_after("to_client", 60)
    try:
        outcome = client.commit(payload(SMALL, 1.0), into)
        assert outcome.verdict is not None
        assert (outcome.verdict.duplicate, outcome.verdict.sequence) == (True, 2)
        assert client.commit(payload(SMALL, 1.0), into).applied
        assert replaced[0].clock() == 4
        assert (replaced[0].parameters() == 3.0).all()
    finally:
        for one in replaced:
            one.stop()


def test_a_broken_new_certificate_leaves_the_old_one_in_force_and_is_told_once(
    serve: Serve, observe: Observe, tls: Settings, tls_client: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(**tls)
    replace(tls["tls_cert"], "no certificate\n")
    eventually(lambda: observe(server.address, **tls_client).get_status() and "belong together" in caplog.text)
    for _ in range(3):
        assert observe(server.address, **tls_client).get_status()
    assert caplog.text.count("belong together") == 1
    assert "What was read before stays in force" in caplog.text


@pytest.mark.parametrize("broken", ["missing", "no certificate", "another key", "key with a password"])
def test_a_server_does_not_start_with_files_that_it_cannot_use(
    serve: Serve, tls: Settings, authority: Authority, broken: str
) -> None:
    if broken == "missing":
        tls["tls_cert"].unlink()
    elif broken == "no certificate":
        replace(tls["tls_cert"], "hello")
    elif broken == "another key":
        replace(tls["tls_key"], authority.pair("other").key)
    else:
        replace(tls["tls_key"], _with_password(tls["tls_key"].read_bytes()))
    with pytest.raises(StartupError, match=r"tls.cert .*server\.crt"):
        serve(**tls)


def test_a_client_does_not_start_with_files_that_it_cannot_use(
    connect: Connect, authority: Authority, tls_client: Settings, tmp_path: Path
) -> None:
    junk = replace(tmp_path / "junk", "hello")
    certificate, key = authority.pair("worker").write(tmp_path, "worker")
    with pytest.raises(CredentialsError, match=r"GEMPS_CLIENT_TLS_CA .* holds no certificate"):
        connect("127.0.0.1:1", SMALL, tls_ca=str(junk))
    with pytest.raises(CredentialsError, match="cannot be read"):
        connect("127.0.0.1:1", SMALL, tls_ca=str(tmp_path / "nothing"))
    with pytest.raises(CredentialsError, match="no pair"):
        connect("127.0.0.1:1", SMALL, tls_cert=certificate, tls_key=authority.file, **tls_client)
    assert connect("127.0.0.1:1", SMALL, tls_cert=certificate, tls_key=key, **tls_client)


def _with_password(pem: bytes) -> bytes:
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    key = load_pem_private_key(pem, None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
