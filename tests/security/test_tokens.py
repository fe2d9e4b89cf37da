"""Tokens and roles: the right status, before a request is read; changed while workers train; shown nowhere."""

import logging
import time
from pathlib import Path

import grpc
import pytest
from gem_server.errors import StartupError
from gem_server.security.access import PULL_WITH_SESSION, Access
from gem_server.security.tokens import Role, Tokens
from gem_worker.client import Client, ClientSettings, CredentialsError, ServerRefusedError
from gemps.v1 import operations_pb2, parameters_pb2, session_pb2, status_pb2
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.client.conftest import Connect, Serve
from tests.client.models import SMALL, payload
from tests.client.real_server import RealServer, begin
from tests.security.authority import replace
from tests.security.conftest import Observe
from tests.waiting import eventually
from tests.wire.calls import METHODS, path_of
from tests.wire.refusals import read_refusal

WORKER, OBSERVER, OPERATOR = (role * 4 for role in ("worker", "observer", "operator"))
TOKENS = f"# who may what\n\nworker {WORKER}\nobserver {OBSERVER}\noperator   {OPERATOR}\n"

# SECURITY.md's table; an operator may make every call.
MAY = {
    "worker": {"Join", "Initialize", "Pull", "Commit", "Heartbeat", "Leave"},
    "observer": {"Pull", "GetStatus", "WatchStatus", "GetHistory", "ReportEvaluation"},
    "operator": set(METHODS),
}
OF_ROLE = {"worker": WORKER, "observer": OBSERVER, "operator": OPERATOR}


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return replace(tmp_path / "tokens", TOKENS)


@pytest.fixture
def server(serve: Serve, tokens: Path) -> RealServer:
    return serve(tokens=tokens)


def call(server: RealServer, method: str, metadata: dict[str, str], request: Message | bytes = b"") -> str:
    """Make a call. Returns an empty text, or the reason of the refusal, whose form is checked."""
    described = METHODS[method]
    kinds = (
        "stream" if streaming else "unary" for streaming in (described.client_streaming, described.server_streaming)
    )
    raw = request if isinstance(request, bytes) else request.SerializeToString()
    with grpc.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        made = getattr(channel, "_".join(kinds))(path_of(method))
        try:
            answer = made(
                iter([raw]) if described.client_streaming else raw, metadata=tuple(metadata.items()), timeout=20
            )
            if described.server_streaming:
                next(answer, None)
                answer.cancel()
        except grpc.RpcError as error:
            return read_refusal(error).reason  # type: ignore[arg-type]  # has what an AioRpcError has
    return ""


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        bearer("x" * 24),
        bearer(WORKER[:-1]),
        bearer(""),
        {"authorization": WORKER},
        {"authorization": f"Basic {WORKER}"},
        {"authorization": ""},
    ],
    ids=["none", "unknown", "shortened", "empty", "without a scheme", "another scheme", "nothing in it"],
)
def test_without_a_known_token_every_call_is_refused(server: RealServer, metadata: dict[str, str]) -> None:
    assert {method: call(server, method, metadata) for method in METHODS} == dict.fromkeys(METHODS, "CREDENTIALS")


@pytest.mark.parametrize("role", MAY)
def test_a_role_may_make_its_calls_and_no_others(server: RealServer, role: str) -> None:
    found = {method: call(server, method, bearer(OF_ROLE[role])) for method in METHODS}
    assert {method for method, reason in found.items() if reason == "ROLE"} == set(METHODS) - MAY[role]
    assert "CREDENTIALS" not in found.values()


def test_an_observer_may_not_pull_as_somebodys_session(server: RealServer, connect: Connect) -> None:
    client = connect(server.address, SMALL, token=WORKER).client
    begin(client, SMALL)
    session_id = server.in_loop(lambda: next(iter(server.server.sessions.live())).session_id)
    request = parameters_pb2.PullRequest(session_id=session_id)
    assert call(server, "Pull", bearer(OBSERVER), request) == "ROLE"
    assert call(server, "Pull", bearer(OBSERVER), parameters_pb2.PullRequest()) == ""
    assert call(server, "Pull", bearer(WORKER), request) == ""


def test_an_order_to_end_the_run_needs_an_operator(server: RealServer, observe: Observe) -> None:
    for token in (WORKER, OBSERVER):
        with pytest.raises(ServerRefusedError, match="operator") as caught:
            observe(server.address, token=token).control("finish", "because")
        assert caught.value.reason == "ROLE"
    assert observe(server.address, token=OPERATOR).control("finish", "because").run_state.value == "finished"
    request = operations_pb2.ControlRequest(action=operations_pb2.CONTROL_ACTION_FINISH)
    assert call(server, "Control", bearer(OPERATOR), request) == ""


def test_the_health_service_asks_for_nothing(server: RealServer) -> None:
    with grpc.insecure_channel(server.address) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_is_for_operators(serve: Serve, tokens: Path) -> None:
    server = serve(tokens=tokens, reflection=True)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    with grpc.insecure_channel(server.address) as channel:
        ask = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        for metadata in (None, [("authorization", f"Bearer {WORKER}")]):
            with pytest.raises(grpc.RpcError):
                next(ask(iter([request]), metadata=metadata, timeout=20))
        answer = next(ask(iter([request]), metadata=[("authorization", f"Bearer {OPERATOR}")], timeout=20))
    assert {f"gemps.v1.{name}Service" for name in ("Worker", "Observer", "Shard")} <= {
        one.name for one in answer.list_services_response.service
    }


def test_a_refused_caller_costs_the_server_no_memory(server: RealServer) -> None:
    """2 MiB of empty submessages would cost 120 MiB if they were parsed: they are not even read."""
    empty_tensors = b"\x1a\x00" * (1 << 20)
    reserved = server.in_loop(lambda: server.server.memory.reserved)
    before = _memory_high_water()
    for _ in range(50):
        assert call(server, "Join", bearer("x" * 24), empty_tensors) == "CREDENTIALS"
    assert _memory_high_water() - before < 32 << 20
    assert server.in_loop(lambda: (len(server.server.sessions), server.server.memory.reserved)) == (0, reserved)


def _memory_high_water() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_a_worker_with_a_refused_token_ends_at_once_and_is_told_the_fix(server: RealServer, connect: Connect) -> None:
    started = time.monotonic()
    with pytest.raises(ServerRefusedError, match="GEMPS_CLIENT_TOKEN_FILE") as none:
        connect(server.address, SMALL).client.join()
    with pytest.raises(ServerRefusedError, match=r"its tls\.tokens file") as unknown:
        connect(server.address, SMALL, token="x" * 24).client.join()
    with pytest.raises(
        ServerRefusedError, match="role observer does not allow Join: use a token of the role worker"
    ) as other:
        connect(server.address, SMALL, token=OBSERVER).client.join()
    assert [error.value.reason for error in (none, unknown, other)] == ["CREDENTIALS", "CREDENTIALS", "ROLE"]
    assert time.monotonic() - started < 30  # far below connect_timeout, 60 s here


def test_tokens_are_changed_while_a_worker_trains(
    server: RealServer, connect: Connect, tokens: Path, tmp_path: Path
) -> None:
    own = replace(tmp_path / "token", f"{WORKER}\n")
    client = connect(server.address, SMALL, token_file=own).client
    into = begin(client, SMALL)
    assert client.commit(payload(SMALL, 1.0), into).applied
    newer = "newer-" * 4
    replace(tokens, f"{TOKENS}worker {newer}\n")  # both are good now
    replace(own, newer)
    assert client.commit(payload(SMALL, 1.0), into).applied
    replace(tokens, f"worker {newer}\n")  # the stream was opened with a token that is good no more
    deadline = time.monotonic() + 20
    count = 2
    while call(server, "GetStatus", bearer(OBSERVER)) != "CREDENTIALS":
        assert client.commit(payload(SMALL, 1.0), into).applied
        count += 1
        assert time.monotonic() < deadline
    assert client.commit(payload(SMALL, 1.0), into).applied
    assert (server.parameters() == count + 1).all()


def test_a_worker_whose_token_is_taken_away_stops(server: RealServer, connect: Connect, tokens: Path) -> None:
    client = connect(server.address, SMALL, token=WORKER).client
    into = begin(client, SMALL)
    replace(tokens, f"operator {OPERATOR}\n")
    eventually(lambda: call(server, "GetStatus", bearer(OBSERVER)) == "CREDENTIALS")
    clock = server.clock()
    with pytest.raises(ServerRefusedError, match="token") as caught:
        client.commit(payload(SMALL, 1.0), into)
    assert caught.value.reason == "CREDENTIALS"
    assert server.clock() == clock


def test_a_token_that_was_just_added_is_known_at_once(server: RealServer, observe: Observe, tokens: Path) -> None:
    for number in range(3):
        added = f"observer-number-{number}"
        replace(tokens, f"{tokens.read_text()}observer {added}\n")
        assert observe(server.address, token=added).get_status()


def test_a_broken_token_file_leaves_the_old_tokens_in_force_and_is_told_once(
    server: RealServer, observe: Observe, tokens: Path, caplog: pytest.LogCaptureFixture
) -> None:
    replace(tokens, f"worker {WORKER}\nadmin very-secret-token-of-the-admin\n")
    eventually(lambda: observe(server.address, token=OBSERVER).get_status() and "line 2" in caplog.text)
    assert observe(server.address, token=OBSERVER).get_status()
    assert caplog.text.count("line 2") == 1
    assert "very-secret" not in caplog.text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read"),
        ("# nobody\n", "holds no token"),
        ("worker\n", "line 1: write a role and a token"),
        (f"worker {WORKER} extra\n", "line 1: write a role and a token"),
        (f"\nadmin {WORKER}\n", "line 2: the first word is no role"),
        ("worker too-short\n"[:-2] + "\n", "line 1: a token has 16 to 1024"),
        (f"worker {WORKER}\u00e9\n", "line 1: a token has 16 to 1024"),
        (f"worker {WORKER}\noperator {WORKER}\n", "line 2: that token stands there for another role"),
    ],
)
def test_a_server_does_not_start_with_a_token_file_that_it_cannot_use(
    serve: Serve, tmp_path: Path, text: str | None, says: str
) -> None:
    path = tmp_path / "tokens"
    if text is not None:
        replace(path, text)
    with pytest.raises(StartupError, match=says) as caught:
        serve(tokens=path)
    assert WORKER not in str(caught.value)


def test_a_clients_token_is_shown_nowhere(tmp_path: Path) -> None:
    secret = "very-secret-" * 2
    settings = ClientSettings(token=secret)  # type: ignore[arg-type]  # pydantic wraps it
    assert secret not in f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"
    with pytest.raises(ValueError, match="is no token") as caught:
        ClientSettings(token=f"{secret} {secret}")  # type: ignore[arg-type]
    assert secret not in str(caught.value)
    for text in (f"{secret} {secret}", secret[:15]):
        file = replace(tmp_path / "token", text)
        with pytest.raises(CredentialsError, match="must hold a token and nothing else: 16 to 1024") as refused:
            Client("127.0.0.1:1", worker_name="w", layout=SMALL, settings=ClientSettings(token_file=file))
        assert text not in str(refused.value)


def test_a_token_does_not_leave_the_machine_without_tls() -> None:
    for address in ("10.77.0.1:50051", "server:50051"):
        with pytest.raises(CredentialsError, match="GEMPS_CLIENT_INSECURE"):
            Client(address, worker_name="w", layout=SMALL, settings=ClientSettings(token=WORKER))  # type: ignore[arg-type]
    allowed = ClientSettings(token=WORKER, insecure=True)  # type: ignore[arg-type]
    Client("10.77.0.1:50051", worker_name="w", layout=SMALL, settings=allowed).close()


def test_refused_callers_do_not_fill_the_log(server: RealServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(20):
        assert call(server, "GetStatus", {}, status_pb2.GetStatusRequest()) == "CREDENTIALS"
        assert call(server, "Join", bearer("guess-" * 4), session_pb2.JoinRequest()) == "CREDENTIALS"
    assert caplog.text.count("was refused") == 1
    assert "guess-" not in caplog.text


def test_every_call_of_the_contract_is_open_to_some_role_besides_the_operator_or_is_an_operators() -> None:
    """A call that is added to the contract must be given to somebody, knowingly: until then only operators have it."""
    access = Access(lambda _: Tokens([(Role(role), token) for role, token in OF_ROLE.items()]))
    for call_name in (*METHODS, PULL_WITH_SESSION):
        access.check(call_name, f"Bearer {OPERATOR}")
    assert set(METHODS) - MAY["worker"] - MAY["observer"] == {"Control", "Follow"}
