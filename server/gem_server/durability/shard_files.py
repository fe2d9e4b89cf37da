"""Merges shards' checkpoints into the whole model's, and back (gem_core/shards.py)."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_core.aligned import aligned_copy
from gem_core.layout import Layout
from gem_core.shards import Shard
from gem_server.durability import checkpoint, recovery, run_record
from gem_server.durability.checkpoint import Checkpoint
from gem_server.errors import StartupError
from gem_server.telemetry.run_totals import RunTotals, of_whole_model


def merge(data_dirs: Sequence[Path], output: Path) -> Path:
    """Write the whole model's checkpoint, at the newest clock that all shards have; return its directory.

    `data_dirs`: of all shards, in order; their servers have ended. Raises StartupError, OSError.
    """
    _refuse_used(output)
    parts = [_latest(data_dir) for data_dir in data_dirs]
    for index, (data_dir, part) in enumerate(zip(data_dirs, parts, strict=True)):
        held, expected = Shard.of(part.layout), Shard(index, len(parts))
        if held != expected:
            raise StartupError(f"{data_dir} holds {held.title}, not {expected.title}: give all shards, in order")
        if part.state["run"] != parts[0].state["run"]:
            raise StartupError(f"{data_dir} is of another run than {data_dirs[0]}: give the shards of one run")
    found = [set(recovery.clocks(data_dir)[0]) for data_dir in data_dirs]
    common = set.intersection(*found)
    if not common:
        raise StartupError("the shards have no common clock: start them once with --resume, or bring back their logs")
    clock = max(common)
    parts = [recovery.recover_at(data_dir, clock).whole for data_dir in data_dirs]
    whole = Checkpoint(
        parts[0].layout.whole,
        clock,
        np.concatenate([part.parameters for part in parts]),
        parts[-1].buffers,
        {**parts[0].state, "log": None, "totals": _joined_totals(parts).as_record()},
        tuple(map(_joined, zip(*(part.rule_vectors for part in parts), strict=True))),
    )
    output.mkdir(parents=True, exist_ok=True)
    return checkpoint.write_checkpoint(output, whole)


def split(data_dir: Path, count: int, output: Path) -> list[Path]:
    """Write data directories of `count` shards, output/0 and so on; return them. Raises StartupError, OSError."""
    whole = _latest(data_dir)
    if whole.layout.part is not None:
        raise StartupError(
            f"{data_dir} holds one shard: give a directory of the whole model, as gemps shards merge makes"
        )
    outputs = [output / str(index) for index in range(count)]
    for place in outputs:
        _refuse_used(place)
    layouts = [Shard(index, count).layout_of(whole.layout) for index in range(count)]
    for index, (place, layout) in enumerate(zip(outputs, layouts, strict=True)):
        place.mkdir(parents=True, exist_ok=True)
        checkpoint.write_checkpoint(place, _part(whole, Shard(index, count), layout))
    return outputs


def _part(whole: Checkpoint, shard: Shard, layout: Layout) -> Checkpoint:
    held = shard.range_of(whole.layout.parameter_count)
    return replace(
        whole,
        layout=layout,
        parameters=aligned_copy(whole.parameters[held]),
        buffers=whole.buffers if shard.is_last else b"",
        state={**whole.state, "log": None},
        rule_vectors=tuple(aligned_copy(vector[held]) for vector in whole.rule_vectors),
    )


def _joined(vectors: Sequence[NDArray[np.float32]]) -> NDArray[Any]:
    return np.concatenate(vectors)


def _joined_totals(parts: Sequence[Checkpoint]) -> RunTotals:
    totals = [run_record.saved_totals(part.state) for part in parts]
    return of_whole_model(totals, [part.layout.parameter_count for part in parts])


def _latest(data_dir: Path) -> Checkpoint:
    recovered = recovery.recover(data_dir)
    if recovered is None:
        raise StartupError(f"{data_dir} holds no checkpoint: give the --data-dir of a server")
    return recovered.whole


def _refuse_used(output: Path) -> None:
    if (output / checkpoint.LATEST).exists():
        raise StartupError(f"{output} holds a checkpoint already: choose another directory")
