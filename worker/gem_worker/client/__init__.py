"""The client library: a blocking gRPC client of a gemps server, without torch and without Numba.

`Client` is a worker's session; `Observer` is for everything that needs none. DESIGN.md beside this file says how the
parts work together. The names below are loaded when they are first used, so that a command line can show the settings
without loading gRPC.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gem_worker.client.client import Client
    from gem_worker.client.errors import (
        AddressError,
        ClientError,
        CredentialsError,
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
    "CredentialsError": "errors",
    "EventKind": "events",
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
    "CredentialsError",
    "EventKind",
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


def __getattr__(name: str) -> object:
    """Load a public name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
