"""The deltas of translated optimizers, against NumPy; their state, their hooks and what calls them."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gem_worker import UnsupportedOptimizerError
from gem_worker.flat_model import FlatModel
from gem_worker.gradient_transform import spectral_direction
from gem_worker.model_tensors import inspect_model
from gem_worker.optimizer_recipe import choose_recipe
from gem_worker.translated_optimizer import TranslatedOptimizer
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Muon, NAdam, Optimizer, RAdam
from torch.optim.lr_scheduler import LambdaLR

from tests.worker.zoo import make

Values = NDArray[np.float64]


class Mixed(nn.Module):
    """Two matrices, two vectors and, between hidden matrices, an embedding with its head."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 6, dtype=dtype)
        self.wide = nn.Linear(6, 8, dtype=dtype)
        self.tall = nn.Linear(8, 6, dtype=dtype)
        self.head = nn.Linear(6, 9, bias=False, dtype=dtype)


class Made:
    """A model and its optimizer, translated by their recipe as in a run, but without a server."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer
        inspected = inspect_model(model)
        self.recipe = choose_recipe(optimizer, model, inspected[1], every=1).recipe
        self.flat = FlatModel(model, inspected)
        self.is_over = False
        self.translated = TranslatedOptimizer(optimizer, self.recipe, self.flat, lambda: not self.is_over)

    def set_gradients(self, seed: int, scale: float = 1.0) -> dict[str, Values]:
        generator = torch.Generator().manual_seed(seed)
        for one in self.flat.trained:
            one.tensor.grad = (scale * torch.randn(one.tensor.shape, generator=generator)).to(one.tensor.dtype)
        return {one.name: one.tensor.grad.double().numpy() for one in self.flat.trained}

    def delta(self) -> dict[str, Values]:
        """Return the delta of the pending step, and end the step."""
        assert self.translated.take()
        scale = self.translated.made.scale
        found = {one.name: -scale * one.gradient.double().numpy() for one in self.flat.trained}
        self.translated.sent(is_finite=all(np.isfinite(one).all() for one in found.values()))
        return found

    def step(self, seed: int, scale: float = 1.0) -> dict[str, Values]:
        self.set_gradients(seed, scale)
        self.translated.run(None)
        return self.delta()


def two_groups(model: nn.Module, create: Any, first: dict[str, Any], second: dict[str, Any], **common: Any) -> Any:
    """Return parameter groups: one with the matrices, and one with the vectors. In the layout these alternate."""
    matrices, vectors = ([one for one in model.parameters() if (one.ndim > 1) is wanted] for wanted in (True, False))
    return create([{"params": matrices} | first, {"params": vectors} | second], **common)


def groups_of(model: nn.Module, first: dict[str, Any], second: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: first if one.ndim > 1 else second for name, one in model.named_parameters()}


class SlowRms:
    """-(lr / 3) clamp(g / (root(v_hat) + eps), -5, 5) of one tensor."""

    def __init__(self, beta2: float, eps: float, lr: float, weight_decay: float = 0.0) -> None:
        self.beta2, self.eps, self.lr, self.weight_decay = beta2, eps, lr, weight_decay
        self.square: Values | float = 0.0
        self.steps = 0

    def step(self, gradient: Values, parameter: Values) -> Values:
        gradient = gradient + self.weight_decay * parameter
        self.steps += 1
        self.square = self.beta2 * self.square + (1 - self.beta2) * gradient**2
        root = np.sqrt(self.square / (1 - self.beta2**self.steps)) + self.eps
        found: Values = -self.lr / 3 * np.clip(gradient / root, -5, 5)
        return found


class SlowMomentum:
    """(b m + (1 - b) g) / (1 - b^(k + 1)), k gradients in m, of one tensor."""

    def __init__(self, beta1: float) -> None:
        self.beta1 = beta1
        self.mean: Values | float = 0.0
        self.steps = 0

    def step(self, gradient: Values) -> Values:
        self.steps += 1
        self.mean = self.beta1 * self.mean + (1 - self.beta1) * gradient
        found: Values = (self.beta1 * self.mean + (1 - self.beta1) * gradient) / (1 - self.beta1 ** (self.steps + 1))
        return found


def orthogonal(values: Values) -> Values:
    return spectral_direction(torch.from_numpy(values)).double().numpy()


def values_of(model: nn.Module) -> dict[str, Values]:
    return {name: one.detach().double().numpy().copy() for name, one in model.named_parameters()}


def assert_close(found: dict[str, Values], expected: dict[str, Values], tolerance: float = 1e-5) -> None:
    assert found.keys() == expected.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=tolerance, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("create", [Adam, AdamW, NAdam, RAdam])
def test_adams_delta_is_the_gradient_over_the_root_of_its_mean_square(create: Any) -> None:
    model = make("perceptron")
    first, second = {"lr": 0.003, "betas": (0.9, 0.95)}, {"lr": 0.01, "betas": (0.5, 0.99), "eps": 1e-3}
    made = Made(model, two_groups(model, create, first, second, weight_decay=0.3))
    coupled = 0.0 if create is AdamW else 0.3
    slow = {
        name: SlowRms(group["betas"][1], group.get("eps", 1e-8), group["lr"], coupled)
        for name, group in groups_of(model, first, second).items()
    }
    parameters = values_of(model)
    for seed in range(6):
        gradients = made.set_gradients(seed, 1e-3 if seed < 5 else 1.0)  # the last is clamped at 5
        made.translated.run(None)
        expected = {name: slow[name].step(gradient, parameters[name]) for name, gradient in gradients.items()}
        assert made.translated.made.decays == (
            () if coupled else (pytest.approx(0.003 * 0.3), pytest.approx(0.01 * 0.3))
        )
        assert_close(made.delta(), expected, 1e-4)
    assert {name: one.tolist() for name, one in values_of(model).items()} == {
        name: one.tolist() for name, one in parameters.items()
    }, "the parameters are the server's"


def test_sgds_delta_is_the_gradient_at_the_rate_that_momentum_reaches() -> None:
    model = make("perceptron")
    first = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
    second = {"lr": 0.2, "momentum": 0.5, "dampening": 0.25}
    made = Made(model, two_groups(model, SGD, first, second, lr=1.0))
    parameters = values_of(model)
    for seed in range(2):
        gradients = made.set_gradients(seed)
        made.translated.run(None)
        expected = {
            name: -0.1 / (3 * 0.1) * (gradients[name] + 0.01 * parameters[name])
            if group is first
            else -0.2 * 0.75 / (3 * 0.5) * gradients[name]
            for name, group in groups_of(model, first, second).items()
        }
        assert made.translated.made.decays == ()
        assert_close(made.delta(), expected)


@pytest.mark.parametrize("create", [Adam, AdamW, NAdam, RAdam])
def test_momentum_of_hidden_matrices_beside_an_embedding_is_orthogonalised_and_then_scaled_as_all_else(
    create: Any,
) -> None:
    model = Mixed()
    first, second = {"betas": (0.9, 0.95)}, {"betas": (0.5, 0.9), "lr": 0.02}
    made = Made(model, two_groups(model, create, first, second, lr=0.01, weight_decay=0.5))
    assert [group["beta1"] for group in made.recipe.groups] == [0.9, 0.5]
    coupled = 0.0 if create is AdamW else 0.5
    parameters = values_of(model)
    slow = {
        name: (SlowMomentum(group["betas"][0]), SlowRms(group["betas"][1], 1e-8, 3 * group.get("lr", 0.01)))
        for name, group in groups_of(model, first, second).items()
    }
    for seed in range(4):
        expected = {}
        for name, gradient in made.set_gradients(seed).items():
            mean, rms = slow[name]
            values = mean.step(gradient + coupled * parameters[name])
            if name in ("wide.weight", "tall.weight"):
                values = orthogonal(values)
            expected[name] = rms.step(values, np.zeros(1))
        made.translated.run(None)
        assert_close(made.delta(), expected, 1e-2)


def test_one_step_of_one_worker_is_a_step_of_the_size_of_the_rate() -> None:
    model = Mixed()
    made = Made(model, AdamW(model.parameters(), lr=0.25, betas=(0.9, 0.9)))
    gradients = made.set_gradients(0)
    made.translated.run(None)
    for name, delta in made.delta().items():
        np.testing.assert_allclose(np.abs(delta), 0.25, rtol=1e-3)
        if not name.startswith(("wide.w", "tall.w")):
            assert (np.sign(delta) == -np.sign(gradients[name])).all()


def test_the_momentum_of_now_counts_in_each_step() -> None:
    """OneCycleLR and CyclicLR change the momentum during a run."""
    model, other = Mixed(), Mixed()
    changing = Made(model, AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.9)))
    constant = Made(other, AdamW(other.parameters(), lr=0.01, betas=(0.5, 0.9)))
    assert_close(changing.step(0), constant.step(0), 1e-3)  # of one gradient any beta1 makes the same
    changing.optimizer.param_groups[0]["betas"] = (0.5, 0.9)
    mean = changing.optimizer.state[model.head.weight]["exp_avg"].double().numpy().copy()
    gradients = changing.set_gradients(1)
    changing.translated.run(None)
    (square,) = [changing.optimizer.state[model.head.weight]["exp_avg_sq"].double().numpy()]
    weight = 0.5 * (0.5 * 0.1 + 0.5) + 0.5
    values = (0.5 * (0.5 * mean + 0.5 * gradients["head.weight"]) + 0.5 * gradients["head.weight"]) / weight
    np.testing.assert_allclose(
        changing.delta()["head.weight"], -0.01 * values / np.sqrt(square / (1 - 0.9**2)), rtol=1e-3
    )


def test_muons_delta_has_the_size_that_its_own_steps_have() -> None:
    model = nn.Sequential(nn.Linear(6, 24), nn.Linear(24, 6))
    matrices = [model[0].weight, model[1].weight]
    made = Made(model, Muon(matrices, lr=0.02, weight_decay=0.1))
    slow = {name: (SlowMomentum(0.95), SlowRms(0.99, 1e-8, 0.02)) for name in ("0.weight", "1.weight")}
    for seed in range(3):
        gradients = made.set_gradients(seed)
        made.translated.run(None)
        assert made.translated.made.decays == (pytest.approx(0.002), 0.0)
        delta = made.delta()
        for name, columns in (("0.weight", 6), ("1.weight", 24)):
            mean, rms = slow[name]
            expected = rms.step(orthogonal(mean.step(gradients[name])), np.zeros(1)) * 5 / columns**0.5
            np.testing.assert_allclose(delta[name], expected, rtol=1e-3, atol=1e-7)
        assert not delta["0.bias"].any()
        assert not delta["1.bias"].any()


def test_the_rate_is_that_of_now_also_when_it_is_zero_in_one_group() -> None:
    model = make("perceptron")
    optimizer = two_groups(model, AdamW, {"lr": 0.25}, {"lr": 0.5}, weight_decay=0.0)
    made = Made(model, optimizer)
    names = groups_of(model, {}, {"is": "second"})
    for rates in ((0.25, 0.5), (0.0, 0.5), (0.125, 0.0), (0.0, 0.0)):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        delta = made.step(0)  # the same gradient again and again: directions of 1
        assert made.translated.made.rate == rates[0]
        for name, group in names.items():
            np.testing.assert_allclose(abs(delta[name]), rates[bool(group)] / 3, rtol=1e-4)


def test_a_momentum_that_reaches_1_in_the_run_is_refused_with_the_fix() -> None:
    model = make("perceptron")
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    made = Made(model, optimizer)
    optimizer.param_groups[0]["momentum"] = 1.0
    with pytest.raises(UnsupportedOptimizerError, match="has momentum 1 now: keep it below 1"):
        made.step(0)


@pytest.mark.parametrize("kind", ["channels-last", "mixed-types", "bfloat16", "tied-weights", "sparse-embedding"])
def test_models_of_every_memory_format_and_type_get_the_same_delta_as_plain_ones(kind: str) -> None:
    model = make(kind)
    made = Made(model, AdamW(model.parameters(), lr=0.03, betas=(0.9, 0.9)))
    slow = {one.name: SlowRms(0.9, 1e-8, 0.03) for one in made.flat.trained}
    assert made.recipe.kind == "rms"
    for seed in range(3):
        gradients = made.set_gradients(seed)
        made.translated.run(None)
        expected = {name: slow[name].step(gradient, np.zeros(1)) for name, gradient in gradients.items()}
        is_narrow = kind in ("bfloat16", "mixed-types")
        assert_close(made.delta(), expected, 1e-2 if is_narrow else 1e-4)


@pytest.mark.parametrize("create_model", [lambda: make("perceptron"), Mixed], ids=["rms", "spectral"])
def test_a_gradient_that_is_not_finite_leaves_no_trace(create_model: Callable[[], nn.Module]) -> None:
    model, other = create_model(), create_model()
    disturbed = Made(model, AdamW(model.parameters(), lr=0.01))
    undisturbed = Made(other, AdamW(other.parameters(), lr=0.01))
    for seed in range(3):
        assert_close(disturbed.step(seed), undisturbed.step(seed), 0)
        disturbed.set_gradients(9)
        first = disturbed.flat.trained[0].tensor
        assert first.grad is not None
        first.grad[0, 0] = float("inf")
        disturbed.translated.run(None)
        assert all(np.isnan(one).all() for one in disturbed.delta().values())
    state, expected = (one.optimizer.state_dict()["state"] for one in (disturbed, undisturbed))
    for number, values in state.items():
        assert all(torch.equal(value, expected[number][key]) for key, value in values.items())
        assert values["step"] == 3


def saved_and_loaded(optimizer: Optimizer, folder: Any) -> Any:
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    return torch.load(folder / "optimizer.pt")


@pytest.mark.parametrize("create", [Adam, NAdam, RAdam, AdamW])
@pytest.mark.parametrize("create_model", [lambda: make("perceptron"), Mixed], ids=["rms", "spectral"])
def test_a_saved_state_continues(create: Any, create_model: Callable[[], nn.Module], tmp_path: Any) -> None:
    whole, first, second = create_model(), create_model(), create_model()
    straight = Made(whole, create(whole.parameters(), lr=0.01))
    before = Made(first, create(first.parameters(), lr=0.01))
    for seed in range(3):
        assert_close(straight.step(seed), before.step(seed), 0)
    optimizer = create(second.parameters(), lr=0.01)
    optimizer.load_state_dict(saved_and_loaded(before.optimizer, tmp_path))
    after = Made(second, optimizer)
    # The weight of v and m is made anew, with another rounding, which orthogonalising amplifies.
    tolerance = 1e-3 if isinstance(second, Mixed) else 1e-6
    for seed in range(3, 6):
        assert_close(after.step(seed), straight.step(seed), tolerance)
    loaded_while_joined = Made(first, create(first.parameters(), lr=0.01))
    loaded_while_joined.step(7)
    loaded_while_joined.optimizer.load_state_dict(straight.optimizer.state_dict())
    assert_close(loaded_while_joined.step(6), straight.step(6), tolerance)


@pytest.mark.parametrize("create", [Adam, NAdam, RAdam, AdamW, SGD, Muon])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_loaded", [False, True])
def test_the_optimizers_own_step_continues_from_the_state(
    create: Any, dtype: torch.dtype, is_loaded: bool, tmp_path: Any
) -> None:
    """A script may train alone after the block, or from the file that a worker saved."""
    model = nn.Sequential(nn.Linear(4, 5, bias=False), nn.Linear(5, 3, bias=False)).to(dtype)
    made = Made(model, create(model.parameters(), lr=0.01))
    for seed in range(4):
        made.step(seed)
    state = saved_and_loaded(made.optimizer, tmp_path)
    made.translated.close()
    optimizer = made.optimizer
    if is_loaded:
        optimizer = create(model.parameters(), lr=0.01)
        optimizer.load_state_dict(state)
    before = values_of(model)
    for seed in range(2):
        made.set_gradients(seed)
        optimizer.step()
    for name, value in values_of(model).items():
        assert np.isfinite(value).all()
        assert (value != before[name]).any()
    for values in optimizer.state_dict()["state"].values():
        assert create in (SGD, Muon) or values["step"] == 6


@pytest.mark.parametrize("create", [Adam, NAdam, RAdam, AdamW, Muon])
def test_the_momentum_is_the_mean_that_the_optimizers_own_steps_keep(create: Any) -> None:
    """So is everything else that they need to continue, except v of hidden matrices, which is that of NS(u)."""
    model, alone = Mixed(), Mixed()

    def optimizer_of(model: nn.Module) -> Optimizer:
        chosen = [one for one in model.parameters() if one.ndim == 2 or create is not Muon]
        optimizer: Optimizer = create(chosen, lr=0.01, weight_decay=0.0)
        return optimizer

    made, own = Made(model, optimizer_of(model)), optimizer_of(alone)
    name = "momentum_buffer" if create is Muon else "exp_avg"
    for seed in range(6):
        if seed == 3:
            made.translated.close()
            made.optimizer.load_state_dict(own.state_dict())
            made = Made(model, made.optimizer)
        made.step(seed)
        generator = torch.Generator().manual_seed(seed)
        for one in alone.parameters():
            one.grad = torch.randn(one.shape, generator=generator)
        own.step()
        for one, expected in zip(model.parameters(), alone.parameters(), strict=True):
            found, kept = made.optimizer.state[one], own.state.get(expected, {})
            for key in {name, "step", "mu_product"} & kept.keys():
                torch.testing.assert_close(found[key], kept[key], msg=key)
                assert kept[key].any()


def test_a_momentum_of_the_optimizers_own_steps_is_continued() -> None:
    model, alone = Mixed(), Mixed()
    own = AdamW(alone.parameters(), lr=0.01, betas=(0.8, 0.9))
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        for one in alone.parameters():
            one.grad = torch.randn(one.shape, generator=generator)
        own.step()
    optimizer = AdamW(model.parameters(), lr=0.01, betas=(0.8, 0.9))
    optimizer.load_state_dict(own.state_dict())
    made = Made(model, optimizer)
    gradient = made.set_gradients(9)["head.weight"]
    made.translated.run(None)
    state = own.state[alone.head.weight]
    mean, square = (state[key].double().numpy() for key in ("exp_avg", "exp_avg_sq"))
    values = (0.8 * (0.8 * mean + 0.2 * gradient) + 0.2 * gradient) / (1 - 0.8**7)
    root = np.sqrt((0.9 * square + 0.1 * values**2) / (1 - 0.9**6)) + 1e-8
    np.testing.assert_allclose(made.delta()["head.weight"], -0.01 * np.clip(values / root, -5, 5), rtol=1e-3)


def test_a_state_of_the_optimizers_own_steps_is_honoured(tmp_path: Any) -> None:
    alone, model = make("perceptron"), make("perceptron")
    own = AdamW(alone.parameters(), lr=0.01)
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        for one in alone.parameters():
            one.grad = torch.randn(one.shape, generator=generator)
        own.step()
    optimizer = AdamW(model.parameters(), lr=0.01)
    optimizer.load_state_dict(saved_and_loaded(own, tmp_path))
    made = Made(model, optimizer)
    squares = {name: own.state[one]["exp_avg_sq"].clone() for name, one in alone.named_parameters()}
    gradients = made.set_gradients(9)
    made.translated.run(None)
    for name, delta in made.delta().items():
        square = 0.999 * squares[name].double().numpy() + 0.001 * gradients[name] ** 2
        expected = gradients[name] / (np.sqrt(square / (1 - 0.999**6)) + 1e-8)
        np.testing.assert_allclose(delta, -0.01 / 3 * np.clip(expected, -5, 5), rtol=1e-4)
    for state in made.optimizer.state.values():
        assert state["step"] == 6
        assert not state["exp_avg"].any()


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaler_unscales_and_leaves_out_steps_with_an_overflow(fused: bool) -> None:
    model, other = make("perceptron"), make("perceptron")
    made, expected = (Made(one, AdamW(one.parameters(), lr=0.01, fused=fused)) for one in (model, other))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for seed in range(4):
        scaler.scale(torch.zeros(()))
        made.set_gradients(seed, float("inf") if seed == 2 else 1024.0)
        made.translated.unscale(scaler)
        made.translated.unscale(scaler)
        made.translated.run(scaler)
        delta = made.delta()
        if seed == 2:
            assert all(np.isnan(one).all() for one in delta.values())
            assert scaler.get_scale() == 512
            scaler.update(1024.0)
        else:
            assert_close(delta, expected.step(seed), 1e-6)
    made.translated.close()
    assert getattr(made.optimizer, "_step_supports_amp_scaling", False) is fused


def test_hooks_run_around_the_translation_as_around_the_optimizers_own_step() -> None:
    model = make("perceptron")
    optimizer = AdamW(model.parameters(), lr=0.01)
    said = []
    made = Made(model, optimizer)
    optimizer.register_step_pre_hook(lambda *_: said.append(("before", made.translated.is_pending)))
    optimizer.register_step_post_hook(lambda *_: said.append(("after", made.translated.is_pending)))
    made.step(0)
    assert said == [("before", False), ("after", True)]


def test_a_scheduler_sees_that_the_optimizer_has_stepped(recwarn: pytest.WarningsRecorder) -> None:
    model = make("perceptron")
    optimizer = AdamW(model.parameters(), lr=0.01)
    before = LambdaLR(optimizer, lambda step: 0.5**step)
    made = Made(model, optimizer)
    within = LambdaLR(optimizer, lambda step: 0.5**step)
    made.step(0)
    before.step()
    within.step()
    made.translated.close()
    optimizer.step()
    before.step()
    assert not recwarn.list


def test_a_loop_that_steps_the_optimizer_itself_may_zero_gradients_before_the_exchange() -> None:
    model, other = make("perceptron"), make("perceptron")
    made, expected = (Made(one, AdamW(one.parameters(), lr=0.01)) for one in (model, other))
    for seed in range(3):

        def closure(seed: int = seed) -> Tensor:
            assert torch.is_grad_enabled()
            made.set_gradients(seed)
            return torch.tensor(1.5)

        loss: Any = made.optimizer.step(closure) if seed else made.optimizer.step(closure=closure)
        assert loss == 1.5
        made.optimizer.zero_grad(set_to_none=seed == 1)
        assert_close(made.delta(), expected.step(seed), 0)
    assert not made.translated.take()


def test_two_steps_without_an_exchange_are_refused_with_the_fix() -> None:
    model = make("perceptron")
    made = Made(model, AdamW(model.parameters(), lr=0.01))
    made.optimizer.step()
    with pytest.raises(UnsupportedOptimizerError, match="every=H"):
        made.optimizer.step()


def test_a_wrapper_that_has_kept_the_optimizers_own_step_is_refused() -> None:
    model = make("perceptron")
    optimizer = AdamW(model.parameters(), lr=0.01)
    kept = optimizer.step
    made = Made(model, optimizer)
    made.set_gradients(0)
    with pytest.raises(UnsupportedOptimizerError, match="past gemps"):
        kept()
    made.translated.close()
    kept()


def test_a_group_that_is_added_later_is_refused() -> None:
    model = make("perceptron")
    first, *others = model.parameters()
    made = Made(model, AdamW([first], lr=0.01))
    made.optimizer.add_param_group({"params": others})
    with pytest.raises(UnsupportedOptimizerError, match="before ParameterServer"):
        made.step(0)


def test_after_the_runs_end_a_step_does_nothing() -> None:
    model = make("perceptron")
    made = Made(model, AdamW(model.parameters(), lr=0.01))
    made.is_over = True
    made.set_gradients(0)
    made.optimizer.step()
    assert not made.translated.is_pending
    assert made.optimizer.state_dict()["state"][0]["step"] == 0


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Use one thread, because small tensors are updated without threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
