"""Roles' permissions."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from gem_server.errors import Reason, RefusedError
from gem_server.security.tokens import Role, Tokens

PULL_WITH_SESSION = "Pull with a session_id"

_WORKER, _OBSERVER = frozenset({Role.WORKER}), frozenset({Role.OBSERVER})

# Unlisted calls are operators' alone.
_MAY: Mapping[str, frozenset[Role]] = MappingProxyType(
    {
        "Join": _WORKER,
        "Initialize": _WORKER,
        "Pull": _WORKER | _OBSERVER,
        PULL_WITH_SESSION: _WORKER,
        "Commit": _WORKER,
        "Heartbeat": _WORKER,
        "Leave": _WORKER,
        "GetStatus": _OBSERVER,
        "WatchStatus": _OBSERVER,
        "GetHistory": _OBSERVER,
        "ReportEvaluation": _OBSERVER,
    }
)


class Access:
    """Authorises callers by the current tokens."""

    def __init__(self, tokens: Callable[[bool], Tokens]) -> None:
        """`tokens(True)` must reread the file; `tokens(False)` may lag."""
        self._tokens = tokens

    def check(self, call: str, authorization: str | None) -> None:
        """Raise CREDENTIALS or ROLE unless `authorization` allows the call."""
        if authorization is None:
            raise RefusedError(
                Reason.CREDENTIALS,
                "this server asks for a token: send it as the metadata 'authorization: Bearer TOKEN' (for gemps, put "
                "it into a file and name that in GEMPS_CLIENT_TOKEN_FILE)",
            )
        scheme, _, token = authorization.partition(" ")
        role = self._role_of(token.strip()) if scheme.lower() == "bearer" else None
        if role is None:
            raise RefusedError(
                Reason.CREDENTIALS,
                "this server does not know the token: use one that stands in its tls.tokens file (with --credentials: "
                "tokens), or add yours there",
            )
        if role is not Role.OPERATOR and role not in _MAY.get(call, ()):
            allowed = [one.value for one in Role if one is Role.OPERATOR or one in _MAY.get(call, ())]
            raise RefusedError(
                Reason.ROLE,
                f"a token of the role {role.value} does not allow {call}: use a token of the role "
                f"{' or '.join(allowed)}",
                metadata={"role": role.value},
            )

    def _role_of(self, token: str) -> Role | None:
        role = self._tokens(False).role_of(token)
        return role if role is not None else self._tokens(True).role_of(token)
