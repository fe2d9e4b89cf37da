"""ReportEvaluation and Control."""

import logging
import math
from collections.abc import Awaitable, Callable
from pathlib import Path

from gemps.v1 import operations_pb2

from gem_core.shards import Shard
from gem_server.durability.files import StorageError, storage_failed, storage_full
from gem_server.errors import Reason, RefusedError
from gem_server.service import messages
from gem_server.service.call_context import CallContexts, Context
from gem_server.state.central_variable import CentralVariable
from gem_server.state.delta_bound import end_quarantine
from gem_server.state.evaluations import Evaluation, Evaluations
from gem_server.state.run import Run
from gem_server.state.sessions import Sessions


class Operations:
    """Serves both calls."""

    def __init__(
        self,
        contexts: CallContexts,
        run: Run,
        sessions: Sessions,
        central: CentralVariable,
        evaluations: Evaluations,
        write_checkpoint: Callable[[], Awaitable[Path]] | None,
        run_seconds: Callable[[], float],
        shard: Shard,
        clock: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._shard = shard
        self._contexts = contexts
        self._run = run
        self._sessions = sessions
        self._central = central
        self._evaluations = evaluations
        self._write_checkpoint = write_checkpoint
        self._run_seconds = run_seconds

    async def report_evaluation(self, raw: bytes, context: Context) -> bytes:
        """Record an evaluation."""
        return await self._contexts.unary(context, lambda _: self._report_evaluation(raw))

    async def control(self, raw: bytes, context: Context) -> bytes:
        """Finish the run, write a checkpoint, or end a lost worker's session or a worker's quarantine."""
        return await self._contexts.unary(context, lambda _: self._control(raw))

    async def _report_evaluation(self, raw: bytes) -> operations_pb2.ReportEvaluationResponse:
        self._check_primary()
        request = messages.parse(operations_pb2.ReportEvaluationRequest, raw)
        bits = request.bits_per_character if request.HasField("bits_per_character") else None
        if not 0 <= request.accuracy <= 1 or math.isnan(request.loss) or (bits is not None and math.isnan(bits)):
            raise RefusedError(
                Reason.BAD_VALUE,
                "accuracy must be a fraction from 0 to 1, and loss and bits_per_character numbers, not NaN: skip the "
                "report of an evaluation without them",
            )
        best = self._evaluations.report(
            Evaluation(
                messages.version_from(request.version),
                request.loss,
                request.accuracy,
                request.samples,
                messages.text(request.evaluator, "evaluator"),
                self._run_seconds(),
                bits,
            )
        )
        return operations_pb2.ReportEvaluationResponse(run_state=messages.RUN_STATES[self._run.state], best=best)

    async def _control(self, raw: bytes) -> operations_pb2.ControlResponse:
        self._check_primary()
        request = messages.parse(operations_pb2.ControlRequest, raw)
        reason = messages.text(request.reason, "reason")
        path, session_ended, quarantine_ended = "", False, False
        if request.action == operations_pb2.CONTROL_ACTION_FINISH:
            told = reason or "no reason given"
            line = f"an operator finishes the run: {told}"
            self._contexts.peer_log.log("ordered-to-finish", "operator", line, reason=told)
            self._run.finish(reason or "an operator finished it", resumable=request.resumable)
        elif request.action == operations_pb2.CONTROL_ACTION_CHECKPOINT:
            path = str(await self._checkpoint())
        elif request.action == operations_pb2.CONTROL_ACTION_END_SESSION:
            session_ended = self._end_session(request, reason)
        elif request.action == operations_pb2.CONTROL_ACTION_END_QUARANTINE:
            quarantine_ended = self._end_quarantine(request, reason)
        else:
            raise RefusedError(
                Reason.MALFORMED,
                f"action {request.action} is unspecified or unknown: set FINISH, CHECKPOINT, END_SESSION or "
                "END_QUARANTINE",
            )
        return operations_pb2.ControlResponse(
            version=messages.version_to(self._central.version),
            run_state=messages.RUN_STATES[self._run.state],
            checkpoint_path=path,
            session_ended=session_ended,
            quarantine_ended=quarantine_ended,
        )

    def _end_session(self, request: operations_pb2.ControlRequest, reason: str) -> bool:
        worker = messages.text(request.worker, "worker", required=True)
        if not self._sessions.end_lost(worker, self._clock(), comes_back=request.comes_back):
            return False
        line = f"worker {worker} is gone: {reason or 'an operator ended its session'}"
        log = self._contexts.peer_log.log
        log("session-ended", worker, line, level=logging.WARNING, worker=worker, reason=reason)
        return True

    def _end_quarantine(self, request: operations_pb2.ControlRequest, reason: str) -> bool:
        name = messages.text(request.worker, "worker", required=True)
        worker = self._sessions.workers.get(name)
        if worker is None or not end_quarantine(worker):
            return False
        line = f"worker {name} is no longer quarantined: {reason or 'an operator ended that'}"
        self._contexts.peer_log.log("readmitted", name, line, worker=name, reason=reason)
        return True

    def _check_primary(self) -> None:
        if self._shard.is_secondary:
            raise RefusedError(Reason.MALFORMED, f"this is shard {self._shard}: ask shard 0/{self._shard.count}")

    async def _checkpoint(self) -> Path:
        if self._write_checkpoint is None:
            raise RefusedError(Reason.NOT_OFFERED, "this server has no data directory: start it with --data-dir")
        if self._central.layout is None:
            raise RefusedError(
                Reason.NOT_INITIALIZED, "there are no parameters to write yet: wait for the first worker"
            )
        try:
            return await self._write_checkpoint()
        except OSError as error:
            raise storage_full("there is no room for the checkpoint", error) from error
        except StorageError as failure:
            raise storage_failed() from failure
