"""The service of a cluster, seen from the test's process."""

from typing import Any

from gem_worker.client import ClientError, ClientSettings, Observer


def status_of(address: str) -> dict[str, Any]:
    """The server's status, for loops: a `gemps status` takes half a core. Empty while it does not answer."""
    try:
        with Observer(address, settings=ClientSettings(connect_timeout=2.0), on_event=lambda _: None) as observer:
            return observer.get_status()
    except ClientError:
        return {}
