"""How the client library behaves on the wire: one validated, frozen object."""

from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

Seconds = Annotated[float, Field(gt=0)]


class ClientSettings(BaseSettings):
    """Patience and rhythm of a `Client` or `Observer`; each field is also read from GEMPS_CLIENT_<FIELD>.

    The defaults suit a job on a cluster whose server may be rescheduled; they follow DESIGN.md sections 3 and 4.
    """

    model_config = SettingsConfigDict(env_prefix="GEMPS_CLIENT_", frozen=True, extra="forbid")

    connect_timeout: Seconds = Field(
        default=300.0,
        description="Seconds (default 300) for which the server may stay unreachable, or unable to complete "
        "one and the same call, before the client gives up with ServerUnavailable. It also bounds how long join() "
        "waits for a server that is not there yet. Longer rides out slower restarts; shorter ends a job sooner "
        "whose server is gone for good. 'inf' waits for ever.",
    )
    progress_timeout: Seconds = Field(
        default=60.0,
        description="Seconds (default 60) without a single message moving before a call is examined. While "
        "chunks are under way it is then ended and repeated; while the server has the next word (a commit may wait "
        "for others), a heartbeat decides, after heartbeat_interval if that is shorter: an answering server is waited "
        "for, however long. Shorter notices a dead path sooner; below the time that one chunk needs on a slow network, "
        "nothing gets through.",
    )
    heartbeat_interval: Seconds = Field(
        default=30.0,
        description="Seconds (default 30) without any call, or without a word from a server that has the next "
        "one, after which the client tells the server that it is alive, and learns whether the server is. Must be well "
        "below the server's session_timeout (120 s or more), or sessions of slow workers expire and lose their moment.",
    )
    backoff_first: Seconds = Field(
        default=0.1,
        description="Seconds (default 0.1) before the first repeat of a failed call; each further pause is "
        "twice as long, and all are jittered by half. Shorter finds a restarted server sooner, at the price of "
        "more attempts while it is down.",
    )
    backoff_limit: Seconds = Field(
        default=2.0,
        description="Seconds (default 2) that a pause between two attempts is at most, before jitter. It "
        "bounds how late a server that is back is noticed; with many workers it also bounds how many attempts a "
        "second reach a server that is starting.",
    )
    leave_timeout: Seconds = Field(
        default=5.0,
        description="Seconds (default 5) that leave() waits for the server's answer. A server that does not "
        "hear of it ends the session by its own time-out, so nothing but tidiness is lost when this is short.",
    )
