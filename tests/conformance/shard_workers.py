"""Workers of several servers: right ones, and those that have one fault each."""

import secrets
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from gem_conformance import FaultName
from gemps.v1 import commit_pb2, transfer_pb2

from gem_core.checksum import crc32c
from tests.conformance.puppet import Puppet, refused
from tests.conformance.right_workers import right
from tests.conformance.wrong_workers import wait_as_asked, wrong

FINISHED = 3


def sides(puppet: Puppet) -> list[Puppet]:
    return [puppet, *puppet.others]


def join_all(puppet: Puppet) -> None:
    puppet.join()
    for other in puppet.others:
        other.session_id = puppet.session_id
        other.join()


def pull_other(puppet: Puppet, other: Puppet, *, clocks_later: int = 0) -> None:
    """Pull the version that the primary gave."""
    version = transfer_pb2.Version(incarnation=other.incarnation, clock=puppet.version.clock + clocks_later)
    other.pull(resume_version=version, resume_offset=0)


def pull_all(puppet: Puppet) -> None:
    puppet.pull()
    for other in puppet.others:
        pull_other(puppet, other)


def begin_all(puppet: Puppet) -> None:
    join_all(puppet)
    pull_all(puppet)


def send_all(puppet: Puppet) -> None:
    """Send the pieces of a delta, under the primary's learning rate and commit_id."""
    for one in sides(puppet):
        one.eta, one.commit_id = puppet.eta, puppet.commit_id
        one.say(one.whole() if one.is_whole else commit_pb2.CommitRequest(header=one.header()))
    for one in sides(puppet):
        if not one.is_whole:
            assert one.hear().HasField("proceed")
            one.say(*one.chunks())


def commit_all(puppet: Puppet) -> int:
    """Commit a new delta; return the run's state."""
    puppet.commit_id = secrets.randbits(64) | 1
    send_all(puppet)
    verdict, *_ = [one.hear_reply() for one in sides(puppet)]
    return verdict.run_state


def all_refused(puppet: Puppet) -> None:
    """Announce a new delta, which all servers refuse."""
    puppet.commit_id = secrets.randbits(64) | 1
    for one in sides(puppet):
        one.commit_id = puppet.commit_id
        one.say(commit_pb2.CommitRequest(header=one.header()))
    for one in sides(puppet):
        refused(one.hear)


def finish(puppet: Puppet) -> None:
    while commit_all(puppet) != FINISHED:
        pass
    puppet.leave()


# --- right


@right("shards-small")
@right("shards-eta")
def commits_ranges(puppet: Puppet) -> None:
    begin_all(puppet)
    finish(puppet)


@right("shards-first")
def uploads_ranges(puppet: Puppet) -> None:
    join_all(puppet)
    count = puppet.task.layout.parameter_count
    first = ((np.arange(count) % 509 - 254) / 256).astype(np.float32)
    ranges = np.split(first, np.cumsum([side.layout.parameter_count for side in sides(puppet)])[:-1])
    data = [one.tobytes() + bytes(side.layout.buffer_bytes) for one, side in zip(ranges, sides(puppet), strict=True)]
    with ThreadPoolExecutor(len(data)) as threads:
        list(threads.map(lambda side, payload: side.initialize(payload), sides(puppet), data))
    pull_all(puppet)
    finish(puppet)


@right("shards-expired")
def joins_in_order(puppet: Puppet) -> None:
    begin_all(puppet)
    commit_all(puppet)
    all_refused(puppet)
    begin_all(puppet)
    finish(puppet)


@right("shards-stale-base")
def pulls_without_a_join(puppet: Puppet) -> None:
    begin_all(puppet)
    commit_all(puppet)
    all_refused(puppet)
    pull_all(puppet)
    finish(puppet)


@right("shards-dropped-reply")
def asks_the_primary_with_the_header_alone(puppet: Puppet) -> None:
    begin_all(puppet)
    commit_all(puppet)
    puppet.commit_id = secrets.randbits(64) | 1
    crc = crc32c(puppet.delta())
    send_all(puppet)
    refused(puppet.hear)
    [other.hear_reply() for other in puppet.others]
    puppet.say(commit_pb2.CommitRequest(header=puppet.header(payload_crc32c=crc)))
    assert puppet.hear_reply().duplicate
    finish(puppet)


@right("shards-dropped-reply")
def pulls_from_all_instead_of_a_repeat(puppet: Puppet) -> None:
    begin_all(puppet)
    commit_all(puppet)
    puppet.commit_id = secrets.randbits(64) | 1
    send_all(puppet)
    refused(puppet.hear)
    [other.hear_reply() for other in puppet.others]
    pull_all(puppet)
    puppet.applied = puppet.heartbeat().last_applied_sequence
    finish(puppet)


# --- wrong


@wrong(FaultName.WRONG_COMMIT_ID, "shards-small", expected="in each piece of this delta")
def another_id_in_each_piece(puppet: Puppet) -> None:
    begin_all(puppet)
    for number, one in enumerate(sides(puppet), 1):
        one.eta, one.commit_id = puppet.eta, number
        one.say(one.whole())
    puppet.hear_reply()


@wrong(FaultName.WRONG_COMMIT_ID, "shards-small", expected="other than 0", came="commit_id 0x0")
def no_id(puppet: Puppet) -> None:
    begin_all(puppet)
    send_all(puppet)
    puppet.hear_reply()


@wrong(FaultName.WRONG_COMMIT_ID, "shards-small", expected="new for each delta")
def one_id_for_all_deltas(puppet: Puppet) -> None:
    begin_all(puppet)
    puppet.commit_id = 5
    while True:
        send_all(puppet)
        [one.hear_reply() for one in sides(puppet)]


@wrong(FaultName.WRONG_COMMIT_ID, "shards-retry-info", expected="in each piece of this delta")
def new_id_for_a_piece_that_is_sent_again(puppet: Puppet) -> None:
    begin_all(puppet)
    commit_all(puppet)
    all_refused(puppet)
    wait_as_asked(1.0)
    crc, another = crc32c(puppet.delta()), puppet.commit_id ^ 2
    puppet.say(commit_pb2.CommitRequest(header=puppet.header(payload_crc32c=crc, commit_id=another)))
    puppet.hear()


@wrong(FaultName.WRONG_RESUME, "shards-small", expected="which the primary gave", came="none")
def pulls_whatever_is_newest_at_the_other(puppet: Puppet) -> None:
    join_all(puppet)
    for one in sides(puppet):
        one.pull()


@wrong(FaultName.WRONG_RESUME, "shards-small", expected="clock 41", came="clock 42")
def pulls_another_clock(puppet: Puppet) -> None:
    join_all(puppet)
    puppet.pull()
    pull_other(puppet, puppet.others[0], clocks_later=1)


@wrong(FaultName.OUT_OF_ORDER, "shards-expired", expected="Join at the primary first")
def joins_the_other_first(puppet: Puppet) -> None:
    begin_all(puppet)
    commit_all(puppet)
    all_refused(puppet)
    puppet.others[0].join()


@wrong(FaultName.WRONG_SESSION, "shards-small", expected="the session id of the primary")
def a_session_for_each_server(puppet: Puppet) -> None:
    for one in sides(puppet):
        one.join()


@wrong(FaultName.WRONG_SIZE, "shards-small", expected="1024 bytes", came="3348 bytes")
def whole_model_to_the_primary(puppet: Puppet) -> None:
    puppet.layout = puppet.task.layout
    begin_all(puppet)
    puppet.theta = np.zeros(puppet.layout.parameter_count, np.float32)
    puppet.commit_id = 1
    puppet.say(puppet.whole())
    puppet.hear()


@wrong(FaultName.WRONG_SIZE, "shards-eta", expected=f"{34_560 * 4} bytes", came=f"{34_304 * 4} bytes")
def a_second_range_as_long_as_the_first(puppet: Puppet) -> None:
    begin_all(puppet)
    puppet.commit_id = 1
    for one in sides(puppet):
        one.commit_id = puppet.commit_id
        byte_count = 4 * puppet.layout.parameter_count if one is puppet.others[0] else one.payload.byte_count
        one.say(commit_pb2.CommitRequest(header=one.header(byte_count=byte_count)))
    puppet.hear()


@wrong(FaultName.SILENT, "shards-small", expected="a commit's header", came="(at shard 1/2)")
def commits_to_the_primary_alone(puppet: Puppet) -> None:
    begin_all(puppet)
    puppet.commit_id = 1
    puppet.say(puppet.whole())
    puppet.hear()


@wrong(FaultName.WRONG_VALUES, "shards-small")
def the_learning_rate_of_another_shard(puppet: Puppet) -> None:
    begin_all(puppet)
    puppet.eta = puppet.others[0].eta
    commit_all(puppet)


@wrong(FaultName.UNEXPECTED_CALL, "shards-small", expected="Leave at the primary alone")
def leaves_everywhere(puppet: Puppet) -> None:
    begin_all(puppet)
    while commit_all(puppet) != FINISHED:
        pass
    for one in reversed(sides(puppet)):
        one.leave()
