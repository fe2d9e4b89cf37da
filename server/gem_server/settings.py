"""The server's settings. Flag `--eta` = environment `GEMPS_ETA` = TOML key `eta`.

Settings that are rarely changed are in tables (setting_tables.py). These have keys and variables, but no flags.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from gem_core.errors import RuleError
from gem_core.registry import (
    AUTO,
    BUILT_IN,
    Direction,
    require_decay,
    require_direction,
    require_rule,
)
from gem_core.rule_settings import (
    GEM_SETTINGS,
    LOCAL_STEPS,
    WEIGHT_DECAY,
    check_settings,
    default_eta,
    parse_settings,
    settings_text,
    usual_settings,
)
from gem_core.shards import Shard
from gem_core.visible_text import check_name
from gem_server.setting_tables import LimitSettings, Seconds, TlsSettings
from gem_server.state.schedule import EtaSchedule

# Longest path of a Unix socket: the size of sockaddr_un's field, without the terminating zero.
MAX_SOCKET_PATH_BYTES = 107

# Of --rule.
DEFAULT_RULE = "auto"
# The rule of --rule auto.
_RULE_OF_AUTO = "gem"
# Options that a script's optimizer determines under --rule auto. If one is given, the server accepts no recipe.
_DECIDED_BY_RECIPES = (
    *("eta", "eta_schedule", "weight_decay", "clip_norm", "direction", "local_steps"),
    "rule_settings",
)

# Of --credentials, by the names of TlsSettings.
_FILES = {"cert": "server.crt", "key": "server.key"}
_OPTIONAL_FILES = {"client_ca": "ca.crt", "tokens": "tokens"}


def _require_rule_or_auto(name: str) -> str:
    return name if name == AUTO else require_rule(name)


class ServerSettings(BaseSettings):
    """All settings of a server."""

    model_config = SettingsConfigDict(
        env_prefix="GEMPS_",
        # GEMPS_LIMITS_CHUNK_BYTES is chunk_bytes of the table limits.
        env_nested_delimiter="_",
        env_nested_max_split=1,
        frozen=True,
        extra="forbid",
        validate_default=True,
    )

    bind: str = Field(
        "127.0.0.1:50051",
        description="Address and port to listen on; port 0 takes a free one. Addresses beyond loopback require TLS "
        "(--credentials, or the table [tls]). To serve without TLS on a trusted network, pass --insecure.",
        json_schema_extra={"panel": "Network"},
    )
    insecure: bool = Field(
        False,
        description="Allow addresses beyond loopback without TLS. Anyone on the network path can then read and change "
        "all traffic, tokens included.",
        json_schema_extra={"panel": "Network"},
    )
    lane_port: int | None = Field(
        None,
        ge=-1,
        le=65535,
        description="Port of the lane, a faster way for commits, at the same address and with the same TLS. Announced "
        "to workers when they join; a worker that cannot reach it commits over gRPC. Unset: the port of --bind + 1, or "
        "a free one where that is taken or --bind has port 0. 0: a free one. -1: none.",
        json_schema_extra={"panel": "Network"},
    )
    credentials: Path | None = Field(
        None,
        description="Folder that `gemps certs` made for the server. The server reads server.crt and server.key from "
        "it, and ca.crt and tokens if they exist. Files that the table [tls] names take precedence.",
        json_schema_extra={"panel": "Security"},
    )
    reflection: bool = Field(
        False,
        description="Offer gRPC server reflection, so that grpcurl and the like work without the protos.",
        json_schema_extra={"panel": "Network"},
    )

    log_format: Literal["auto", "human", "json"] = Field(
        "auto",
        description="How the log is written. human: lines for people; json: one JSON object a line, for programs; "
        "auto: human on a terminal, json elsewhere.",
        json_schema_extra={"panel": "Watching"},
    )
    dashboard: str = Field(
        "",
        description="Address and port of a web page that shows the run live. A port alone, such as 8080, means "
        "127.0.0.1:8080; port 0 takes a free one. The page is read-only and also serves /metrics for Prometheus. It "
        "has neither encryption nor tokens: beyond loopback, anyone who can connect can read it. Empty: no page.",
        json_schema_extra={"panel": "Watching"},
    )
    dashboard_hosts: str = Field(
        "",
        description="Names, with commas between them, by which browsers may reach --dashboard, in addition to "
        "localhost, this machine's name and IP addresses: such as a proxy's. Requests for other names are "
        "refused, because a page elsewhere could have made them (DNS rebinding).",
        json_schema_extra={"panel": "Watching"},
    )

    shared_memory_socket: Path | None = Field(
        None,
        description=f"Path of a Unix socket to make (at most {MAX_SOCKET_PATH_BYTES} bytes), at which workers on this "
        "machine get memory that they share with the server: large models are then exchanged several times faster than "
        "over the network. Workers in containers need its folder, as a volume, at the same path. A "
        "process that can open the socket and knows a session's secret acts as that session. Empty: none, "
        "and all use the network. Linux only.",
        json_schema_extra={"panel": "Network"},
    )

    rule: Annotated[str, AfterValidator(_require_rule_or_auto)] = Field(
        DEFAULT_RULE,
        description="Update rule that the server applies to each delta. Plug-ins can add rules. auto: gem, and the "
        "first worker decides the rest: the optimizer of its script, if that is given to ParameterServer, else "
        "direction auto, or plain gradients for a worker that does not know directions. An optimizer then needs a "
        "server without options about eta, decay, clipping, directions, local steps and the rule's settings.",
        json_schema_extra={"panel": "Update rule", "choices": [AUTO, *BUILT_IN]},
    )
    rule_settings: Annotated[str, BeforeValidator(settings_text)] = Field(
        "",
        description="The rule's own settings, as NAME=VALUE,NAME=VALUE: momentum=0.9,kappa=2 for gem, "
        "strength=1,decay=0.9 for dc-asgd. docs/rules.md lists each rule's names and defaults. In a TOML file "
        "they can stand in the table [rule]; a flag or variable replaces all of them.",
        json_schema_extra={"panel": "Update rule"},
    )
    weight_decay: float = Field(
        WEIGHT_DECAY.default,
        ge=WEIGHT_DECAY.least,
        le=WEIGHT_DECAY.most,
        description="Decoupled weight decay, as AdamW's, of gem, downpour and adaptive-staleness: each commit "
        "shrinks matrices and embeddings, not biases and norms, by this share times eta.",
        json_schema_extra={"panel": "Update rule"},
    )
    local_steps: int = Field(
        1,
        ge=LOCAL_STEPS.least,
        le=LOCAL_STEPS.most,
        description="Gradients whose mean a worker commits, with a rule that has this setting; 1: exchange after each. "
        "On slow networks 4, then 8, with two to three times the eta and --steps, which counts commits, divided by as "
        "much. The worker moves its parameters after each gradient but the last, by local_rate of --rule-settings; it "
        "keeps one more vector, with --direction three.",
        json_schema_extra={"panel": "Update rule"},
    )
    direction: Direction = Field(
        "gradient",
        description="Direction that workers compute from their gradients. gradient: the gradient itself. rms: each "
        "element is divided by the root of a running mean of its squares, as in Adam. auto: of the gradients' "
        "momentum, hidden matrices of a model with an embedding are orthogonalised, and then all tensors are divided "
        "as by rms; gem has no momentum of its own then, unless --rule-settings gives one. With rms and auto, eta is "
        "the size of a step.",
        json_schema_extra={"panel": "Update rule"},
    )
    clip_norm: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Largest norm of a worker's gradient, over all parameters; workers scale larger ones down, before "
        "--direction. 0: no limit.",
        json_schema_extra={"panel": "Update rule"},
    )

    eta: float = Field(
        default_factory=lambda given: default_eta({"rule": DEFAULT_RULE} | given),
        gt=0,
        allow_inf_nan=False,
        description="Learning rate. Its default is 0.001 with --direction rms, 0.002 with --direction auto, else "
        "0.05. Under --rule auto it is that of what the first worker decides; if it is given there without "
        "--direction, commits are gradients, as of SGD.",
        json_schema_extra={"panel": "Learning rate"},
    )
    eta_schedule: str = Field(
        "constant",
        description="How eta follows the clock (the number of applied commits, over all workers). constant. cosine: "
        "falls to 0 at the end of the run, which is when the workers that take part have spent their --steps or "
        "--epochs, or all together the --commits: a worker that joins later makes eta rise a little, one that leaves "
        "makes it fall. cosine:5000: falls until commit 5000; cosine:5000:0.001: and to 0.001 instead of 0; "
        "cosine:end:0.001: that until the end of the run. step:400:0.1: multiplied by 0.1 after every 400 commits. "
        "warmup:200,cosine: rises linearly over 200 commits before; warmup:200 alone then stays constant.",
        json_schema_extra={"panel": "Learning rate"},
    )

    steps: int = Field(
        0,
        ge=0,
        description="Budget: number of applied commits of each worker. 0: no such limit.",
        json_schema_extra={"panel": "Budget"},
    )
    epochs: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Budget: number of passes of each worker over its own data. 0: no such limit. A script says how "
        "long a pass is: ParameterServer(..., steps_per_epoch=len(loader)).",
        json_schema_extra={"panel": "Budget"},
    )
    commits: int = Field(
        0,
        ge=0,
        description="Budget: number of applied commits of all workers together. 0: no such limit.",
        json_schema_extra={"panel": "Budget"},
    )
    exit_when_finished: bool = Field(
        False,
        description="End the process, with a checkpoint and exit code 0, once the budget is spent and all workers "
        "have left, or limits.exit_grace seconds after the budget was spent. If a finished run is resumed, the server "
        "first waits for its workers, so that they can leave.",
        json_schema_extra={"panel": "Budget"},
    )
    shard: str = Field(
        "0/1",
        description="This server's shard of the model, I/N: N servers hold a range of the parameters each. 0/N is the "
        "primary, which workers are given; it has the settings of the run, and starts when all are connected.",
        json_schema_extra={"panel": "Shards"},
    )
    primary: str = Field(
        "",
        description="With --shard 1/N and so on: HOST:PORT of the primary. The rule and its settings must be the same.",
        json_schema_extra={"panel": "Shards"},
    )
    primary_credentials: Path | None = Field(
        None,
        description="With --primary, where that has TLS or tokens: the folder `operator` that `gemps certs` makes.",
        json_schema_extra={"panel": "Shards"},
    )
    shard_address: str = Field(
        "",
        description="With --primary: HOST:PORT at which workers reach this shard. Empty: the address from which it "
        "connects to the primary, with the port of --bind.",
        json_schema_extra={"panel": "Shards"},
    )

    order: Literal["fifo", "round-robin"] = Field(
        "fifo",
        description="In which order requests are served: as they became complete, or by rank in turn. round-robin is "
        "for experiments: with a seed, CPU runs are then bit-reproducible, and a worker is waited for when it is its "
        "turn.",
        json_schema_extra={"panel": "Run"},
    )
    min_workers: int = Field(
        1,
        ge=1,
        description="Workers that must have joined before training starts. It holds for the first start of a run: a "
        "server that resumes one trains on with the first worker that comes, because others may be gone for good. "
        "With --order round-robin it waits for as many again, for --session-timeout seconds at most.",
        json_schema_extra={"panel": "Run"},
    )
    run: Annotated[str, AfterValidator(check_name)] = Field(
        "",
        description="Name of the run, at most 256 bytes of UTF-8. A server refuses workers that name another run, so "
        "that none trains in the run of another job. A worker that names its run exits with 0, and not with 4, if that "
        "is finished before its first step. Empty: of a server, the name that the run has in --data-dir, if any, and "
        "else it takes all workers; of a worker, any run.",
        json_schema_extra={"panel": "Run"},
    )
    seed: int = Field(
        0,
        ge=0,
        lt=1 << 63,
        description="Workers make the first parameters and the order of their data from it.",
        json_schema_extra={"panel": "Run"},
    )

    data_dir: Path | None = Field(
        None,
        description="Directory of the checkpoints. Without one nothing is written, and a stopped run is gone.",
        json_schema_extra={"panel": "Durability"},
    )
    durability: Literal["interval", "commit"] = Field(
        "interval",
        description="With --data-dir: what a crash may cost. commit: nothing that was acknowledged, because each "
        "commit is in a log on disk before it is acknowledged. interval: what was applied since the last checkpoint. "
        "With several shards the default is commit. Without --data-dir a crash costs the run.",
        json_schema_extra={"panel": "Durability"},
    )
    checkpoint_interval: float = Field(
        60.0,
        ge=0,
        description="Seconds between checkpoints while training; the first one comes after 10 s, if this is "
        "longer. There is always one when the run is finished, and one at the end of the "
        "process; 0: only those.",
        json_schema_extra={"panel": "Durability"},
    )
    checkpoint_commits: int = Field(
        0,
        ge=0,
        description="Applied commits after which a checkpoint is written, whatever the time; 0: no such rule.",
        json_schema_extra={"panel": "Durability"},
    )
    resume: bool = Field(
        False,
        description="Continue from the newest checkpoint in --data-dir, if one exists. With gemps train: in the "
        "folder that --run-dir names.",
        json_schema_extra={"panel": "Durability"},
    )

    record: Path | None = Field(
        None,
        description="File that keeps a trace of the run: joins, pulls, restarts, and every commit with its delta, so "
        "that `gemps replay FILE` can do it all again. It grows by 4 bytes a parameter with every commit, and commits "
        "wait for it to be written. With --resume an existing trace is continued.",
        json_schema_extra={"panel": "Durability"},
    )

    memory_limit: int = Field(
        0,
        ge=0,
        description="Bytes that parameters, workers' vectors, buffers and layouts may take together; a worker that "
        "does not fit is refused when it joins. 0: 80 % of what the machine or its control group has.",
        json_schema_extra={"panel": "Limits"},
    )
    session_timeout: Seconds = Field(
        120.0,
        description="Seconds without any call or open stream after which a session expires.",
        json_schema_extra={"panel": "Limits"},
    )
    ready_file: Path | None = Field(
        None,
        description="A JSON file (address, port, pid; dashboard: its URL, where there is one) that is there while the "
        "server serves: removed at the start, written when kernels are compiled and recovery is done, touched every "
        "5 s, removed when draining begins. So a health check opens no port: find FILE -newermt '-30 seconds' | grep "
        "-q . fails for a server that is not ready, goes, or hangs.",
        json_schema_extra={"panel": "Network"},
    )

    limits: LimitSettings = LimitSettings()
    tls: TlsSettings = TlsSettings()

    @model_validator(mode="before")
    @classmethod
    def _files_of_the_folder(cls, values: dict[str, Any]) -> dict[str, Any]:
        if not values.get("credentials"):
            return values
        folder, tls = Path(values["credentials"]), values.get("tls") or {}
        given = {name: getattr(tls, name) for name in tls.model_fields_set} if isinstance(tls, TlsSettings) else tls
        optional = {name: folder / file for name, file in _OPTIONAL_FILES.items() if (folder / file).exists()}
        return values | {"tls": {name: folder / file for name, file in _FILES.items()} | optional | given}

    @field_validator("shared_memory_socket", mode="before")
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        return None if value == "" else value

    @field_validator("bind", "primary", "shard_address")
    @classmethod
    def _has_host_and_port(cls, value: str, info: ValidationInfo) -> str:
        host, colon, port = value.rpartition(":")
        if not value and info.field_name != "bind":
            return value
        if not colon or not host or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"{value!r} is not HOST:PORT; write for example 127.0.0.1:50051 or [::1]:50051")
        return value

    @field_validator("shard")
    @classmethod
    def _shard_is_of_several(cls, value: str) -> str:
        return str(Shard.parse(value))

    @field_validator("dashboard")
    @classmethod
    def _page_has_host_and_port(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if value and not port.isdigit():
            raise ValueError(f"{value!r} is not HOST:PORT; write for example 8080, 127.0.0.1:8080 or [::1]:8080")
        if value and int(port) > 65535:
            raise ValueError(f"{port} is no port: choose a number from 1 to 65535, or 0 for a free one")
        return f"{host or '127.0.0.1'}:{port}" if value else value

    @field_validator("dashboard_hosts")
    @classmethod
    def _hosts_are_names(cls, value: str) -> str:
        for name in value.split(","):
            if name.strip() and not re.fullmatch(r"[\w.-]+", name.strip()):
                raise ValueError(
                    f"{name.strip()!r} is no name of a host: write run.example.org, without http:// or port"
                )
        return value

    @field_validator("durability", mode="before")
    @classmethod
    def _durability_is_not_none(cls, value: object) -> object:
        if value == "none":
            raise ValueError(
                "is gone: leave out --data-dir to write nothing; with --checkpoint-interval 0 the last checkpoint is "
                "written at the end"
            )
        return value

    @field_validator("order", mode="before")
    @classmethod
    def _order_is_not_trace(cls, value: object) -> object:
        if value == "trace":
            raise ValueError(
                "is gone: gemps replay FILE computes a recorded run again, gemps simulate --follow FILE its gradients, "
                "too"
            )
        return value

    @field_validator("eta_schedule")
    @classmethod
    def _schedule_is_understood(cls, value: str, info: ValidationInfo) -> str:
        if "eta" in info.data:
            EtaSchedule.parse(value, info.data["eta"])
        return value

    @model_validator(mode="after")
    def _fields_fit_together(self) -> Self:
        self._check_network()
        self._check_rule()
        self._check_eta()
        self._check_shard()
        self._check_durability()
        return self

    def _check_network(self) -> None:
        if self.lane_port and self.bind.rpartition(":")[2] == str(self.lane_port):
            raise ValueError(
                f"--lane-port {self.lane_port} is the port of --bind, too: choose another one, or 0 for a free one"
            )
        if self.tls.cert is None and not self.insecure and not is_loopback(self.host):
            raise ValueError(
                f"bind {self.bind} is beyond loopback: anybody on the path could read and change what travels; give "
                "--credentials FOLDER (gemps certs makes it) or tls.cert and tls.key, add --insecure if the network is "
                "trusted, or bind 127.0.0.1"
            )
        if self.min_workers > self.limits.max_sessions:
            raise ValueError(
                f"--min-workers {self.min_workers} is more than limits.max_sessions {self.limits.max_sessions} admits: "
                "training would never start"
            )

    def _check_rule(self) -> None:
        with _named(f"--direction {self.direction}: "):
            require_direction(self.rule_name, self.direction)
        with _named("--rule-settings: "):
            self._check_rule_settings()
        with _named(""):
            require_decay(self.eta, self.settings_of_rule())

    def _check_rule_settings(self) -> None:
        """Check what can be checked without loading the rule. What its class checks besides ends the server later."""
        chosen = parse_settings(self.rule_settings)
        for name in self._rule_flags():
            if name in chosen:
                raise RuleError(f"{name} is given here and as {_flag(name)}: give one of them")
        if self.rule_name == "gem":
            self._check_gem_settings(chosen)

    def _check_gem_settings(self, chosen: Mapping[str, float]) -> None:
        used = check_settings("gem", GEM_SETTINGS, self.settings_of_rule())
        if "local_rate" in chosen and used["local_steps"] == 1:
            raise RuleError("local_rate needs --local-steps: leave it out, or add --local-steps 4")

    def _check_eta(self) -> None:
        if self.schedule.ends_with_the_run and not (self.commits or self.steps or self.epochs):
            raise ValueError(
                f"--eta-schedule {self.eta_schedule} ends with the run, which has no budget: add --steps, --epochs or "
                "--commits, or write the number of commits, for example --eta-schedule cosine:5000"
            )

    def _check_durability(self) -> None:
        if self.data_dir is not None:
            return
        if self.resume or self.model_fields_set & {"checkpoint_interval", "checkpoint_commits"}:
            raise ValueError("--resume, --checkpoint-interval and --checkpoint-commits need --data-dir DIRECTORY")
        if self.durability == "commit":
            raise ValueError("--durability commit needs --data-dir DIRECTORY, where the log goes")

    def _check_shard(self) -> None:
        shard = self.part
        if shard.is_secondary != bool(self.primary):
            raise ValueError(
                f"--shard {shard} needs --primary HOST:PORT, the address of shard 0/{shard.count}"
                if shard.is_secondary
                else f"--primary is for other shards, such as --shard 1/2, and this is {shard}: give one of them"
            )
        for name, value in (("shard-address", self.shard_address), ("primary-credentials", self.primary_credentials)):
            if value and not self.primary:
                raise ValueError(f"--{name} needs --primary HOST:PORT: give both, or neither")
        if self.record is not None and not shard.is_whole:
            raise ValueError("--record is for one server with the whole model: leave it out, or use one server")

    @property
    def rule_name(self) -> str:
        """The name of the rule that the server runs. With --rule auto it is gem."""
        return _RULE_OF_AUTO if self.is_auto else self.rule

    @property
    def is_auto(self) -> bool:
        """Whether the first worker decides the rule's settings (--rule auto)."""
        return self.rule == AUTO

    @property
    def given_direction(self) -> Direction | None:
        """The direction that the settings determine. None if the first worker decides it.

        If only `eta` is given, it is the gradient, because a usual learning rate of gradients is far too large for the
        steps of direction auto.
        """
        is_given = not self.is_auto or {"direction", "eta"} & self.model_fields_set
        return self.direction if is_given else None

    @property
    def given_instead_of_recipes(self) -> list[str]:
        """The options that were given, and exclude a worker's recipe: `--eta`, `--rule-settings`."""
        given = self.model_fields_set - (set() if self.rule_settings else {"rule_settings"})
        return [_flag(name) for name in _DECIDED_BY_RECIPES if name in given]

    def schedule_of(self, direction: str) -> EtaSchedule:
        """Return the parsed `eta_schedule` with `eta`, or if no eta is given with the default of this direction."""
        eta = self.eta
        if self.is_auto and "eta" not in self.model_fields_set:
            eta = default_eta({"direction": direction})
        return EtaSchedule.parse(self.eta_schedule, eta)

    @property
    def schedule(self) -> EtaSchedule:
        """The parsed `eta_schedule` with `eta`."""
        return EtaSchedule.parse(self.eta_schedule, self.eta)

    @property
    def part(self) -> Shard:
        """The parsed setting `shard`."""
        return Shard.parse(self.shard)

    @property
    def host(self) -> str:
        """The host of `bind`, without brackets."""
        return self.bind.rpartition(":")[0].strip("[]")

    @property
    def durability_level(self) -> Literal["none", "interval", "commit"]:
        """The level of durability, which is "none" without a data directory. Default with several shards: "commit"."""
        if self.data_dir is None:
            return "none"
        is_given = "durability" in self.model_fields_set
        return self.durability if is_given or self.part.is_whole else "commit"

    def _rule_flags(self) -> dict[str, float]:
        """Rule settings that have a flag, and were given by it."""
        return {name: getattr(self, name) for name in ("weight_decay", "local_steps") if name in self.model_fields_set}

    def settings_of_rule(self, direction: Direction | None = None) -> dict[str, float]:
        """Return the rule's settings that are given, or follow from the direction.

        `direction` is the run's. None stands for the given one, or for gradient.
        """
        usual = usual_settings(self.rule_name, direction or self.given_direction or "gradient")
        return dict(usual) | self._rule_flags() | parse_settings(self.rule_settings)


@contextmanager
def _named(option: str) -> Iterator[None]:
    """Context that turns a RuleError into a ValueError whose text begins with the wrong option."""
    try:
        yield
    except RuleError as error:
        raise ValueError(f"{option}{error}") from None


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    return host in ("localhost", "::1") or host.startswith(("127.", "unix:"))
