"""The real server stopped and started again under a client."""

from pathlib import Path

import pytest
from gem_worker.client import NotInitializedError

from tests.client.conftest import Connect, Proxied, Serve
from tests.client.models import SMALL, parameters_in, payload
from tests.client.real_server import RealServer, begin


def test_restart_with_resume_goes_on_with_the_same_count(serve: Serve, connect: Connect, tmp_path: Path) -> None:
    server = serve(data_dir=tmp_path)
    connected = connect(server.address, SMALL)
    client = connected.client
    into = begin(client, SMALL)
    for _ in range(3):
        client.commit(payload(SMALL, 1.0), into)
    resumed = server.again(resume=True)
    try:
        outcome = client.commit(payload(SMALL, 1.0), into)
        assert not outcome.applied
        assert outcome.version.clock == 4
        assert (parameters_in(SMALL, into) == 3.0).all()
        following = client.commit(payload(SMALL, 1.0), into)
        assert following.verdict is not None
        assert following.verdict.sequence == 4
        assert resumed.clock() == 5
    finally:
        resumed.stop()


def test_commit_applied_by_a_server_that_is_replaced_before_its_verdict_counts_once(
    serve: Serve, proxied: Proxied, connect: Connect, tmp_path: Path
) -> None:
    server = serve(data_dir=tmp_path)
    proxy = proxied(server)
    replaced: list[RealServer] = []

    def replace(seconds: float) -> None:
        # The client's first pause, after the reply was cut off.
        if not replaced:
            assert server.clock() == 3
            replaced.append(server.again(resume=True))

    client = connect(proxy.address, SMALL, sleep=replace).client
    into = begin(client, SMALL)
    client.commit(payload(SMALL, 1.0), into)
    proxy.cut_after("to_client", 30)
    try:
        outcome = client.commit(payload(SMALL, 1.0), into)
        assert outcome.applied
        assert outcome.verdict is not None
        assert outcome.verdict.duplicate
        assert outcome.verdict.sequence == 2
        assert (parameters_in(SMALL, into) == 2.0).all()
        assert replaced[0].clock() == 3
        assert client.commit(payload(SMALL, 1.0), into).applied
    finally:
        for one in replaced:
            one.stop()


def test_restart_without_resume_wants_the_parameters_again(serve: Serve, connect: Connect) -> None:
    server = serve()
    client = connect(server.address, SMALL).client
    into = begin(client, SMALL)
    client.commit(payload(SMALL, 1.0), into)
    fresh = server.again()
    try:
        with pytest.raises(NotInitializedError):
            client.commit(payload(SMALL, 1.0), into)
        assert client.initialize(payload(SMALL, 5.0))
        client.pull(into)
        assert client.commit(payload(SMALL, 1.0), into).applied
        assert (parameters_in(SMALL, into) == 6.0).all()
    finally:
        fresh.stop()
