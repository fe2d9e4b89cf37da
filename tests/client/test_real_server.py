"""The client and the real server together, over connections that are cut wherever they can be."""

import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import grpc
import numpy as np
import pytest
from gem_worker.client import (
    Client,
    EventKind,
    RunFinishedError,
    RunState,
    ServerRefusedError,
    SupersededError,
)
from gemps.v1 import commit_pb2, transfer_pb2, worker_pb2_grpc

from gem_core.checksum import crc32c
from gem_core.layout import Layout
from tests.client.conftest import Connect, Proxied, Serve
from tests.client.cutting_proxy import Direction
from tests.client.models import LARGE, SMALL, buffer, parameters_in, payload
from tests.client.real_server import RealServer, begin


def test_deltas_are_applied_and_come_back(serve: Serve, connect: Connect) -> None:
    server = serve()
    client = connect(server.address, LARGE).client
    into = begin(client, LARGE)
    for step in range(1, 6):
        outcome = client.commit(payload(LARGE, 0.5), into, loss=1.0 / step, samples=7)
        assert outcome.verdict is not None
        assert outcome.verdict.sequence == step
        assert outcome.version.clock == step + 1
        assert (parameters_in(LARGE, into) == 0.5 * step).all()
    np.testing.assert_array_equal(server.parameters(), parameters_in(LARGE, into))


@pytest.mark.parametrize(
    ("layout", "direction", "cuts"),
    [
        # HTTP/2 headers, the commit's header, its payload, the end; replies likewise.
        pytest.param(SMALL, "to_server", range(0, 160, 8), id="small-to-server"),
        pytest.param(SMALL, "to_client", range(0, 240, 8), id="small-to-client"),
        pytest.param(LARGE, "to_server", range(0, 101_000, 3_641), id="large-to-server"),
        pytest.param(LARGE, "to_client", range(0, 101_000, 3_641), id="large-to-client"),
    ],
)
def test_connection_cut_at_any_byte_of_a_commit_loses_and_doubles_nothing(
    layout: Layout,
    direction: Direction,
    cuts: range,
    serve: Serve,
    proxied: Proxied,
    connect: Connect,
) -> None:
    server = serve()
    proxy = proxied(server)
    connected = connect(proxy.address, layout)
    client = connected.client
    into = begin(client, layout)
    for number, cut in enumerate(cuts, 1):
        proxy.cut_after(direction, cut)
        outcome = client.commit(payload(layout, 0.5), into)
        proxy.disarm()
        assert outcome.applied
        assert server.clock() == number + 1
        assert outcome.version.clock == number + 1
        assert (parameters_in(layout, into) == 0.5 * number).all()
    assert proxy.cuts >= 10
    assert EventKind.DELTA_DROPPED not in connected.kinds()


@pytest.mark.parametrize("direction", ["to_server", "to_client"])
def test_connection_cut_at_any_byte_of_a_pull_is_resumed(
    direction: Direction, serve: Serve, proxied: Proxied, connect: Connect
) -> None:
    server = serve()
    proxy = proxied(server)
    client = connect(proxy.address, LARGE).client
    into = begin(client, LARGE)
    client.commit(payload(LARGE, 0.5), into)
    for cut in range(0, 101_000, 7_283):
        into[:] = bytes(len(into))
        proxy.cut_after(direction, cut)
        assert client.pull(into).clock == 2
        proxy.disarm()
        assert (parameters_in(LARGE, into) == 0.5).all()
    assert proxy.cuts > 0


def test_connection_cut_during_the_upload_still_initializes(serve: Serve, proxied: Proxied, connect: Connect) -> None:
    for cut in range(0, 101_000, 14_563):
        server = serve()
        proxy = proxied(server)
        client = connect(proxy.address, LARGE).client
        client.join()
        proxy.cut_after("to_server", cut)
        client.initialize(payload(LARGE, 2.0))
        proxy.disarm()
        assert server.clock() == 1
        assert (server.parameters() == 2.0).all()


def test_first_upload_of_several_wins_and_all_pull_it(serve: Serve, connect: Connect) -> None:
    server = serve()
    clients = [connect(server.address, LARGE, name=f"worker-{index}").client for index in range(6)]
    accepted: list[int] = []
    seen: list[float] = []

    def work(index: int) -> None:
        client = clients[index]
        client.join()
        if client.initialize(payload(LARGE, float(index))):
            accepted.append(index)
        into = buffer(LARGE)
        client.pull(into)
        seen.append(float(parameters_in(LARGE, into)[0]))

    run_all(work, len(clients))
    assert len(accepted) == 1
    assert seen == [float(accepted[0])] * len(clients)


def test_commits_of_several_workers_through_cut_connections_all_count(
    serve: Serve, proxied: Proxied, connect: Connect
) -> None:
    server = serve()
    commits, workers = 30, 4
    proxies = [proxied(server) for _ in range(workers)]
    clients = [connect(proxies[index].address, LARGE, name=f"worker-{index}").client for index in range(workers)]
    buffers = [begin(client, LARGE) for client in clients]

    def work(index: int) -> None:
        chance = np.random.default_rng(index)
        for step in range(commits):
            if step % 3 == 0:
                direction: Direction = "to_server" if chance.random() < 0.5 else "to_client"
                proxies[index].cut_after(direction, int(chance.integers(100_000)))
            assert clients[index].commit(payload(LARGE, 1.0), buffers[index]).applied

    run_all(work, workers)
    assert server.clock() == 1 + commits * workers
    assert (server.parameters() == commits * workers).all()
    assert sum(proxy.cuts for proxy in proxies) > workers


def run_all(work: Callable[[int], None], count: int) -> None:
    """Run `work` on a thread each; errors fail the test."""
    errors: list[BaseException] = []

    def guarded(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=guarded, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def until_it_has_called_again(server: RealServer, client: Client) -> None:
    """A further call of this session has ended: while it commits, a probe."""
    session = server.in_loop(lambda: server.server.sessions.get(client.session_id, time.monotonic()))
    before = session.last_call
    server.until(lambda: session.last_call > before)


def test_round_robin_makes_a_worker_wait_as_long_as_the_others_need(serve: Serve, connect: Connect) -> None:
    server = serve(order="round-robin", min_workers=2)
    first = connect(server.address, LARGE, name="first", progress_timeout=0.2)
    second = connect(server.address, LARGE, name="second")
    assert first.client.join().run_state is RunState.WAITING
    second.client.join()
    first.client.initialize(payload(LARGE, 0.0))
    into = [buffer(LARGE), buffer(LARGE)]
    pulling = threading.Thread(target=first.client.pull, args=(into[0],))
    pulling.start()
    second.client.pull(into[1])
    pulling.join()
    outcomes: list[bool] = []

    def commit_twice() -> None:
        outcomes.extend(first.client.commit(payload(LARGE, 1.0), into[0]).applied for _ in range(2))

    committing = threading.Thread(target=commit_twice)
    committing.start()
    # The first worker's second commit has to wait for the second worker's first one, over several examinations.
    for _ in range(3):
        until_it_has_called_again(server, first.client)
    assert len(outcomes) <= 1
    for _ in range(2):
        second.client.commit(payload(LARGE, 1.0), into[1])
    committing.join()
    assert outcomes == [True, True]
    assert first.events == []
    assert server.clock() == 5


def test_finished_run_refuses_the_next_commit(serve: Serve, connect: Connect) -> None:
    server = serve(steps=2)
    client = connect(server.address, SMALL).client
    into = begin(client, SMALL)
    assert not client.commit(payload(SMALL, 1.0), into).run_finished
    assert client.commit(payload(SMALL, 1.0), into).run_finished
    assert client.run_state is RunState.FINISHED
    with pytest.raises(RunFinishedError):
        client.commit(payload(SMALL, 1.0), into)
    client.pull(into)
    assert (parameters_in(SMALL, into) == 2.0).all()
    client.leave("finished")


@pytest.mark.parametrize("value", [np.nan, np.inf, 2e30])
def test_bad_values_are_refused_by_name_and_the_next_commit_works(value: float, serve: Serve, connect: Connect) -> None:
    server = serve()
    client = connect(server.address, LARGE).client
    into = begin(client, LARGE)
    delta = np.zeros(25_002, np.float32)
    delta[12_345] = value
    with pytest.raises(ServerRefusedError, match=r"'weight'.*12345") as caught:
        client.commit(delta.data, into)
    assert caught.value.reason == "BAD_VALUE"
    assert client.commit(payload(LARGE, 1.0), into).applied
    assert server.clock() == 2


def test_other_model_is_refused_by_the_tensors_name(serve: Serve, connect: Connect) -> None:
    server = serve()
    begin(connect(server.address, SMALL).client, SMALL)
    with pytest.raises(ServerRefusedError, match="LAYOUT_MISMATCH") as caught:
        connect(server.address, LARGE, name="other").client.join()
    assert "weight" in caught.value.message


def test_second_process_of_a_name_ends_the_first_which_does_not_fight(serve: Serve, connect: Connect) -> None:
    server = serve()
    older = connect(server.address, SMALL).client
    into = begin(older, SMALL)
    newer = connect(server.address, SMALL).client
    newer_into = begin(newer, SMALL)
    assert newer.membership.rank == older.membership.rank
    with pytest.raises(SupersededError, match="every worker its own name"):
        older.commit(payload(SMALL, 1.0), into)
    assert newer.commit(payload(SMALL, 1.0), newer_into).applied


def test_expired_session_joins_again_and_drops_its_delta(serve: Serve, connect: Connect) -> None:
    server = serve(session_timeout=0.2)
    connected = connect(server.address, SMALL)
    into = begin(connected.client, SMALL)
    gone = threading.Event()
    server.in_loop(lambda: server.server.sessions.on_end.append(lambda _: gone.set()))
    assert gone.wait(60)
    assert not connected.client.commit(payload(SMALL, 1.0), into).applied
    assert "EXPIRED_SESSION" in connected.events[0].message
    assert connected.client.commit(payload(SMALL, 1.0), into).applied


def test_heartbeats_keep_an_idle_session(serve: Serve, connect: Connect) -> None:
    server = serve(session_timeout=1.0)
    idle = connect(server.address, SMALL, name="idle", heartbeat_interval=0.1)
    into = begin(idle.client, SMALL)
    silent = connect(server.address, SMALL, name="silent")
    silent.client.join()
    gone = threading.Event()
    server.in_loop(lambda: server.server.sessions.on_end.append(lambda session: gone.set()))
    # The other session, of the same time-out and joined later, has expired: the idle one has outlived it.
    assert gone.wait(60)
    assert idle.client.commit(payload(SMALL, 1.0), into).applied
    assert idle.events == []


def test_process_that_forgets_to_close_is_closed_before_the_interpreter_ends(serve: Serve) -> None:
    server = serve()
    code = (
        "import atexit; from tests.client.models import *; from gem_worker.client import *\n"
        "def tell():\n"
        "    try: client.join()\n"
        "    except MisuseError as error: print(error, client.transport)\n"
        "atexit.register(tell)\n"
        f"client = Client({server.address!r}, worker_name='worker', layout=LARGE)\n"
        "client.join(); client.initialize(payload(LARGE, 0.0)); client.pull(buffer(LARGE))\n"
        "client.commit(payload(LARGE, 1.0), buffer(LARGE)); print(client.transport)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout) == (0, "lane\nthis client is closed: make a new one None\n")


def test_interrupted_commit_that_waits_for_its_turn_until_the_next_pull_is_counted(
    serve: Serve, connect: Connect
) -> None:
    server = serve(order="round-robin", min_workers=2, staging_buffers=8)
    first = connect(server.address, SMALL, name="first").client
    joining = threading.Thread(target=begin, args=(first, SMALL))
    joining.start()
    server.until(lambda: len(server.server.sessions) == 1)
    client = connect(server.address, SMALL, name="second").client
    into = begin(client, SMALL)
    joining.join()
    version, data = first.version, bytes(payload(SMALL, 0.0))
    assert version is not None
    header = commit_pb2.CommitHeader(session_id=first.session_id, wire_type=1, byte_count=len(data))
    header.base_version.CopyFrom(version.to_wire())
    chunk = data
    footer = transfer_pb2.Footer(crc32c=crc32c(data))
    sent: queue.SimpleQueue[commit_pb2.CommitRequest | None] = queue.SimpleQueue()

    def interrupt() -> None:
        server.until(lambda: any(session.queued_sequence for session in server.server.sessions.live()))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def take_turns(call: Iterator[commit_pb2.CommitResponse]) -> None:
        """The commit that was begun, and two more: between them come the other's commit, its pull, and its commit."""
        server.until(lambda: any(session.queued_pulls for session in server.server.sessions.live()))
        sent.put(commit_pb2.CommitRequest(chunk=chunk, footer=footer))
        for answer in call:
            if answer.HasField("parameters"):
                header.base_version.CopyFrom(answer.parameters.version)
            if answer.HasField("footer") and header.sequence < 3:
                header.sequence += 1
                sent.put(commit_pb2.CommitRequest(header=header, chunk=chunk, footer=footer))

    with grpc.insecure_channel(server.address) as channel:
        call = worker_pb2_grpc.WorkerServiceStub(channel).Commit(iter(sent.get, None))
        header.sequence = 1
        sent.put(commit_pb2.CommitRequest(header=header))
        assert next(call).HasField("proceed")
        threads = [threading.Thread(target=interrupt), threading.Thread(target=take_turns, args=(call,))]
        threads[0].start()
        with pytest.raises(KeyboardInterrupt):
            client.commit(payload(SMALL, 1.0), into)
        threads[1].start()
        client.pull(into)
        assert (parameters_in(SMALL, into) == 1.0).all()
        outcome = client.commit(payload(SMALL, 0.5), into)
        sent.put(None)
        for thread in threads:
            thread.join()
    assert outcome.verdict is not None
    assert outcome.verdict.sequence == 2
    assert (parameters_in(SMALL, into) == 1.5).all()


def test_interrupted_process_leaves_even_while_it_waits_for_its_turn(serve: Serve, connect: Connect) -> None:
    server = serve(order="round-robin", min_workers=2)
    # Joins as one of two workers and pulls: its turn does not come, because the other one never joins.
    code = (
        "import sys; from tests.client.models import *; from gem_worker.client import *\n"
        f"with Client({server.address!r}, worker_name='worker', layout=SMALL) as client:\n"
        "    client.join(); client.initialize(payload(SMALL, 0.0)); print('pulling', flush=True)\n"
        "    client.pull(buffer(SMALL))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "pulling\n"
        server.until(lambda: any(session.queued_pulls for session in server.server.sessions.live()))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert "KeyboardInterrupt" in errors
    assert server.in_loop(lambda: len(server.server.sessions)) == 0
