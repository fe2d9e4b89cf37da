"""The client library: a blocking gRPC client of a gemps server, without torch and without Numba.

`Client` is a worker's session; `Observer` is for everything that needs none. DESIGN.md beside this file says how the
parts work together.
"""

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
