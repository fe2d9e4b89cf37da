"""The best parameters of a run, kept in a folder."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gem_core.regular_files import check_regular
from gem_worker.client.operating_system import replace_durably
from gem_worker.errors import TaskError

MODEL_FILE, FACTS_FILE = "model.safetensors", "best.json"
# Metadata key: replaced atomically with the parameters.
_METADATA = "gemps_best"


class BestCheckpoint:
    """Keeps a folder's most accurate parameters, across processes.

    Raises TaskError if the folder is unusable or holds a foreign file.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._model = folder / MODEL_FILE
        self.facts: dict[str, Any] | None = self._read()
        if self.facts is not None:
            self._write_facts(self.facts)  # repair after a crash

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the kept parameters, if any."""
        return None if self.facts is None else float(self.facts["accuracy"])

    def offer(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> bool:
        """Keep the parameters if `facts["accuracy"]` (0 to 1) is the highest so far; return whether.

        Parameters whose figures are not all finite (`is_finite`) are never kept. If earlier versions of gemps kept
        such parameters in the folder, any finite ones replace them.

        Raises TaskError if `facts["layout_digest"]` is another model's, or if writing fails.
        """
        if self.facts is not None and facts["layout_digest"] != self.facts["layout_digest"]:
            raise TaskError(f"{self._model} is of another model: name another folder, one for each run")
        if not is_finite(facts):
            return False
        if self.facts is not None and is_finite(self.facts) and facts["accuracy"] <= self.facts["accuracy"]:
            return False
        part = self._folder / f".{MODEL_FILE}.part"
        try:
            save_file(_unshared(tensors), part, {"format": "pt", _METADATA: json.dumps(facts)})
            replace_durably(part, self._model)
        except (OSError, SafetensorError) as error:
            raise self._unusable(error) from error
        self._write_facts(facts)
        self.facts = facts
        return True

    def _read(self) -> dict[str, Any] | None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if not self._model.exists():
                return None
            check_regular(self._model)
            with safe_open(self._model, "np") as file:
                metadata = file.metadata() or {}
        except OSError as error:
            raise self._unusable(error) from error
        except SafetensorError as error:
            raise TaskError(f"{self._model} is damaged ({error}): delete it, or name another folder") from error
        if _METADATA not in metadata:
            raise TaskError(
                f"{self._model} was not written by an evaluator, and is left as it is: name another folder to keep the "
                "best parameters in"
            )
        facts: dict[str, Any] = json.loads(metadata[_METADATA])
        return facts

    def _write_facts(self, facts: dict[str, Any]) -> None:
        part = self._folder / f".{FACTS_FILE}.part"
        try:
            part.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
            replace_durably(part, self._folder / FACTS_FILE)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> TaskError:
        why = getattr(error, "strerror", None) or error
        return TaskError(f"the best parameters cannot be kept in {self._folder}: {why}; free some room or name another")


def is_finite(facts: Mapping[str, Any]) -> bool:
    """Whether the evaluation's loss, accuracy and bits per character (where it has them) are finite numbers.

    A model whose loss is infinite or NaN has diverged, even if it still guesses some samples right.
    """
    figures = (facts.get(name) for name in ("loss", "accuracy", "bits_per_character"))
    return all(math.isfinite(figure) for figure in figures if figure is not None)


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The format rejects shared memory."""
    seen: set[int] = set()
    found = {}
    for name, tensor in tensors.items():
        found[name] = tensor.clone() if id(tensor) in seen else tensor
        seen.add(id(tensor))
    return found
