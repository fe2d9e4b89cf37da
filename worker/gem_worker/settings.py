"""Settings."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from gem_core.visible_text import check_name
from gem_worker.model_sizes import TransformerSizes

TaskName = Literal["digits", "digits28", "mnist", "fashion-mnist", "cifar10", "imagefolder", "generated-images", "text"]
WholeWireName = Literal["float32", "bfloat16"]
WireName = Literal[WholeWireName, "int4", "sparse"]
NetworkName = Literal["auto", "fast", "slow"]
# What to use instead of the wire types that are gone; errors say it for one release.
REMOVED_WIRE_TYPES = {"float16": "bfloat16", "int8": "int4 or bfloat16"}


class WorkerSettings(BaseSettings):
    """Settings of `gemps work`."""

    model_config = SettingsConfigDict(env_prefix="GEMPS_", frozen=True, extra="forbid", validate_default=True)

    server: str = Field(
        default="127.0.0.1:50051",
        min_length=1,
        description="HOST:PORT of the parameter server. A server that is not there yet is waited for "
        "(GEMPS_CLIENT_CONNECT_TIMEOUT seconds, 300).",
    )
    worker_name: str = Field(
        default="",
        max_length=256,
        description="This worker's name, unique in the run. Its rank follows the name, also over a restart of the "
        "worker; two live workers of one name supersede each other. Empty: its name in Slurm, torchrun or an Indexed "
        "Job of Kubernetes, else host name and process id.",
    )
    run: Annotated[str, AfterValidator(check_name)] = Field(
        default="",
        description="Name of the run, at most 256 bytes of UTF-8. A server refuses workers that name another run, so "
        "that none trains in the run of another job. A worker that names its run exits with 0, and not with 4, if that "
        "is finished before its first step. Empty: of a server, the name that the run has in --data-dir, if any, and "
        "else it takes all workers; of a worker, any run.",
    )
    task: TaskName = Field(
        default="digits",
        description="What to learn. digits: real handwritten digits, which need no download. digits28: the same ones, "
        "enlarged to 28 x 28 pixels. fashion-mnist: photographs of clothes, from Debian's package "
        "dataset-fashion-mnist if it is installed. generated-images: random images, to measure throughput. text: the "
        "next byte of a text.",
    )
    model: str = Field(
        default="",
        description="Model to train: mlp, cnn (the one of GEM's paper), transformer (for the task text), or the name "
        "of a torchvision classification model, such as alexnet or resnet18. Empty: the default model of the task.",
    )
    dataset_dir: Path = Field(
        default=Path("data"),
        description="Folder that holds the data set's files, as torchvision lays them out; for mnist and fashion-mnist "
        "also the folder of the four idx files themselves, plain or gzipped. Tasks that need no files do not read it.",
    )
    download: bool = Field(
        default=False,
        description="Fetch a missing data set into --dataset-dir. Without it no worker touches the network for data.",
    )
    image_size: int = Field(
        default=224,
        ge=1,
        le=4096,
        description="Side of the square images of imagefolder (resized and cropped to it) and generated-images, in "
        "pixels.",
    )
    generated_samples: int = Field(
        default=256,
        ge=1,
        description="Training images of generated-images. They stay in memory: 3 bytes a pixel.",
    )
    generated_classes: int = Field(default=1000, ge=2, description="Classes of generated-images.")
    text: str = Field(
        default="",
        description="Text to learn with the task text: a UTF-8 file, or a folder whose files are read in the order of "
        "their paths. Its last tenth (at most 1 MiB) is held out. Empty: pydoc_data.topics of the running Python, 0.5 "
        "MB.",
    )
    context: int = Field(
        default=64, ge=1, le=65536, description="Bytes of text in a sample: as far back as the transformer sees."
    )
    layers: int = Field(default=2, ge=1, description="Blocks of the transformer.")
    width: int = Field(
        default=64, ge=1, description="Features that the transformer has for each position; a multiple of --heads."
    )
    heads: int = Field(default=4, ge=1, description="Attention heads in each block of the transformer.")
    batch_size: int = Field(default=64, ge=1, description="Number of training samples in each step of one worker.")
    loader_threads: int = Field(
        default=2,
        ge=1,
        description="Threads that read and decode image files ahead of the training step (imagefolder).",
    )
    device: str = Field(
        default="auto",
        description="Device to compute on: cpu, cuda, cuda:1 or mps. auto: the CUDA device whose number is the "
        "worker's rank on this host modulo the number of devices, or the CPU if there is no CUDA device.",
    )
    cpu_threads: int = Field(
        default=1,
        ge=1,
        description="Threads of one CPU worker. Many workers share a machine, so more than 1 pays only for few of "
        "them; and only 1 is bit-reproducible on every machine.",
    )
    network: NetworkName = Field(
        default="auto",
        description="How wire types are chosen where neither --delta-wire nor --parameter-wire is given. auto: float32 "
        "at first; if the exchange with a server on another machine takes more than a quarter of a step, the worker "
        "changes to narrower types, and says so. Not in round-robin runs, which repeat bit for bit. fast: always "
        "float32. slow: int4 from the beginning.",
    )
    delta_wire: WireName | None = Field(
        default=None,
        description="Type in which deltas travel; without it, see --network. bfloat16 has half of float32's bytes and "
        "costs nothing measurable in accuracy. int4 has an eighth; sparse a fifteenth: one element in 4. Workers add "
        "what these leave out to the next delta.",
    )
    parameter_wire: WireName | None = Field(
        default=None,
        description="Type in which fresh parameters travel back; without it, see --network. int4 and sparse: as "
        "differences from those that the worker holds, for which server and worker each keep one more vector. "
        "A worker's parameters are then approximate; the run's files are exact.",
    )
    log_interval: float = Field(
        default=5.0,
        ge=0,
        description="Seconds between two lines about the training's progress; 0: a line for every step. Changes are "
        "reported at once.",
    )
    log_format: Literal["auto", "human", "json"] = Field(
        default="auto",
        description="How the log is written. human: lines for people; json: one JSON object a line, for programs; "
        "auto: human on a terminal, json elsewhere.",
    )

    @property
    def transformer_sizes(self) -> TransformerSizes:
        """Layers, width and heads."""
        return TransformerSizes(self.layers, self.width, self.heads)

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        TransformerSizes(self.layers, self.width, self.heads)
        return self

    @field_validator("delta_wire", "parameter_wire", mode="before")
    @classmethod
    def _no_removed_wire_type(cls, value: object) -> object:
        if isinstance(value, str) and value in REMOVED_WIRE_TYPES:
            raise ValueError(f"is gone: use {REMOVED_WIRE_TYPES[value]}")
        return value

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        kind, colon, number = value.partition(":")
        if kind not in ("auto", "cpu", "cuda", "mps") or (colon and not (kind == "cuda" and number.isdecimal())):
            raise ValueError("is no device: use auto, cpu, cuda, cuda:NUMBER or mps")
        return value
