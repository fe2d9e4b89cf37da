"""Workers that have one fault each: which, and the scenario that shows it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gem_conformance import FaultName, Place
from gem_conformance.layouts import layout_to
from gemps.v1 import commit_pb2, observer_pb2_grpc, operations_pb2, parameters_pb2

from gem_core.checksum import crc32c
from gem_core.wire_types import WireType, encode
from tests.conformance.puppet import Puppet, Steps, begin, refused

# Longer than a refusal asks for, by a margin; and shorter.
MARGIN_SECONDS, TOO_SOON_SECONDS = 0.1, 0.5


def wait_as_asked(seconds: float) -> None:
    """As a right worker does that is refused with a RetryInfo."""
    time.sleep(seconds + MARGIN_SECONDS)


@dataclass(frozen=True)
class Wrong:
    """A worker of these `steps` has this fault in this scenario; the other fields are parts of what it is told."""

    name: FaultName
    scenario: str
    steps: Steps
    expected: str = ""
    came: str = ""
    after: str = ""
    place: Place | None = None


WRONG: list[Wrong] = []


def wrong(
    name: FaultName, scenario: str, expected: str = "", came: str = "", after: str = "", place: Place | None = None
) -> Callable[[Steps], Steps]:
    """Note that a worker of these steps has this fault in this scenario, and is told these words."""

    def note(steps: Steps) -> Steps:
        WRONG.append(Wrong(name, scenario, steps, expected, came, after, place))
        return steps

    return note


# --- Join, and calls


@wrong(FaultName.WRONG_JOIN, "pull")
def short_session_id(puppet: Puppet) -> None:
    puppet.join(session_id=b"short")


@wrong(FaultName.WRONG_JOIN, "pull")
def other_name(puppet: Puppet) -> None:
    puppet.join(worker_name="somebody")


@wrong(FaultName.WRONG_LAYOUT, "pull")
def other_layout(puppet: Puppet) -> None:
    message = layout_to(puppet.task.layout)
    message.tensors[0].shape[0] += 1
    puppet.join(layout=message)


@wrong(FaultName.WRONG_LAYOUT, "buffers-frozen")
def leaves_the_aliases_out(puppet: Puppet) -> None:
    message = layout_to(puppet.task.layout)
    assert message.tensors[0].aliases
    message.tensors[0].ClearField("aliases")
    puppet.join(layout=message)


@wrong(FaultName.WRONG_LAYOUT, "buffers-frozen")
def hashes_other_frozen_values(puppet: Puppet) -> None:
    message = layout_to(puppet.task.layout)
    message.tensors[-1].sha256 = bytes(32)
    puppet.join(layout=message)


@wrong(FaultName.WRONG_OFFER, "pull")
def other_wire_type(puppet: Puppet) -> None:
    puppet.join(delta_wire_types=[2])


@wrong(FaultName.WRONG_OFFER, "delta-bfloat16")
def float32_instead_of_status_3(puppet: Puppet) -> None:
    puppet.join(delta_wire_types=[])


@wrong(FaultName.WRONG_SESSION, "pull")
def other_session_in_a_pull(puppet: Puppet) -> None:
    puppet.join()
    puppet.pull(session_id=bytes(16))


@wrong(FaultName.WRONG_SESSION, "expired-session")
def other_session_after_expiry(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()
    refused(puppet.commit)
    puppet.session_id = bytes(range(16))
    puppet.join()


@wrong(FaultName.UNEXPECTED_CALL, "commit-small")
def an_operators_call(puppet: Puppet) -> None:
    puppet.join()
    observer_pb2_grpc.ObserverServiceStub(puppet.channel).Control(operations_pb2.ControlRequest())


@wrong(FaultName.UNEXPECTED_CALL, "commit-small")
def uploads_though_there_are_parameters(puppet: Puppet) -> None:
    puppet.join()
    puppet.initialize(bytes(puppet.payload.byte_count))


@wrong(FaultName.LEFT_EARLY, "commit-small")
def leaves_after_one_commit(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()
    puppet.leave()


@wrong(FaultName.NO_PROGRESS, "commit-small")
def beats_for_ever(puppet: Puppet) -> None:
    puppet.join()
    while True:
        puppet.heartbeat()


@wrong(FaultName.SILENT, "commit-small")
def does_nothing(puppet: Puppet) -> None:
    begin(puppet)


@wrong(FaultName.MALFORMED, "commit-small")
def not_protobuf(puppet: Puppet) -> None:
    join: Any = puppet.channel.unary_unary("/gemps.v1.WorkerService/Join")
    join(b"\xff\xff\xff", timeout=10)


@wrong(FaultName.TOO_LARGE, "commit-large")
def all_in_one_message(puppet: Puppet) -> None:
    begin(puppet)
    puppet.say(commit_pb2.CommitRequest(header=puppet.header()))
    puppet.hear()
    puppet.say(commit_pb2.CommitRequest(chunk=bytes(3 << 20)))
    puppet.hear()


# --- parameters


@wrong(
    FaultName.WRONG_VALUES,
    "initialise",
    expected="element 0 of 'weight' = -0.9921875",
    came="1.0",
    place=Place.CONFORMANCE,
)
def other_first_parameters(puppet: Puppet) -> None:
    puppet.join()
    puppet.initialize(np.ones(puppet.task.layout.parameter_count, np.float32).tobytes())


@wrong(FaultName.WRONG_SIZE, "initialise")
def first_parameters_of_another_size(puppet: Puppet) -> None:
    puppet.join()
    puppet.initialize(bytes(puppet.payload.byte_count + 4))


@wrong(FaultName.WRONG_DIGEST, "pull")
def stops_at_the_header(puppet: Puppet) -> None:
    puppet.join()
    call = puppet.stub.Pull(parameters_pb2.PullRequest(session_id=puppet.session_id), timeout=10)
    next(call)
    call.cancel()


@wrong(FaultName.WRONG_DIGEST, "wrong-digest")
def trains_on_another_layout(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()


@wrong(FaultName.WRONG_RESUME, "pull-resumed")
def resumes_beyond_what_was_sent(puppet: Puppet) -> None:
    puppet.join()
    refused(puppet.pull)
    puppet.pull(resume_version=puppet.version, resume_offset=400_000)


@wrong(FaultName.WRONG_RESUME, "pull-resumed")
def resumes_behind_what_came(puppet: Puppet) -> None:
    puppet.join()
    refused(puppet.pull)
    puppet.pull(resume_version=puppet.version, resume_offset=1 << 40)


@wrong(
    FaultName.UNFINISHED_PARAMETERS,
    "pull-resumed",
    expected="came complete, with a footer",
    came="its parameters were incomplete",
    after="torn the pull behind 210000 bytes",
)
def trains_on_a_torn_pull(puppet: Puppet) -> None:
    puppet.join()
    refused(puppet.pull)
    puppet.theta = np.zeros(puppet.task.layout.parameter_count, np.float32)
    puppet.commit()


@wrong(
    FaultName.UNFINISHED_PARAMETERS,
    "bad-parameters",
    came="the footer of its parameters did not match",
    after="whose footer does not match its bytes",
)
def trains_on_damaged_parameters(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()


# --- payloads


@wrong(FaultName.OUT_OF_ORDER, "commit-small")
def chunk_before_the_header(puppet: Puppet) -> None:
    begin(puppet)
    puppet.say(*puppet.chunks())
    puppet.hear()


@wrong(FaultName.OUT_OF_ORDER, "commit-small")
def footer_in_a_message_of_its_own(puppet: Puppet) -> None:
    begin(puppet)
    whole = puppet.whole()
    puppet.say(commit_pb2.CommitRequest(header=whole.header, chunk=whole.chunk), *puppet.chunks()[1:])
    puppet.hear()


@wrong(FaultName.OUT_OF_ORDER, "commit-small")
def small_payload_cut_by_chunk_bytes(puppet: Puppet) -> None:
    chunk_bytes = puppet.join().chunk_bytes
    puppet.pull()
    first, *rest = puppet.chunks(chunk_bytes=chunk_bytes)
    assert len(rest) > 1
    first.header.CopyFrom(puppet.header())
    puppet.say(first, *rest)
    puppet.hear()


@wrong(FaultName.OUT_OF_ORDER, "commit-large")
def next_header_in_the_midst(puppet: Puppet) -> None:
    begin(puppet)
    puppet.say(commit_pb2.CommitRequest(header=puppet.header()))
    puppet.hear()
    puppet.say(puppet.chunks()[0], commit_pb2.CommitRequest(header=puppet.header()))
    puppet.hear()


@wrong(FaultName.DATA_BEFORE_PROCEED, "commit-large")
def chunk_with_the_header(puppet: Puppet) -> None:
    begin(puppet)
    puppet.say(commit_pb2.CommitRequest(header=puppet.header(), chunk=puppet.chunks()[0].chunk))
    puppet.hear()


@wrong(FaultName.DATA_BEFORE_PROCEED, "slow-reader", expected="a header alone for 400004 bytes", place=Place.COMMIT)
def large_payload_with_its_header(puppet: Puppet) -> None:
    begin(puppet)
    puppet.say(commit_pb2.CommitRequest(header=puppet.header(), chunk=puppet.chunks()[0].chunk), *puppet.chunks()[1:])
    puppet.hear()


@wrong(FaultName.DATA_BEFORE_PROCEED, "slow-reader")
def first_chunks_without_waiting(puppet: Puppet) -> None:
    begin(puppet)
    puppet.say(commit_pb2.CommitRequest(header=puppet.header()), *puppet.chunks())
    puppet.hear()


@wrong(FaultName.DATA_BEFORE_PROCEED, "proceed-withheld")
def chunk_without_waiting(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()
    puppet.say(commit_pb2.CommitRequest(header=puppet.header()), *puppet.chunks())
    puppet.hear()


@wrong(FaultName.WRONG_SIZE, "commit-small")
def other_byte_count(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit(byte_count=4)


@wrong(FaultName.WRONG_SIZE, "commit-large")
def footer_too_early(puppet: Puppet) -> None:
    begin(puppet)
    puppet.say(commit_pb2.CommitRequest(header=puppet.header()))
    puppet.hear()
    puppet.say(puppet.chunks()[0], puppet.chunks()[-1])
    puppet.hear()


def large_with(chunk: Callable[[Puppet], bytes]) -> Steps:
    def steps(puppet: Puppet) -> None:
        begin(puppet)
        puppet.say(commit_pb2.CommitRequest(header=puppet.header()))
        puppet.hear()
        puppet.say(commit_pb2.CommitRequest(chunk=chunk(puppet)))
        puppet.hear()

    return steps


for illegal in (
    lambda _: bytes((2 << 20) + 1),
    lambda puppet: puppet.delta() + bytes(1),
):
    wrong(FaultName.WRONG_CHUNK, "commit-large")(large_with(illegal))


@wrong(FaultName.WRONG_CHUNK, "commit-small")
def more_than_all(puppet: Puppet) -> None:
    begin(puppet)
    puppet.say(puppet.whole(puppet.delta() + bytes(4)))
    puppet.hear()


@wrong(FaultName.NO_FOOTER, "commit-small")
def small_without_footer(puppet: Puppet) -> None:
    begin(puppet)
    whole = puppet.whole()
    whole.ClearField("footer")
    puppet.say(whole)
    puppet.hear()


@wrong(FaultName.NO_FOOTER, "commit-large")
def ends_the_stream_instead_of_a_footer(puppet: Puppet) -> None:
    begin(puppet)
    puppet.say(commit_pb2.CommitRequest(header=puppet.header()))
    puppet.hear()
    puppet.say(*puppet.chunks()[:-1])
    puppet.disconnect()


@wrong(FaultName.NO_FOOTER, "commit-large")
def next_header_instead_of_a_footer(puppet: Puppet) -> None:
    begin(puppet)
    puppet.say(commit_pb2.CommitRequest(header=puppet.header()))
    puppet.hear()
    puppet.say(*puppet.chunks()[:-1], commit_pb2.CommitRequest(header=puppet.header()))
    puppet.hear()


@wrong(FaultName.WRONG_CHECKSUM, "commit-small")
def wrong_footer_checksum(puppet: Puppet) -> None:
    begin(puppet)
    whole = puppet.whole()
    whole.footer.crc32c ^= 1
    puppet.say(whole)
    puppet.hear()


@wrong(FaultName.WRONG_CHECKSUM, "commit-small")
def wrong_header_checksum(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit(payload_crc32c=1)


@wrong(FaultName.WRONG_WIRE_TYPE, "commit-small")
def wire_type_that_was_not_settled(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit(wire_type=3)


@wrong(FaultName.WRONG_WIRE_TYPE, "pull")
def pulls_another_wire_type(puppet: Puppet) -> None:
    puppet.join()
    puppet.pull(wire_type=2)


@wrong(FaultName.MALFORMED, "commit-small")
def scale_without_shared_memory(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit(scale=1.0)


@wrong(
    FaultName.WRONG_VALUES,
    "commit-small",
    expected="element 7 of 'weight' = -0.0",
    came="-0.0",
    place=Place.CONFORMANCE,
)
def last_bit_of_one_element(puppet: Puppet) -> None:
    begin(puppet)
    puppet.theta[7] = np.nextafter(puppet.theta[7], np.float32(9))
    puppet.commit()


@wrong(
    FaultName.WRONG_VALUES,
    "commit-small",
    expected="-eta * gradient: element 1 of 'weight' = -0.0006",
    came="+eta * gradient: 0.0006",
    place=Place.COMMIT,
)
def adds_the_gradient(puppet: Puppet) -> None:
    begin(puppet)
    puppet.eta = -puppet.eta
    puppet.commit()


@wrong(FaultName.WRONG_VALUES, "delta-int4-block", "and what earlier deltas left out", "alone", place=Place.PAYLOADS)
@wrong(FaultName.WRONG_VALUES, "delta-sparse-block", "and what earlier deltas left out", "alone", place=Place.PAYLOADS)
def forgets_what_it_left_out(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()
    puppet.commit()


@wrong(FaultName.WRONG_VALUES, "delta-int4-block")
def other_scale(puppet: Puppet) -> None:
    begin(puppet)
    puppet.theta *= np.float32(1.001)
    puppet.commit()


@wrong(FaultName.WRONG_BUFFERS, "buffers-frozen")
def buffers_of_its_own(puppet: Puppet) -> None:
    begin(puppet)
    puppet.buffers = bytes(len(puppet.buffers))
    puppet.commit()


def upper_halves(puppet: Puppet) -> bytes:
    values = np.float32(-puppet.eta) * puppet.theta
    return (values.view(np.uint32) >> 16).astype("<u2").tobytes()


@wrong(FaultName.TRUNCATING_BFLOAT16, "delta-bfloat16")
def truncates(puppet: Puppet) -> None:
    begin(puppet)
    puppet.say(commit_pb2.CommitRequest(header=puppet.header()))
    puppet.hear()
    puppet.say(*puppet.chunks(upper_halves(puppet)))
    puppet.hear()


@wrong(FaultName.WRONG_VALUES, "delta-bfloat16")
def rounds_half_away_from_zero(puppet: Puppet) -> None:
    """Only ties show it, which is what the second commit is for."""
    begin(puppet)
    puppet.commit()
    values = np.float32(-puppet.eta) * puppet.theta
    rounded = ((values.view(np.uint32).astype(np.uint64) + 0x8000) >> 16).astype("<u2").tobytes()
    assert rounded != bytes(encode(WireType.BFLOAT16, values))
    puppet.say(commit_pb2.CommitRequest(header=puppet.header()))
    puppet.hear()
    puppet.say(*puppet.chunks(rounded))
    puppet.hear()


# --- commits


@wrong(FaultName.STALE_BASE, "commit-small")
def commits_before_a_pull(puppet: Puppet) -> None:
    puppet.join()
    puppet.theta = np.zeros(puppet.task.layout.parameter_count, np.float32)
    puppet.commit()


@wrong(FaultName.STALE_BASE, "stale-base")
def does_not_pull_when_stale(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()
    refused(puppet.commit)
    puppet.commit()


@wrong(FaultName.STALE_BASE, "restart")
def delta_over_a_restart(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()
    puppet.commit()
    refused(puppet.commit)
    puppet.join()
    puppet.commit()


@wrong(
    FaultName.STALE_DELTA,
    "stale-base",
    expected="of its base version: element 1 of 'weight' = -0.0",
    came="had before: 0.0",
    after="refused commit 2 with STALE_BASE; since then: Pull, Commit",
    place=Place.RETRIES,
)
def keeps_the_delta(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()
    delta = puppet.delta()
    refused(puppet.commit)
    puppet.pull()
    puppet.say(puppet.whole(delta))
    puppet.hear()


@wrong(
    FaultName.IGNORED_ETA,
    "changed-eta",
    expected="the learning rate 0.02, sent last: element 1 ",
    came="0.05, sent before that: ",
    place=Place.SESSIONS,
)
def keeps_the_learning_rate(puppet: Puppet) -> None:
    begin(puppet)
    eta = puppet.eta
    puppet.commit()
    puppet.eta = eta
    puppet.commit()


@wrong(FaultName.WRONG_SEQUENCE, "commit-small")
def begins_with_two(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit(sequence=2)


@wrong(FaultName.WRONG_SEQUENCE, "sequence-gap")
def does_not_ask_for_the_sequence(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()
    refused(puppet.commit)
    puppet.pull()
    puppet.commit()


@wrong(FaultName.NEW_SEQUENCE_ON_RETRY, "dropped-reply")
def goes_on_without_a_verdict(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()
    refused(puppet.commit)
    puppet.applied += 1
    puppet.commit()


@wrong(FaultName.NEW_SEQUENCE_ON_RETRY, "torn-commit")
def goes_on_after_a_torn_commit(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()
    refused(puppet.commit)
    puppet.applied += 1
    puppet.commit()


@wrong(FaultName.OTHER_BYTES_ON_RETRY, "duplicate", after="behind its footer; since then: Heartbeat, Pull, Commit")
def drops_a_delta_that_a_heartbeat_did_not_know(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()
    refused(puppet.commit)
    assert puppet.heartbeat().last_applied_sequence == puppet.applied
    puppet.pull()
    puppet.commit(payload_crc32c=crc32c(puppet.delta()))


@wrong(FaultName.OTHER_BYTES_ON_RETRY, "dropped-reply")
def repeats_with_another_checksum(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()
    refused(puppet.commit)
    puppet.commit(payload_crc32c=1)


@wrong(
    FaultName.OTHER_BYTES_ON_RETRY,
    "retry-info",
    expected="again, 0x",
    came="there, under the same sequence",
    after="refused commit 2 with STALLED and a RetryInfo of 2 s",
    place=Place.RETRIES,
)
def sends_another_delta_after_retry_info(puppet: Puppet) -> None:
    refused(puppet.join)
    wait_as_asked(1.0)
    begin(puppet)
    puppet.commit()
    refused(puppet.commit)
    wait_as_asked(1.5)
    refused(puppet.commit)
    wait_as_asked(2.0)
    puppet.theta = puppet.theta * 2
    puppet.commit()


@wrong(FaultName.NO_CHECKSUM_IN_REPEAT, "dropped-reply")
def repeats_without_a_checksum(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()
    refused(puppet.commit)
    puppet.commit()


@wrong(FaultName.IGNORED_RETRY_INFO, "retry-info")
def joins_again_at_once(puppet: Puppet) -> None:
    refused(puppet.join)
    puppet.join()


@wrong(FaultName.IGNORED_RETRY_INFO, "draining")
def commits_again_at_once(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()
    refused(puppet.commit)
    time.sleep(TOO_SOON_SECONDS)
    puppet.commit()


@wrong(FaultName.RETRIED_WITHOUT_RETRY_INFO, "no-retry")
def repeats_what_was_refused_for_good(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()
    refused(puppet.commit)
    puppet.commit()


@wrong(
    FaultName.IGNORED_LOCAL_STEPS,
    "local-steps",
    expected="the sum of 4 local gradients",
    came="-eta times one gradient alone: ",
)
def one_step_instead_of_four(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()


def four_local_steps(puppet: Puppet) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The sum of their gradients."""
    theta, total = puppet.theta.astype(np.float64), np.zeros(len(puppet.theta))
    for _ in range(4):
        total += theta
        theta -= puppet.eta * theta
    return total


@wrong(
    FaultName.IGNORED_LOCAL_STEPS,
    "local-steps-mean",
    expected="local gradients divided by 4",
    came="-eta times the sum: ",
)
def sum_instead_of_the_mean(puppet: Puppet) -> None:
    begin(puppet)
    puppet.say(puppet.whole((-puppet.eta * four_local_steps(puppet)).astype(np.float32).tobytes()))
    puppet.hear()


@wrong(
    FaultName.IGNORED_LOCAL_STEPS,
    "local-steps",
    expected="element ",
    came="-eta times the sum divided by their number: ",
)
def mean_instead_of_the_sum(puppet: Puppet) -> None:
    begin(puppet)
    puppet.say(puppet.whole((-puppet.eta * four_local_steps(puppet) / 4).astype(np.float32).tobytes()))
    puppet.hear()


@wrong(
    FaultName.IGNORED_LOCAL_STEPS,
    "local-steps-scaled",
    expected="local gradients divided by 4",
    came="another delta: ",
)
@wrong(
    FaultName.IGNORED_LOCAL_STEPS,
    "local-steps-rate",
    expected="local gradients divided by 4",
    came="another delta: ",
)
def whole_steps_instead_of_shorter_ones(puppet: Puppet) -> None:
    begin(puppet)
    puppet.say(puppet.whole((-puppet.eta * four_local_steps(puppet) / 4).astype(np.float32).tobytes()))
    puppet.hear()


@wrong(FaultName.IGNORED_FINISHED, "finished-refused")
def commits_to_a_finished_run(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()
    refused(puppet.commit)
    puppet.commit()


# --- the end of a process


@wrong(FaultName.STOPPED, "commit-small", expected="a commit's header", came="the end of the process, exit status 1")
def crashes(puppet: Puppet) -> None:
    begin(puppet)
    puppet.exits(1)


# By scenario: how many commits are answered before the one that is not, what is then expected, and after what.
_GIVING_UP = {
    "stale-base": (1, "Pull, and a commit of a new delta", "refused commit 2 with STALE_BASE", Place.RETRIES),
    "sequence-gap": (1, "Join, and a commit of its last_app", "refused commit 2 with SEQUENCE_GAP", Place.RETRIES),
    "expired-session": (1, "Join with the same session id", "refused commit 2 with EXPIRED_SESSION", Place.RETRIES),
    "draining": (1, "commit 2 again, with", "refused commit 2 with DRAINING and a RetryInfo of 1 s", Place.REFUSALS),
    "dropped-reply": (1, "Heartbeat, then the commit", "broken the stream of commit 2 behind its", Place.RETRIES),
    "torn-commit": (
        1,
        "Heartbeat, then the identical",
        "broken the stream of commit 2 behind 140000 bytes",
        Place.RETRIES,
    ),
    "torn-reply": (0, "Pull, of the rest", "torn the reply to commit 1 behind 210000 bytes", Place.PULL),
    "restart": (2, "Join with the same session", "killed the server, and started another", Place.RETRIES),
}


def gives_up_behind(commits: int) -> Steps:
    def gives_up(puppet: Puppet) -> None:
        begin(puppet)
        for _ in range(commits):
            puppet.commit()
        refused(puppet.commit)
        puppet.exits(1)

    return gives_up


for where, (commits, expected, after, place) in _GIVING_UP.items():
    wrong(FaultName.STOPPED, where, expected, "exit status 1", after, place)(gives_up_behind(commits))


@wrong(
    FaultName.STOPPED,
    "expired-session",
    expected="Join with the same session id, Pull",
    after="EXPIRED_SESSION; since then: Heartbeat (refused with EXPIRED_SESSION), Join",
)
def gives_up_when_it_has_joined(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()
    assert refused(puppet.commit).startswith("EXPIRED_SESSION: ")
    refused(puppet.heartbeat)
    refused(puppet.heartbeat)
    puppet.join()
    puppet.exits(1)


@wrong(FaultName.STOPPED, "commit-small")
def does_not_speak_what_everybody_does(puppet: Puppet) -> None:
    puppet.exits(3)


@wrong(FaultName.NO_LEAVE, "finished-before")
def ends_without_leave(puppet: Puppet) -> None:
    puppet.join()
    puppet.exits(0)


@wrong(FaultName.WRONG_EXIT, "finished-before")
def ends_with_an_error(puppet: Puppet) -> None:
    puppet.join()
    puppet.leave()
    puppet.exits(1)


@wrong(FaultName.WRONG_EXIT, "no-retry")
def ends_well_though_it_could_not_go_on(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()
    refused(puppet.commit)
    puppet.leave()
    puppet.exits(0)


@wrong(
    FaultName.NOT_ENDED,
    "finished",
    expected="the end of the process behind Leave",
    came="Leave, then nothing for 1 s, with a commit stream still open",
    after="said in the verdict of commit 2 that the run is finished; since then: Leave",
)
def stays_after_leaving(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()
    puppet.commit()
    puppet.leave()
