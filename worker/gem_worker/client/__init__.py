"""Blocking gRPC client of a gemps server, without torch or Numba.

Names load lazily, so that a CLI can show the settings without loading gRPC.
"""

from typing import TYPE_CHECKING

from gem_core.lazy import lazy

if TYPE_CHECKING:
    from gem_worker.client.client import Client
    from gem_worker.client.courier import Courier
    from gem_worker.client.errors import (
        AddressError,
        ClientError,
        CredentialsError,
        GivenUp,
        MisuseError,
        NotInitialized,
        RunFinished,
        ServerMisbehavedError,
        ServerRefused,
        ServerUnavailable,
        Superseded,
        UntrustedServer,
    )
    from gem_worker.client.events import ClientEvent, EventKind
    from gem_worker.client.messages import (
        CommitOutcome,
        CommitStatistics,
        Membership,
        RunSettings,
        RunState,
        Verdict,
        Version,
    )
    from gem_worker.client.observer import ControlResult, Observer, PulledParameters
    from gem_worker.client.settings import ClientSettings

_HOMES = {
    "AddressError": "errors",
    "Client": "client",
    "ClientError": "errors",
    "ClientEvent": "events",
    "ClientSettings": "settings",
    "CommitOutcome": "messages",
    "CommitStatistics": "messages",
    "ControlResult": "observer",
    "Courier": "courier",
    "CredentialsError": "errors",
    "EventKind": "events",
    "GivenUp": "errors",
    "Membership": "messages",
    "MisuseError": "errors",
    "NotInitialized": "errors",
    "Observer": "observer",
    "PulledParameters": "observer",
    "RunFinished": "errors",
    "RunSettings": "messages",
    "RunState": "messages",
    "ServerMisbehavedError": "errors",
    "ServerRefused": "errors",
    "ServerUnavailable": "errors",
    "Superseded": "errors",
    "UntrustedServer": "errors",
    "Verdict": "messages",
    "Version": "messages",
}

__all__ = [
    "AddressError",
    "Client",
    "ClientError",
    "ClientEvent",
    "ClientSettings",
    "CommitOutcome",
    "CommitStatistics",
    "ControlResult",
    "Courier",
    "CredentialsError",
    "EventKind",
    "GivenUp",
    "Membership",
    "MisuseError",
    "NotInitialized",
    "Observer",
    "PulledParameters",
    "RunFinished",
    "RunSettings",
    "RunState",
    "ServerMisbehavedError",
    "ServerRefused",
    "ServerUnavailable",
    "Superseded",
    "UntrustedServer",
    "Verdict",
    "Version",
]

__getattr__, __dir__ = lazy(__name__, _HOMES)
