"""A worker's connection to one server."""

from gem_worker.client.channel import Calls
from gem_worker.client.commit import Committer
from gem_worker.client.events import EventSink
from gem_worker.client.pull import Puller
from gem_worker.client.session import ClientSession
from gem_worker.client.settings import ClientSettings
from gem_worker.client.watchdog import Watchdog


class Connection:
    """Channel, session, pulls and commits. Not thread-safe."""

    def __init__(self, calls: Calls, session: ClientSession, settings: ClientSettings, on_event: EventSink) -> None:
        self.calls = calls
        self.session = session
        self.watchdog = Watchdog(session.probe, self._beat, settings, look=self._answer_pings)
        self.puller = Puller(calls, self.watchdog, session)
        self.committer = Committer(calls, self.watchdog, session, self.puller, on_event)

    @property
    def is_calling(self) -> bool:
        """Whether a transfer is in progress."""
        return self.watchdog.watched is not None

    def give_up(self) -> None:
        """Make this and later calls fail. Thread-safe."""
        self.session.patience.give_up()
        self.calls.renew()

    def interrupt(self) -> None:
        """Make calls fail until `patience.resume`. Thread-safe."""
        self.session.patience.interrupt()
        self.calls.renew()

    def close(self) -> None:
        """Release resources."""
        self.session.end_membership()
        self.committer.drop_stream()
        self.session.close_shared()
        self.calls.close()
        self.watchdog.stop()

    def _answer_pings(self) -> None:
        # Watchdog's thread: polls for pings.
        self.committer.has_open_stream()

    def _beat(self) -> None:
        # An open stream needs no heartbeats.
        if not self.committer.has_open_stream():
            self.session.beat()
