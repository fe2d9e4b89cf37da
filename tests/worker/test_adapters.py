"""Frozen weights are compared by digest and never sent; PEFT models train, and PEFT loads their adapters."""

import base64
import json
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from gem_worker import (
    ClientSettings,
    Observer,
    ParameterServer,
    ServerRefusedError,
    TaskError,
    UnsupportedModelError,
    export_adapter,
)
from gem_worker.adapter import describe_adapter
from gem_worker.model_tensors import inspect_model
from peft import LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.client.cutting_proxy import CuttingProxy
from tests.worker import peft_worker
from tests.worker.peft_worker import base, lora, loss_of, outputs_of
from tests.worker.serving import ServerThread, processes_in

# A worker's bytes are counted on one connection.
PLAIN = ClientSettings(connect_timeout=20, lane=False, shared_memory=False)


def train(ps: ParameterServer, model: PeftModel, steps: int) -> float:
    for _ in range(steps):
        loss = loss_of(model)
        loss.backward()
        ps.step(loss, samples=2)
    return float(loss.detach())


@pytest.mark.long
@pytest.mark.parametrize("own_optimizer", [False, True])
def test_two_processes_train_a_lora_one_is_killed_and_peft_loads_the_adapter(
    own_optimizer: bool, tmp_path: Path
) -> None:
    more = ["own"] if own_optimizer else []
    settings = ("--rule-settings=momentum=0",) if own_optimizer else ("--eta=0.2",)
    with processes_in(tmp_path) as processes:
        server, address = processes.serve("--commits=60", "--min-workers=2", "--session-timeout=5", *settings)
        workers = [
            processes.start(
                name, peft_worker.__file__, "0", str(tmp_path / f"{name}.pt"), *more, GEMPS_SERVER=address,
                PYTHONPATH=":".join(sys.path),
            )
            for name in ("stays", "goes")
        ]  # fmt: skip
        workers[1].until_log_has("step 1,")
        workers[1].end()
        assert (workers[0].wait(), server.wait()) == (0, 0), workers[0].output + server.output
        command = [sys.executable, "-m", "gem_cli", "evaluate", str(tmp_path / "state" / "latest")]
        subprocess.run([*command, "--adapter", str(tmp_path / "adapter")], check=True, timeout=120)
    trained = torch.load(tmp_path / "stays.pt")
    loaded = PeftModel.from_pretrained(base(), tmp_path / "adapter")
    assert torch.equal(outputs_of(loaded), trained)
    assert not torch.allclose(outputs_of(lora()), trained, atol=0.1)
    assert sorted(load_file(tmp_path / "adapter" / "adapter_model.safetensors"))[:2] == [
        "base_model.model.lm_head.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
    ]


def test_server_resumes_a_lora_and_still_compares_the_base(tmp_path: Path) -> None:
    data = {"data_dir": tmp_path / "state"}
    with ServerThread(**data) as server:
        model = lora()
        with ParameterServer(server.address, model, client_settings=PLAIN) as ps:
            before = train(ps, model, 5)
        server.stop()
        names = set(load_file(server.checkpoint))
    assert names == {name for name, value in model.named_parameters() if value.requires_grad}
    with ServerThread(**data, resume=True) as server:
        other = lora(1)
        with pytest.raises(ServerRefusedError) as refused, ParameterServer(server.address, other, name="other"):
            pass
        # One line names the tensor and the fix.
        assert "'base_model.model.model.embed_tokens.weight'" in str(refused.value)
        assert "load the same base weights in each worker" in str(refused.value)
        assert "\n" not in str(refused.value)
        again = lora()
        with ParameterServer(server.address, again, client_settings=PLAIN) as ps:
            assert train(ps, again, 5) < before
            export_adapter(tmp_path / "adapter", address=server.address)
        server.stop()
        export_adapter(tmp_path / "from-file", path=server.checkpoint)
    for folder in ("adapter", "from-file"):
        assert torch.equal(outputs_of(PeftModel.from_pretrained(base(), tmp_path / folder)), outputs_of(again))


def test_run_without_an_adapter_says_so(tmp_path: Path) -> None:
    with (
        ServerThread(data_dir=tmp_path) as server,
        ParameterServer(server.address, nn.Linear(2, 2)),
        pytest.raises(TaskError, match="has no adapter: its model is not PEFT's"),
    ):
        export_adapter(tmp_path / "adapter", address=server.address)
    with pytest.raises(TaskError, match="has no adapter"):
        export_adapter(tmp_path / "adapter", path=tmp_path / "latest")
    assert not (tmp_path / "adapter").exists()


def test_adapter_of_compiled_blocks_has_the_names_of_the_plain_model() -> None:
    plain, blocks = (
        get_peft_model(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), LoraConfig(r=2, target_modules=["0"]))
        for _ in range(2)
    )
    blocks.base_model.model[0] = torch.compile(blocks.base_model.model[0], backend="eager")
    described = [
        describe_adapter(one, inspect_model(one)[1]) for one in (plain, torch.compile(blocks, backend="eager"))
    ]
    assert described[0]
    assert described[0] == described[1]


def test_lora_on_50_million_frozen_parameters_sends_and_takes_only_its_own_size(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(25_000, 1000), nn.Linear(1000, 25_000))
    model = get_peft_model(model, LoraConfig(r=8, target_modules=["1"]))
    trained = 4 * sum(one.numel() for one in model.parameters() if one.requires_grad)
    assert trained == 4 * 8 * (1000 + 25_000)
    assert sum(one.numel() for one in model.parameters() if not one.requires_grad) > 50_000_000
    with processes_in(tmp_path) as processes:
        server, address = processes.serve("--checkpoint-interval=0")
        memory = psutil.Process(server.pid).memory_info
        before = memory().rss
        proxy = CuttingProxy(int(address.rpartition(":")[2]))
        try:
            with ParameterServer(proxy.address, model, client_settings=PLAIN):
                assert proxy.passed["to_server"] <= 1.1 * trained
            with ParameterServer(proxy.address, model, name="second", client_settings=PLAIN):
                assert proxy.passed["to_server"] <= 1.2 * trained
                grown = memory().rss - before
                print(f"sent {proxy.passed['to_server']} bytes by two workers, adapter {trained}, server + {grown}")
                assert grown < 60e6
                with Observer(address) as observer:
                    assert observer.get_status()["parameter_count"] == trained // 4
        finally:
            proxy.close()


class OddBase(nn.Module):
    """A frozen layer whose weights are quantised, and a trained one."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.head = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(inputs)


WEIGHTS = [torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn, torch.int16, torch.complex64, torch.uint16]


@pytest.mark.parametrize("dtype", WEIGHTS, ids=str)
def test_frozen_tensor_of_any_type_is_compared(dtype: torch.dtype, tmp_path: Path) -> None:
    def weight(last: int) -> Tensor:
        return torch.tensor([[1, 0], [1, last]], dtype=torch.float32).to(dtype).t()

    with ServerThread() as server:
        model = OddBase(weight(1))
        with ParameterServer(server.address, model, client_settings=PLAIN) as ps:
            model(torch.ones(1, 4)).abs().sum().backward()
            assert ps.step().applied
        # In another memory format: the digest is of the values.
        with ParameterServer(server.address, OddBase(weight(1).contiguous()), client_settings=PLAIN):
            pass
        with pytest.raises(ServerRefusedError, match=r"frozen 'weight'.*load the same base weights"):
            ParameterServer(server.address, OddBase(weight(0)), name="other", client_settings=PLAIN).join()


WRITES = {
    "fill": lambda model: model.weight.data.fill_(2),
    "copy": lambda model: model.weight.data.copy_(torch.full((2, 2), 2.0)),
    "replace": lambda model: setattr(model.weight, "data", torch.full((2, 2), 2.0)),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_frozen_tensor_is_compared_as_it_is_on_joining(write: Callable[[OddBase], object]) -> None:
    with ServerThread() as server:
        model = OddBase(torch.ones(2, 2))
        worker = ParameterServer(server.address, model, name="first", client_settings=PLAIN)
        write(model)
        same = OddBase(torch.full((2, 2), 2.0))
        with worker, ParameterServer(server.address, same, name="second", client_settings=PLAIN) as ps:
            assert ps.rank == 1
        rewritten = OddBase(torch.ones(2, 2))
        with pytest.raises(UnsupportedModelError, match=r"changed while it joined.*'weight'"):
            ParameterServer(
                server.address, same, client_settings=PLAIN, on_join=lambda _: same.weight.data.zero_()
            ).join()
        with pytest.raises(ServerRefusedError, match=r"frozen 'weight'"):
            ParameterServer(server.address, rewritten, client_settings=PLAIN).join()


def test_frozen_tensor_made_for_inference_is_compared() -> None:
    model = OddBase(torch.ones(2, 2))
    with torch.inference_mode():
        model.weight = nn.Parameter(torch.ones(2, 2), requires_grad=False)
    assert model.weight.is_inference()
    with ServerThread() as server:
        for one in (model, OddBase(torch.ones(2, 2))):
            with ParameterServer(server.address, one, client_settings=PLAIN):
                pass


class Packed(OddBase):
    """As quantisation libraries do: the state_dict has tensors that are no parameters."""

    def __init__(self, scale: float) -> None:
        super().__init__(torch.ones(2, dtype=torch.uint8))
        self.scale = scale

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight.absmax"] = torch.tensor([self.scale])


def test_quantisation_state_of_a_frozen_module_is_compared() -> None:
    with ServerThread() as server:
        for _ in range(2):
            with ParameterServer(server.address, Packed(0.5), client_settings=PLAIN):
                pass
        with pytest.raises(ServerRefusedError, match=r"frozen 'weight\.absmax'.*load the same base weights"):
            ParameterServer(server.address, Packed(0.25), client_settings=PLAIN).join()


def with_norms(model: PeftModel) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad or "norm" in name)


def with_two_adapters(model: PeftModel) -> None:
    model.add_adapter("second", LoraConfig(r=2, target_modules=["q_proj"]))
    model.base_model.set_adapter(["default", "second"])


@pytest.mark.parametrize(
    ("change", "named"), [(with_norms, "input_layernorm.weight"), (with_two_adapters, "lora_A.second.weight")]
)
def test_adapter_that_lacks_a_trained_tensor_is_not_exported(
    change: Callable[[PeftModel], None], named: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = lora()
    change(model)
    with (
        ServerThread() as server,
        ParameterServer(server.address, model, client_settings=PLAIN),
        pytest.raises(TaskError, match="trains tensors outside one adapter"),
    ):
        export_adapter(tmp_path / "adapter", address=server.address)
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "gem_worker.adapter"]
    assert named in warning
    assert "and 1 more would be missing" in warning or "and 2 more would be missing" in warning
    assert not (tmp_path / "adapter").exists()


@pytest.mark.parametrize(
    "text",
    [
        "[" * 1_000_000,
        '{"config": %s, "tensors": {"a": "weight"}}' % ("[" * 900 + "]" * 900),
        '{"config": {}, "tensors": {"\\ud800": "weight"}}',
        '{"config": {}, "tensors": {"a": ["weight"]}}',
        '{"config": {}, "tensors": {"a": "other"}}',
        '{"config": {}, "tensors": {}}',
        '{"config": 1, "tensors": {"a": "weight"}}',
        json.dumps({"config": {}, "tensors": {str(index): "weight" for index in range(5)}}),
        "[]",
    ],
    ids=["deep", "deep-config", "surrogate", "list", "unknown", "empty", "number", "repeated", "no-object"],
)
def test_illegal_description_is_refused_in_one_line_and_writes_nothing(text: str, tmp_path: Path) -> None:
    description = base64.b64encode(zlib.compress(text.encode())).decode()
    (tmp_path / "state.json").write_text(json.dumps({"adapter": description}))
    save_file({"weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(TaskError, match=r"^the adapter's description in .* is not one of this version of gemps$"):
        export_adapter(tmp_path / "adapter", path=tmp_path)
    assert not (tmp_path / "adapter").exists()


@pytest.mark.parametrize("text", ["[]", '{"adapter": 5}', "7", "[" * 1_000_000], ids=["list", "number", "7", "deep"])
def test_damaged_state_file_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(TaskError, match=r"^.*state\.json cannot be read: .*$"):
        export_adapter(tmp_path / "adapter", path=tmp_path)


def test_prompt_tuning_trains_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    model = get_peft_model(base(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    with ServerThread() as server, ParameterServer(server.address, model, client_settings=PLAIN) as ps:
        train(ps, model, 1)
    assert "(PEFT makes its tensors on saving, or none trains): save the adapter with model.save" in caplog.text


def test_adapter_whose_configuration_is_no_json_trains_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    model = lora()
    model.peft_config["default"].revision = torch.float32
    with ServerThread() as server, ParameterServer(server.address, model, client_settings=PLAIN) as ps:
        train(ps, model, 1)
    assert "cannot keep the adapter's configuration (it is no JSON:" in caplog.text
