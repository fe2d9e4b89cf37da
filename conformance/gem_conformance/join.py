"""Judges a Join and builds its response."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gemps.limits import SESSION_ID_BYTES, TEXT_BYTES
from gemps.v1 import run_pb2, session_pb2, transfer_pb2

from gem_conformance.central import Central, Session
from gem_conformance.faults import FaultError, FaultName, Place
from gem_conformance.layouts import layout_from
from gem_conformance.task import Task, wire_name
from gem_core import features
from gem_core.errors import LayoutError
from gem_core.wire_types import BLOCKS, WireType

__all__ = ["join_response", "joined_session"]


def joined_session(
    request: session_pb2.JoinRequest, task: Task, worker_name: str, before: Session | None, eta: float
) -> Session:
    """Judge a Join; return its session. Raises FaultError."""
    _judge(request, task, worker_name)
    delta_type = _choose(request.delta_wire_types, task.delta_wire_types, "delta_wire_types")
    parameter_type = _choose(request.parameter_wire_types, task.parameter_wire_types, "parameter_wire_types")
    if before is None:
        return Session(request.session_id, delta_type, parameter_type, told_eta=eta, eta_before=eta)
    if request.session_id != before.session_id:
        raise FaultError(
            FaultName.WRONG_SESSION,
            "Join again with the session id that the worker made at its start",
            "another session id",
            Place.SESSIONS,
        )
    return before


def join_response(
    request: session_pb2.JoinRequest,
    central: Central,
    session: Session,
    chunk_bytes: int,
    next_eta: float,
    shards: Sequence[str],
) -> session_pb2.JoinResponse:
    """Build the response."""
    used = {
        features.LOCAL_STEPS: central.local_steps > 1,
        features.SCALED_LOCAL_STEPS: central.scale_local_steps,
        features.DIFFERENCES: session.parameter_wire_type in BLOCKS,
        features.SHARDS: bool(shards),
    }
    return session_pb2.JoinResponse(
        incarnation=central.incarnation,
        settings=run_pb2.RunSettings(
            rule="downpour",
            eta=central.eta,
            eta_schedule=run_pb2.ETA_SCHEDULE_CONSTANT,
            order=run_pb2.SERVING_ORDER_FIFO,
            min_workers=1,
            seed=1,
            local_steps=central.local_steps,
            normalise_local_steps=central.normalise_local_steps,
            local_rate=central.local_rate,
            scale_local_steps=central.scale_local_steps,
        ),
        features=[name for name in request.features if used.get(name)],
        run_state=central.run_state,
        delta_wire_type=int(session.delta_wire_type),  # type: ignore[arg-type]
        parameter_wire_type=int(session.parameter_wire_type),  # type: ignore[arg-type]
        chunk_bytes=chunk_bytes,
        last_applied_sequence=session.last_applied,
        has_parameters=central.theta is not None,
        layout_digest=central.task.layout.digest,
        next_eta=next_eta,
        session_timeout_seconds=120.0,
        server_version="gemps conformance",
        shards=shards,
    )


def _judge(request: session_pb2.JoinRequest, task: Task, worker_name: str) -> None:
    if len(request.session_id) != SESSION_ID_BYTES:
        raise FaultError(
            FaultName.WRONG_JOIN,
            f"a session id of {SESSION_ID_BYTES} bytes",
            f"{len(request.session_id)} bytes",
            Place.SESSIONS,
        )
    if request.worker_name != worker_name:
        raise FaultError(
            FaultName.WRONG_JOIN,
            f"the worker name of GEMPS_WORKER_NAME, {worker_name!r}",
            f"{request.worker_name!r}",
            Place.CONFORMANCE,
        )
    for name in ("host_id", "agent", "device"):
        if len(getattr(request, name).encode()) > TEXT_BYTES:
            raise FaultError(FaultName.WRONG_JOIN, f"at most {TEXT_BYTES} bytes of {name}", "more", Place.SESSIONS)
    try:
        layout = layout_from(request.layout)
    except LayoutError as error:
        raise FaultError(FaultName.WRONG_LAYOUT, "a legal layout", str(error), Place.LAYOUTS) from None
    difference = task.layout.first_difference(layout)
    if difference is not None:
        raise FaultError(FaultName.WRONG_LAYOUT, "the task's layout", f"another ({difference})", Place.LAYOUTS)


def _choose(offered: Iterable[int], wanted: tuple[WireType, ...], field: str) -> WireType:
    numbers = [int(one) for one in offered] or [int(WireType.FLOAT32)]
    for one in wanted:
        if int(one) in numbers:
            return one
    known = {number: name for name, number in transfer_pb2.WireType.items()}
    raise FaultError(
        FaultName.WRONG_OFFER,
        f"{field} as the task says ({', '.join(map(wire_name, wanted))}), or exit status 3 from a worker that speaks "
        "none of them",
        f"an offer of {', '.join(known.get(one, str(one)) for one in numbers)}",
        Place.PAYLOADS,
    )
