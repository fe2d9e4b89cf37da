"""A run's output folder (docs/command-line.md)."""

import json
import shutil
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from gem_cli.errors import USAGE, CommandError
from gem_cli.strict_json import to_json
from gem_cli.training.metrics_file import read_lines
from gem_core.regular_files import check_regular, read_text

_SHARDS = "shards"


class RunFolder:
    """Paths of a run; `fresh` and `given` create the folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model = path / "model.safetensors"
        self.summary = path / "summary.json"
        self.metrics = path / "metrics.jsonl"
        self.history = path / "history.json"
        self.plot = path / "plot.png"
        self.best = path / "best"
        self.adapter = path / "adapter"
        self.logs = path / "logs"
        self.ready_file = path / "server.json"

    @classmethod
    def fresh(cls, parent: Path, label: str) -> "RunFolder":
        """Create parent/YYYYmmdd-HHMMSS-label[-n]."""
        stem = f"{datetime.now().astimezone():%Y%m%d-%H%M%S}-{label}"
        count = 1
        while True:
            folder = cls(parent / (stem if count == 1 else f"{stem}-{count}"))
            try:
                folder.logs.parent.mkdir(parents=True)
            except FileExistsError:
                count += 1
                continue
            folder.logs.mkdir()
            return folder

    @classmethod
    def given(cls, path: Path, *, resume: bool, shards: int) -> "RunFolder":
        """Named folder. Raises CommandError when unusable."""
        if resume and not _shard_count(path):
            raise CommandError(f"--resume: {path} holds no checkpoint; name the folder of the run to continue", USAGE)
        if resume:
            cls(path).check_shards(shards)
            cls(path)._check_unused(shards)
        if not resume and path.exists() and not _is_unused(path):
            raise CommandError(f"--run-dir {path} is not empty: name a new folder, or add --resume to continue", USAGE)
        folder = cls(path)
        folder.logs.mkdir(parents=True, exist_ok=True)
        folder.ready_file.unlink(missing_ok=True)
        return folder

    def check_shards(self, shards: int) -> None:
        """Raise CommandError if it has the data of another number."""
        if (found := _shard_count(self.path)) not in (0, shards):
            raise CommandError(
                f"{self.path} was made with --shards {found}, not {shards}: give --shards {found}, or make another "
                f"folder from its data: gemps shards merge {self.path / _SHARDS}/* --output FOLDER for one server; "
                "from that, gemps shards split FOLDER --shards N --output OTHER/shards for several",
                USAGE,
            )

    def _check_unused(self, shards: int) -> None:
        from gem_server.durability.lock import DirectoryLock
        from gem_server.errors import StartupError

        for data_dir in self.data_dirs(shards):
            lock = DirectoryLock(data_dir)
            try:
                lock.acquire()
            except StartupError:
                raise CommandError(f"--resume: the run in {self.path} is still running: stop it first", USAGE) from None
            lock.release()

    def data_dirs(self, shards: int) -> list[Path]:
        """Servers' data directories."""
        return [self.path / _SHARDS / str(index) for index in range(shards)] if shards > 1 else [self.path]

    def log(self, name: str) -> Path:
        """Child's log path."""
        return self.logs / f"{name}.log"

    def write_history(self, history: Mapping[str, Any]) -> None:
        """Replace history.json."""
        part = self.history.with_name(f".{self.history.name}.part")
        part.write_text(to_json(history) + "\n", encoding="utf-8")
        part.replace(self.history)

    def keep_final_model(self) -> bool:
        """Copy the newest checkpoint's model; False without one."""
        newest = self.path / "latest" / "model.safetensors"
        if not newest.exists():
            return False
        check_regular(newest)
        shutil.copyfile(newest, self.model)
        return True

    def has_checkpoint(self) -> bool:
        """Whether `--resume` has something to continue from."""
        return bool(_shard_count(self.path))

    def has_adapter(self) -> bool:
        """Whether the newest checkpoint has an adapter."""
        state = self.path / "latest" / "state.json"
        return "adapter" in json.loads(read_text(state))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json."""
        self.summary.write_text(to_json(summary, indent=2) + "\n", encoding="utf-8")

    def read_metrics(self) -> list[dict[str, Any]]:
        """Lines of metrics.jsonl."""
        return read_lines(self.metrics)


def _is_unused(path: Path) -> bool:
    """Failed starts leave files."""
    return all(
        entry.name in ("lock", "logs", "tensorboard") or (entry.name == _SHARDS and not _used_shards(path))
        for entry in path.iterdir()
    )


def _used_shards(path: Path) -> list[Path]:
    return [shard for shard in (path / _SHARDS).glob("*") if not _is_unused(shard)]


def _shard_count(path: Path) -> int:
    """0: nothing to resume."""
    return len(_used_shards(path)) or int((path / "latest").exists())
