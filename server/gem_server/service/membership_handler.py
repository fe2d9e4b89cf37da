"""Serves the calls Join, Heartbeat and Leave."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from gemps.framing import split_field
from gemps.limits import SAMPLES, SESSION_ID_BYTES
from gemps.v1 import session_pb2

from gem_core import Layout, WireType, features
from gem_core.shards import Shard
from gem_core.wire_types import BLOCKS, ENCODED
from gem_server import __version__
from gem_server.errors import Reason, RefusedError
from gem_server.flow.commit_order import CommitOrder
from gem_server.flow.reader import end_open_commit
from gem_server.rule_choice import Offer, RuleChoice, check_features
from gem_server.service import messages
from gem_server.service.auth_interceptor import address_of
from gem_server.service.call_context import CallContexts, CallSession, Context
from gem_server.service.layouts import Layouts
from gem_server.service.run_settings import RunSettingsMessages
from gem_server.state.central_variable import CentralVariable
from gem_server.state.places import Origin, network_of
from gem_server.state.run import Run
from gem_server.state.sessions import JoinInfo, Session, Sessions
from gem_server.telemetry.first_batches import FirstBatches

_LAYOUT_FIELD = session_pb2.JoinRequest.LAYOUT_FIELD_NUMBER
_RECIPE_FIELD = session_pb2.JoinRequest.RECIPE_FIELD_NUMBER


@dataclass(slots=True)
class Ports:
    """This server's ports. 0 means that it does not listen there."""

    ordinary: int = 0
    lane: int = 0


class MembershipHandler:
    """Serves Join, Heartbeat and Leave."""

    def __init__(
        self,
        contexts: CallContexts,
        sessions: Sessions,
        run: Run,
        central: CentralVariable,
        choice: RuleChoice,
        run_settings: RunSettingsMessages,
        chunk_bytes: int,
        shared_memory_socket: str,
        ports: Ports,
        clock: Callable[[], float],
        layouts: Layouts,
        shard: Shard,
        ordering: CommitOrder,
        addresses: Callable[[], list[str]],
        first_batches: FirstBatches,
    ) -> None:
        self._contexts = contexts
        self._sessions = sessions
        self._run = run
        self._central = central
        self._choice = choice
        self._run_settings = run_settings
        self._chunk_bytes = chunk_bytes
        self._shared_memory_socket = shared_memory_socket
        self._ports = ports
        self._clock = clock
        self._layouts = layouts
        self._shard = shard
        self._ordering = ordering
        self._addresses = addresses
        self._first_batches = first_batches

    async def join(self, raw: bytes, context: Context) -> bytes:
        """Create a session, or return its state."""
        return await self._contexts.unary(context, lambda _: self._join(raw, context))

    async def heartbeat(self, raw: bytes, context: Context) -> bytes:
        """Keep a session alive."""
        return await self._contexts.unary(context, lambda call_session: self._heartbeat(raw, call_session))

    async def leave(self, raw: bytes, context: Context) -> bytes:
        """End a session."""
        return await self._contexts.unary(context, lambda call_session: self._leave(raw, call_session))

    async def _join(self, raw: bytes, context: Context) -> session_pb2.JoinResponse:
        address = address_of(context)
        origin = Origin(network_of(address.rpartition(":")[0]), self._contexts.token_digest(context))
        rest, layout = split_field(raw, _LAYOUT_FIELD)
        rest, recipe = split_field(rest, _RECIPE_FIELD)
        request = messages.parse(session_pb2.JoinRequest, rest)
        _check_session_id(request)
        _check_epoch(request)
        if (ordered := await self._ordering.wait_joined(request.session_id)) is not None:
            return await self._begin(ordered, request.features)
        asked = _join_info(request, await self._layouts.decode(layout or memoryview(b"")))
        self._contexts.gate.check_not_draining()
        self._contexts.gate.check_shards()
        asked = replace(asked, origin=origin)
        offer = _offer(request, asked, recipe)
        if not self._shard.is_whole and features.SHARDS not in offer.features:
            check_features({features.SHARDS: "--shard"})
        decision = self._choice.decision
        try:
            self._run.check_named(messages.text(request.run, "run"))
            self._choice.settle(offer, is_first=self._is_first(asked.worker_name))
            session = self._sessions.join(asked, self._clock())
        except RefusedError as refusal:
            self._choice.return_to(decision)  # a live session of this worker's name goes on by it
            if refusal.retry_after is None:  # permanent
                name = asked.worker_name
                self._contexts.peer_log.refuse(name, f"worker {name} may not join from {address}: {refusal}")
            raise
        worker = session.worker
        if session.joined_at == session.last_call:
            ranks = f"rank {worker.rank}, rank {worker.host_rank} on its machine"
            self._contexts.peer_log.log(
                "joined",
                worker.name,
                f"worker {worker.name} joined from {address}, {ranks}",
                worker=worker.name,
                address=address,
                rank=worker.rank,
                host_rank=worker.host_rank,
            )
        session.eta = self._run.next_eta
        return await self._begin(session, request.features)

    async def _begin(self, session: Session, announced: Sequence[str]) -> session_pb2.JoinResponse:
        """End the session's open Commit, wait until a complete commit of it is applied, and create the answer."""
        session.takes_early_proceed = features.EARLY_PROCEED in announced
        end_open_commit(session)
        if session.queued_commit is not None:
            await asyncio.wait([session.queued_commit.when_applied()])
            session.check_alive()
        return self._reply(session, announced)

    def _is_first(self, worker_name: str) -> bool:
        """Whether there are no parameters and no other workers. A session of the worker's own name does not count."""
        alone = all(worker.name == worker_name for worker in self._sessions.live_workers())
        return self._central.layout is None and alone

    def _reply(self, session: Session, announced: Sequence[str]) -> session_pb2.JoinResponse:
        worker, join_info = session.worker, session.join_info
        used = {*self._choice.needed_features, features.EARLY_PROCEED}
        if not self._shard.is_whole:
            used.add(features.SHARDS)
        if join_info.takes_differences:
            used.add(features.DIFFERENCES)
        return session_pb2.JoinResponse(
            incarnation=self._central.incarnation,
            settings=self._run_settings.for_workers,
            features=[name for name in announced if name in used],
            run_state=messages.RUN_STATES[self._run.state_for(worker)],
            rank=worker.rank,
            host_rank=worker.host_rank,
            delta_wire_type=int(join_info.delta_wire_type),  # type: ignore[arg-type]
            parameter_wire_type=int(join_info.parameter_wire_type),  # type: ignore[arg-type]
            chunk_bytes=self._chunk_bytes,
            last_applied_sequence=session.entry.last_applied,
            has_parameters=self._central.layout is not None,
            layout_digest=join_info.layout.digest,
            next_eta=session.eta,
            progress=self._run.progress,
            session_timeout_seconds=self._sessions.timeout,
            shared_memory_socket=self._shared_memory_socket,
            server_version=__version__,
            lane_port=self._ports.lane,
            port=self._ports.ordinary,
            shards=self._addresses(),
            changed_frozen=join_info.changed_frozen,
            run_name=self._run.name,
            run_id=self._run.identity,
            commits=worker.commits,
        )

    async def _heartbeat(self, raw: bytes, call_session: CallSession) -> session_pb2.HeartbeatResponse:
        request = messages.parse(session_pb2.HeartbeatRequest, raw)
        session = call_session.attend(request.session_id)
        if request.batches:
            self._first_batches.reported(session.worker.name, tuple(request.batches))
        return session_pb2.HeartbeatResponse(
            incarnation=self._central.incarnation,
            run_state=messages.RUN_STATES[self._run.state_for(session.worker)],
            last_applied_sequence=session.entry.last_applied,
            next_eta=self._run.next_eta,
        )

    async def _leave(self, raw: bytes, call_session: CallSession) -> session_pb2.LeaveResponse:
        if self._shard.is_secondary:
            raise RefusedError(Reason.NOT_OFFERED, f"this is shard {self._shard}: leave at the primary")
        request = messages.parse(session_pb2.LeaveRequest, raw)
        reason = messages.text(request.reason, "reason")
        session = call_session.attend(request.session_id)
        self._sessions.leave(session, reason)
        name, told = session.worker.name, reason or "no reason given"
        self._contexts.peer_log.log("left", name, f"worker {name} left: {told}", worker=name, reason=told)
        return session_pb2.LeaveResponse(
            run_state=messages.RUN_STATES[self._run.state_for(session.worker)],
            last_applied_sequence=session.entry.last_applied,
        )


def _check_session_id(request: session_pb2.JoinRequest) -> None:
    if len(request.session_id) != SESSION_ID_BYTES:
        raise RefusedError(
            Reason.MALFORMED,
            f"session_id has {len(request.session_id)} bytes: make {SESSION_ID_BYTES} random ones for each worker",
        )


def _check_epoch(request: session_pb2.JoinRequest) -> None:
    """Refuse a number of steps so large that the run's expected length, and so a schedule of eta, has no meaning."""
    if request.steps_per_epoch > SAMPLES:
        raise RefusedError(Reason.MALFORMED, f"steps_per_epoch is {request.steps_per_epoch}: send at most {SAMPLES}")


def _join_info(request: session_pb2.JoinRequest, layout: Layout) -> JoinInfo:
    return JoinInfo(
        request.session_id,
        messages.text(request.worker_name, "worker_name", required=True),
        messages.text(request.host_id, "host_id"),
        layout,
        _choose(request.delta_wire_types),
        _choose(request.parameter_wire_types, takes_differences=features.DIFFERENCES in request.features),
        messages.text(request.agent, "agent"),
        messages.text(request.device, "device"),
        request.steps_per_epoch,
        messages.text(request.host_name, "host_name"),
        messages.text(request.engine, "engine"),
    )


def _offer(request: session_pb2.JoinRequest, asked: JoinInfo, raw_recipe: memoryview | None) -> Offer:
    """Return what a worker's Join says about its commits. Raises MALFORMED, FramingError or RecipeError."""
    recipe = messages.parse_recipe(raw_recipe) if raw_recipe is not None else None
    if recipe is not None:
        recipe.check_parameters(len(asked.layout.whole.parameters))
    return Offer(recipe, frozenset(request.features))


def _choose(offered: Iterable[int], *, takes_differences: bool = True) -> WireType:
    wanted = list(offered) or [WireType.FLOAT32]
    for number in wanted:
        if number in ENCODED and (takes_differences or number not in BLOCKS):
            return WireType(number)
    raise RefusedError(
        Reason.WIRE_TYPE,
        f"none of the wire types {wanted} is offered here: add FLOAT32 (1), which every server speaks",
    )
