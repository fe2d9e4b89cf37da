"""GempsCallback in a transformers Trainer, against real servers."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gem_worker import ClientSettings, ServerUnavailableError, UnsupportedOptimizerError
from gem_worker.termination import TerminatedError, termination
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from tests.terminations import default_handlers
from tests.worker.loops import worker_status
from tests.worker.serving import ServerThread

transformers = pytest.importorskip("transformers", exc_type=ImportError)
pytest.importorskip("accelerate", exc_type=ImportError)

from gemps.integrations.transformers import GempsCallback  # noqa: E402

ROWS = 22


@pytest.fixture
def server() -> Iterator[ServerThread]:
    """A server whose rule adds deltas, so that one worker trains as alone."""
    with ServerThread(rule="downpour") as running:
        yield running


def a_model() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0,
        embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)  # type: ignore[no-any-return]


def rows(count: int = ROWS) -> list[dict[str, Tensor]]:
    tokens = torch.randint(0, 32, (count, 8), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in tokens]


def a_trainer(folder: Path, *callbacks: Any, model: nn.Module | None = None, **arguments: Any) -> Any:
    usual = {
        "max_steps": 10, "per_device_train_batch_size": 4, "learning_rate": 0.01, "lr_scheduler_type": "cosine",
        "weight_decay": 0.1, "adam_epsilon": 1e-3, "max_grad_norm": 0.5, "logging_steps": 1, "save_strategy": "no",
        "report_to": "none", "disable_tqdm": True, "use_cpu": True,
    }  # fmt: skip
    return transformers.Trainer(
        model or a_model(),
        transformers.TrainingArguments(str(folder), **(usual | arguments)),
        train_dataset=rows(),
        eval_dataset=rows(5),
        callbacks=list(callbacks),
    )


def joined(server: ServerThread, **settings: Any) -> GempsCallback:
    return GempsCallback(address=server.address, **({"name": "w"} | settings))


def has_left(server: ServerThread) -> bool:
    return bool(worker_status(server)["state"] == "WORKER_STATE_LEFT")


def assert_alike(model: nn.Module, other: nn.Module, tolerance: float = 1e-5) -> None:
    for (name, value), expected in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.allclose(value, expected, atol=tolerance), name


def assert_central(server: ServerThread, model: nn.Module) -> None:
    central = torch.from_numpy(server.server.central.parameters)
    assert torch.equal(central, torch.cat([one.detach().flatten() for one in model.parameters()]))


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        *(
            pytest.param(one, marks=pytest.mark.long)
            for one in (
                {"gradient_accumulation_steps": 2},
                {"bf16": True},
                {"torch_compile": True, "torch_compile_backend": "aot_eager"},
                {"optim": "adamw_torch_fused", "gradient_checkpointing": True},
            )
        ),
    ],
    ids=["plain", "accumulation", "bfloat16", "compiled", "fused"],
)
def test_one_worker_trains_as_the_trainer_alone(arguments: Any, server: ServerThread, tmp_path: Path) -> None:
    alone = a_trainer(tmp_path, **arguments)
    alone.train()
    trainer = a_trainer(tmp_path, callback := joined(server, every=4), **arguments)
    trained = list(trainer.model.parameters())
    trainer.train()
    assert all(one is now for one, now in zip(trained, trainer.model.parameters(), strict=True))
    assert_alike(trainer.model, alone.model)
    assert_central(server, trainer.model)
    assert callback.ps is not None
    assert callback.ps.applied_steps == 3  # after steps 4, 8 and, as the last one, 10
    assert has_left(server)


def test_a_run_that_follows_the_trainers_optimizer_commits_each_of_its_steps(tmp_path: Path) -> None:
    """With its clipping, weight decay, accumulation and cosine schedule, which follows the run."""
    with ServerThread(rule="auto") as server:
        trainer = a_trainer(tmp_path, callback := joined(server), gradient_accumulation_steps=2, max_steps=30)
        before = trainer.evaluate(rows())["eval_loss"]
        trainer.train()
        assert callback.ps is not None
        assert callback.ps.recipe_text.startswith("AdamW: orthogonalised, RMS-scaled momentum")
        assert callback.ps.applied_steps == 30
        assert callback.ps.progress == 30
        assert trainer.lr_scheduler.get_last_lr()[0] == pytest.approx(0, abs=1e-12)
        found = worker_status(server)
        assert (found["commits"], found["samples"]) == (30, 10 * ROWS)
        assert_central(server, trainer.model)
        assert trainer.evaluate(rows())["eval_loss"] < 0.8 * before
        rates = [row["learning_rate"] for row in trainer.state.log_history if "learning_rate" in row]
        assert rates == sorted(rates, reverse=True)


def test_the_end_of_a_run_that_follows_the_optimizer_ends_the_training(tmp_path: Path) -> None:
    with ServerThread(rule="auto", commits=3) as server:
        trainer = a_trainer(tmp_path, joined(server), max_steps=100)
        trainer.train()
        assert trainer.state.global_step == 3
        assert_central(server, trainer.model)


def test_float16_whose_scaler_steps_past_gemps_is_refused_with_the_fix(tmp_path: Path) -> None:
    """Accelerate keeps the optimizer's own step for its scaler; here as it does on a GPU."""
    with ServerThread(rule="auto") as server:
        callback = joined(server)
        trainer = a_trainer(tmp_path, callback)

        class Keep(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
            def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                optimizer = kwargs["optimizer"].optimizer
                type(optimizer).step(optimizer)

        trainer.add_callback(Keep())
        with pytest.raises(UnsupportedOptimizerError, match="use bfloat16"):
            trainer.train()
        callback._worker.leave("the test ends")  # else at the process's end, and SIGTERM stays its business until then


def test_samples_steps_and_loss_are_counted(server: ServerThread, tmp_path: Path) -> None:
    """22 rows: five batches of 4 and one of 2, in four optimizer steps of 2, 2, 1 and 1 batches for two epochs."""
    seen: list[dict[str, Any]] = []

    class Watch(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.append(worker_status(server) | {"step": state.global_step})

    callback = joined(server, every=2)
    trainer = a_trainer(tmp_path, callback, Watch(), max_steps=-1, num_train_epochs=2, gradient_accumulation_steps=4)
    trainer.train()
    counted = [(one["commits"], one["local_steps"], one["samples"]) for one in seen]
    assert counted == [(0, 0, 0), (1, 2, ROWS), (1, 2, ROWS), (2, 4, 2 * ROWS)]
    assert callback.ps is not None
    report = callback.ps.last_report
    assert report is not None
    assert report.loss == pytest.approx(trainer.state.log_history[2]["loss"])


def test_a_stream_of_samples_is_counted(server: ServerThread, tmp_path: Path) -> None:
    class Stream(IterableDataset[dict[str, Tensor]]):
        def __iter__(self) -> Iterator[dict[str, Tensor]]:
            return iter(rows())

    trainer = a_trainer(tmp_path, joined(server, every=2), max_steps=3)
    trainer.train_dataset = Stream()
    trainer.train()
    found = worker_status(server)
    assert (found["commits"], found["local_steps"], found["samples"]) == (2, 3, 12)


def test_the_end_of_the_run_ends_the_training(tmp_path: Path) -> None:
    with ServerThread(rule="downpour", commits=3) as server:
        trainer = a_trainer(tmp_path, joined(server, every=2), max_steps=100)
        trainer.train()
        assert trainer.state.global_step == 6
        assert_central(server, trainer.model)
        late = a_trainer(tmp_path, joined(server))
        late.train()
        assert_central(server, late.model)
        assert server.server.central.clock == 4


def test_a_run_in_epochs_gets_their_length(tmp_path: Path) -> None:
    with ServerThread(rule="downpour", epochs=2) as server:
        trainer = a_trainer(tmp_path, joined(server, every=3), max_steps=100)
        trainer.train()
        assert trainer.state.global_step == 12


def test_steps_before_a_stop_by_another_callback_are_committed(server: ServerThread, tmp_path: Path) -> None:
    class Stop(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = True

    trainer = a_trainer(tmp_path, joined(server, every=4), Stop(), eval_strategy="steps", eval_steps=3)
    trainer.train()
    assert trainer.state.global_step == 3
    assert_central(server, trainer.model)


@pytest.mark.long
def test_evaluation_is_of_the_parameters_that_came_with_the_last_exchange(server: ServerThread, tmp_path: Path) -> None:
    """A second worker has moved the central variable by then."""

    class Move(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 1:
                a_trainer(tmp_path, joined(server, name="other"), max_steps=1).train()

    trainer = a_trainer(tmp_path, joined(server, every=2), Move(), max_steps=2, eval_strategy="steps", eval_steps=2)
    trainer.train()
    (evaluation,) = (row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row)
    assert_central(server, trainer.model)
    assert server.server.central.clock == 3
    assert evaluation == pytest.approx(trainer.evaluate()["eval_loss"])


def test_checkpoints_load_without_gemps_and_the_best_one_is_not_committed(server: ServerThread, tmp_path: Path) -> None:
    every = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": True}
    trainer = a_trainer(tmp_path, joined(server, every=2), learning_rate=0.05, **every, **best)
    trainer.train()
    folder = Path(trainer.state.best_model_checkpoint)
    assert folder != tmp_path / "checkpoint-10"
    assert_alike(transformers.GPT2LMHeadModel.from_pretrained(folder), trainer.model, 0)
    assert_central(server, transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "checkpoint-10"))
    assert (tmp_path / "checkpoint-10" / "model.safetensors").stat().st_size < 40_000


def test_a_trainer_resumes_its_optimizer_and_the_servers_parameters(tmp_path: Path) -> None:
    alone = a_trainer(tmp_path / "alone")
    alone.train()
    place = {"rule": "downpour", "data_dir": tmp_path / "state"}
    with ServerThread(**place, commits=2) as server:
        first = a_trainer(tmp_path / "w", joined(server, every=3), save_strategy="steps", save_steps=3)
        first.train()
        assert first.state.global_step == 6
    with ServerThread(**place, resume=True) as server:
        again = a_trainer(tmp_path / "w", joined(server, every=3))
        again.train(resume_from_checkpoint=str(tmp_path / "w" / "checkpoint-6"))
        assert again.state.global_step == 10
        assert_central(server, again.model)
    assert_alike(again.model, alone.model)


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.calls = 0

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        if self.calls == 4:
            raise FloatingPointError
        return {"loss": self.layer(input_ids.float()).square().mean()}


@pytest.mark.long
def test_after_an_error_the_next_training_leaves_and_joins_again(server: ServerThread, tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path, joined(server), model=Failing())
    with pytest.raises(FloatingPointError):
        trainer.train()
    assert worker_status(server)["commits"] == 3
    trainer.train()
    assert server.server.central.clock == 14


@pytest.mark.long
def test_after_an_error_the_process_leaves_at_its_end(server: ServerThread, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.integrations import test_transformers as t\n"
        "t.a_trainer(Path(sys.argv[2]), t.GempsCallback(address=sys.argv[1], name='w'), model=t.Failing()).train()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, server.address, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert "FloatingPointError" in done.stderr
    assert has_left(server)
    assert server.server.central.clock == 4


@pytest.mark.long
def test_after_an_error_that_the_script_catches_sigterm_ends_it(server: ServerThread, tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from gemps.integrations import loop_worker\n"
        "from tests.integrations import test_transformers as t\n"
        "loop_worker.HOLD_SECONDS = 1.0\n"
        "try: t.a_trainer(Path(sys.argv[2]), t.GempsCallback(address=sys.argv[1]), model=t.Failing()).train()\n"
        "except FloatingPointError: print('caught', flush=True)\n"
        "while True: time.sleep(0.1)"
    )
    arguments = [sys.executable, "-c", script, server.address, str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert "caught\n" in process.stdout
            process.terminate()
            assert process.wait(60) == -signal.SIGTERM
        finally:
            process.kill()


@pytest.fixture
def handlers() -> Iterator[None]:
    with default_handlers():
        yield


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    "during",
    ["on_step_begin", *(pytest.param(one, marks=pytest.mark.long) for one in ("on_substep_end", "on_prediction_step"))],
)
def test_on_sigterm_the_last_steps_are_committed(during: str, server: ServerThread, tmp_path: Path) -> None:
    class Terminate(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def act(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 5 and signal.getsignal(signal.SIGTERM) is termination:
                signal.raise_signal(signal.SIGTERM)

    setattr(Terminate, during, Terminate.act)
    arguments = {"gradient_accumulation_steps": 2, "eval_strategy": "steps", "eval_steps": 5}
    trainer = a_trainer(tmp_path, Terminate(), joined(server, every=4), **arguments)
    with pytest.raises(TerminatedError):
        trainer.train()
    assert worker_status(server)["commits"] == 2
    assert has_left(server)
    assert_central(server, trainer.model)


@pytest.mark.long
def test_processes_that_load_data_start_while_the_worker_is_joined(server: ServerThread, tmp_path: Path) -> None:
    """22 rows in batches of 4, three epochs: 18 steps, with two such processes for each epoch and each evaluation."""
    script = (
        "import sys; from pathlib import Path; from tests.integrations import test_transformers as t\n"
        "loading = {'dataloader_num_workers': 2, 'eval_strategy': 'epoch'}\n"
        "callback = t.GempsCallback(address=sys.argv[1], name='w', every=2)\n"
        "t.a_trainer(Path(sys.argv[2]), callback, max_steps=-1, num_train_epochs=3, **loading).train()"
    )
    arguments = [sys.executable, "-c", script, server.address, str(tmp_path)]
    subprocess.run(arguments, check=True, capture_output=True, timeout=300)
    assert worker_status(server)["commits"] == 9
    assert has_left(server)


@pytest.mark.long
def test_errors_of_the_connection_are_those_of_parameter_server(tmp_path: Path) -> None:
    nobody = {"address": "127.0.0.1:1", "client_settings": ClientSettings(connect_timeout=0.5)}
    with pytest.raises(ServerUnavailableError):
        a_trainer(tmp_path, GempsCallback(**nobody)).train()
    with (
        ServerThread(rule="gem", direction="rms") as server,
        pytest.raises(UnsupportedOptimizerError, match="--direction rms"),
    ):
        a_trainer(tmp_path, joined(server)).train()


@pytest.mark.long
def test_a_distributed_launch_is_refused(server: ServerThread, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.integrations import test_transformers as t\n"
        "t.a_trainer(Path(sys.argv[2]), t.GempsCallback(address=sys.argv[1])).train()"
    )
    # What torchrun tells each of its processes.
    told = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script, server.address, str(tmp_path)],
        env=os.environ | told,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    assert "start the script by `gemps train --workers N" in done.stderr
    assert server.server.central.clock == 0


def test_a_missing_library_is_named_with_the_line_that_installs_it() -> None:
    cases = (
        ("transformers", "transformers", 'pip install "transformers[torch]"'),
        ("lightning", "lightning", "pip install lightning"),
    )
    code = "import sys, json\n"
    for module, library, _ in cases:
        code += f"sys.modules[{library!r}] = None\ntry:\n    import gemps.integrations.{module}\n"
        code += "except ModuleNotFoundError as error:\n    print(json.dumps([str(error), error.name]))\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for line, (_, library, fix) in zip(done.stdout.splitlines(), cases, strict=True):
        said, name = json.loads(line)
        assert said == f"GempsCallback needs {name}, which is not installed: {fix}"
        assert name.partition(".")[0] == library
