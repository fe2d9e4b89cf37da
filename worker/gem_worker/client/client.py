"""Blocking client of a worker."""

import atexit
import os
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from gem_core.layout import Layout
from gem_core.payload import PayloadFormat
from gem_core.recipe import Recipe
from gem_core.selection import Selection
from gem_core.shards import Shard
from gem_core.wire_types import WireType
from gem_worker.client.channel import Calls, check_address
from gem_worker.client.connection import Connection
from gem_worker.client.credentials import Credentials
from gem_worker.client.errors import MisuseError
from gem_worker.client.events import EventSink, log_event
from gem_worker.client.host import this_host
from gem_worker.client.initialize import initialize
from gem_worker.client.messages import CommitOutcome, Membership, RunState, Version
from gem_worker.client.outgoing_commit import NO_STEPS, StepCount
from gem_worker.client.retry import Patience
from gem_worker.client.send import byte_view
from gem_worker.client.session import ClientSession, Formats
from gem_worker.client.settings import ClientSettings
from gem_worker.client.shards import SHARD_PATIENCE_SECONDS, Shards, address_of

_FLOAT32 = (WireType.FLOAT32,)
# Number of heartbeats whose fastest is the round trip. Slower ones have waited for a busy processor.
ROUND_TRIPS = 3


class Client:
    """A worker's session with a gemps server.

    Order of calls: join(), initialize() if `membership.has_parameters` is False, pull(), commit()
    repeatedly, leave(), close(). Retries, rejoining and heartbeats are automatic.

    Buffers are contiguous payloads (transfer.proto): PARAMETERs in the negotiated wire type, BUFFERs.

    Not thread-safe. Raises MisuseError in a forked child.

    Args:
        address: HOST:PORT, [IPV6]:PORT or unix:PATH. The constructor raises AddressError or CredentialsError.
        worker_name: 1 to 256 bytes; determines the rank. A new session under it ends the older one.
        host_id: equal for all workers on one machine, and by default this machine's. `membership.host_rank` counts by
            it.
        steps_per_epoch: steps in one pass over this worker's data, for a budget in epochs. 0 if it is not known.
        delta_wire_types, parameter_wire_types: the wire types that the caller supports, best first. The server chooses.
        features: what the caller does with gradients (session.proto). The client adds its own features.
        recipe: how the caller translates its script's optimizer. If the server lets the first worker decide, all
            workers must have the same recipe, and `run_settings.recipe` is this one; otherwise it is None.
        run: the name of the run that the caller belongs to; a run of another name refuses it. Empty: any run.
        on_event: a function that gets events of the connection. Default: they are logged.
        clock, sleep: replace the clock and the pauses of retries, for tests.
    """

    def __init__(
        self,
        address: str,
        *,
        worker_name: str,
        layout: Layout,
        host_id: str | None = None,
        device: str = "",
        steps_per_epoch: int = 0,
        delta_wire_types: Sequence[WireType] = _FLOAT32,
        parameter_wire_types: Sequence[WireType] = _FLOAT32,
        features: Sequence[str] = (),
        recipe: Recipe | None = None,
        run: str = "",
        settings: ClientSettings | None = None,
        on_event: EventSink | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        settings = settings if settings is not None else ClientSettings.from_environment()
        on_event = on_event if on_event is not None else log_event
        self.address = check_address(address)
        self._pid = os.getpid()
        self._closed = False
        self._seen: tuple[memoryview, memoryview, Formats, memoryview, memoryview, Selection | None] | None = None
        credentials = Credentials(settings)

        def connect(address: str, session_id: bytes | None = None, shard: Shard | None = None) -> Connection:
            calls = Calls(address, credentials)
            patience = Patience(
                address,
                settings,
                on_event,
                limit=settings.connect_timeout if shard is None else SHARD_PATIENCE_SECONDS,
                renew=calls.renew,
                token_changed=credentials.token.has_changed,
                clock=clock,
                sleep=sleep,
            )
            session = ClientSession(
                calls,
                settings,
                patience,
                on_event,
                layout=layout,
                worker_name=worker_name,
                host_id=host_id if host_id is not None else this_host(),
                device=device,
                steps_per_epoch=steps_per_epoch,
                delta_wire_types=delta_wire_types,
                parameter_wire_types=parameter_wire_types,
                features=features,
                recipe=recipe,
                run=run,
                session_id=session_id,
                shard=shard,
            )
            return Connection(calls, session, settings, on_event)

        self._settings = settings
        self._on_event = on_event
        self._connect = connect
        self._primary = primary = connect(self.address)
        self._session = primary.session
        self._watchdog = primary.watchdog
        self._shards: Shards | None = None
        self._whole: Formats | None = None
        # At exit, finalizers of gRPC's calls may block on locks (grpcio 1.85.1).
        atexit.register(self.close)

    @property
    def membership(self) -> Membership:
        """What the server answered to the newest join. Raises MisuseError before the first."""
        return self._session.membership

    @property
    def layout(self) -> Layout:
        """The layout of the whole model in this worker."""
        return self._session.whole_layout

    @property
    def next_eta(self) -> float:
        """Learning rate for the next commit."""
        return self._session.next_eta

    @property
    def run_state(self) -> RunState:
        """The run's state as the server last reported it."""
        return self._session.run_state

    @property
    def version(self) -> Version | None:
        """The version that the next commit's gradient must be computed at. None if it is unknown: then pull first."""
        return self._session.version

    @property
    def session_id(self) -> bytes:
        """16 random bytes; a secret."""
        return self._session.session_id

    @property
    def transport(self) -> str | None:
        """The transport of the open commit stream, "grpc" or "lane". None if no stream is open."""
        return self._primary.committer.transport

    @property
    def is_calling(self) -> bool:
        """Whether a transfer is in progress."""
        return self._primary.is_calling

    def join(self, layout: Layout | None = None) -> Membership:
        """Join the run, waiting up to settings.connect_timeout; `layout` replaces the constructor's.

        Raises:
            ServerUnavailableError: unreachable or full.
            ServerRefusedError: LAYOUT_MISMATCH, MEMORY, ...
            SupersededError: another process joined under this name.
            UntrustedServerError: TLS verification failed.
        """
        self._check_usable()
        if layout is not None:
            self._session.replace_layout(layout)
        membership = self._session.join()
        self._watchdog.start()
        if membership.shards:
            if self._shards is None:
                patience = Patience(self.address, self._settings, self._on_event)
                self._shards = Shards(self._primary, self._connect_shard, patience, self._on_event)
            self._shards.join_all()
        return membership

    def change_wire_types(self, deltas: WireType, parameters: WireType) -> Membership:
        """Use other wire types from the next commit on; call this between two commits.

        The session continues: nothing is pulled, dropped or applied twice, and the worker keeps its moment. `version`
        is None afterwards only if the session or its server was lost at this moment. Then call pull(), and initialize()
        before it if the result has no parameters.

        Returns:
            The membership, with the wire types that now apply. A server of an earlier version may not change them.

        Raises:
            MisuseError: `version` is None, or payloads go through shared memory, which supports only float32.
            ServerRefusedError: MEMORY, if there is no room for differences of parameters. Nothing has changed then.
            ServerUnavailableError: as join().
        """
        self._check_member()
        session = self._session
        if session.version is None:
            raise MisuseError("pull() first: wire types change between two commits")
        if session.open_shared() is not None:
            raise MisuseError("payloads go through shared memory, which has float32 only: leave the wire types")
        self._primary.committer.drop_stream()
        session.change_wire_types(deltas, parameters)
        if self._shards is not None:
            self._shards.change_wire_types(deltas, parameters)
        self._whole = None
        return session.membership

    @property
    def is_server_here(self) -> bool:
        """Whether the server is on this machine, so that no network limits the exchange."""
        return self._session.is_server_here

    def round_trip(self) -> float | None:
        """Measure the seconds that the fastest of a few heartbeats takes. None if one gets no answer."""
        self._check_member()
        found = []
        for _ in range(ROUND_TRIPS):
            started = time.perf_counter()
            if isinstance(self._session.probe(), str):
                return None
            found.append(time.perf_counter() - started)
        return min(found)

    def _connect_shard(self, address: str, shard: Shard) -> Connection:
        connection = self._connect(address_of(address, self.address), self._session.session_id, shard)
        connection.session.offer(*self._session.offered)
        return connection

    def initialize(self, payload: memoryview, *, adapter: bytes = b"") -> bool:
        """Upload the first parameters: PARAMETERs as float32, BUFFERs. Call pull() next.

        `adapter`: parameters.proto. Returns False if the server already had parameters. Raises
        ValueError for a wrong size, else as join().
        """
        self._check_member()
        format_ = PayloadFormat(self._session.whole_layout, WireType.FLOAT32)
        view = byte_view(payload, format_, "the first parameters")
        if self._shards is not None:
            return self._shards.initialize(view, adapter)
        return initialize(self._primary.calls, self._watchdog, self._session, view, format_, adapter)

    def pull(self, into: memoryview) -> Version:
        """Receive the current parameters in `membership.parameter_wire_type.of_whole`.

        Raises ValueError for an unsuitable buffer, NotInitializedError, else as join().
        """
        self._check_member()
        format_ = PayloadFormat(self._session.whole_layout, self.membership.parameter_wire_type.of_whole)
        view = byte_view(into, format_, "the buffer for parameters", writable=True)
        if self._shards is not None:
            return self._pull_shards(self._shards, view)
        self._primary.committer.drop_stream()  # the pull would end it
        version = self._primary.puller.pull(view, format_)
        if self._session.unsettled:
            # Only after the pull: the interrupted commit may have waited for it.
            self._session.heartbeat()
            if self._session.version is None:
                version = self._primary.puller.pull(view, format_)
        return version

    def _pull_shards(self, shards: Shards, into: memoryview) -> Version:
        version = shards.pull_all(into)
        if self._session.unsettled and not shards.settle():
            version = shards.pull_all(into)
        return version

    @property
    def shared_delta(self) -> memoryview | None:
        """Shared memory to write a delta into, which saves a copy; else None. Calls may replace it."""
        if self._shards is not None:
            return None  # each server has its own
        shared = self._session.open_shared()
        return shared.delta if shared is not None else None

    def commit(
        self,
        delta: memoryview,
        into: memoryview,
        *,
        loss: float | None = None,
        samples: int = 0,
        in_place: bool = False,
        scale: float | None = None,
        steps: StepCount = NO_STEPS,
        buffers: Selection | None = None,
        eta: float | None = None,
        decays: Sequence[float] = (),
    ) -> CommitOutcome:
        """Commit a delta (-eta * gradient, in `membership.delta_wire_type`, then BUFFERs) exactly once.

        On return `into` holds the parameters of `outcome.version`, even if the delta was dropped. The buffers must not
        overlap, and `delta` must not change meanwhile.

        Args:
            delta: the payload of the delta.
            into: memory for the payload of the parameters.
            loss: the training loss of this step, if it is known.
            samples: training samples since the last commit; 0 if unknown.
            in_place: whether parameters stay in shared memory. `outcome.parameters` is then read-only, and valid until
                the next call.
            scale: factor of the PARAMETERs. The products are rounded to float32.
            steps: the steps that the delta consists of.
            buffers: the BUFFERs that `delta` contains, which are those that changed since they last travelled. The
                outcome then leaves out the BUFFERs that this worker already has (`CommitOutcome.buffers`). Default:
                all.
            eta: the present learning rate of the first group of the run's recipe, if the run has one.
            decays: in such a run, the share of each group's parameters that this commit takes from them, at least 0
                and below 1. Empty if no group decays.

        Raises:
            RunFinishedError: the run is finished, and the worker should leave.
            MisuseError: there was no pull() before, or `scale` is given with deltas that are not float32.
            ValueError: a buffer has the wrong size.
            NotInitializedError: the server has no parameters. Call initialize(), then pull().
            ServerUnavailableError: there was no answer for too long. The delta may have been applied.
            ServerRefusedError: the server refused the delta, and nothing changed.
        """
        self._check_usable()
        formats = self._formats()
        seen = self._seen
        if (
            seen is None
            or seen[0] is not delta
            or seen[1] is not into
            or seen[2] is not formats
            or seen[5] is not buffers
        ):
            checked = (
                byte_view(delta, formats.delta_with(buffers), "the delta"),
                byte_view(into, formats.parameters, "the buffer for parameters", writable=True),
            )
            self._seen = seen = (delta, into, formats, *checked, buffers)
        if self._shards is not None:
            return self._shards.commit_all(
                seen[3],
                seen[4],
                loss,
                samples,
                scale=scale,
                steps=steps,
                buffers=buffers,
                eta=eta,
                decays=decays,
            )
        return self._primary.committer.commit(
            seen[3],
            seen[4],
            loss,
            samples,
            in_place=in_place,
            scale=scale,
            steps=steps,
            buffers=buffers,
            eta=eta,
            decays=decays,
        )

    def report_batches(self, batches: Sequence[int]) -> None:
        """Report fingerprints of the first batches once, for the server's warning of workers that train on the same.

        As HeartbeatRequest.batches (session.proto). Thread-safe; ignores network errors.
        """
        self._check_member()
        self._session.report_batches(batches)

    def give_up(self) -> None:
        """Make another thread's call fail. Only `leave` works afterwards.

        Thread-safe. A call that is just starting may miss it, so call this again until the other call has failed.
        """
        self._primary.give_up()
        if self._shards is not None:
            self._shards.give_up()

    def leave(self, reason: str, timeout: float | None = None) -> None:
        """End the session; the server logs `reason`. Ignores network errors."""
        self._check_usable()
        self._primary.committer.drop_stream()
        self._session.leave(reason, timeout)

    def close(self) -> None:
        """Release resources. Without an earlier leave(), the session ends by its time-out."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        atexit.unregister(self.close)
        if self._shards is not None:
            self._shards.close()
        self._primary.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._closed and os.getpid() == self._pid:
            self.leave("done" if kind is None else kind.__name__)
            self.close()

    def _formats(self) -> Formats:
        session = self._session
        if self._shards is None:
            return session.formats
        if self._whole is None or self._whole.delta.layout is not session.whole_layout:
            membership, layout = session.membership, session.whole_layout
            self._whole = Formats(
                PayloadFormat(layout, membership.delta_wire_type),
                PayloadFormat(layout, membership.parameter_wire_type.of_whole),
            )
        return self._whole

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise MisuseError(
                f"this client belongs to process {self._pid}: gRPC connections do not survive a fork. Make the client "
                "after the fork, or start processes with multiprocessing's 'spawn' method"
            )
        if self._closed:
            raise MisuseError("this client is closed: make a new one")

    def _check_member(self) -> None:
        self._check_usable()
        self._session.membership  # noqa: B018 - raises MisuseError before join()
