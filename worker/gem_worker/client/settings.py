"""Client settings."""

import os
import re
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

# Longer deadlines overflow gRPC's 64-bit nanoseconds.
LONGEST_SECONDS = 1e9
Seconds = Annotated[float, Field(gt=0, le=LONGEST_SECONDS)]

# gRPC's own authorities, for `tls_ca`.
SYSTEM_AUTHORITIES = "system"
_OPTIONAL_FILES = {"tls_cert": "client.crt", "tls_key": "client.key", "token_file": "token"}
# RFC 6750, section 2.1; the server sets the lengths.
TOKEN_SHAPE = r"(?=.{16,1024}\Z)[A-Za-z0-9._~+/-]+=*"  # noqa: S105 - a pattern
TOKEN_RULE = "16 to 1024 letters, digits and . _ ~ + / - (and = at its end)"  # noqa: S105


class ClientSettings(BaseSettings):
    """Settings of `Client` and `Observer`, also from GEMPS_CLIENT_<FIELD>."""

    model_config = SettingsConfigDict(
        env_prefix="GEMPS_CLIENT_", frozen=True, extra="forbid", hide_input_in_errors=True
    )

    connect_timeout: float = Field(
        default=300.0,
        gt=0,
        description="Seconds (default 300) for which the server may stay unreachable, or unable to complete "
        "one and the same call, before the client gives up with ServerUnavailableError. It also bounds how long join() "
        "waits for a server that is not there yet. Longer survives slower restarts; shorter ends a job sooner "
        "whose server does not come back. 'inf': no limit.",
    )
    progress_timeout: Seconds = Field(
        default=60.0,
        description="Seconds (default 60) without a single message moving before a call is examined. While "
        "chunks are under way it is then ended and repeated; while the client waits for an answer (a commit may wait "
        "for others), a heartbeat decides, after heartbeat_interval if that is shorter: an answering server is waited "
        "for, however long. Shorter notices a dead path sooner; below the time that one chunk needs on a slow network, "
        "nothing gets through.",
    )
    heartbeat_interval: Seconds = Field(
        default=30.0,
        description="Seconds (default 30) without any call, or without an answer to one, after which the client sends "
        "a heartbeat, and learns whether the server is alive. Must be well "
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
        description="Seconds (default 2) of the longest pause between two attempts, before jitter. It "
        "bounds how late a server that is back is noticed; with many workers it also bounds how many attempts a "
        "second reach a server that is starting.",
    )
    leave_timeout: Seconds = Field(
        default=5.0,
        description="Seconds (default 5) that leave() waits for the server's answer. A server that does not "
        "hear of it ends the session by its own time-out, so nothing but tidiness is lost when this is short.",
    )
    shared_memory: bool = Field(
        default=True,
        description="Exchange large models through memory that is shared with the server, where it offers that "
        "(--shared-memory-socket) and runs on the same machine; anywhere else, and for wire types that are narrower "
        "than float32, the network is used. false: always the network.",
    )
    lane: bool = Field(
        default=True,
        description="Send commits over the server's lane (--lane-port), a connection that takes about half the "
        "processor time of gRPC's. A worker that cannot reach it, or that uses an HTTP proxy, commits over gRPC. "
        "false: always gRPC.",
    )
    credentials: Path | None = Field(
        default=None,
        description="Folder that `gemps certs` makes for a role. The client reads ca.crt from it, and client.crt, "
        "client.key and token if they exist. Explicit tls_ca, tls_cert, tls_key and token_file take precedence.",
        json_schema_extra={"panel": "Security"},
    )
    tls_ca: str = Field(
        default="",
        description="Connect with TLS: PEM file of the authority that signed the server's certificate, or the word "
        "system for those that sign public web sites. Empty: no TLS, which a server that has it does not answer.",
        json_schema_extra={"panel": "Security"},
    )
    tls_cert: Path | None = Field(
        default=None,
        description="This client's own certificate (PEM), where the server asks for one (tls.client_ca). Needs "
        "tls_key and tls_ca. Like tls_ca it is read again for each new connection, so it may be renewed.",
        json_schema_extra={"panel": "Security"},
    )
    tls_key: Path | None = Field(
        default=None,
        description="Private key of tls_cert (PEM, without a password).",
        json_schema_extra={"panel": "Security"},
    )
    tls_server_name: str = Field(
        default="",
        description="Name to look for in the server's certificate, where it is reached by another one, as through a "
        "tunnel. Empty: the host of its address.",
        json_schema_extra={"panel": "Security"},
    )
    token_file: Path | None = Field(
        default=None,
        description="File that holds the token of this client, and nothing else; read again when it changes, so that "
        "tokens can be changed while workers run.",
        json_schema_extra={"panel": "Security"},
    )
    token: SecretStr | None = Field(
        default=None,
        description="The token itself, instead of a file. Other processes of the same user can read a process's "
        "environment; a file is safer.",
        json_schema_extra={"panel": "Security"},
    )
    insecure: bool = Field(
        default=False,
        description="Allow to send the token without TLS beyond this machine: others on the network path can read it.",
        json_schema_extra={"panel": "Security"},
    )

    @model_validator(mode="before")
    @classmethod
    def _files_of_the_folder(cls, values: dict[str, Any]) -> dict[str, Any]:
        if not values.get("credentials"):
            return values
        folder = Path(values["credentials"])
        found = {name: str(folder / file) for name, file in _OPTIONAL_FILES.items() if (folder / file).exists()}
        if values.get("token"):
            found.pop("token_file", None)
        return {"tls_ca": str(folder / "ca.crt")} | found | values

    @field_validator("token")
    @classmethod
    def _token_can_travel(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not re.fullmatch(TOKEN_SHAPE, value.get_secret_value()):
            raise ValueError(f"is no token: {TOKEN_RULE}")
        return value

    @model_validator(mode="after")
    def _credentials_fit_together(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("GEMPS_CLIENT_TLS_CERT and GEMPS_CLIENT_TLS_KEY belong together: give both, or neither")
        if self.tls_cert is not None and not self.tls_ca:
            raise ValueError("GEMPS_CLIENT_TLS_CERT needs GEMPS_CLIENT_TLS_CA, the authority of the server's")
        if self.token is not None and self.token_file is not None:
            raise ValueError("GEMPS_CLIENT_TOKEN and GEMPS_CLIENT_TOKEN_FILE stand there both: give one")
        return self

    @classmethod
    def from_environment(cls) -> Self:
        """Raises ValueError."""
        try:
            return cls()
        except ValidationError as error:
            texts = []
            for one in error.errors():
                variable = f"GEMPS_CLIENT_{one['loc'][0]}: ".upper() if one["loc"] else ""
                texts.append(variable + one["msg"].removeprefix("Value error, "))
            raise ValueError("; ".join(texts)) from None


WIRE_VARIABLES = {"delta_wire": "GEMPS_DELTA_WIRE", "parameter_wire": "GEMPS_PARAMETER_WIRE"}
NETWORK_VARIABLE = "GEMPS_NETWORK"
RUN_VARIABLE = "GEMPS_RUN"
# Of the exchange; a worker's script reads them.
EXCHANGE_VARIABLES = {**WIRE_VARIABLES, "network": NETWORK_VARIABLE}


def variables_for_workers() -> dict[str, str]:
    """GEMPS_CLIENT_ variables, wire types, network and the run's name, for workers elsewhere."""
    prefix, others = ClientSettings.model_config["env_prefix"], (*EXCHANGE_VARIABLES.values(), RUN_VARIABLE)
    return {name: value for name, value in os.environ.items() if name.startswith(prefix) or name in others}
