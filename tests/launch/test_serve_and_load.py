"""`gemps.serve` and `gemps.load`, on real servers and files."""

import json
import re
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import gemps
import numpy as np
import pandas
import psutil
import pytest
import torch
from gem_launch import RunFilesError, ServerProcessError
from safetensors.torch import save_file
from torch import nn

from tests.cli.processes import PATIENCE
from tests.cli.processes import gemps as command
from tests.launch.scripts import begun, run
from tests.waiting import eventually


def train(server: str, model: nn.Module, steps: int) -> None:
    torch.manual_seed(0)
    with gemps.ParameterServer(server, model) as ps:
        for _ in range(steps):
            loss = model(torch.randn(8, 4)).float().square().mean()
            loss.backward()
            ps.step(loss)


def test_a_server_shows_its_run_ends_it_and_leaves_files_to_load(tmp_path: Path) -> None:
    model, loaded = nn.Linear(4, 2), nn.Linear(4, 2)
    with gemps.serve(eta=0.1, data_dir=tmp_path / "state") as server:
        assert re.fullmatch(r"127\.0\.0\.1:\d+", server.address)
        assert server.status()["run_state"] == "RUN_STATE_WAITING"
        train(server.address, model, 5)
        assert server.status()["commits"] == 5
        server.finish()
        assert server.status()["run_state"] == "RUN_STATE_FINISHED"
        pid = server.pid
    assert not psutil.pid_exists(pid)
    run = gemps.load(tmp_path / "state")
    assert (run.version, run.settings["server"]["eta"]) == (6, 0.1)
    run.load_into(loaded)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), loaded.parameters(), strict=True))
    history = run.history()
    assert isinstance(history, pandas.DataFrame)
    assert history["commits"].sum() == 5


def test_shards_are_one_server_which_resumes_after_the_loss_of_one(tmp_path: Path) -> None:
    server = gemps.serve(shards=2, data_dir=tmp_path)
    train(server.address, nn.Linear(4, 200), 3)
    (shard,) = [one for one in psutil.Process().children(recursive=True) if "--shard=1/2" in one.cmdline()]
    shard.kill()
    eventually(lambda: server.exit_code is not None)
    with pytest.raises(ServerProcessError, match="shard 1 was ended by SIGKILL"):
        server.close()
    model = nn.Linear(4, 200)
    with gemps.serve(shards=2, data_dir=tmp_path, resume=True) as server:
        train(server.address, model, 2)
    run, loaded = gemps.load(tmp_path), nn.Linear(4, 200)
    assert (run.version, run.settings["server"]["shard"]) == (6, "0/2")
    run.load_into(loaded)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), loaded.parameters(), strict=True))
    with pytest.raises(ValueError, match="was made with --shards 2, not 1: give --shards 2, or make another"):
        gemps.serve(data_dir=tmp_path, resume=True)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"shards": 0}, "shards=0: give a number of servers from 1 to 256"),
        ({"shards": 2, "record": "trace"}, "--record is for one server with the whole model: leave it out"),
        ({"shards": 2, "shard": "0/2"}, "shards=2 starts all servers: leave out shard"),
        ({"shards": 2, "tls": {"tokens": "tokens"}}, "needs GEMPS_CLIENT_CREDENTIALS"),
        ({"shards": 2, "bind": "192.0.2.1:0", "insecure": True}, "192.0.2.1: no free port"),
    ],
)
def test_shards_that_cannot_be_started_are_refused(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(said)):
        gemps.serve(data_dir=tmp_path / "state", **settings)
    assert not any(tmp_path.iterdir())


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ServerProcessError, match=f"did not start: gemps: cannot listen on {bind}: another process"):
            gemps.serve(bind=bind)


@pytest.mark.long
def test_a_data_dir_with_another_run_is_refused_and_stays_as_it_was(tmp_path: Path) -> None:
    with gemps.serve(data_dir=tmp_path) as server:
        train(server.address, nn.Linear(4, 2), 1)
    with pytest.raises(ServerProcessError, match=r"^the server did not start: gemps: [^\n]*--resume[^\n]*$"):
        gemps.serve(data_dir=tmp_path)
    assert gemps.load(tmp_path).version == 2


@pytest.mark.long
def test_a_server_is_stopped_though_its_files_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    removed, damaged = tmp_path / "removed", tmp_path / "damaged"
    with gemps.serve(data_dir=removed) as one, gemps.serve(data_dir=damaged) as other:
        shutil.rmtree(removed)
        (damaged / "summary.json").write_text("{", encoding="utf-8")
    assert (one.exit_code, other.exit_code) == (0, 0)
    (line,) = caplog.messages
    assert re.match(rf"{re.escape(str(damaged))}: settings or history could not be written: Expecting", line)


@pytest.mark.long
def test_a_server_outlives_the_thread_that_started_it_and_ends_with_the_program(tmp_path: Path) -> None:
    text = """
import threading

servers = []
for _ in range(2):
    thread = threading.Thread(target=lambda: servers.append(gemps.serve(eta=0.5)))
    thread.start()
    thread.join()
    print(servers[-1].status()["run_state"], servers[-1].pid, flush=True)
forked = os.fork()
if not forked:
    thread = threading.Thread(target=lambda: servers.append(gemps.serve()))
    thread.start()
    thread.join()
    servers[-1].close()
    print(servers[-1].exit_code, flush=True)
    os._exit(0)
os.waitpid(forked, 0)
print([one.exit_code for one in servers], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with begun(tmp_path, text) as process:
        output, errors = process.communicate(timeout=PATIENCE)
    *states, of_fork, codes = output.splitlines()
    assert [line.split()[0] for line in states] == ["RUN_STATE_WAITING"] * 2, errors
    assert (of_fork, codes) == ("0", "[None, None]")
    eventually(lambda: not any(psutil.pid_exists(int(line.split()[1])) for line in states))


@pytest.mark.long
def test_a_forked_child_leaves_the_servers_files(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
with gemps.serve(steps=5) as server:
    child = os.fork()
    if child == 0:
        sys.exit()  # runs the finalizers of the copied objects
    os.waitpid(child, 0)
    print(server.log.exists(), repr(server) == f"<gemps server at {server.address}, running>")
print(server.log.exists())
""",
    )
    assert (done.returncode, done.stdout) == (0, "True True\nFalse\n"), done.stderr


def test_without_its_extra_the_line_that_installs_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(ModuleNotFoundError, match=r'gemps.serve needs aiohttp, .* pip install "\.\[server\]" in'):
        gemps.serve()


@pytest.mark.long
def test_a_run_folder_of_gemps_train_and_its_checkpoint_can_be_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = command("train", "--workers=1", "--steps=20", f"--run-dir={folder}", "--sinks=none")
    assert done.returncode == 0, done.stderr
    run = gemps.load(folder)
    assert (run.version, run.settings["worker"]["task"]) == (21, "digits")
    assert "loss" in run.history()
    checkpoint = gemps.load(folder / "latest")
    assert (checkpoint.version, checkpoint.settings, len(checkpoint.history())) == (21, {}, 0)
    for name, array in run.parameters.items():
        assert np.array_equal(array, checkpoint.parameters[name])
    with gemps.serve(data_dir=folder, resume=True, eta=0.2):
        pass
    resumed = gemps.load(folder).settings
    assert (resumed["worker"]["task"], resumed["server"]["eta"]) == ("digits", 0.2)


def test_without_pandas_a_history_is_a_list_of_dicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    save_file({"w": torch.ones(1)}, tmp_path / "model.safetensors")
    (tmp_path / "history.json").write_text(json.dumps({"intervals": [{"ends": 1.0, "loss": 2.0}]}), encoding="utf-8")
    assert gemps.load(tmp_path).history() == [{"ends": 1.0, "loss": 2.0}]


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool]
)
def test_tensors_of_each_type_are_read_as_they_are(dtype: torch.dtype, tmp_path: Path) -> None:
    values = torch.tensor([[0.0, 1.0, 3.140625]]).to(dtype)
    save_file({"w": values, "empty": values[:0]}, tmp_path / "model.safetensors")
    found = gemps.load(tmp_path).parameters
    expected = values.float() if dtype is torch.bfloat16 else values
    assert np.array_equal(found["w"], expected.numpy())
    assert found["w"].dtype == expected.numpy().dtype
    assert found["empty"].shape == (0, 3)


def frozen_backbone() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    return model


def test_a_run_with_frozen_parameters_loads_into_the_same_model_alone(tmp_path: Path) -> None:
    model, loaded = frozen_backbone(), frozen_backbone()
    with gemps.serve(data_dir=tmp_path) as server:
        train(server.address, model, 2)
    run = gemps.load(tmp_path)
    kept = loaded[0].weight.clone()
    run.load_into(loaded)
    assert torch.equal(loaded[0].weight, kept)
    assert torch.equal(loaded[1].running_mean, model[1].running_mean)
    assert torch.equal(loaded[2].weight, model[2].weight)
    with pytest.raises(RunFilesError, match=r"it lacks: 0\.bias, 0\.weight$"):
        run.load_into(frozen_backbone().requires_grad_())
    model[0].register_buffer("scale", torch.ones(1))
    with pytest.raises(RunFilesError, match=r"it lacks: 0\.scale$"):
        run.load_into(model)


def test_what_is_no_run_and_another_model_are_refused_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(RunFilesError, match=r"holds no model\.safetensors: give a run folder of gemps train"):
        gemps.load(tmp_path)
    with pytest.raises(RunFilesError, match="nowhere is no folder"):
        gemps.load(tmp_path / "nowhere")
    save_file({"w": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(
        RunFilesError, match=r"another model than this Linear: it lacks: bias, weight; the model lacks: w$"
    ):
        gemps.load(tmp_path).load_into(nn.Linear(1, 1))
    other = nn.Linear(2, 2)
    save_file({"weight": torch.ones(1, 2), "bias": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(RunFilesError, match=r"of other shapes: weight$"):
        gemps.load(tmp_path).load_into(other)
    assert not other.bias.eq(1).any()
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(RunFilesError, match="cannot be read"):
        gemps.load(tmp_path)


def test_a_checkpoint_of_a_users_model_says_how_to_load_it(tmp_path: Path) -> None:
    save_file({"w": torch.ones(1)}, tmp_path / "model.safetensors")
    done = command("evaluate", str(tmp_path / "model.safetensors"))
    assert done.returncode == 1
    assert "or load it into a model of yours: gemps.load(FOLDER).load_into(model)" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_model_in_place_of_the_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMPS_SERVER", "127.0.0.1:1")
    with pytest.raises(TypeError, match=r'^the address is missing: ParameterServer\("HOST:PORT", model\), or'):
        gemps.ParameterServer(nn.Linear(1, 1))
    monkeypatch.delenv("GEMPS_SERVER")
    with pytest.raises(ValueError, match=r"^no server: .* gemps train and gemps\.launch do$"):
        gemps.ParameterServer(model=nn.Linear(1, 1))
