"""Whose session gives up its place when all are taken.

A peer that may join can join as often as it likes. So that one token or one address cannot keep all others out, a
worker that joins a full server gets the place of

1. a session of a crowd, which is a token or an address that has more than CROWD_SHARE of all sessions, and more than
   CROWD_AT_LEAST, if the worker belongs to another one. The session with the fewest commits goes. A crowd can lose
   an eighth of the places in this way and no more, and what it loses it cannot take back from others.
2. Otherwise a session that has not committed anything for IDLE_SECONDS after it joined, while the run trains, and that
   no call of the server keeps waiting; of the token and address with the most sessions first. Whoever waits for the
   run's start, or for a buffer, keeps its place.

Nothing of this happens as long as there is room: any number of workers up to limits.max_sessions may have one token
and one address. It decides neither between workers that all train, nor for a server whose limits.max_sessions is
CROWD_AT_LEAST or less: there the newcomer is refused. A session with a complete commit in the queue never goes.
"""

import ipaddress
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gem_server.state.sessions import Session

CROWD_SHARE = 7 / 8
# Fewer workers than this are a team at work, whatever limits.max_sessions is.
CROWD_AT_LEAST = 64
# Enough for the imports, the compilation and the first gradient of most workers. They join again if it is not.
IDLE_SECONDS = 60.0
# A household or a rented machine has a network of this size in IPv6, and chooses addresses in it freely.
_IPV6_PREFIX = 64


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a worker joined from.

    Attributes:
        network: its IPv4 address, or the /64 network of its IPv6 address; "" if unknown, as on a secondary shard.
        token: digest of its token; empty if the server asks for none.
    """

    network: str = ""
    token: bytes = b""


UNKNOWN_ORIGIN = Origin()


def network_of(host: str) -> str:
    """The `network` of an `Origin`, from a host as gRPC names it: `192.0.2.7` or `[2001:db8::1%eth0]`."""
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host or "local"  # a Unix socket
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        if not address.is_loopback:
            return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))
    return str(address)


def session_to_end(live: Sequence["Session"], joining: Origin, now: float, *, trains: bool) -> "Session | None":
    """The session that gives up its place to a worker from `joining`; None: the worker has to wait.

    Args:
        live: all sessions; the server is full.
        joining: where the worker joins from.
        now: seconds, as `Session.joined_at`.
        trains: whether the run is in training.
    """
    if not joining.network:
        return None
    movable = [session for session in live if not session.queued_sequence]
    most = max(CROWD_AT_LEAST, CROWD_SHARE * len(live))
    networks = Counter(session.origin.network for session in live)
    tokens = Counter(session.origin.token for session in live)
    crowd = [
        session
        for session in movable
        if (networks[session.origin.network] > most and session.origin.network != joining.network)
        or (tokens[session.origin.token] > most and session.origin.token != joining.token)
    ]
    if crowd:
        return min(crowd, key=lambda session: (session.entry.last_applied, session.joined_at))
    idle = [session for session in movable if trains and _is_idle(session, now)]
    return min(
        idle,
        key=lambda one: (-networks[one.origin.network] - tokens[one.origin.token], one.joined_at),
        default=None,
    )


def _is_idle(session: "Session", now: float) -> bool:
    has_not_committed = not session.entry.last_applied and now - session.joined_at >= IDLE_SECONDS
    return has_not_committed and session.open_calls <= session.idle_calls
