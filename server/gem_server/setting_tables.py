"""The tables of the server's settings. Key `limits.threads` = environment `GEMPS_LIMITS_THREADS` = [limits] in TOML.

They hold what few people set. No setting here has a flag of its own; `--set limits.threads=4` sets one.
"""

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

MIB = 1024 * 1024

Seconds = Annotated[float, Field(gt=0)]


class LimitSettings(BaseModel):
    """The table [limits]: what the server gives to its clients at most, and how long it waits for them."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    staging_buffers: int = Field(
        default=0,
        ge=0,
        description="Commits that may be under way at once, each with one buffer of the model's size. 0: 4, and for "
        "small models as many as fit in 1 MiB, at most 256. More helps slow networks, and costs memory. Workers whose "
        "uploads are much slower than the others' share one more.",
    )
    waiting_room: int = Field(
        default=1024,
        ge=1,
        description="Calls that may wait for a staging buffer; further ones are refused with a time to retry. Fewer "
        "than there are workers makes strict orders (--order) slow.",
    )
    max_sessions: int = Field(
        default=1024,
        ge=1,
        description="Workers that may be joined at once. If all places are taken, and one token or address has more "
        "than 7/8 of them (and more than 64), workers of others may take places of its sessions. Any worker may take "
        "the place of a session that has not committed anything within a minute.",
    )
    stall_timeout: Seconds = Field(
        default=10.0,
        description="Seconds without progress after which an upload loses its buffer, or a reader its place, if others "
        "want it.",
    )
    chunk_bytes: int = Field(
        default=MIB,
        ge=4096,
        le=2 * MIB,
        description="Bytes of a chunk. At most 2 MiB, so that the 4 MiB message limit of every gRPC client is met.",
    )
    delta_norm: float = Field(
        default=10.0,
        ge=0,
        allow_inf_nan=False,
        description="How many times the median of the other workers' deltas the norm of a delta may be, per unit of "
        "eta. A larger one is scaled down to that median. A worker with 20 such deltas among its last 40 is "
        "quarantined: its deltas count as 0 until `gemps readmit`. 0: deltas are not bounded. Give a larger number if "
        "the data of some workers makes much larger gradients than that of the others.",
    )
    threads: int = Field(default=0, ge=0, description="Threads of the update kernels; 0: all cores.")
    exit_grace: Seconds = Field(
        default=30.0,
        description="With --exit-when-finished: seconds to wait for workers that have not left a finished run, or "
        "have not come to one that was resumed, and for an evaluator that is at its last version.",
    )
    exit_linger: float = Field(
        default=0.0,
        ge=0,
        description="With --exit-when-finished: seconds after the newest join in which a finished run waits for "
        "further workers. One that starts after the server has ended fails; so give the time between the start of "
        "the first worker and that of the last.",
    )


class TlsSettings(BaseModel):
    """The table [tls]: the four files behind --credentials, for those who keep them in other places or names."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    cert: Path | None = Field(
        default=None,
        description="The server's certificate (PEM, with intermediate ones below it): connections are encrypted, and "
        "clients can verify the server. Needs tls.key. It may be replaced while the server runs; new connections get "
        "the new one within a second. `gemps certs` makes one.",
    )
    key: Path | None = Field(default=None, description="Private key of tls.cert (PEM, without a password).")
    client_ca: Path | None = Field(
        default=None,
        description="Certificate of an authority (PEM): only clients that show a certificate signed by it can connect, "
        "whatever they want to call. Needs tls.cert. It may be replaced while the server runs.",
    )
    tokens: Path | None = Field(
        default=None,
        description="File of bearer tokens, a line each: ROLE TOKEN. worker may train; observer may see the status, "
        "pull parameters and report evaluations; operator may do all, also end the run. Without one no call needs a "
        "token. It may be changed while the server runs.",
    )

    @model_validator(mode="after")
    def _files_fit_together(self) -> Self:
        if (self.cert is None) != (self.key is None):
            raise ValueError("tls.cert and tls.key belong together: give both, or neither")
        if self.client_ca is not None and self.cert is None:
            raise ValueError("tls.client_ca needs tls.cert and tls.key: only over TLS a client shows a certificate")
        return self
