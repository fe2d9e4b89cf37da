"""Layouts and files have the names of the model without wrappers, so that wrapped and plain workers share a run."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gemps
import pytest
import torch
from gem_launch import RunFilesError
from gem_worker import ParameterServer, UnsupportedModelError
from gem_worker.model_tensors import ScriptTensors, inspect_model
from safetensors.torch import load_file, save_file
from torch import Tensor, distributed, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from tests.worker.serving import ServerThread


def compiled(model: nn.Module) -> nn.Module:
    found: nn.Module = torch.compile(model, backend="eager")
    return found


class Net(nn.Module):
    """Blocks, a buffer that is sent, and attributes of the user's that are called as those of wrappers."""

    def __init__(self, wrap: Callable[[nn.Module], nn.Module] = lambda module: module) -> None:
        super().__init__()
        self.module = wrap(nn.Linear(4, 4))
        self.blocks = nn.Sequential(nn.BatchNorm1d(4), wrap(nn.Linear(4, 4)))
        self._orig_mod = nn.Linear(4, 1)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self._orig_mod(self.blocks(self.module(inputs))) * self.scale
        return found


def checkpointed(module: nn.Module) -> nn.Module:
    return checkpoint_wrapper(module)


def of_fabric(model: nn.Module) -> Any:
    """As `Fabric.setup` wraps a module, with the forward pass in a wrapper of its own."""
    fabric = pytest.importorskip("lightning.fabric", exc_type=ImportError)
    return fabric.Fabric(accelerator="cpu", devices=1).setup(model)


WRAPPED: dict[str, Callable[[], nn.Module]] = {
    "compiled": lambda: compiled(Net()),
    "data-parallel": lambda: nn.DataParallel(Net()),
    "data-parallel-of-compiled": lambda: nn.DataParallel(compiled(Net())),
    "compiled-blocks": lambda: Net(compiled),
    "compiled-of-compiled-blocks": lambda: compiled(Net(compiled)),
    "checkpointed-blocks": lambda: Net(checkpointed),
    "compiled-of-checkpointed": lambda: compiled(Net(lambda module: compiled(checkpointed(module)))),
    "data-parallel-block": lambda: Net(nn.DataParallel),
    "fabric": lambda: of_fabric(Net()),
    "fabric-of-compiled-blocks": lambda: of_fabric(Net(compiled)),
}
wrapped_models = pytest.mark.parametrize("create", WRAPPED.values(), ids=WRAPPED.keys())


def names(model: nn.Module) -> list[tuple[str, ...]]:
    return [(one.spec.name, *one.spec.aliases) for one in inspect_model(model)[1]]


@wrapped_models
def test_a_wrapped_model_has_the_names_of_the_plain_one(create: Callable[[], nn.Module]) -> None:
    assert names(create()) == names(Net())


@wrapped_models
def test_a_runs_file_is_loaded_into_the_wrapped_model(create: Callable[[], nn.Module], tmp_path: Path) -> None:
    saved = Net()
    save_file(saved.state_dict(), tmp_path / "model.safetensors")
    model = create()
    gemps.load(tmp_path).load_into(model)
    for one, expected in zip(model.parameters(), saved.parameters(), strict=True):
        assert torch.equal(one, expected)


@pytest.fixture
def process_group() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_distributed_data_parallel_has_the_names_of_the_plain_model() -> None:
    assert names(nn.parallel.DistributedDataParallel(compiled(Net()))) == names(Net())


@pytest.mark.usefixtures("process_group")
def test_fully_sharded_data_parallel_is_refused_with_the_fix() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(Net(), use_orig_params=True, device_id=torch.device("cpu"))
    with pytest.raises(UnsupportedModelError, match="whole model: pass the model without FSDP"):
        inspect_model(model)


def test_names_that_users_gave_stay() -> None:
    assert [name for name, in names(Net())] == [
        "scale", "module.weight", "module.bias", "blocks.0.weight", "blocks.0.bias", "blocks.1.weight",
        "blocks.1.bias", "_orig_mod.weight", "_orig_mod.bias", "blocks.0.num_batches_tracked",
        "blocks.0.running_mean", "blocks.0.running_var",
    ]  # fmt: skip


def test_a_prefix_that_a_hook_of_the_state_dict_has_removed_is_not_removed_again() -> None:
    def remove_prefix(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        for name in list(state):
            state[name.removeprefix("module.")] = state.pop(name)

    model = nn.DataParallel(Net())
    model.register_state_dict_post_hook(remove_prefix)
    assert names(model) == names(Net())


def test_what_a_subclass_of_a_wrapper_adds_keeps_its_name() -> None:
    class WithHead(nn.DataParallel[nn.Module]):
        def __init__(self, model: nn.Module) -> None:
            super().__init__(model)
            self.head = nn.Linear(1, 1)

    assert set(names(WithHead(Net()))) == {*names(Net()), ("head.weight",), ("head.bias",)}
    with pytest.raises(UnsupportedModelError, match=r"'head.weight' is also a name of tensor"):
        inspect_model(WithHead(nn.ModuleDict({"head": nn.Linear(1, 1)})))


def test_a_module_that_is_also_registered_as_compiled_is_one_entry_with_an_alias() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(2, 2)
            self.fast = compiled(self.net)

    assert names(Both()) == [("net.weight", "fast.weight"), ("net.bias", "fast.bias")]


def test_tensors_that_stay_local_are_named_as_in_the_plain_model() -> None:
    class WithTeacher(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(2, 2)
            self.teacher = compiled(nn.Linear(2, 2, device="meta")).requires_grad_(False)

    local = ScriptTensors(keep_local=("teacher",))
    for model in (WithTeacher(), compiled(WithTeacher())):
        assert [one.spec.name for one in inspect_model(model, local)[1]] == ["net.weight", "net.bias"]


def test_compiled_parallel_and_plain_workers_train_one_model(tmp_path: Path) -> None:
    models = {"a": compiled(Net()), "b": Net(), "c": nn.DataParallel(Net(compiled))}
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    with ServerThread(data_dir=tmp_path) as server:
        for name, model in models.items():
            with ParameterServer(server.address, model, name=name) as ps:
                loss = model(inputs).square().mean()
                loss.backward()
                assert ps.step(loss).applied
                last = [one.detach().clone() for one in model.parameters()]
        assert server.server.central.clock == 4
        server.stop()
        plain, wrapped = Net(), compiled(Net())
        plain.load_state_dict(load_file(server.checkpoint))
        gemps.load(tmp_path).load_into(wrapped)
    for trained, one, other in zip(last, plain.parameters(), wrapped.parameters(), strict=True):
        assert torch.equal(one, trained)
        assert torch.equal(other, trained)


def test_a_file_that_load_state_dict_does_not_take_is_an_error(tmp_path: Path) -> None:
    """A hook renames what the state_dict has, and nothing renames it back."""

    def add_prefix(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        for name in list(state):
            state[f"saved.{name}"] = state.pop(name)

    save_file({"saved.weight": torch.zeros(2, 2), "saved.bias": torch.zeros(2)}, tmp_path / "model.safetensors")
    model = nn.Linear(2, 2)
    model.register_state_dict_post_hook(add_prefix)
    with pytest.raises(RunFilesError, match=r"not know names of its own state_dict\(\): saved.bias, saved.weight"):
        gemps.load(tmp_path).load_into(model)
