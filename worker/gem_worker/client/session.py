"""A worker's membership.

The watchdog's thread calls only `probe` and `beat`. Any thread may call `report_batches`.
"""

import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import grpc
from gemps.limits import MESSAGE_BYTES
from gemps.v1 import session_pb2

from gem_core import features as features_of_contract
from gem_core.layout import Layout
from gem_core.payload import MAX_CHUNK_BYTES, PayloadFormat, selected_format
from gem_core.recipe import Recipe
from gem_core.selection import Selection
from gem_core.shards import Shard
from gem_core.wire_types import BLOCKS, WireType
from gem_worker.client.channel import Calls
from gem_worker.client.differences import Differences
from gem_worker.client.engine import engine
from gem_worker.client.errors import (
    MisuseError,
    ServerMisbehavedError,
    ServerRefusedError,
    SessionLostError,
    SupersededError,
    TornCallError,
)
from gem_worker.client.events import ClientEvent, EventKind, EventSink
from gem_worker.client.host import agent
from gem_worker.client.messages import (
    Membership,
    RunState,
    Version,
    layout_to_wire,
    recipe_of,
    recipe_to_wire,
    to_wire_types,
)
from gem_worker.client.retry import Patience
from gem_worker.client.rpc_status import failure
from gem_worker.client.settings import ClientSettings
from gem_worker.client.shared_memory import SMALLEST_SHARED_BYTES, NotSharedError, SharedMemory
from gem_worker.client.watchdog import PROBE_TIMEOUT

_Response = TypeVar("_Response")

# The features of the client itself. Its caller adds what it does with gradients.
OWN_FEATURES = (features_of_contract.DIFFERENCES, features_of_contract.SHARDS, features_of_contract.EARLY_PROCEED)

# Time-out in seconds of a report that is not essential for training.
REPORT_TIMEOUT = 2.0

# After a refusal with one of these reasons the client joins again with the same session id.
LOST_SESSION = frozenset({"UNKNOWN_SESSION", "EXPIRED_SESSION", "UNKNOWN_INCARNATION"})

_JOIN_FIRST = "join() first: this client is not a member of a run yet"


class Formats(NamedTuple):
    """The payload formats of deltas and of whole parameters."""

    delta: PayloadFormat
    parameters: PayloadFormat

    def delta_with(self, buffers: Selection | None) -> PayloadFormat:
        """Return the format of deltas with these BUFFERs; None: all."""
        delta = self.delta
        return delta if buffers is None else selected_format(delta.layout, delta.wire_type, buffers)


class ClientSession:
    """A session.

    Attributes:
        session_id: 16 random bytes, which are a secret.
        version: the version of the session's snapshot, which is the base of the next commit. None if it is unknown.
        differences: adds up replies that are differences. None if they are whole.
        last_applied: the newest sequence that is known to be applied.
        offered: the wire types of deltas and of parameters that Join offers, best first.
        unsettled: whether `last_applied` may be outdated, because a commit was interrupted.
        is_server_here: whether a server on this machine answered the newest Join, so that no network is in between.
    """

    def __init__(
        self,
        calls: Calls,
        settings: ClientSettings,
        patience: Patience,
        on_event: EventSink,
        *,
        layout: Layout,
        worker_name: str,
        host_id: str,
        device: str,
        steps_per_epoch: int,
        delta_wire_types: Sequence[WireType],
        parameter_wire_types: Sequence[WireType],
        features: Sequence[str],
        recipe: Recipe | None = None,
        run: str = "",
        session_id: bytes | None = None,
        shard: Shard | None = None,
    ) -> None:
        """Create a session. For a shard other than the primary, give `shard` and the primary's `session_id`."""
        self._calls = calls
        self._settings = settings
        self._on_event = on_event
        self.patience = patience
        self.session_id = session_id if session_id is not None else os.urandom(16)
        self.shard = shard if shard is not None else Shard()
        self.offered = (tuple(delta_wire_types), tuple(parameter_wire_types))
        of_recipe = () if recipe is None else (features_of_contract.RECIPE,)
        self._request = session_pb2.JoinRequest(
            session_id=self.session_id,
            worker_name=worker_name,
            host_id=host_id,
            host_name=socket.gethostname(),
            engine=engine(),
            delta_wire_types=to_wire_types(delta_wire_types),
            parameter_wire_types=to_wire_types(parameter_wire_types),
            agent=agent(),
            device=device,
            steps_per_epoch=steps_per_epoch,
            features=dict.fromkeys((*OWN_FEATURES, *of_recipe, *features)),
            recipe=recipe_to_wire(recipe) if recipe is not None else None,
            run=run,
        )
        self.layout = self.whole_layout = layout
        self.replace_layout(layout)
        self._membership: Membership | None = None
        self._keeps_wire_types = True
        self._is_member = False
        self.version: Version | None = None
        self.last_applied = 0
        self.next_eta = 0.0
        self.run_state = RunState.WAITING
        self.unsettled = False
        self._formats: Formats | None = None
        self.differences: Differences | None = None
        self._shared: SharedMemory | None = None
        self._why_not_shared = ""
        self.is_server_here = False

    def replace_layout(self, layout: Layout) -> None:
        """Use `layout` from the next Join on. Raises MisuseError if it is too large."""
        self.layout = self.whole_layout = layout
        if self.shard.is_secondary:
            return  # it has the layout from the primary
        self._request.layout.CopyFrom(layout_to_wire(layout))
        if self._request.ByteSize() > MESSAGE_BYTES:
            raise MisuseError(
                f"the layout takes {self._request.ByteSize()} bytes, more than a message may have ({MESSAGE_BYTES}): "
                f"shorten the tensors' names or join small tensors ({len(layout.tensors)} now)"
            )

    def stale(self, why: str) -> None:
        """Note that the server refused the base version, so that only a pull may follow. Raises as `rejoin`."""
        if self.shard.is_secondary:
            raise SessionLostError(why)
        self.lost()

    def lost(self) -> None:
        """Forget the version of the snapshot, so that only a pull may follow."""
        self.version = None

    @property
    def membership(self) -> Membership:
        """What the server answered to the newest Join. Raises MisuseError before join()."""
        if self._membership is None:
            raise MisuseError(_JOIN_FIRST)
        return self._membership

    @property
    def formats(self) -> Formats:
        """Payload formats. Raises MisuseError before join()."""
        if self._formats is None:
            raise MisuseError(_JOIN_FIRST)
        return self._formats

    def join(self) -> Membership:
        """Join, or rejoin under the same id. Raises ServerUnavailableError, ServerRefusedError, SupersededError."""
        membership = self._join()
        self.patience.succeeded()
        return membership

    def change_wire_types(self, deltas: WireType, parameters: WireType) -> Membership:
        """Join the live session again, offering these wire types before those offered until now.

        Version, moment and sequence stay, unless the session was lost meanwhile: `version` is None then if the server
        was restarted. Raises as `join`, and ServerRefusedError at once (MEMORY, nothing has changed).
        """
        before = self.offered
        wanted = ((deltas, *before[0]), (parameters, *before[1]))
        self.offer(*(tuple(dict.fromkeys(types)) for types in wanted))
        self._keeps_wire_types = False
        try:
            membership = self._join(waits_for_memory=False)
        except ServerRefusedError:
            self.offer(*before)
            raise
        finally:
            self._keeps_wire_types = True
        self.patience.succeeded()
        return membership

    def offer(self, deltas: tuple[WireType, ...], parameters: tuple[WireType, ...]) -> None:
        """Offer these wire types, best first, from the next Join on."""
        self.offered = deltas, parameters
        self._request.ClearField("delta_wire_types")
        self._request.ClearField("parameter_wire_types")
        offered = session_pb2.JoinRequest(
            delta_wire_types=to_wire_types(deltas), parameter_wire_types=to_wire_types(parameters)
        )
        self._request.MergeFrom(offered)

    def _join(self, *, waits_for_memory: bool = True) -> Membership:
        response = self._persist(
            lambda: self._calls.join(self._request, timeout=self._settings.progress_timeout),
            bounded=True,
            raises=() if waits_for_memory else ("MEMORY",),
        )
        membership = Membership.from_wire(response)
        self._check(membership)
        if self._membership is None or membership.incarnation != self._membership.incarnation:
            self.lost()
        self._membership = membership
        self._is_member = True
        if not self.shard.is_secondary:
            self.shard = Shard(0, 1 + len(membership.shards))
        self.layout = self._layout_of_shard()
        self._formats = Formats(
            PayloadFormat(self.layout, membership.delta_wire_type),
            PayloadFormat(self.layout, membership.parameter_wire_type.of_whole),
        )
        self._prepare_differences(membership.parameter_wire_type)
        self.last_applied = response.last_applied_sequence
        self.next_eta = response.next_eta
        self.run_state = membership.run_state
        self.unsettled = False
        self.is_server_here = self._calls.is_same_machine(response)
        self._calls.use_lane(self.session_id, response)
        self._share(response.shared_memory_socket)
        return membership

    def _prepare_differences(self, wire_type: WireType) -> None:
        if wire_type not in BLOCKS:
            self.differences = None
            return
        payload = None if self.differences is None else self.differences.payload
        if payload is None or payload.layout is not self.layout or payload.wire_type is not wire_type:
            self.differences = Differences(PayloadFormat(self.layout, wire_type))

    def _layout_of_shard(self) -> Layout:
        layout = self.layout
        if layout is self.whole_layout or layout.part is None or layout.part.count != self.shard.count:
            return self.shard.layout_of(self.whole_layout)
        return layout

    def open_shared(self) -> SharedMemory | None:
        """The shared memory, if still open."""
        if self._shared is not None and not self._shared.is_open():
            self.stop_sharing("the server ended the connection for shared memory")
        return self._shared

    def stop_sharing(self, why: str) -> None:
        """Send commits as chunks until the next join."""
        if self._shared is not None:
            self.close_shared()
            self._log_not_shared(why)

    def close_shared(self) -> None:
        """Release the shared memory."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.close()

    def _share(self, path: str) -> None:
        formats, membership = self.formats, self.membership
        if self._shared is not None and self._shared.is_open():
            return
        self.close_shared()
        wire_types = membership.delta_wire_type, membership.parameter_wire_type
        plain = all(one is WireType.FLOAT32 for one in wire_types)
        large = formats.delta.byte_count >= SMALLEST_SHARED_BYTES
        if not (path and self._settings.shared_memory and large):
            return
        if not plain:
            if os.path.exists(path):  # else not on this machine
                delta, parameters = (one.name.lower().removesuffix("_block") for one in wire_types)
                self._log_not_shared(
                    f"shared memory holds float32 only, and here deltas are {delta} and parameters {parameters}: "
                    "choose float32 for both (the default), which is faster on one machine"
                )
            return
        try:
            self._shared = SharedMemory(path, self.session_id, self.shard.index, formats.delta)
        except NotSharedError as error:
            if error.is_odd:
                self._log_not_shared(str(error))

    def _log_not_shared(self, why: str) -> None:
        if why != self._why_not_shared:
            self._why_not_shared = why
            self._on_event(ClientEvent(EventKind.NOT_SHARED, f"deltas and parameters go over the network: {why}"))

    def rejoin(self, why: str) -> None:
        """Join again after the server lost the session. Raises SessionLostError if the primary must be joined first."""
        if self.shard.is_secondary:
            raise SessionLostError(why)
        self._on_event(ClientEvent(EventKind.JOINED_AGAIN, f"joining again under the same session: {why}"))
        self.lost()
        self.patience.failed(why, report=False)
        self._join()

    def heartbeat(self) -> None:
        """Update `last_applied` after a broken call, rejoining if necessary. Raises as `join`."""
        request = session_pb2.HeartbeatRequest(session_id=self.session_id)
        try:
            response = self._persist(
                lambda: self._calls.heartbeat(request, timeout=self._settings.progress_timeout), bounded=False
            )
        except ServerRefusedError as refusal:
            if refusal.reason not in LOST_SESSION:
                raise
            self.rejoin(str(refusal))
            return
        if response.incarnation != self.membership.incarnation:
            self.rejoin("the server was restarted")
            return
        self.last_applied = response.last_applied_sequence
        self.run_state = RunState.from_wire(response.run_state)
        self.unsettled = False

    def leave(self, reason: str, timeout: float | None) -> None:
        """Send Leave once. Network errors are ignored."""
        if not self._is_member:
            return
        self._is_member = False
        request = session_pb2.LeaveRequest(
            session_id=self.session_id, reason=reason.encode()[:256].decode(errors="ignore")
        )
        try:
            longest = self._settings.leave_timeout
            response = self._calls.leave(request, timeout=longest if timeout is None else min(timeout, longest))
        except grpc.RpcError as error:
            failed = failure(error)
            if not isinstance(failed, SupersededError):  # else there is nothing to leave
                text = f"left without the server hearing of it ({failed})"
                self._on_event(ClientEvent(EventKind.NOT_LEFT, text))
        else:
            self.run_state = RunState.from_wire(response.run_state)

    def end_membership(self) -> None:
        """Stop heartbeats."""
        self._is_member = False

    def probe(self) -> int | str:
        """Ask for the last applied sequence by a heartbeat. Returns it, or a text that says why there is no answer."""
        request = session_pb2.HeartbeatRequest(session_id=self.session_id)
        try:
            response = self._calls.heartbeat(request, timeout=PROBE_TIMEOUT)
        except grpc.RpcError as error:
            return f"no heartbeat either ({failure(error)})"
        except ValueError:  # raised after close()
            return "the client was closed"
        if self._membership is not None and response.incarnation != self._membership.incarnation:
            return "the server was restarted"
        return response.last_applied_sequence

    def report_batches(self, batches: Sequence[int]) -> None:
        """Tell the server the fingerprints of the first batches (HeartbeatRequest.batches); ignores any failure."""
        request = session_pb2.HeartbeatRequest(session_id=self.session_id, batches=batches)
        with contextlib.suppress(grpc.RpcError, ValueError):
            self._calls.heartbeat(request, timeout=REPORT_TIMEOUT)

    def beat(self) -> None:
        """Send a heartbeat if joined."""
        if self._is_member:
            self.probe()

    def _persist(self, call: Callable[[], _Response], *, bounded: bool, raises: Sequence[str] = ()) -> _Response:
        """Repeat a call until it is answered, or refused for good.

        Refusals with the reasons `raises` are raised at once. The patience is not reset by an answer, so that attempts
        to recover come to an end.
        """
        while True:
            try:
                return call()
            except grpc.RpcError as error:
                reason = failure(error)
            # This is outside the except block, so that an error raised here is not shown together with gRPC's error,
            # which has the same text.
            if isinstance(reason, TornCallError):
                self.patience.torn(reason)
            elif reason.reason in raises:
                raise reason
            else:
                self.patience.wait_as_asked(reason, bounded=bounded)

    def _check(self, membership: Membership) -> None:
        chosen = (membership.delta_wire_type, membership.parameter_wire_type)
        for wire_type, offered in zip(chosen, self.offered, strict=True):
            if wire_type not in offered:
                raise ServerMisbehavedError(f"the server chose {wire_type.name}, which this worker did not offer")
        smallest = max(wire_type.unit_bytes for wire_type in chosen)
        if not smallest <= membership.chunk_bytes <= MAX_CHUNK_BYTES:
            raise ServerMisbehavedError(
                f"the server wants chunks of {membership.chunk_bytes} bytes; "
                f"{smallest} to {MAX_CHUNK_BYTES} are possible"
            )
        run = membership.run_settings
        if unknown := membership.features.difference(self._request.features):
            names = ", ".join(sorted(unknown))
            raise ServerMisbehavedError(f"the server uses features that this worker did not announce: {names}")
        offered_recipe = recipe_of(self._request.recipe) if self._request.HasField("recipe") else None
        if run.recipe is not None and run.recipe != offered_recipe:
            raise ServerMisbehavedError("the server chose another recipe than this worker offered: update it")
        before = self._membership
        if before is not None and self._keeps_wire_types and chosen != before.wire_types:
            raise ServerMisbehavedError("the restarted server chose other wire types than before: restart this worker")
        if before is not None and run.gradient_handling != before.run_settings.gradient_handling:
            raise ServerMisbehavedError(
                "the restarted server chose another direction, clip_norm or recipe, or other local steps: restart this "
                "worker"
            )
