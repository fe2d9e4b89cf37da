"""Retry delays and limits."""

import math
import random
import time
from collections.abc import Callable

from gem_worker.client.credentials import explain_wrong_name
from gem_worker.client.errors import (
    CallCancelledError,
    ServerMisbehavedError,
    ServerRefusedError,
    ServerUnavailableError,
    TornCallError,
    UntrustedServerError,
)
from gem_worker.client.events import ClientEvent, EventKind, EventSink
from gem_worker.client.settings import ClientSettings
from gem_worker.client.watchdog import PROBE_TIMEOUT

# Seconds before further reasons are reported.
_TELL_CHANGES_AFTER = 5.0
# Seconds between checks of `give_up`.
_SLICE = 0.2
_ANY_FIX = "check that it runs there (gemps serve), and that this machine can reach the port"


class Patience:
    """Sleep between attempts; give up after too long.

    Only `give_up` is thread-safe. `renew` drops the connection; `token_changed` detects a token newer than the refused
    one.
    """

    def __init__(
        self,
        address: str,
        settings: ClientSettings,
        on_event: EventSink,
        *,
        limit: float | None = None,
        renew: Callable[[], None] = lambda: None,
        token_changed: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] | None = None,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._address = address
        self._settings = settings
        self._limit = settings.connect_timeout if limit is None else limit
        # The watchdog ends a silent attempt by then.
        self._longest_attempt = settings.progress_timeout + max(settings.progress_timeout, PROBE_TIMEOUT)
        self._on_event = on_event
        self._renew = renew
        self._token_changed = token_changed
        self._clock = clock
        self._sleep = sleep if sleep is not None else self._sleep_in_slices
        self._interrupted = False
        self._given_up = False
        self._uniform = uniform
        self._connected = False
        self._failing_since: float | None = None
        self._failed_last = 0.0
        self._slept = 0.0
        self._was_stopped = False
        self._busy_since: float | None = None
        self._pause = settings.backoff_first
        self._told: set[str] = set()

    def torn(self, torn: TornCallError) -> None:
        """Handle a broken call as `failed`; renew the connection unless `by_server`.

        Raises ServerMisbehavedError or UntrustedServerError for a wrong peer before the first success.
        """
        if torn.untrusted and not self._connected:
            why = explain_wrong_name(self._address, self._settings) if torn.wrong_name else f"{torn}; {torn.fix}"
            raise UntrustedServerError(f"{self._address} is not trusted: {why}")
        if torn.by_stranger and not self._connected:
            raise ServerMisbehavedError(f"no gemps server at {self._address}: {torn}; {torn.fix}")
        if not torn.by_server:
            self._renew()
        self.failed(str(torn), fix=torn.fix, at_least=torn.retry_after or 0.0)

    def failed(self, why: str, *, fix: str = "", report: bool = True, at_least: float = 0.0) -> None:
        """Sleep, or raise ServerUnavailableError after too long, CallCancelledError after `give_up`.

        `at_least`: seconds requested by the server.
        """
        self._check_wanted()
        now = self._clock()
        stopped = 0.0
        if self._failing_since is None:
            self._failing_since, self._was_stopped = now, False
        else:
            # Exclude stopped time (SIGSTOP, suspend).
            stopped = max(0.0, now - self._failed_last - self._slept - self._longest_attempt)
            self._failing_since += stopped
        self._failed_last = now
        elapsed = now - self._failing_since
        if elapsed >= self._limit and stopped and not self._was_stopped:
            self._was_stopped = True  # the failure may predate the stop
        elif elapsed >= self._limit:
            waited = f" for {elapsed:.0f} s" if elapsed >= 1 else ""
            raise ServerUnavailableError(
                f"no answer from a gemps server at {self._address}{waited} ({why}): {fix or _ANY_FIX}"
            )
        if report:
            self._report_trouble(f"{why}: {fix}" if fix else why, elapsed)
        self._slept = max(0.0, min(self._pause * self._uniform(0.5, 1.5), self._limit - elapsed))
        if self._slept < at_least:
            self._slept = at_least * self._uniform(1.0, 1.25)
        self._sleep(self._slept)
        self._check_wanted()
        self._pause = min(2 * self._pause, self._settings.backoff_limit)

    def wait_as_asked(self, refusal: ServerRefusedError, *, bounded: bool = False) -> None:
        """Sleep for the refusal's `retry_after`, or raise it.

        Uses up the patience only if `bounded`, or for damaged payloads (CHECKSUM).
        """
        why, seconds = str(refusal), refusal.retry_after
        if refusal.reason == "CREDENTIALS" and self._token_changed():
            self.failed(why)  # the old token was refused
            return
        if seconds is None:
            raise refusal
        if refusal.reason == "CHECKSUM":
            self.failed(why)
            return
        now = self._clock()
        self._failing_since = None
        self._pause = self._settings.backoff_first
        if self._busy_since is None:
            self._busy_since = now
            self._on_event(ClientEvent(EventKind.SERVER_BUSY, f"the server at {self._address} asks to wait: {why}"))
        if bounded and now - self._busy_since >= self._limit:
            raise ServerUnavailableError(
                f"the server at {self._address} has asked to wait for {now - self._busy_since:.0f} s: {why}"
            )
        self._sleep(seconds * self._uniform(1.0, 1.25))
        self._check_wanted()

    def give_up(self) -> None:
        """Stop retrying. Thread-safe."""
        self._given_up = True

    def interrupt(self) -> None:
        """Stop retrying until `resume`. Thread-safe."""
        self._interrupted = True

    def resume(self) -> None:
        """Undo `interrupt`."""
        self._interrupted = False

    def _check_wanted(self) -> None:
        if self._given_up or self._interrupted:
            raise CallCancelledError("the caller no longer waits for this call")

    def _sleep_in_slices(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not (self._given_up or self._interrupted):
            time.sleep(min(left, _SLICE))

    def moved_on(self) -> None:
        """Restart the time limit after progress."""
        if self._failing_since is not None:
            self._failing_since = self._clock()

    def succeeded(self) -> None:
        """Record a completed call."""
        if self._failing_since is not None or self._busy_since is not None:
            self._report_relief()
            self._failing_since = self._busy_since = None
            self._told.clear()
            self._pause = self._settings.backoff_first
        self._connected = True

    def _report_trouble(self, why: str, elapsed: float) -> None:
        if why in self._told or (self._told and elapsed < _TELL_CHANGES_AFTER):
            return
        is_first = not self._told
        self._told.add(why)
        until = f"for up to {self._limit:g} s" if math.isfinite(self._limit) else "for as long as it takes"
        if not is_first:
            text = f"still no answer from {self._address}, after {elapsed:.0f} s ({why})"
            self._on_event(ClientEvent(EventKind.WAITING_FOR_SERVER, text))
        elif self._connected:
            text = f"connection to {self._address} lost ({why}): trying again {until}"
            self._on_event(ClientEvent(EventKind.CONNECTION_LOST, text))
        else:
            text = f"waiting for a gemps server at {self._address} {until} ({why})"
            self._on_event(ClientEvent(EventKind.WAITING_FOR_SERVER, text))

    def _report_relief(self) -> None:
        since = self._failing_since if self._failing_since is not None else self._busy_since
        seconds = self._clock() - (since or 0.0)
        words = "back" if self._connected else "connected"
        text = f"{words}: the server at {self._address} answers, after {seconds:.1f} s"
        self._on_event(ClientEvent(EventKind.CONNECTION_BACK, text))
