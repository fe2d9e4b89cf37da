"""Settings."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from gem_core.shards import MAX_SHARDS


class TrainSettings(BaseSettings):
    """Settings of `gemps train`."""

    model_config = SettingsConfigDict(env_prefix="GEMPS_", frozen=True, extra="forbid", validate_default=True)

    workers: int = Field(
        4,
        ge=1,
        le=1024,
        description="Number of worker processes to start. Each of them needs at least 300 MB of memory.",
    )
    shards: int = Field(
        1,
        ge=1,
        le=MAX_SHARDS,
        description="Server processes to start; each one holds a range of the parameters. With several, every commit "
        "is logged on disk (--durability).",
    )
    runs_dir: Path = Field(Path("runs"), description="Folder in which each run gets a folder.")
    run_dir: Path | None = Field(
        None,
        description="Folder of this run, which must be new or empty; with --resume, the folder of the run to continue. "
        "If it is not given, the run gets a new folder in --runs-dir.",
    )
    sinks: str = Field(
        "tensorboard",
        description="Where else the figures go, with commas between: tensorboard (an event file in the run folder), "
        "wandb, mlflow, or what other packages bring; none: to the run folder alone. One whose package is not "
        "installed is left out, with a warning.",
    )
    report_interval: float = Field(
        0.25,
        ge=0.1,
        le=4,  # servers wait 5 s for it
        description="Seconds between two reports of the server: progress shown, and lines of metrics.jsonl at first.",
    )
    worker_exit_timeout: float = Field(
        3600.0,
        ge=0,
        description="Seconds that workers may run after the end of the run, for what follows a script's "
        "`with ParameterServer` block: a last evaluation, saving the model. One that takes longer is interrupted, and "
        "killed 15 s later; the exit code is then 1. The evaluator of --evaluation-interval has as long for the last "
        "version.",
    )
