"""Rules that keep something of the run, and workers that go: the trace of a simulation, replayed and followed."""

from pathlib import Path

import pytest
from gem_simulator import SimulationSettings, read_recorded, replay_recording, simulate
from gem_worker.tasks import TaskOptions, create_task

from gem_core.registry import Direction
from gem_trace import read_records, replay
from gem_trace.files import map_file

OTHERS = ("gap-aware", "ringmaster", "dc-asgd", "easgd", "fadas", "ace", "ormo", "ringmaster-lmo")


@pytest.mark.parametrize(
    ("rule", "direction"),
    [
        *(pytest.param(rule, "gradient", marks=pytest.mark.long) for rule in ("dana", "fedbuff", *OTHERS)),
        ("delayed-nesterov", "auto"),
        pytest.param("gem", "rms", marks=pytest.mark.long),
        ("gem", "auto"),
    ],
)
def test_a_simulated_run_whose_workers_die_comes_out_again(rule: str, direction: Direction, tmp_path: Path) -> None:
    path, task = tmp_path / "simulated.trace", create_task("digits", TaskOptions())
    settings = SimulationSettings(
        rule=rule,
        direction=direction,
        clip_norm=0.5,
        weight_decay=0.5 if rule == "gem" else 0,
        workers=4,
        steps=12,
        model="mlp",
        compute_time="exponential:1",
        die="1@3,2@6.5",
        join="3@2",
    )
    simulated = simulate(settings, task=task, record=path)
    replayed = replay(path)
    assert replayed.compared_end
    assert replayed.end_digest == simulated.digest
    assert (simulated.settings["direction"], simulated.settings["clip_norm"]) == (direction, 0.5)
    assert replay_recording(read_recorded(path), task=task, model="mlp").digest == simulated.digest


@pytest.mark.parametrize(
    ("rule", "expected"), [("dana", [1, 0, 2]), pytest.param("ace", [1, 0, 2], marks=pytest.mark.long), ("gem", [])]
)
def test_a_worker_that_died_is_forgotten_where_the_rule_keeps_something_of_it(
    rule: str, expected: list[int], tmp_path: Path
) -> None:
    path, task = tmp_path / "simulated.trace", create_task("digits", TaskOptions())
    simulate(
        SimulationSettings(rule=rule, workers=3, steps=6, model="mlp", order="round-robin", die="1@3"),
        task=task,
        record=path,
    )
    events = [record.event for record in read_records(map_file(path))]
    assert [event["session"] - 1 for event in events if event["event"] == "forgotten"] == expected
