"""Blocking gRPC client, without torch or Numba.

Its names are imported on first use, so that importing the package does not load gRPC.
"""

from typing import TYPE_CHECKING

from gem_core.lazy import lazy

if TYPE_CHECKING:
    from gemps.limits import ADAPTER_BYTES as ADAPTER_BYTES

    from gem_worker.client.client import Client as Client
    from gem_worker.client.errors import AddressError as AddressError
    from gem_worker.client.errors import CallCancelledError as CallCancelledError
    from gem_worker.client.errors import ClientError as ClientError
    from gem_worker.client.errors import CredentialsError as CredentialsError
    from gem_worker.client.errors import FinishedBeforeError as FinishedBeforeError
    from gem_worker.client.errors import MisuseError as MisuseError
    from gem_worker.client.errors import NotInitializedError as NotInitializedError
    from gem_worker.client.errors import RunFinishedError as RunFinishedError
    from gem_worker.client.errors import ServerMisbehavedError as ServerMisbehavedError
    from gem_worker.client.errors import ServerRefusedError as ServerRefusedError
    from gem_worker.client.errors import ServerUnavailableError as ServerUnavailableError
    from gem_worker.client.errors import SupersededError as SupersededError
    from gem_worker.client.errors import UntrustedServerError as UntrustedServerError
    from gem_worker.client.events import ClientEvent as ClientEvent
    from gem_worker.client.events import EventKind as EventKind
    from gem_worker.client.messages import CommitOutcome as CommitOutcome
    from gem_worker.client.messages import CommitStatistics as CommitStatistics
    from gem_worker.client.messages import Membership as Membership
    from gem_worker.client.messages import RunSettings as RunSettings
    from gem_worker.client.messages import RunState as RunState
    from gem_worker.client.messages import Verdict as Verdict
    from gem_worker.client.messages import Version as Version
    from gem_worker.client.observer import ControlResult as ControlResult
    from gem_worker.client.observer import Observer as Observer
    from gem_worker.client.observer import PulledParameters as PulledParameters
    from gem_worker.client.outgoing_commit import NO_STEPS as NO_STEPS
    from gem_worker.client.outgoing_commit import StepCount as StepCount
    from gem_worker.client.settings import ClientSettings as ClientSettings

__getattr__, __dir__, __all__ = lazy(__name__)
