"""GetHistory."""

import math
from collections.abc import Callable

from gemps.v1 import history_pb2

from gem_server.errors import Reason, RefusedError
from gem_server.service import messages
from gem_server.service.call_context import CallContexts, Context
from gem_server.state.evaluations import Evaluations
from gem_server.telemetry.history import Interval
from gem_server.telemetry.telemetry import Telemetry
from gem_server.telemetry.tensor_pi import Column


class HistoryHandler:
    """Serves GetHistory."""

    def __init__(
        self,
        contexts: CallContexts,
        telemetry: Telemetry,
        evaluations: Evaluations,
        incarnation: Callable[[], int],
    ) -> None:
        self._contexts = contexts
        self._telemetry = telemetry
        self._evaluations = evaluations
        self._incarnation = incarnation

    async def get_history(self, raw: bytes, context: Context) -> bytes:
        """Handle GetHistory."""
        return await self._contexts.unary(context, lambda _: self._get(raw))

    async def _get(self, raw: bytes) -> history_pb2.GetHistoryResponse:
        after = messages.parse(history_pb2.GetHistoryRequest, raw).after_seconds
        if math.isnan(after):
            raise RefusedError(Reason.MALFORMED, "after_seconds must be a number of seconds; 0: from the beginning")
        return self.report(after)

    def report(self, after: float = 0.0) -> history_pb2.GetHistoryResponse:
        """What ended later than `after` seconds of training."""
        self._telemetry.settle()
        history, tensors = self._telemetry.history, self._telemetry.tensor_pi
        return history_pb2.GetHistoryResponse(
            intervals=[_interval(one) for one in history.intervals if one.ends > after],
            evaluations=[
                messages.evaluation_to(one) for one in self._evaluations.curve if one.run_seconds > after or not after
            ],
            tensors=history_pb2.TensorHistory(
                names=tensors.names,
                columns=[_column(one) for one in tensors.columns if one.run_seconds > after],
            ),
            generation=(self._incarnation() + history.joins + tensors.joins) % (1 << 64),
        )


def _interval(seen: Interval) -> history_pb2.HistoryInterval:
    message = history_pb2.HistoryInterval(
        begins=seen.begins,
        ends=seen.ends,
        clock=seen.clock,
        commits=seen.commits,
        local_steps=seen.local_steps,
        staleness_max=seen.staleness_max,
        jain_index=seen.jain_index,
        workers=seen.workers,
        queue_length=seen.queued,
        anonymous_bytes=seen.memory,
    )
    if seen.losses:
        message.loss = seen.loss / seen.losses
    if seen.commits:
        message.staleness_mean = seen.staleness / seen.commits
        message.wait_mean_seconds = seen.wait / seen.commits
        message.mean_pi = seen.mean_pi / seen.commits
        message.blocked_fraction = seen.blocked / seen.commits
        message.clamped_fraction = seen.clamped / seen.commits
        message.proxy_norm = seen.proxy_norm / seen.commits
        message.drift_norm = seen.drift_norm / seen.commits
        message.update_norm = seen.update_norm / seen.commits
    return message


def _column(seen: Column) -> history_pb2.TensorColumn:
    return history_pb2.TensorColumn(
        run_seconds=seen.run_seconds,
        clock=seen.clock,
        samples=seen.samples,
        mean_pi=seen.mean,
        median_pi=seen.median,
    )
