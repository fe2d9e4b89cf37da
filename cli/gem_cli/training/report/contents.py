"""Report's data."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gem_cli.errors import USAGE, CommandError
from gem_cli.training.run_folder import RunFolder
from gem_core.regular_files import read_text


@dataclass(frozen=True, slots=True)
class Contents:
    """Report data; `summary` is empty after a kill."""

    name: str
    status: Mapping[str, Any]
    summary: Mapping[str, Any]
    history: Mapping[str, Any] | None

    @classmethod
    def of(cls, folder: RunFolder) -> "Contents":
        """Read a run folder; raises CommandError."""
        if not folder.path.is_dir():
            what = "is no folder" if folder.path.exists() else "does not exist"
            raise CommandError(f"{folder.path} {what}: give the folder of a run, as runs/FOLDER", USAGE)
        try:
            status = folder.last_status()
        except OSError as error:
            raise CommandError(f"{folder.metrics} cannot be read: {error.strerror}") from None
        if status is None:
            raise CommandError(
                f"{folder.path} has no metrics.jsonl with a report in it: give the folder of a run that has begun, as "
                "runs/FOLDER",
                USAGE,
            )
        history = _read_json(folder, "history")
        return cls(folder.path.resolve().name, status, _read_json(folder, "summary") or {}, history)

    @property
    def intervals(self) -> Sequence[Mapping[str, Any]]:
        """Intervals with commits."""
        return [one for one in (self.history or {}).get("intervals", ()) if one.get("commits")]

    @property
    def evaluations(self) -> Sequence[Mapping[str, Any]]:
        """All evaluations."""
        return list((self.history or {}).get("evaluations", ()))

    @property
    def commits_of_process(self) -> int:
        """Commits that the last server process applied."""
        return int(self.status.get("commits_of_process", 0))

    @property
    def is_resumed(self) -> bool:
        """Whether earlier server processes applied commits, too."""
        return self.commits_of_process < int(self.status.get("commits", 0))

    @property
    def samples(self) -> int:
        """Training samples of the last server process; 0: unknown."""
        return sum(int(worker.get("samples", 0)) for worker in self.status.get("workers", ()))

    @property
    def samples_per_commit(self) -> float:
        """Mean over all commits; 0: unknown."""
        return self.samples / max(1, self.commits_of_process)

    @property
    def missing(self) -> str:
        """Why curves are missing, or empty."""
        if self.intervals:
            return ""
        if self.history is None:
            return "There is no history.json: the run was killed early, or an older gemps made it."
        if not self.status.get("keeps_telemetry", True):
            return "The server kept no telemetry (--no-telemetry), so there is no curve and no histogram."
        return "Nothing was committed."


def _read_json(folder: RunFolder, name: str) -> dict[str, Any] | None:
    path = getattr(folder, name)
    try:
        found: dict[str, Any] = json.loads(read_text(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CommandError(f"{path} cannot be read ({error.strerror}): delete it to have a report without it") from None
    except ValueError as error:
        raise CommandError(f"{path} is damaged ({error}): delete it to have a report without it") from None
    return found
