"""Settings."""

from pathlib import Path

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

DEFAULT_INTERVAL = 10.0


class EvaluatorSettings(BaseSettings):
    """Settings of `gemps evaluate --follow` and `gemps train`'s evaluator."""

    model_config = SettingsConfigDict(env_prefix="GEMPS_", frozen=True, extra="forbid", validate_default=True)

    evaluation_interval: float | None = Field(
        default=None,
        gt=0,
        description="Seconds from one evaluation of the newest version to the next; one that takes longer is followed "
        "by the next at once, and a version that was evaluated is not evaluated again. Not given: 10 for gemps "
        "evaluate --follow and with --stop-at-accuracy, else gemps train evaluates nothing before the end.",
    )
    stop_at_accuracy: float | None = Field(
        default=None,
        description="End the run when an evaluation reaches this accuracy, from 0 to 1, as gemps finish does: where "
        "the server asks for tokens it takes an operator's.",
    )
    keep_best: Path | None = Field(
        default=None,
        description="Folder in which the parameters of the best accuracy so far are kept, as model.safetensors, with "
        "best.json that says which they are. It belongs to one run: what lies there is replaced by better ones only.",
    )

    @field_validator("stop_at_accuracy")
    @classmethod
    def _is_a_fraction(cls, value: float | None) -> float | None:
        if value is not None and not 0 <= value <= 1:
            raise ValueError(f"{value:g} is no fraction: write 0.97 for 97 %")
        return value

    @property
    def interval(self) -> float:
        """Seconds between two evaluations."""
        return DEFAULT_INTERVAL if self.evaluation_interval is None else self.evaluation_interval
