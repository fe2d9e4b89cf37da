"""The client's exceptions."""

from collections.abc import Mapping
from types import MappingProxyType

_NOTHING: Mapping[str, str] = MappingProxyType({})


class RunFinishedError(Exception):
    """The run is finished; the delta was not applied. Leave and exit with 0."""


class ClientError(Exception):
    """Base class of the client's errors.

    `is_final`: neither waiting nor starting this worker again helps. Its process exits with status 2 then.
    """

    is_final = False


class FinishedBeforeError(ClientError):
    """The run was finished before this worker came, and the worker never belonged to it: it has not trained.

    Its process exits with status 4 then.
    """


class MisuseError(ClientError, RuntimeError):
    """Caller error: wrong order of calls, process or arguments."""


class AddressError(ClientError, ValueError):
    """Invalid server address."""

    is_final = True


class CredentialsError(ClientError, ValueError):
    """Unusable certificates or token."""

    is_final = True


class UntrustedServerError(ClientError):
    """TLS verification failed, or the server speaks no TLS; nothing was sent.

    After the first successful call, this counts as a lost connection.
    """


class ServerUnavailableError(ClientError):
    """The server did not complete the call for too long."""


class CallCancelledError(ClientError):
    """Another thread cancelled this call."""


class SessionLostError(ClientError):
    """A shard ended the session: join the primary again, then the other shards. `Client` does so."""


class ServerMisbehavedError(ClientError):
    """The server violated the contract."""


class ServerRefusedError(ClientError):
    """The server refused the call and changed nothing.

    `reason`: gemps.v1.ErrorReason without prefix ("LAYOUT_MISMATCH"), or gRPC's status code.
    `retry_after`: seconds; None: a retry would be refused.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        retry_after: float | None = None,
        metadata: Mapping[str, str] = _NOTHING,
    ) -> None:
        super().__init__(f"{message} ({reason})")
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.metadata = metadata
        self.is_final = metadata.get("final") == "true"


class SupersededError(ServerRefusedError):
    """Another process joined under this name."""


class NotInitializedError(ServerRefusedError):
    """The server has no parameters. Call initialize(), then pull()."""


class TornCallError(Exception):
    """A call or stream broke. Internal: the client repeats or resumes it.

    `by_server`: a gemps server reported it. `by_stranger`: the peer is none. `untrusted`: TLS verification failed,
    `wrong_name`: by the name alone.
    `retry_after`: seconds to wait.
    """

    def __init__(
        self,
        why: str,
        *,
        fix: str = "",
        by_server: bool = False,
        by_stranger: bool = False,
        untrusted: bool = False,
        wrong_name: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(why)
        self.fix = fix
        self.by_server = by_server
        self.by_stranger = by_stranger
        self.untrusted = untrusted
        self.wrong_name = wrong_name
        self.retry_after = retry_after
