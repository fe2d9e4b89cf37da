"""Judges a Join request, and returns the session that it begins or continues."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gemps.limits import SESSION_ID_BYTES, TEXT_BYTES
from gemps.v1 import session_pb2, transfer_pb2

from gem_conformance.faults import FaultError, FaultName, Place
from gem_conformance.layouts import layout_from_message
from gem_conformance.state import Session
from gem_conformance.task import Task, wire_name
from gem_core.errors import LayoutError
from gem_core.wire_types import BLOCKS, WireType

__all__ = ["joined_session"]


def joined_session(
    request: session_pb2.JoinRequest,
    task: Task,
    worker_name: str,
    previous: Session | None,
    earlier_processes: Collection[bytes],
    eta: float,
) -> Session:
    """Judge a Join request, and return its session.

    Args:
        request: the request.
        task: the task of the scenario, with the model's whole layout.
        worker_name: the name in the candidate's environment.
        previous: the session of an earlier Join of this process, which is returned; None if this is the first one.
        earlier_processes: the session ids of processes that the kit has killed.
        eta: the learning rate that the answer will contain.

    Raises:
        FaultError: the request breaks a rule.
    """
    _judge(request, task, worker_name)
    if request.session_id in earlier_processes:
        expected = "16 random bytes, new in each process"
        raise FaultError(FaultName.REPEATED_SESSION_ID, expected, "the id of an earlier process", Place.SESSION)
    if previous is not None:
        if request.session_id != previous.session_id:
            expected = "Join again with the session id that the worker made at its start"
            raise FaultError(FaultName.WRONG_SESSION, expected, "another session id", Place.SESSION)
        return previous
    features = frozenset(request.features)
    delta_type = _choose(request.delta_wire_types, task.delta_wire_types, "delta_wire_types")
    parameter_type = _choose(request.parameter_wire_types, task.parameter_wire_types, "parameter_wire_types")
    if parameter_type in BLOCKS and "differences" not in features:
        expected = f"the feature differences with {parameter_type.name}"
        raise FaultError(FaultName.WRONG_OFFER, expected, f"features {sorted(features)}", Place.SESSION)
    return Session(request.session_id, features, delta_type, parameter_type, announced_eta=eta, previous_eta=eta)


def _judge(request: session_pb2.JoinRequest, task: Task, worker_name: str) -> None:
    if len(request.session_id) != SESSION_ID_BYTES or len(set(request.session_id)) == 1:
        expected = f"a session id of {SESSION_ID_BYTES} random bytes"
        raise FaultError(FaultName.WRONG_JOIN, expected, request.session_id.hex() or "none", Place.SESSION)
    if request.worker_name != worker_name:
        expected = f"the worker name of GEMPS_WORKER_NAME, {worker_name!r}"
        raise FaultError(FaultName.WRONG_JOIN, expected, f"{request.worker_name!r}", Place.CONFORMANCE)
    for name in ("host_id", "agent", "device", "host_name", "engine"):
        if len(getattr(request, name).encode()) > TEXT_BYTES:
            raise FaultError(FaultName.WRONG_JOIN, f"at most {TEXT_BYTES} bytes of {name}", "more", Place.SESSION)
    try:
        layout = layout_from_message(request.layout)
    except LayoutError as error:
        raise FaultError(FaultName.WRONG_LAYOUT, "a legal layout", str(error), Place.LAYOUT) from None
    difference = task.layout.first_difference(layout)
    if difference is not None:
        raise FaultError(FaultName.WRONG_LAYOUT, "the task's layout", f"another ({difference})", Place.LAYOUT)


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
        Place.CONFORMANCE,
    )
