"""`Client`: a worker's side of the contract, as blocking calls. The parts are in the files beside it."""

import atexit
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from gem_core.layout import Layout
from gem_core.payload import PayloadFormat
from gem_core.wire_types import WireType
from gem_worker.client.channel import Calls, check_address
from gem_worker.client.commit import Committer
from gem_worker.client.credentials import Credentials
from gem_worker.client.errors import MisuseError
from gem_worker.client.events import EventSink, log_event
from gem_worker.client.host import this_host
from gem_worker.client.initialize import initialize
from gem_worker.client.messages import CommitOutcome, Membership, RunState, Version
from gem_worker.client.pull import Puller
from gem_worker.client.retry import Patience
from gem_worker.client.send import byte_view
from gem_worker.client.session import Formats, Session
from gem_worker.client.settings import ClientSettings
from gem_worker.client.watchdog import Watchdog

_FLOAT32 = (WireType.FLOAT32,)


class Client:
    """One worker's session with a gemps server.

    The order of a worker's life: join(); initialize() if `membership.has_parameters` is False; pull() with constants;
    commit() as often as there are gradients; leave(); close(). Retries, exactly-once commits, joining again after a
    restart of the server, heartbeats and deadlines on progress happen inside.

    Buffers are payloads as they travel (transfer.proto): PARAMETERs in the wire type that join() settled, then BUFFERs,
    then CONSTANTs where asked for; any contiguous buffer of that many bytes will do.

    Not thread-safe: one thread at a time may use a client. It must not be used in a forked child (MisuseError): gRPC's
    threads and the connection stay with the parent. Start processes by "spawn" or "forkserver", or fork before the
    client is made; a child that merely inherits it, such as a DataLoader worker, may ignore it.

    Args:
        address: HOST:PORT of the server, [IPV6]:PORT or unix:PATH. Raises AddressError naming the fix; the constructor
            also raises CredentialsError, for certificates or a token that cannot be used.
        worker_name: 1 to 256 bytes; unique in the run. The rank follows it: a worker that comes back under its name
            gets its rank again, and ends the older session.
        layout: the model's.
        host_id: ranks on a host are counted by it; default: the same for all processes of a machine, also in its
            containers (host.py).
        device: for the server's status only.
        steps_per_epoch: steps of one pass over this worker's data; needed for a budget in epochs. 0: unknown.
        delta_wire_types, parameter_wire_types: what this worker can send and take, best first; the server chooses.
        overlap: ask the server to keep two snapshots, so that the next gradient may be computed during a commit, at the
            parameters held before it; `membership.overlap` says whether it does.
        settings: default: ClientSettings(), which reads the environment.
        on_event: called, in the calling thread, when the connection is lost, back, and the like; default: logging.
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
        overlap: bool = False,
        settings: ClientSettings | None = None,
        on_event: EventSink | None = None,
    ) -> None:
        settings = settings if settings is not None else ClientSettings()
        on_event = on_event if on_event is not None else log_event
        self.address = check_address(address)
        self._pid = os.getpid()
        self._closed = False
        self._layout = layout
        # Buffers of the last commit, and their checked views: most workers use the same ones again.
        self._seen: tuple[memoryview, memoryview, Formats, memoryview, memoryview] | None = None
        credentials = Credentials(settings)
        calls = Calls(self.address, credentials)
        self._calls = calls
        self._session = Session(
            calls,
            settings,
            Patience(self.address, settings, on_event, renew=calls.renew, token_changed=credentials.token.has_changed),
            on_event,
            layout=layout,
            worker_name=worker_name,
            host_id=host_id if host_id is not None else this_host(),
            device=device,
            steps_per_epoch=steps_per_epoch,
            delta_wire_types=delta_wire_types,
            parameter_wire_types=parameter_wire_types,
            overlap=overlap,
        )
        self._watchdog = Watchdog(self._session.probe, self._beat, settings, look=self._look_after_stream)
        self._puller = Puller(calls, self._watchdog, self._session)
        self._committer = Committer(calls, self._watchdog, self._session, self._puller, on_event)
        # Whoever forgets to close must not hang at exit: gRPC's call objects wait for locks in their finalizers, which
        # threads that the interpreter has stopped by then may hold (seen on grpcio 1.85.1).
        atexit.register(self.close)

    @property
    def membership(self) -> Membership:
        """What the newest join settled; raises MisuseError before the first. A restart of the server may change it."""
        return self._session.membership

    @property
    def next_eta(self) -> float:
        """The learning rate for the next commit, as the server said last."""
        return self._session.next_eta

    @property
    def run_state(self) -> RunState:
        """Where the run stands for this worker, as the server said last."""
        return self._session.run_state

    @property
    def version(self) -> Version | None:
        """Of the parameters this worker holds; None before the first pull, and after an interrupted call."""
        return self._session.version

    @property
    def bases(self) -> tuple[Version, ...]:
        """Versions at which a gradient may have been computed that is committed next: `version` is the last of them."""
        return self._session.held

    def join(self) -> Membership:
        """Become a worker of the run; waits for a server that is not there yet, for settings.connect_timeout.

        Raises:
            ServerUnavailable: it did not come, or was full all that time.
            ServerRefused: another model (LAYOUT_MISMATCH), no memory for one more worker (MEMORY), ...
            Superseded: a newer process joined under the same name.
            UntrustedServer: no TLS there, or a certificate that tls_ca does not vouch for.
        """
        self._check_usable()
        membership = self._session.join()
        self._watchdog.start()
        return membership

    def initialize(self, payload: memoryview) -> bool:
        """Upload the first parameters: PARAMETERs as float32, BUFFERs, CONSTANTs. True: ours became the run's.

        False: others were first (or this upload's answer was lost, and it was found there when it was sent again). In
        both cases pull() next.

        Raises:
            ValueError: the payload has another size.
            ServerUnavailable, ServerRefused, Superseded: as join().
        """
        self._check_member()
        format_ = PayloadFormat(self._layout, WireType.FLOAT32, with_constants=True)
        view = byte_view(payload, format_, "the first parameters")
        return initialize(self._calls, self._watchdog, self._session, view, format_)

    def pull(self, into: memoryview, *, with_constants: bool = False) -> Version:
        """Get the current parameters, PARAMETERs in `membership.parameter_wire_type`; a torn transfer is resumed.

        Raises:
            ValueError: `into` has another size, or is read-only.
            NotInitialized: the server has no parameters: initialize() first.
            ServerUnavailable, ServerRefused, Superseded: as join().
        """
        self._check_member()
        format_ = PayloadFormat(self._layout, self.membership.parameter_wire_type, with_constants)
        view = byte_view(into, format_, "the buffer for parameters", writable=True)
        version = self._puller.pull(view, format_)
        if self._session.unsettled:
            # Not before the pull: the interrupted commit may have waited for its turn until then.
            self._session.heartbeat()
            if self._session.version is None:  # it had to join again
                version = self._puller.pull(view, format_)
        return version

    @property
    def shared_delta(self) -> memoryview | None:
        """Where a delta that is written there need not be copied: memory shared with the server; None: there is none.

        It may be other memory, or none, after any call. What was written to it stays valid as the delta of a commit.
        """
        shared = self._session.open_shared()
        return shared.delta if shared is not None else None

    def commit(
        self,
        delta: memoryview,
        into: memoryview,
        *,
        loss: float | None = None,
        samples: int = 0,
        base: Version | None = None,
        in_place: bool = False,
        scale: float | None = None,
    ) -> CommitOutcome:
        """Commit a delta (-eta * gradient, in `membership.delta_wire_type`, then BUFFERs), exactly once.

        When it returns, `into` holds fresh parameters of `outcome.version`, also when the delta had to be dropped
        (`outcome.applied` False: restart, or a snapshot that moved on). `delta` must not change during the call, and
        must not share memory with `into`. Waits as long as an answering server makes it wait.

        `base`: the version that the gradient was computed at, one of `bases`; None: the newest. With overlap the next
        commit may have a base that was the newest before this one.

        `scale`: each PARAMETER of the delta is this number times the one in `delta`, rounded to float32. Through shared
        memory the server multiplies, while it copies them anyhow; else this client does, piece by piece as it sends.

        `in_place`: parameters that came through shared memory are not copied to `into`; `outcome.parameters` says where
        they are: `into`, or there (read-only, until the next call of this client).

        Raises:
            RunFinished: the delta was refused because the run is finished; leave.
            MisuseError: no parameters were pulled yet, or an earlier commit was interrupted: pull() first. Or `base` is
                none of `bases`; or there is a `scale`, and deltas do not go as float32.
            ValueError: a buffer has another size.
            NotInitialized: the server was restarted without its parameters: initialize(), then pull().
            ServerUnavailable: the connection did not come back; whether the delta is applied is unknown.
            ServerRefused: BAD_VALUE and the like; nothing changed, and the session goes on.
            Superseded: a newer process joined under the same name.
        """
        self._check_usable()
        formats = self._session.formats
        seen = self._seen
        if seen is None or seen[0] is not delta or seen[1] is not into or seen[2] is not formats:
            checked = (
                byte_view(delta, formats.delta, "the delta"),
                byte_view(into, formats.parameters, "the buffer for parameters", writable=True),
            )
            self._seen = seen = (delta, into, formats, *checked)
        return self._committer.commit(seen[3], seen[4], loss, samples, base=base, in_place=in_place, scale=scale)

    def give_up(self) -> None:
        """Make the call that another thread waits in end, with GivenUp or another error; for good, but for `leave`.

        Any thread may call it. A call that was just about to begin may not hear of it: call it again until it has.
        """
        self._session.patience.give_up()
        self._calls.renew()

    def leave(self, reason: str) -> None:
        """End the session; `reason` (up to 256 bytes) is for the server's log. Never raises because of the network."""
        self._check_usable()
        self._committer.drop_stream()
        self._session.leave(reason)

    def close(self) -> None:
        """Release the connection and the thread; without a leave() before, the server's time-out ends the session."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._session.end_membership()
        self._committer.drop_stream()
        self._session.close_shared()
        self._calls.close()
        self._watchdog.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._closed and os.getpid() == self._pid:
            self.leave("done" if kind is None else kind.__name__)
            self.close()

    def _look_after_stream(self) -> None:
        # In the watchdog's thread: a stream between two commits has pings to answer.
        self._committer.has_open_stream()

    def _beat(self) -> None:
        # In the watchdog's thread. Any running call counts as life, so an open stream needs no heartbeats.
        if not self._committer.has_open_stream():
            self._session.beat()

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
