"""The compose project with its evaluator: it keeps the best parameters on the volume, and ends the run early."""

import json
from pathlib import Path

import pytest
from gem_worker import evaluate_checkpoint
from gem_worker.settings import WorkerSettings

from .project import Project, host_name, logs

TARGET = 0.9


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_evaluator_stops_the_run_at_its_target_and_everybody_exits_with_0(project: Project, tmp_path: Path) -> None:
    with project.up(
        "--scale",
        "worker=2",
        GEMPS_COMMITS=100_000_000,
        GEMPS_MIN_WORKERS=2,
        GEMPS_LIMITS_EXIT_LINGER=0,
        GEMPS_EVALUATION_INTERVAL=1,
        GEMPS_STOP_AT_ACCURACY=TARGET,
        COMPOSE_PROFILES="evaluator",
    ) as up:
        up.wait(900)
    assert up.returncode == 0
    codes = project.exit_codes()
    assert len(codes) == 4
    assert set(codes.values()) == {0}
    (evaluator,) = project.containers("evaluator")
    (server,) = project.containers("server")
    assert "is reached: the run is finished by this evaluator" in logs(evaluator)
    assert "an operator finishes the run: an evaluator saw accuracy" in logs(server)
    assert host_name(evaluator) == "evaluator"

    for name in ("model.safetensors", "best.json"):
        project.compose("cp", f"evaluator:/data/best/{name}", str(tmp_path / name))
    kept = json.loads((tmp_path / "best.json").read_text(encoding="utf-8"))
    found = evaluate_checkpoint(tmp_path / "model.safetensors", WorkerSettings(device="cpu"))
    assert found.accuracy == kept["accuracy"] >= TARGET
