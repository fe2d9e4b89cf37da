"""Workers that do what the contract allows, though others do otherwise: the scenario, and their steps."""

from collections.abc import Callable

import numpy as np
from gemps.v1 import commit_pb2, observer_pb2_grpc, status_pb2

from gem_core.checksum import crc32c
from tests.conformance.puppet import Puppet, Steps, begin, refused, until_finished

Right = tuple[str, Steps]
RIGHT: list[Right] = []


def right(scenario: str) -> Callable[[Steps], Steps]:
    """Note that the contract allows these steps."""

    def note(steps: Steps) -> Steps:
        RIGHT.append((scenario, steps))
        return steps

    return note


@right("commit-small")
def plainest_worker(puppet: Puppet) -> None:
    begin(puppet)
    until_finished(puppet)


@right("commit-large")
def waits_for_proceed(puppet: Puppet) -> None:
    begin(puppet)
    until_finished(puppet)


@right("commit-small")
def header_alone_for_a_small_payload(puppet: Puppet) -> None:
    begin(puppet)
    while True:
        puppet.say(commit_pb2.CommitRequest(header=puppet.header()))
        assert puppet.hear().HasField("proceed")
        puppet.say(*puppet.chunks(chunk_bytes=100))
        if puppet.hear_reply().run_state == 3:
            return puppet.leave()


@right("commit-small")
def a_stream_for_each_commit(puppet: Puppet) -> None:
    begin(puppet)
    while puppet.commit().run_state != 3:
        puppet.disconnect()
    puppet.leave()


@right("commit-small")
def checksum_in_the_first_attempt(puppet: Puppet) -> None:
    begin(puppet)
    while puppet.commit(payload_crc32c=crc32c(puppet.delta())).run_state != 3:
        pass
    puppet.leave()


@right("commit-small")
def other_calls_in_between(puppet: Puppet) -> None:
    puppet.join()
    puppet.join()
    observer_pb2_grpc.ObserverServiceStub(puppet.channel).GetStatus(status_pb2.GetStatusRequest())
    puppet.pull()
    puppet.pull()
    puppet.heartbeat()
    puppet.commit()
    puppet.pull(known_version=puppet.version)
    until_finished(puppet)


@right("commit-small")
def zero_without_its_sign(puppet: Puppet) -> None:
    begin(puppet)
    assert (puppet.theta == 0).any()
    data = (np.float32(-puppet.eta) * puppet.theta + np.float32(0)).tobytes()
    assert data != puppet.delta()
    puppet.say(puppet.whole(data))
    puppet.hear_reply()
    until_finished(puppet)


@right("pull-resumed")
def starts_a_torn_pull_over(puppet: Puppet) -> None:
    puppet.join()
    refused(puppet.pull)
    refused(puppet.pull)
    puppet.pull()
    until_finished(puppet)


@right("dropped-reply")
def asks_with_the_header_alone(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()
    crc = crc32c(puppet.delta())
    refused(puppet.commit)
    assert puppet.heartbeat().last_applied_sequence == puppet.applied + 1
    puppet.say(commit_pb2.CommitRequest(header=puppet.header(payload_crc32c=crc)))
    assert puppet.hear_reply().duplicate
    until_finished(puppet)


@right("dropped-reply")
def sends_everything_again_without_asking(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()
    refused(puppet.commit)
    assert puppet.commit(payload_crc32c=crc32c(puppet.delta())).duplicate
    until_finished(puppet)


@right("dropped-reply")
def pulls_and_goes_on(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()
    refused(puppet.commit)
    puppet.applied = puppet.heartbeat().last_applied_sequence
    puppet.pull()
    until_finished(puppet)


@right("duplicate")
def pulls_instead_of_a_repeat(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()
    refused(puppet.commit)
    puppet.pull()
    puppet.applied = puppet.heartbeat().last_applied_sequence
    until_finished(puppet)


@right("torn-reply")
def repeats_instead_of_a_resumed_pull(puppet: Puppet) -> None:
    begin(puppet)
    header = puppet.header(payload_crc32c=crc32c(puppet.delta()))
    refused(puppet.commit)
    puppet.say(commit_pb2.CommitRequest(header=header))
    assert puppet.hear_reply().duplicate
    until_finished(puppet)


@right("sequence-gap")
def joins_and_keeps_its_parameters(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()
    refused(puppet.commit)
    puppet.join()
    until_finished(puppet)


@right("expired-session")
def finds_out_by_refusals_alone(puppet: Puppet) -> None:
    begin(puppet)
    puppet.commit()
    refused(puppet.commit)
    refused(puppet.heartbeat)
    refused(puppet.pull)
    puppet.join()
    puppet.pull()
    until_finished(puppet)


@right("finished-before")
def finds_out_by_a_refused_commit(puppet: Puppet) -> None:
    begin(puppet)
    refused(puppet.commit)
    puppet.leave()


@right("empty-payload")
def footers_without_chunks(puppet: Puppet) -> None:
    puppet.join()
    puppet.initialize(b"")
    puppet.pull()
    while True:
        whole = puppet.whole()
        whole.ClearField("chunk")
        puppet.say(whole)
        if puppet.hear_reply().run_state == 3:
            return puppet.leave()


@right("local-steps-scaled")
@right("local-steps-rate")
@right("local-steps-mean")
@right("local-steps")
def takes_four_local_steps(puppet: Puppet) -> None:
    settings = puppet.join().settings
    n = 4 if settings.normalise_local_steps else 1
    rate = 0.0 if settings.scale_local_steps else settings.local_rate
    puppet.pull()
    while True:
        theta, total = puppet.theta.astype(np.float64), np.zeros(len(puppet.theta))
        for _ in range(4):
            total += theta
            theta -= rate * puppet.eta * theta
        puppet.say(puppet.whole((-puppet.eta * total / n).astype(np.float32).tobytes()))
        if puppet.hear_reply().run_state == 3:
            return puppet.leave()
