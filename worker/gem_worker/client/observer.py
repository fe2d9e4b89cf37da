"""Access to a run without a session."""

import atexit
import os
from collections.abc import Callable, Generator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import grpc
from gemps.framing import Buffer
from gemps.plain_values import to_dict
from gemps.v1 import history_pb2, operations_pb2, parameters_pb2, status_pb2, transfer_pb2

from gem_core.errors import LayoutError
from gem_core.layout import Layout
from gem_core.payload import PayloadFormat
from gem_core.shards import Shard
from gem_core.wire_types import WireType, encoded_bytes
from gem_worker.client.channel import Calls, check_address
from gem_worker.client.credentials import Credentials
from gem_worker.client.errors import MisuseError, ServerMisbehavedError, ServerRefusedError, TornCallError
from gem_worker.client.events import EventSink, log_event
from gem_worker.client.interrupts import interrupts_wait
from gem_worker.client.messages import RunState, Version, layout_of, to_wire_types, wire_type_of
from gem_worker.client.pull import receive_pull
from gem_worker.client.receive import ParametersReceiver
from gem_worker.client.retry import Patience
from gem_worker.client.rpc_status import failure
from gem_worker.client.settings import ClientSettings
from gem_worker.client.shards import address_of
from gem_worker.client.watchdog import PROBE_TIMEOUT, Watchdog

_Result = TypeVar("_Result")

# Seconds that a checkpoint of a large model may take.
_CONTROL_TIMEOUT = 600.0
# Attempts of a pull: another reader's pull may replace the snapshot that a shard keeps for this one.
MAX_PULLS = 5


@dataclass(frozen=True, slots=True)
class PulledParameters:
    """Parameters and their layout. PARAMETERs are encoded in `wire_type`; `adapter` is as in parameters.proto."""

    version: Version
    layout: Layout
    wire_type: WireType
    payload: memoryview
    adapter: bytes


@dataclass(frozen=True, slots=True)
class ControlResult:
    """Result of `control`; `checkpoint_path` is on the server, or empty."""

    version: Version
    run_state: RunState
    checkpoint_path: str


class Observer:
    """Read and control a run without joining it. Not thread-safe.

    Calls raise ServerUnavailableError after `wait` seconds of retries, or ServerRefusedError.
    """

    def __init__(
        self,
        address: str,
        *,
        wait: float = 0.0,
        settings: ClientSettings | None = None,
        on_event: EventSink | None = None,
    ) -> None:
        self._settings = settings if settings is not None else ClientSettings.from_environment()
        self.address = check_address(address)
        self._pid = os.getpid()
        self._closed = False
        self._calls = Calls(self.address, Credentials(self._settings))
        self._patience = Patience(
            self.address,
            self._settings,
            on_event if on_event is not None else log_event,
            limit=wait,
            renew=self._calls.renew,
        )
        self._watchdog = Watchdog(self._probe, lambda: None, self._settings)
        atexit.register(self.close)  # as Client does

    def get_status(self) -> dict[str, Any]:
        """RunStatus (status.proto) as a dict."""
        response = self._persist(
            lambda: self._calls.get_status(status_pb2.GetStatusRequest(), timeout=self._settings.progress_timeout)
        )
        return to_dict(response.status)

    def watch_status(self, interval: float = 1.0, *, stay: bool = False) -> Generator[dict[str, Any], None, None]:
        """Yield the status every `interval` seconds (at least 0.1) until all have ended.

        With `stay`, continue until closed; an exiting server waits for it.
        """
        request = status_pb2.WatchStatusRequest(interval_seconds=interval, stay=stay)
        while True:
            self._check_usable()
            self._watchdog.start()
            with interrupts_wait():
                call = self._calls.watch_status(request)
            try:
                with self._watchdog.watch(call.cancel) as watched:
                    while True:
                        with interrupts_wait(call.cancel):
                            response = next(call, None)
                        if response is None:
                            break
                        watched.progress()
                        self._patience.succeeded()
                        yield to_dict(response.status)
            except grpc.RpcError as error:
                reason = failure(error)
                if not isinstance(reason, TornCallError):
                    raise reason from None
                self._patience.torn(reason)
            else:
                return
            finally:
                with interrupts_wait():
                    call.cancel()

    def get_history(self, after: float = 0.0) -> dict[str, Any]:
        """GetHistoryResponse (history.proto) from `after` seconds of training on, as a dict."""
        request = history_pb2.GetHistoryRequest(after_seconds=after)
        timeout = self._settings.progress_timeout
        return to_dict(self._persist(lambda: self._calls.get_history(request, timeout=timeout)))

    def pull(
        self,
        *,
        wire_type: WireType = WireType.FLOAT32,
        known_version: Version | None = None,
    ) -> PulledParameters | None:
        """Pull the current parameters of all shards. None if `known_version` is current. Raises NotInitializedError."""
        request = parameters_pb2.PullRequest(
            wire_type=to_wire_types([wire_type])[0],
            with_layout=True,
        )
        if known_version is not None:
            request.known_version.CopyFrom(known_version.to_wire())

        def attempt() -> PulledParameters | None:
            why = ""
            for _ in range(MAX_PULLS):
                receiver = _LayoutReceiver()
                if receive_pull(self._calls, self._watchdog, request, receiver) is not None:
                    return None
                try:
                    for index in range(1, receiver.shards):
                        self._pull_shard(receiver, index)
                except ServerRefusedError as refusal:
                    if refusal.reason != "STALE_BASE":
                        raise
                    why = str(refusal)
                else:
                    return receiver.result()
            raise TornCallError(why)

        self._check_usable()
        self._watchdog.start()
        return self._persist(attempt)

    def _pull_shard(self, receiver: "_LayoutReceiver", index: int) -> None:
        part, payload = receiver.part(index)
        request = parameters_pb2.PullRequest(wire_type=to_wire_types([payload.wire_type])[0], clock=receiver.clock)
        calls = Calls(address_of(receiver.addresses[index - 1], self.address), Credentials(self._settings))
        try:
            receive_pull(calls, self._watchdog, request, ParametersReceiver(payload, part))
        finally:
            calls.close()

    def report_evaluation(
        self,
        version: Version,
        *,
        loss: float,
        accuracy: float,
        samples: int,
        evaluator: str = "",
        bits_per_character: float | None = None,
    ) -> bool:
        """Report an accuracy (0 to 1); return whether it is the best. `bits_per_character`: of a text."""
        request = operations_pb2.ReportEvaluationRequest(
            version=version.to_wire(),
            loss=loss,
            accuracy=accuracy,
            samples=samples,
            evaluator=evaluator,
            bits_per_character=bits_per_character,
        )
        timeout = self._settings.progress_timeout
        return self._persist(lambda: self._calls.report_evaluation(request, timeout=timeout)).best

    def control(
        self, action: Literal["finish", "checkpoint"], reason: str, *, resumable: bool = False
    ) -> ControlResult:
        """Finish the run, or write a checkpoint; the server logs `reason`.

        With `resumable` a finished run trains on when a server resumes it from its checkpoint.
        """
        request = operations_pb2.ControlRequest(
            action=f"CONTROL_ACTION_{action.upper()}", reason=reason, resumable=resumable
        )
        response = self._persist(lambda: self._calls.control(request, timeout=_CONTROL_TIMEOUT))
        return ControlResult(
            Version.from_wire(response.version), RunState.from_wire(response.run_state), response.checkpoint_path
        )

    def end_session(self, worker: str, reason: str, *, comes_back: bool = False) -> bool:
        """End the session of a worker whose process has ended without leaving; return whether it had one.

        Only whoever started the process can know that. The server would find out after its session time-out.

        Args:
            worker: its name.
            reason: for the server's log.
            comes_back: whether its process is being started again, so that the run should not finish without it.
        """
        request = operations_pb2.ControlRequest(
            action="CONTROL_ACTION_END_SESSION", worker=worker, reason=reason, comes_back=comes_back
        )
        return self._persist(
            lambda: self._calls.control(request, timeout=self._settings.progress_timeout)
        ).session_ended

    def end_quarantine(self, worker: str, reason: str) -> bool:
        """Let a worker's deltas count again, after it was repaired; return whether it was quarantined.

        Args:
            worker: its name.
            reason: for the server's log.
        """
        request = operations_pb2.ControlRequest(action="CONTROL_ACTION_END_QUARANTINE", worker=worker, reason=reason)
        return self._persist(lambda: self._calls.control(request, timeout=_CONTROL_TIMEOUT)).quarantine_ended

    def close(self) -> None:
        """Release the connection; other threads' calls raise errors."""
        if os.getpid() == self._pid and not self._closed:
            self._closed = True
            atexit.unregister(self.close)
            self._calls.close()
            self._watchdog.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _persist(self, call: Callable[[], _Result]) -> _Result:
        while True:
            self._check_usable()
            try:
                result = call()
            except grpc.RpcError as error:
                reason = failure(error)
                if not isinstance(reason, TornCallError):
                    raise reason from None
                self._patience.torn(reason)
            except TornCallError as torn:
                self._patience.torn(torn)
            else:
                self._patience.succeeded()
                return result

    def _probe(self) -> int | str:
        try:
            self._calls.get_status(status_pb2.GetStatusRequest(), timeout=PROBE_TIMEOUT)
        except grpc.RpcError as error:
            return f"no status either ({failure(error)})"
        except ValueError:  # raised after close()
            return "the observer was closed"
        return 0

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise MisuseError(f"this observer belongs to process {self._pid}: make a new one after a fork")
        if self._closed:
            raise MisuseError("this observer is closed: make a new one")


class _LayoutReceiver:
    def __init__(self) -> None:
        self._inner: ParametersReceiver | None = None
        self._format: PayloadFormat | None = None
        self._buffer = memoryview(b"")
        self._adapter = b""
        self.addresses: tuple[str, ...] = ()

    def reset(self) -> None:
        self._inner = None

    def announce(self, header: transfer_pb2.ParametersHeader) -> None:
        try:
            layout = layout_of(header.layout)
            self.addresses = tuple(header.shards)
            part = Shard(0, self.shards).layout_of(layout)
        except LayoutError as error:
            raise ServerMisbehavedError(f"the server's layout is not legal: {error}") from error
        self._format = PayloadFormat(layout, wire_type_of(header.wire_type))
        self._adapter = header.adapter
        first = PayloadFormat(part, self._format.wire_type)
        if header.byte_count == first.byte_count:
            self._buffer = memoryview(bytearray(self._format.byte_count))
        self._inner = ParametersReceiver(first, self._buffer[: first.byte_count])
        self._inner.announce(header)

    @property
    def shards(self) -> int:
        """Number of servers."""
        return 1 + len(self.addresses)

    @property
    def clock(self) -> int:
        """The clock of the primary's part."""
        version = self._started().version
        return version.clock if version is not None else 0

    def part(self, index: int) -> tuple[memoryview, PayloadFormat]:
        """Return the memory for a shard's part, and the part's format."""
        if self._format is None:
            raise ServerMisbehavedError("the server sent no header")
        whole, shard = self._format.layout, Shard(index, self.shards)
        payload = PayloadFormat(shard.layout_of(whole), self._format.wire_type)
        start = encoded_bytes(payload.wire_type, shard.range_of(whole.parameter_count).start)
        return self._buffer[start : start + payload.byte_count], payload

    def add(self, data: Buffer) -> None:
        self._started().add(data)

    def finish(self, footer: transfer_pb2.Footer) -> None:
        self._started().finish(footer)

    def result(self) -> PulledParameters:
        version = self._started().version
        if version is None or self._format is None:
            raise ServerMisbehavedError("the server sent no header")
        format_ = self._format
        return PulledParameters(version, format_.layout, format_.wire_type, self._buffer, self._adapter)

    def _started(self) -> ParametersReceiver:
        if self._inner is None:
            raise ServerMisbehavedError("the server sent a chunk or footer before the header")
        return self._inner
