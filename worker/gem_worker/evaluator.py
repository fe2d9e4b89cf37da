"""Evaluates a run's new versions; stays in WatchStatus, so that the server waits."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from torch import Tensor

from gem_worker.best import BestCheckpoint, is_finite
from gem_worker.client import (
    ClientError,
    ClientEvent,
    ClientSettings,
    NotInitializedError,
    Observer,
    PulledParameters,
    ServerRefusedError,
    ServerUnavailableError,
    Version,
)
from gem_worker.client.events import EventSink, log_event
from gem_worker.evaluate import EvaluationResult, HeldOut, tensors_of_payload
from gem_worker.evaluator_settings import EvaluatorSettings
from gem_worker.settings import WorkerSettings

# Seconds.
_LOOK = 1.0
# Seconds.
_END_PATIENCE = 10.0
# Seconds. A signal that comes just before a wait is handled only when the wait ends, so none may be without a limit.
_SIGNAL_SECONDS = 1.0

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Followed:
    """One evaluation of a run; `result.version` is never None.

    Attributes:
        run_seconds: training time at the pull.
        is_best: highest accuracy so far, including `keep_best` from earlier processes. Never of an evaluation whose
            loss is infinite or NaN.
        is_reported: False if the loss is NaN, which servers reject.
        stops_run: it finished the run.
    """

    result: EvaluationResult
    run_seconds: float
    is_best: bool
    is_reported: bool
    stops_run: bool


def evaluate_run(
    address: str,
    settings: WorkerSettings | None = None,
    evaluator: EvaluatorSettings | None = None,
    *,
    name: str = "",
    client_settings: ClientSettings | None = None,
    on_event: EventSink = log_event,
) -> Iterator[Followed]:
    """Yield evaluations of a run's newest version until the run is finished.

    `address` (HOST:PORT) overrides the settings. `on_event` runs on another thread. Raises TaskError (other
    model, or the best cannot be kept), ServerUnavailableError, or ServerRefusedError, also if stopping requires an
    operator's token.
    """
    follower = _Follower(
        address,
        settings or WorkerSettings(),
        evaluator or EvaluatorSettings(),
        name,
        client_settings if client_settings is not None else ClientSettings.from_environment(),
    )
    with _Watch(address, min(_LOOK, follower.interval), follower.client_settings, on_event) as watch:
        yield from follower.follow(watch)


class _Follower:
    def __init__(
        self,
        address: str,
        settings: WorkerSettings,
        evaluator: EvaluatorSettings,
        name: str,
        client_settings: ClientSettings,
    ) -> None:
        self.interval = max(evaluator.interval, 0.1)  # minimum of WatchStatus
        self.client_settings = client_settings
        self._address = address
        self._name = name
        self._held_out = HeldOut(settings)
        self._kept = BestCheckpoint(evaluator.keep_best) if evaluator.keep_best is not None else None
        self._target = evaluator.stop_at_accuracy
        self._best = -math.inf
        self._evaluated: Version | None = None
        self._stopped = False

    def follow(self, watch: "_Watch") -> Iterator[Followed]:
        due = -math.inf
        while True:
            status = watch.next(_END_PATIENCE if self._has_all(watch) else None)
            if status is None:
                return
            now = time.monotonic()
            if _clock(status) and self._version(status) != self._evaluated and (now >= due or _is_finished(status)):
                due = now + self.interval
                pulled = self._pull(watch)
                if pulled is not None:
                    yield self._evaluate(pulled, float(status["run_seconds"]), watch)
            elif self._has_all(watch) and _is_quiet(status):
                return

    def _has_all(self, watch: "_Watch") -> bool:
        status = watch.newest
        if status is None or not _is_finished(status):
            return False
        return not _clock(status) or self._version(status) == self._evaluated

    def _pull(self, watch: "_Watch") -> PulledParameters | None:
        """None: unchanged or absent."""
        try:
            return self._ask(watch, lambda server: server.pull(known_version=self._evaluated))
        except NotInitializedError:
            return None  # the server restarted

    def _evaluate(self, pulled: PulledParameters, run_seconds: float, watch: "_Watch") -> Followed:
        tensors = tensors_of_payload(pulled.layout, pulled.payload)
        result = self._held_out.evaluate(tensors, f"the server {self._address}", pulled.version)
        is_best = self._keep(tensors, result, pulled.layout.digest.hex())
        is_reported = not math.isnan(result.loss)
        if is_reported:
            self._ask(
                watch,
                lambda server: server.report_evaluation(
                    pulled.version,
                    loss=result.loss,
                    accuracy=result.accuracy,
                    samples=result.samples,
                    bits_per_character=result.bits_per_character,
                    evaluator=self._name,
                ),
            )
        self._evaluated = pulled.version
        return Followed(result, run_seconds, is_best, is_reported, self._stop_at(result, watch))

    def _keep(self, tensors: dict[str, Tensor], result: EvaluationResult, layout_digest: str) -> bool:
        if self._kept is not None:
            of = {"task": self._held_out.task.name, "model": self._held_out.model_name, "layout_digest": layout_digest}
            return self._kept.offer(tensors, asdict(result) | of)
        if not is_finite(asdict(result)) or result.accuracy <= self._best:
            return False
        self._best = result.accuracy
        return True

    def _stop_at(self, result: EvaluationResult, watch: "_Watch") -> bool:
        if self._target is None or self._stopped or watch.is_finished:
            return False
        if not is_finite(asdict(result)) or result.accuracy < self._target:
            return False
        assert result.version is not None
        reason = f"an evaluator saw accuracy {result.accuracy:.4f} at version {result.version.clock}"
        try:
            self._ask(watch, lambda server: server.control("finish", f"{reason}, and {self._target:g} was asked for"))
        except ServerRefusedError as refusal:
            raise ServerRefusedError(
                refusal.reason, f"{reason}, but may not end the run: {refusal.message}", metadata=refusal.metadata
            ) from None
        self._stopped = True
        return True

    def _ask(self, watch: "_Watch", call: Callable[[Observer], _Answer]) -> _Answer:
        wait = _END_PATIENCE if watch.is_finished else self.client_settings.connect_timeout
        with Observer(self._address, wait=wait, settings=self.client_settings, on_event=_ignore) as server:
            while True:
                try:
                    return call(server)
                except ServerRefusedError as refusal:
                    if refusal.retry_after is None:
                        raise
                    time.sleep(refusal.retry_after)
                except ServerUnavailableError as error:
                    if watch.is_finished:
                        raise ServerUnavailableError(
                            f"the run was finished, and its server ended before its last version was evaluated and "
                            f"reported: give it a longer limits.exit_grace ({error})"
                        ) from None
                    raise

    @staticmethod
    def _version(status: dict[str, Any]) -> Version:
        return Version(**status["version"])


class _Watch:
    def __init__(
        self, address: str, interval: float, client_settings: ClientSettings, on_event: Callable[[ClientEvent], None]
    ) -> None:
        self._interval = interval
        self._on_event = on_event
        self._observer = Observer(
            address, wait=client_settings.connect_timeout, settings=client_settings, on_event=self._forward_event
        )
        self._changed = threading.Condition()
        self._is_new = False
        self._error: ClientError | None = None
        self._closed = threading.Event()
        self.newest: dict[str, Any] | None = None
        self._thread = threading.Thread(target=self._watch_status, name="gemps-watch", daemon=True)

    @property
    def is_finished(self) -> bool:
        return self.newest is not None and _is_finished(self.newest)

    def next(self, timeout: float | None) -> dict[str, Any] | None:
        """Next report; None after `timeout` seconds. Raises the stream's error."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self._is_new and self._error is None and (left := until - time.monotonic()) > 0:
                self._changed.wait(min(left, _SIGNAL_SECONDS))
            if self._error is not None:
                raise self._error
            if not self._is_new:
                return None
            self._is_new = False
            return self.newest

    def __enter__(self) -> "_Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._observer.close()
        self._thread.join()

    def _watch_status(self) -> None:
        while not self._closed.is_set():
            try:
                for status in self._observer.watch_status(self._interval, stay=True):
                    with self._changed:
                        self.newest, self._is_new = status, True
                        self._changed.notify()
                self._closed.wait(self._interval)  # a server without `stay` ends the stream
            except ServerRefusedError as refusal:
                if refusal.retry_after is None:
                    self._fail(refusal)
                    return
                self._closed.wait(refusal.retry_after)  # too many watchers
            except ClientError as error:
                self._fail(error)
                return

    def _forward_event(self, event: ClientEvent) -> None:
        if not self._closed.is_set():
            self._on_event(event)

    def _fail(self, error: ClientError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify()


def _is_finished(status: dict[str, Any]) -> bool:
    return bool(status["run_state"] == "RUN_STATE_FINISHED")


def _clock(status: dict[str, Any]) -> int:
    return int(status["version"]["clock"]) if "version" in status else 0


def _is_quiet(status: dict[str, Any]) -> bool:
    """False: some commits are applied after the finish."""
    return not status["queue"]["staging_buffers_in_use"]


def _ignore(_: ClientEvent) -> None:
    """Discard; the watch reports events."""
