"""The task text on the command line, with real processes: train, evaluate, sample, simulate."""

import hashlib
import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
from gem_cli.errors import FAILED, USAGE
from gem_worker.models import create_model
from safetensors.torch import save_file

from tests.cli.processes import gemps, gemps_here, json_lines, served, stop

SMALL = ["--task", "text", "--context", "16", "--layers", "1", "--width", "16", "--heads", "2"]
TEXT = "".join(f"{number} green bottles hanging on the wall\n" for number in range(400))


class TextRun:
    """A finished run of the command, and its text."""

    def __init__(self, folder: Path, text: Path, done: subprocess.CompletedProcess[str]) -> None:
        self.folder = folder
        self.text = text
        self.done = done

    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))
        return summary


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TextRun:
    parent = tmp_path_factory.mktemp("text")
    text, folder = parent / "bottles.txt", parent / "run"
    text.write_text(TEXT, encoding="utf-8")
    arguments = [*SMALL, "--text", str(text), "--workers", "2", "--steps", "60", "--eta", "0.2", "--order"]
    arguments += ["round-robin", "--evaluation-interval", "0.5", "--record", str(parent / "run.trace")]
    return TextRun(folder, text, gemps("train", *arguments, "--json", "--run-dir", str(folder)))


def test_training_learns_more_than_the_frequencies_of_characters(run: TextRun) -> None:
    assert run.done.returncode == 0, run.done.stderr
    counts = [TEXT.count(letter) for letter in set(TEXT)]
    entropy = -sum(count / len(TEXT) * math.log(count / len(TEXT)) for count in counts)
    assert run.summary()["test_loss"] < entropy - 0.2


def test_the_summary_has_the_text_and_the_loss_in_nats_and_in_bits_a_character(run: TextRun) -> None:
    summary = run.summary()
    text = summary["settings"]["text"]
    assert text["sha256"] == hashlib.sha256(run.text.read_bytes()).hexdigest()
    assert text["train_bytes"] + text["held_out_bytes"] == len(TEXT)
    assert summary["bits_per_character"] == pytest.approx(summary["test_loss"] / 0.693147, rel=1e-5)
    assert 0 < summary["accuracy"] < 1


def test_bits_a_character_are_in_events_and_status(run: TextRun) -> None:
    events = json_lines(run.done.stdout)
    (evaluated,) = (event for event in events if event["event"] == "evaluated")
    assert f"{evaluated['bits_per_character']:.4f} bits a character" in evaluated["message"]
    (seen, *_) = (e["status"]["last_evaluation"] for e in reversed(events) if "last_evaluation" in e.get("status", {}))
    assert seen["bits_per_character"] == pytest.approx(seen["loss"] / 0.693147, rel=1e-5)


@pytest.mark.long
def test_evaluating_the_file_again_needs_no_options_and_gives_the_same_figures(run: TextRun) -> None:
    done = gemps_here("evaluate", str(run.folder / "model.safetensors"), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found, summary = json.loads(done.stdout), run.summary()
    assert found["bits_per_character"] == summary["bits_per_character"]
    assert (found["accuracy"], found["loss"]) == (summary["accuracy"], summary["test_loss"])


@pytest.mark.long
def test_another_text_than_the_runs_is_evaluated_with_a_warning(run: TextRun, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text(TEXT.replace("green", "brown"), encoding="utf-8")
    done = gemps_here("evaluate", str(run.folder), "--text", str(other))
    assert done.returncode == 0
    assert "bits a character" in done.stdout
    assert done.stderr.count("\n") == 1
    assert f"the run learnt {run.text}" in done.stderr


def test_a_run_writes_text_that_follows_from_prompt_and_seed(run: TextRun) -> None:
    arguments = ["--sample", "80", "--prompt", "9 green", "--temperature", "0.8"]
    seeded = ["evaluate", str(run.folder), *arguments, "--seed"]
    first, again, other = gemps(*seeded, "1"), gemps_here(*seeded, "1"), gemps_here(*seeded, "2")
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("9 green")
    assert len(first.stdout) > 80
    assert first.stdout == again.stdout != other.stdout
    best = gemps_here("evaluate", str(run.folder / "best" / "model.safetensors"), "--sample", "10")
    assert best.returncode == 0, best.stderr


def test_the_simulator_follows_the_recorded_run_bit_for_bit(run: TextRun) -> None:
    options = [*SMALL, "--text", str(run.text)]
    done = gemps_here("simulate", "--follow", str(run.folder.parent / "run.trace"), *options, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["compared_end"]
    assert found["bits_per_character"] == pytest.approx(run.summary()["bits_per_character"], rel=1e-5)


def test_workers_of_other_sizes_are_refused_with_the_tensor_that_differs(tmp_path: Path) -> None:
    with served(tmp_path, "--commits", "2") as (address, process):
        assert gemps_here("work", "--server", address, *SMALL).returncode == 0
        for option, value, tensor in (
            ("--heads", "4", "heads"),
            ("--context", "8", "positions.weight"),
            ("--width", "32", "embedding.weight"),
        ):
            done = gemps_here("work", "--server", address, *SMALL, option, value)
            assert done.returncode == USAGE
            assert tensor in done.stderr
            assert done.stderr.strip().count("\n") == 0
        stop(process)


@pytest.mark.long
def test_without_a_budget_the_text_is_read_four_times(run: TextRun, tmp_path: Path) -> None:
    done = gemps("train", *SMALL, "--text", str(run.text), "--workers", "1", "--run-dir", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    summary = TextRun(tmp_path / "run", run.text, done).summary()
    windows = (summary["settings"]["text"]["train_bytes"] - 1) // 16
    batch = summary["settings"]["worker"]["batch_size"]
    assert summary["commits"] == 4 * (windows // batch)  # whole batches


def test_wrong_use_is_one_line_with_the_fix(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    train = ["train", "--runs-dir", str(tmp_path / "runs"), "--task", "text"]
    for arguments, says in (
        ([*train, "--text", str(empty)], "holds no text; name a file"),
        ([*train, "--context", "65000"], "use a smaller --context or a longer --text"),
        ([*train, "--heads", "5"], "--width 64 is not divisible by --heads 5; change one of them"),
        ([*train, "--model", "cnn"], "leave --model out"),
        (["work", "--model", "transformer"], "use --task text"),
        (["simulate", "--steps", "1", "--task", "text", "--heads", "5"], "--width 64 is not divisible by --heads 5"),
        (["evaluate", str(tmp_path), "--sample", "-1"], "--sample -1 is not possible"),
        (["evaluate", str(tmp_path), "--sample", "9", "--temperature", "nan"], "--temperature nan is not possible"),
        (["evaluate", str(tmp_path), "--prompt", "x"], "add --sample 500"),
        (["evaluate", "--server", "127.0.0.1:9", "--sample", "9"], "give a MODEL_FILE"),
        (["evaluate", str(tmp_path), "--sample", "9", "--adapter", "x"], "leave out --report, --follow and --adapter"),
        (["evaluate", str(tmp_path), "--sample", "9", "--json"], "leave out --json"),
    ):
        done = gemps_here(*arguments)
        assert done.returncode == USAGE, done.stderr
        assert says in done.stderr
        assert done.stderr.strip().count("\n") == 0
    assert not (tmp_path / "runs").exists()


def test_samples_need_a_transformers_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    for says in ("does not exist", "cannot be read as safetensors", "does not hold the model transformer; give a"):
        done = gemps_here("evaluate", str(file), "--sample", "10")
        assert done.returncode == FAILED
        assert says in done.stderr
        assert done.stderr.count("\n") == 1
        if file.exists():
            save_file(create_model("mlp", (1, 8, 8), 10, seed=0).state_dict(), file)
        else:
            file.write_bytes(b"none")
