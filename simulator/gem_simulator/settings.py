"""The settings of simulations. Flag `--workers` = environment `GEMPS_WORKERS` = TOML key `workers`.

A setting that servers or workers also have, has the same name and default as there.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from gem_worker.model_sizes import TransformerSizes
from gem_worker.settings import TaskName, WholeWireName
from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from gem_core.registry import (
    BUILT_IN,
    Direction,
    require_decay,
    require_direction,
    require_rule,
)
from gem_core.rule_settings import WEIGHT_DECAY, default_eta, parse_settings, settings_text, usual_settings
from gem_simulator.durations import Durations
from gem_simulator.errors import SimulationError

if TYPE_CHECKING:
    from gem_worker.tasks.options import TaskOptions

_SPAN = re.compile(r"(\d+)(?:-(\d+))?[@x](\d+(?:\.\d*)?(?:e[+-]?\d+)?)", re.IGNORECASE)


class SimulationSettings(BaseSettings):
    """All settings of a simulation."""

    model_config = SettingsConfigDict(env_prefix="GEMPS_", frozen=True, extra="forbid", validate_default=True)

    workers: int = Field(
        default=4,
        ge=1,
        le=100_000,
        description="Simulated workers. Each takes the memory of what the rule keeps of it.",
    )
    rule: Annotated[str, AfterValidator(require_rule)] = Field(
        default="gem",
        description="Update rule: what the server makes of a worker's delta. Other packages may bring more of them.",
        json_schema_extra={"panel": "Update rule", "choices": list(BUILT_IN)},
    )
    rule_settings: Annotated[str, BeforeValidator(settings_text)] = Field(
        default="",
        description="The rule's settings as NAME=VALUE,NAME=VALUE: kappa=2,momentum=0.8 for gem. In a TOML file and in "
        "Python it may be a table. Each rule's names and defaults are in docs/rules.md.",
        json_schema_extra={"panel": "Update rule"},
    )
    weight_decay: float = Field(
        default=WEIGHT_DECAY.default,
        ge=WEIGHT_DECAY.least,
        le=WEIGHT_DECAY.most,
        description="Decoupled weight decay of gem, downpour and adaptive-staleness, as the server's.",
        json_schema_extra={"panel": "Update rule"},
    )
    direction: Direction = Field(
        default="gradient",
        description="What workers make of their gradients: docs/rules.md.",
        json_schema_extra={"panel": "Update rule"},
    )
    clip_norm: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="Largest norm of a worker's gradient; 0: no limit.",
        json_schema_extra={"panel": "Update rule"},
    )
    eta: float = Field(
        default_factory=default_eta,
        gt=0,
        description="Learning rate, constant. Its default is 0.001 with --direction rms, 0.002 with --direction "
        "auto, else 0.05.",
        json_schema_extra={"panel": "Update rule"},
    )
    exchange: Literal["service", "paper", "original"] = Field(
        default="service",
        description="How a step is settled: service: the server rescales, one round trip; paper: algorithm 1, the "
        "worker fetches, rescales and commits; original: as in the paper, but the server serves no other worker "
        "meanwhile.",
        json_schema_extra={"panel": "Update rule"},
    )
    task: TaskName = Field(default="digits", description="What to learn.", json_schema_extra={"panel": "Task"})
    model: str = Field(
        default="",
        description="Which model: mlp, cnn, transformer (for text), or a torchvision classification model. Empty: the "
        "task's own.",
        json_schema_extra={"panel": "Task"},
    )
    dataset_dir: Path = Field(
        default=Path("data"), description="Folder that holds the data set's files.", json_schema_extra={"panel": "Task"}
    )
    download: bool = Field(
        default=False,
        description="Fetch a missing data set into --dataset-dir.",
        json_schema_extra={"panel": "Task"},
    )
    image_size: int = Field(
        default=224,
        ge=1,
        le=4096,
        description="Side of the square images of imagefolder and generated-images, in pixels.",
        json_schema_extra={"panel": "Task"},
    )
    text: str = Field(
        default="",
        description="Text of the task text: a UTF-8 file, or a folder with such files. Empty: pydoc_data.topics of the "
        "running Python.",
        json_schema_extra={"panel": "Task"},
    )
    context: int = Field(
        default=64, ge=1, le=65536, description="Bytes of text in a sample.", json_schema_extra={"panel": "Task"}
    )
    layers: int = Field(default=2, ge=1, description="Blocks of the transformer.", json_schema_extra={"panel": "Task"})
    width: int = Field(
        default=64,
        ge=1,
        description="Features that the transformer has for each position; a multiple of --heads.",
        json_schema_extra={"panel": "Task"},
    )
    heads: int = Field(
        default=4,
        ge=1,
        description="Attention heads in each block of the transformer.",
        json_schema_extra={"panel": "Task"},
    )
    batch_size: int = Field(
        default=64, ge=1, description="Training samples a step, of each worker.", json_schema_extra={"panel": "Task"}
    )
    delta_wire: WholeWireName | None = Field(
        default=None, description="Type in which deltas travel. Empty: float32.", json_schema_extra={"panel": "Task"}
    )
    parameter_wire: WholeWireName | None = Field(
        default=None,
        description="Type in which fresh parameters travel back. Empty: float32.",
        json_schema_extra={"panel": "Task"},
    )
    seed: int = Field(
        default=0,
        ge=0,
        lt=2**63,
        description="Of first parameters, order of samples, dropout and compute times. The same settings give the same "
        "parameters, bit for bit.",
    )
    steps: int = Field(default=0, ge=0, description="Budget: steps of each worker; 0: see --commits and --seconds.")
    commits: int = Field(default=0, ge=0, description="Budget: commits of all workers together; 0: none.")
    seconds: float = Field(default=0, ge=0, description="Budget: seconds of the virtual clock; 0: none.")
    order: Literal["fifo", "round-robin"] = Field(
        default="fifo",
        description="Which request the server serves next: fifo: the first that came; round-robin: each worker in "
        "turn, by rank; the server waits for the worker whose turn it is.",
        json_schema_extra={"panel": "Time"},
    )
    compute_time: str = Field(
        default="constant:1",
        description="Virtual seconds that a gradient takes: constant:SECONDS, lognormal:MEDIAN,SIGMA, "
        "exponential:MEAN, speeds:SECONDS,SECONDS,... (by rank, again and again) or trace:FILE (as recorded with "
        "--record).",
        json_schema_extra={"panel": "Time"},
    )
    network_time: float = Field(
        default=0.0,
        ge=0,
        description="Virtual seconds that a message takes, in each direction.",
        json_schema_extra={"panel": "Time"},
    )
    network_rate: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="Bytes a second that TCP carries over the link of the server, and of each worker, in each "
        "direction. Payloads in flight share it. 0: payloads take no time.",
        json_schema_extra={"panel": "Time"},
    )
    shards: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="With --network-rate, servers with a link each that hold equal parts of the parameters. Only "
        "simulated.",
        json_schema_extra={"panel": "Time"},
    )
    staging_buffers: int = Field(
        default=0,
        ge=0,
        description="With --network-rate, commits that may upload at once. 0: as a server by default, and payloads "
        "up to 64 KiB all at once.",
        json_schema_extra={"panel": "Time"},
    )
    service_time: float = Field(
        default=0.0,
        ge=0,
        description="Virtual seconds that the server is busy with a request; each of --shards: its share of them.",
        json_schema_extra={"panel": "Time"},
    )
    slow: str = Field(
        default="",
        description="Stragglers: RANKSxFACTOR, with commas between, such as 0-15x4,20x2: they compute this many times "
        "longer.",
        json_schema_extra={"panel": "Time"},
    )
    join: str = Field(
        default="",
        description="Who joins late: RANKS@SECONDS, with commas between, such as 16-31@100. All others join at 0.",
        json_schema_extra={"panel": "Time"},
    )
    die: str = Field(
        default="",
        description="Who dies: RANKS@SECONDS, with commas between. The server notices at once.",
        json_schema_extra={"panel": "Time"},
    )
    evaluate_every: int = Field(
        default=0,
        ge=0,
        description="Commits between two evaluations of the central variable, on all training and all held-out "
        "samples; 0: only at the end.",
    )

    @field_validator("compute_time")
    @classmethod
    def _known_durations(cls, value: str) -> str:
        try:
            Durations(value)
        except SimulationError as error:
            raise ValueError(str(error)) from None
        return value

    @field_validator("slow", "join", "die")
    @classmethod
    def _known_spans(cls, value: str) -> str:
        _spans(value)
        return value

    @model_validator(mode="after")
    def _fields_fit_together(self) -> Self:
        require_direction(self.rule, self.direction)
        if self.weight_decay and "weight_decay" in parse_settings(self.rule_settings):
            raise ValueError("--weight-decay and --rule-settings weight_decay=...: give one of them")
        require_decay(self.eta, self.settings_of_rule())
        TransformerSizes(self.layers, self.width, self.heads)
        if self.network_rate and (self.exchange != "service" or self.order != "fifo"):
            raise ValueError("--network-rate is of what gemps does: it needs --exchange service and --order fifo")
        if self.shards > 1 and not self.network_rate:
            raise ValueError(f"--shards {self.shards} divides the payloads of --network-rate: give that too")
        for name in ("slow", "join", "die"):
            beyond = [rank for rank in self.spans(name) if rank >= self.workers]
            if beyond:
                raise ValueError(
                    f"--{name} {getattr(self, name)} names worker {beyond[0]}, and there are {self.workers}, from 0 on"
                )
        joins, deaths = self.spans("join"), self.spans("die")
        for rank in sorted(joins.keys() & deaths.keys()):
            if joins[rank] >= deaths[rank]:
                raise ValueError(
                    f"worker {rank} would die at {deaths[rank]:g} and join at {joins[rank]:g}: change --join or --die"
                )
        if any(factor <= 0 for factor in self.spans("slow").values()):
            raise ValueError(f"--slow {self.slow}: a factor must be more than 0")
        return self

    @property
    def has_end(self) -> bool:
        """Whether there is a budget."""
        return bool(self.steps or self.commits or self.seconds)

    def settings_of_rule(self) -> dict[str, float]:
        """The arguments for `create_rule`, which are not validated yet."""
        usual = usual_settings(self.rule, self.direction)
        shared = {"weight_decay": self.weight_decay} if self.weight_decay else {}
        return dict(usual) | shared | parse_settings(self.rule_settings)

    def task_options(self) -> "TaskOptions":
        """The options for `create_task`."""
        from gem_worker.tasks.options import TaskOptions  # imports torch

        return TaskOptions(
            dataset_dir=self.dataset_dir,
            download=self.download,
            image_size=self.image_size,
            text=self.text,
            context=self.context,
            sizes=TransformerSizes(self.layers, self.width, self.heads),
        )

    def spans(self, name: str) -> dict[int, float]:
        """Return the setting `slow`, `join` or `die` by rank."""
        return _spans(getattr(self, name))


def _spans(text: str) -> dict[int, float]:
    found: dict[int, float] = {}
    for part in filter(None, text.split(",")):
        match = _SPAN.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{part!r} is not understood: write such as 3@10 or 0-15@10 (for --slow: 0-15x4)")
        first, last, number = match.groups()
        ranks = range(int(first), int(last or first) + 1)
        if not ranks:
            raise ValueError(f"{part!r} names no worker: write the smaller rank first")
        if any(rank in found for rank in ranks):
            raise ValueError(f"{part!r} names a worker that was named before: leave one of them out")
        found |= dict.fromkeys(ranks, float(number))
    return found
