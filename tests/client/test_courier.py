"""`Courier`: commits on a thread of its own; nothing is lost by interrupts, and whoever gives up does not wait."""

import random
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from gem_worker.client import CallCancelledError, Courier, MisuseError, RunFinishedError, ServerUnavailableError

from tests.client.busy_workers import PREAMBLE, leave_whenever_terminated
from tests.client.conftest import Connect, Proxied, Serve
from tests.client.models import LARGE, SMALL, buffer, parameters_in, payload
from tests.client.real_server import begin
from tests.waiting import eventually

# With two buffers for what comes back.
BUSY_WORKER = (
    PREAMBLE
    + """
client = Client(sys.argv[1], worker_name="worker", layout=layout, overlap=True)
if not client.join().has_parameters:
    client.initialize(held[0])
base = installed = client.pull(held[0])
courier = Courier(client)
print("training", flush=True)
try:
    while True:
        courier.hand(delta, held[0], base, None, 0)
        base = installed
        held.reverse()
        installed = courier.collect().version
except Terminated:
    courier.close()
    client.leave("terminated")
    client.close()
    print("left", flush=True)
"""
)


def test_commits_are_made_on_another_thread_and_name_their_base(serve: Serve, connect: Connect) -> None:
    server = serve()
    client = connect(server.address, SMALL, overlap=True).client
    into, other = begin(client, SMALL), buffer(SMALL)
    first = client.version
    courier = Courier(client)
    assert first is not None
    with pytest.raises(MisuseError, match="no commit is under way"):
        courier.collect()
    courier.hand(payload(SMALL, 1.0), into, first, None, 0)
    assert courier.is_under_way
    with pytest.raises(MisuseError, match="collect"):
        courier.hand(payload(SMALL, 1.0), into, first, None, 0)
    outcome = courier.collect()
    assert outcome is not None
    assert not courier.is_under_way
    assert client.bases == (first, outcome.version)
    courier.hand(payload(SMALL, 1.0), other, first, None, 0)
    following = courier.collect()
    assert following is not None
    assert following.verdict is not None
    assert following.verdict.staleness == 1
    assert client.bases == (outcome.version, following.version)
    assert (parameters_in(SMALL, into) == 1.0).all()
    assert (parameters_in(SMALL, other) == 2.0).all()
    courier.hand(payload(SMALL, 1.0), other, first, None, 0)
    with pytest.raises(MisuseError, match="none of the versions"):
        courier.collect()
    assert server.clock() == 3
    courier.close()
    client.leave("done")


def test_without_overlap_there_is_one_base(serve: Serve, connect: Connect) -> None:
    client = connect(serve().address, SMALL).client
    into = begin(client, SMALL)
    before = client.version
    outcome = client.commit(payload(SMALL, 1.0), into)
    assert client.bases == (outcome.version,)
    with pytest.raises(MisuseError, match="none of the versions"):
        client.commit(payload(SMALL, 1.0), into, base=before)


def test_a_pull_leaves_one_base(serve: Serve, connect: Connect) -> None:
    client = connect(serve().address, SMALL, overlap=True).client
    into = begin(client, SMALL)
    client.commit(payload(SMALL, 1.0), into)
    assert len(client.bases) == 2
    assert client.bases[1:] == (client.pull(into),) == client.bases


@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_a_torn_reply_that_is_resumed_leaves_both_bases(
    kept: float, serve: Serve, proxied: Proxied, connect: Connect
) -> None:
    server = serve()
    proxy = proxied(server)
    client = connect(proxy.address, LARGE, overlap=True).client
    into = begin(client, LARGE)
    first = client.version
    proxy.cut_after("to_client", int(4 * LARGE.parameter_count * kept))
    outcome = client.commit(payload(LARGE, 1.0), into)
    assert proxy.cuts == 1
    assert client.bases == (first, outcome.version)
    following = client.commit(payload(LARGE, 1.0), into, base=first)
    assert following.verdict is not None
    assert following.verdict.staleness == 1
    assert (parameters_in(LARGE, into) == 2.0).all()
    assert server.clock() == 3


def test_what_a_commit_raises_is_raised_by_collect(serve: Serve, connect: Connect) -> None:
    server = serve(commits=1)
    client = connect(server.address, SMALL, overlap=True).client
    into = begin(client, SMALL)
    assert client.version is not None
    courier = Courier(client)
    for _ in range(2):
        courier.hand(payload(SMALL, 1.0), into, client.version, None, 0)
        try:
            outcome = courier.collect()
        except RunFinishedError:
            break
        assert outcome is not None
        assert outcome.run_finished
    else:
        pytest.fail("the budget was one commit")
    assert not courier.is_under_way
    courier.close()


def test_who_collects_may_set_a_limit_and_give_up_and_leave(serve: Serve, connect: Connect) -> None:
    """By turns, and the other does not commit: the server has the next word, for as long as it takes."""
    server = serve(order="round-robin", min_workers=2)
    other = connect(server.address, SMALL, name="a").client
    joining = threading.Thread(target=begin, args=(other, SMALL))
    joining.start()
    server.until(lambda: len(server.server.sessions) == 1)
    client = connect(server.address, SMALL, name="b", overlap=True).client
    into = begin(client, SMALL)
    joining.join()
    assert client.version is not None
    courier = Courier(client)
    courier.hand(payload(SMALL, 1.0), into, client.version, None, 0)
    assert courier.collect(timeout=0.1) is None
    assert courier.is_under_way
    courier.close()
    assert not courier.is_under_way
    client.leave("tired")
    server.until(lambda: len(server.server.sessions) == 1)


def test_giving_up_ends_the_patience_with_a_server_that_is_gone(serve: Serve, connect: Connect) -> None:
    server = serve()
    connected = connect(server.address, SMALL, overlap=True, connect_timeout=3600.0, backoff_limit=600.0)
    client = connected.client
    into = begin(client, SMALL)
    assert client.version is not None
    base = client.version
    server.stop()
    courier = Courier(client)
    courier.hand(payload(SMALL, 1.0), into, base, None, 0)
    eventually(lambda: connected.events)
    courier.give_up()
    assert not courier.is_under_way
    with pytest.raises((CallCancelledError, ServerUnavailableError, MisuseError)):
        client.commit(payload(SMALL, 1.0), into)
    courier.close()


def test_an_interrupted_wait_loses_nothing(serve: Serve, connect: Connect) -> None:
    client = connect(serve().address, SMALL, overlap=True).client
    into = begin(client, SMALL)
    courier = Courier(client)
    main = threading.get_ident()
    counted = 0
    for _ in range(30):
        base = client.version
        assert base is not None
        courier.hand(payload(SMALL, 1.0), into, base, None, 0)
        timer = threading.Timer(random.Random(counted).uniform(0, 0.002), signal.pthread_kill, (main, signal.SIGINT))
        try:
            timer.start()
            while courier.is_under_way:
                courier.collect()
            timer.join()
            eventually(lambda: False, patience=1.0)  # interrupted by the signal
        except KeyboardInterrupt:
            counted += 1
        while courier.is_under_way:
            courier.collect()
    assert counted == 30
    assert client.version is not None
    assert client.version.clock == 31
    courier.close()


@pytest.mark.long
def test_busy_worker_leaves_whenever_it_is_terminated(serve: Serve) -> None:
    server = serve()
    leave_whenever_terminated(BUSY_WORKER, server.address, times=5, seed=11)
    assert np.isfinite(server.parameters()).all()


def test_a_forked_child_ends_although_its_parent_has_a_commit_under_way(serve: Serve) -> None:
    server = serve()
    forking = (
        BUSY_WORKER.partition("try:")[0]
        + """
import os
courier.hand(delta, held[0], base, None, 0)
child = os.fork()
if not child:
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), courier.collect().applied)
courier.close()
client.close()
"""
    )
    done = subprocess.run([sys.executable, "-c", forking, server.address], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "7 True"), done.stderr


def test_a_worker_that_forgets_to_close_ends(serve: Serve) -> None:
    """At the interpreter's exit the commit under way is given up, and the process ends."""
    server = serve()
    forgetful = BUSY_WORKER.partition("try:")[0] + "courier.hand(delta, held[0], base, None, 0)\n"
    done = subprocess.run([sys.executable, "-c", forgetful, server.address], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "training\n", "")
