"""What can go wrong, as plain exceptions: each says whose fault it is, and whether it was to be expected.

`rpc_status.py` makes these out of gRPC's status; nothing else in the package looks at a status code.
"""

from collections.abc import Mapping
from types import MappingProxyType

_NOTHING: Mapping[str, str] = MappingProxyType({})


class RunFinished(Exception):  # noqa: N818 - the good end of a run, not an error
    """The run has spent its budget, or an operator finished it; the delta was not applied. Expected: leave, exit 0."""


class ClientError(Exception):
    """Base of everything below: a call did not do what was asked."""


class MisuseError(ClientError, RuntimeError):
    """The caller's fault: a call that is not possible in this order, in this process, or with these arguments."""


class AddressError(ClientError, ValueError):
    """The caller's fault: the server's address cannot be understood; the message names the fix."""


class CredentialsError(ClientError, ValueError):
    """The caller's fault: certificates or a token that cannot be used as they are; the message names the fix."""


class UntrustedServer(ClientError):  # noqa: N818 - a situation
    """What answers at the address is not the server that `tls_ca` vouches for, or speaks no TLS; nothing was sent.

    Only before the first call that succeeded: later it counts as a lost connection, since certificates may be renewed.
    """


class ServerUnavailable(ClientError):  # noqa: N818 - a situation
    """Nobody's fault that is known here: the server could not be reached, or did not get the call done, for too long.

    Expected where servers come and go; a supervisor may start the worker again.
    """


class GivenUp(ClientError):  # noqa: N818 - a situation
    """The caller's wish: another thread did not want to wait for this call any longer."""


class ServerMisbehavedError(ClientError):
    """The server's fault (or that of something between): it answered what the contract does not allow."""


class ServerRefused(ClientError):  # noqa: N818 - an answer
    """The server refused the call, and changed nothing. Whose fault it is, `reason` and `message` say.

    `reason` is a name of gemps.v1.ErrorReason without prefix ("LAYOUT_MISMATCH"), or the gRPC status code's name
    where the refusal came from gRPC itself. `retry_after` in seconds: the server asked to come back then (the client
    does that by itself, except in an `Observer`); None: the same call will be refused again. `metadata` holds the
    particulars, as text.
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


class Superseded(ServerRefused):
    """Another process joined under this worker's name and took the session over. The fix: one name a worker."""


class NotInitialized(ServerRefused):
    """The server has no parameters (any more): it was started anew without --resume. Call initialize(), then pull()."""


class Torn(Exception):  # noqa: N818 - an event
    """A call or stream broke before its end. Internal: the client repeats or resumes, it never reaches the caller.

    `fix`: what the user may have to do about it, where the cause is known. `by_server`: a gemps server said so, over a
    sound connection. `by_stranger`: what answers there is none, nor will it become one. `untrusted`: TLS stands
    between. `retry_after` in seconds: the server asked not to come back before that.
    """

    def __init__(
        self,
        why: str,
        *,
        fix: str = "",
        by_server: bool = False,
        by_stranger: bool = False,
        untrusted: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(why)
        self.fix = fix
        self.by_server = by_server
        self.by_stranger = by_stranger
        self.untrusted = untrusted
        self.retry_after = retry_after
