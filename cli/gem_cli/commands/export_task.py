"""The command `gemps export-task`."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from gem_cli.errors import FAILED, USAGE, CommandError


def export_task(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Which one: digits.")],
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write it there; a file that is there is replaced as a whole. Default: TASK.json."
        ),
    ] = None,
) -> None:
    """Write a task's model and samples to a JSON file, for workers in other languages.

    docs/command-line.md describes the file.

    [bold]Examples[/bold]

      gemps export-task digits --output data/digits.json
    """
    if task not in _EXPORTS:
        raise CommandError(f"there is no task {task!r} to export; there is {', '.join(_EXPORTS)}", USAGE)
    from gem_worker.errors import TaskError

    path = output or Path(f"{task}.json")
    try:
        content = _EXPORTS[task]()
    except TaskError as error:
        raise CommandError(str(error)) from None
    try:
        _write_task(path, json.dumps(content, separators=(",", ":")) + "\n")
    except OSError as error:
        raise CommandError(f"--output {path} cannot be written: {error.strerror}", FAILED) from None
    print(
        f"{path}: {len(content['train']['labels'])} samples to train on, {len(content['held_out']['labels'])} held out"
    )


def _digits() -> dict[str, Any]:
    from gem_worker.digits_file import CLASSES, HIDDEN, MAXIMUM, read_digits

    digits = read_digits()
    features = digits.pixels.shape[1]

    def part(chosen: Any) -> dict[str, Any]:
        return {"inputs": digits.pixels[chosen].tolist(), "labels": digits.labels[chosen].tolist()}

    return {
        "task": "digits",
        "layout": [
            _parameter("hidden.weight", HIDDEN, features),
            _parameter("hidden.bias", HIDDEN),
            _parameter("output.weight", CLASSES, HIDDEN),
            _parameter("output.bias", CLASSES),
        ],
        "hidden": [HIDDEN],
        "activation": "relu",
        "features": features,
        "classes": CLASSES,
        "maximum": MAXIMUM,
        "train": part(~digits.held_out),
        "held_out": part(digits.held_out),
    }


def _parameter(name: str, *shape: int) -> dict[str, Any]:
    return {"name": name, "shape": shape, "element_type": "float32", "kind": "parameter"}


_EXPORTS: dict[str, Callable[[], dict[str, Any]]] = {"digits": _digits}


def _write_task(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
