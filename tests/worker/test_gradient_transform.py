"""Clipping and directions against float64 transcriptions, and what they promise; then with a real server."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gem_worker import ClientSettings, ParameterServer
from gem_worker.client import ServerMisbehavedError
from gem_worker.flat_model import FlatModel
from gem_worker.gradient_transform import (
    GradientTransform,
    GroupNow,
    Plan,
    Scaling,
    orthogonalise,
    spectral_direction,
)
from gem_worker.model_sizes import TransformerSizes
from gem_worker.models.transformer import Transformer
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.worker.serving import ServerThread

IMPATIENT = ClientSettings(connect_timeout=20)
ETA = 0.125
INFINITE = torch.tensor([1.0, float("inf"), 2.0])
OVERFLOWING = torch.tensor([1e30, 1.0, 2.0])


def slow_spectral(gradient: Tensor) -> NDArray[np.float64]:
    """Compute Muon's step without transposing tall matrices."""
    x = gradient.double().numpy().reshape(len(gradient), -1)
    scale = 0.2 * np.sqrt(max(x.shape))
    x = x / np.linalg.norm(x)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (scale * x).reshape(tuple(gradient.shape))


class SlowRms:
    """Adam's step without momentum."""

    def __init__(self) -> None:
        self.square: NDArray[np.float64] | float = 0.0
        self.steps = 0

    def step(self, gradient: Tensor) -> NDArray[np.float64]:
        values = gradient.double().numpy()
        self.steps += 1
        self.square = 0.99 * self.square + 0.01 * values**2
        stepped: NDArray[np.float64] = values / (np.sqrt(self.square / (1 - 0.99**self.steps)) + 1e-8)
        return stepped


class SlowMomentum:
    """Nesterov's momentum over the sum of its weights, by the formula for a beta1 that never changes."""

    def __init__(self, beta1: float = 0.9) -> None:
        self.beta1 = beta1
        self.mean: NDArray[np.float64] | float = 0.0
        self.steps = 0

    def step(self, gradient: Tensor) -> Tensor:
        values = gradient.double().numpy()
        self.steps += 1
        self.mean = self.beta1 * self.mean + (1 - self.beta1) * values
        ahead = self.beta1 * self.mean + (1 - self.beta1) * values
        return torch.from_numpy(ahead / (1 - self.beta1 ** (self.steps + 1)))


class Parameters(nn.Module):
    """A model of zeros with these shapes and types. The gradient of its loss is the argument of `forward`."""

    def __init__(self, *like: Tensor) -> None:
        super().__init__()
        self.all = nn.ParameterList(torch.zeros_like(one) for one in like)

    def forward(self, *gradients: Tensor) -> Tensor:
        return torch.stack([(one * wanted).sum() for one, wanted in zip(self.all, gradients, strict=True)]).sum()


class Steps:
    """Transforms gradients of one model, for one worker or several."""

    def __init__(self, model: nn.Module, direction: str = "gradient", clip_norm: float = 0.0) -> None:
        self.flat = FlatModel(model)
        self.transform = GradientTransform(self.flat, Plan.of_direction(self.flat, direction), clip_norm)
        self.states = [self.transform.new_state() for _ in range(2)]

    def step(self, *gradients: Tensor, worker: int = 0) -> list[Tensor]:
        for one, gradient in zip(self.flat.trained, gradients, strict=True):
            one.gradient.copy_(gradient)
        self.transform.clip()
        self.transform.direct(self.states[worker])
        return [one.gradient.clone() for one in self.flat.trained]


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(8, 8), (32, 8), (8, 32), (1, 12), (12, 1), (5, 3, 2, 2)])
def test_a_spectral_direction_is_that_of_the_formula(shape: tuple[int, ...]) -> None:
    gradient = random_tensor(*shape)
    np.testing.assert_allclose(spectral_direction(gradient), slow_spectral(gradient), rtol=2e-4, atol=2e-5)


def test_a_kernel_in_another_memory_order_has_the_same_direction() -> None:
    gradient = random_tensor(6, 4, 3, 3)
    permuted = gradient.to(memory_format=torch.channels_last)
    assert torch.equal(spectral_direction(permuted), spectral_direction(gradient))


@pytest.mark.parametrize("shape", [(64, 200), (200, 64), (3, 1000)])
def test_singular_values_of_a_spectral_direction_are_near_one(shape: tuple[int, int]) -> None:
    gradient = random_tensor(*shape) * torch.logspace(0, 1, shape[1])
    found = orthogonalise(gradient)
    values = torch.linalg.svdvals(found)
    assert 0.67 < values.min() < values.max() < 1.15
    # The gradient's singular vectors.
    left, _, right = torch.linalg.svd(gradient, full_matrices=False)
    inner = left.T @ found @ right.T
    torch.testing.assert_close(inner, inner.diagonal().diag(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("scale", [2.0**-120, 2.0**-40, 2.0**30, 2.0**58])
def test_a_spectral_direction_does_not_depend_on_the_gradients_scale(scale: float) -> None:
    gradient = random_tensor(16, 24)
    assert torch.equal(spectral_direction(gradient * scale), spectral_direction(gradient))


@pytest.mark.parametrize("direction", ["gradient", "rms", "auto"])
def test_a_gradient_of_zeros_stays_zero(direction: str) -> None:
    zeros = torch.zeros(4, 6)
    assert torch.equal(Steps(Parameters(zeros), direction, 1.0).step(zeros)[0], zeros)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_an_rms_direction_is_that_of_the_formula_with_squares_of_each_worker(dtype: torch.dtype) -> None:
    steps = Steps(Parameters(torch.zeros(7, dtype=dtype)), "rms")
    slow = SlowRms(), SlowRms()
    for number in range(30):
        gradient = (random_tensor(7, seed=number) * 1e-3).to(dtype)
        worker = number % 3 % 2
        (found,) = steps.step(gradient, worker=worker)
        tolerance = 1e-2 if dtype is torch.bfloat16 else 1e-4
        np.testing.assert_allclose(found.double(), slow[worker].step(gradient), rtol=tolerance, atol=1e-6)


def test_directions_are_those_of_pytorchs_optimizers_without_momentum() -> None:
    like = random_tensor(6, 9), random_tensor(7)
    ours = Steps(Parameters(*like), "rms")
    matrix, vector = (nn.Parameter(torch.zeros_like(one)) for one in like)
    adam = torch.optim.Adam([vector], lr=1.0, betas=(0.0, 0.99))
    muon = torch.optim.Muon(
        [matrix], lr=1.0, weight_decay=0.0, momentum=0.0, nesterov=False, adjust_lr_fn="match_rms_adamw"
    )
    for seed in range(5):
        gradients = [random_tensor(*one.shape, seed=seed) for one in like]
        before = matrix.detach().clone(), vector.detach().clone()
        matrix.grad, vector.grad = gradients
        adam.step()
        muon.step()
        by_muon, by_adam = before[0] - matrix.detach(), before[1] - vector.detach()
        assert torch.allclose(ours.step(*gradients)[1], by_adam, rtol=1e-3, atol=1e-5)
        assert torch.allclose(spectral_direction(gradients[0]), by_muon, atol=0.02)  # in bfloat16


def test_embeddings_the_output_head_and_vectors_are_not_orthogonalised() -> None:
    model = Transformer(16, 256, TransformerSizes(layers=1, width=16, heads=2))
    steps = Steps(model, "auto")
    gradients = [random_tensor(*one.tensor.shape, seed=number) for number, one in enumerate(steps.flat.trained)]
    found = steps.step(*gradients)
    spectral = []
    for one, gradient, direction in zip(steps.flat.trained, gradients, found, strict=True):
        if torch.allclose(direction, gradient.sign(), rtol=1e-3):  # a first rms step
            continue
        spectral.append(one.name.removeprefix("layers.0."))
        expected = np.sign(slow_spectral(gradient))
        assert (direction.round(decimals=2).numpy() == expected).mean() > 0.99, "elements near 0 may have either sign"
    assert spectral == ["self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear1.weight", "linear2.weight"]


def test_tied_embeddings_are_not_orthogonalised() -> None:
    model = nn.Sequential(nn.Embedding(20, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 20, bias=False))
    model[2].weight = model[0].weight
    steps = Steps(model, "auto")
    gradients = [random_tensor(20, 4), random_tensor(4, 4)]
    tied, matrix = steps.step(*gradients)
    assert torch.allclose(tied, gradients[0].sign(), rtol=1e-3)
    np.testing.assert_allclose(matrix, np.sign(slow_spectral(gradients[1])), rtol=1e-3)
    assert (matrix.sign() != gradients[1].sign()).any()


def test_direction_auto_orthogonalises_the_momentum_of_hidden_matrices_and_scales_all_elements() -> None:
    model = nn.Sequential(nn.Embedding(20, 4), nn.Linear(4, 6), nn.Linear(6, 20, bias=False))
    steps = Steps(model, "auto")
    slow = [[(SlowMomentum(), SlowRms()) for _ in steps.flat.trained] for _ in range(2)]
    for seed in range(8):
        worker = seed % 3 % 2  # each has a momentum of its own
        gradients = [random_tensor(*one.tensor.shape, seed=seed) for one in steps.flat.trained]
        found = steps.step(*gradients, worker=worker)
        for one, gradient, direction, (mean, rms) in zip(
            steps.flat.trained, gradients, found, slow[worker], strict=True
        ):
            values = mean.step(gradient)
            if one.name == "1.weight":
                values = torch.from_numpy(slow_spectral(values))
            expected = rms.step(values).clip(-5, 5)
            np.testing.assert_allclose(direction, expected, rtol=2e-3, atol=1e-3, err_msg=one.name)


def test_direction_auto_of_a_model_without_an_embedding_orthogonalises_nothing_and_is_bounded() -> None:
    steps, mean, slow = Steps(Parameters(torch.zeros(4, 6)), "auto"), SlowMomentum(), SlowRms()
    for gradient in [random_tensor(4, 6, seed=seed) for seed in range(30)] + [100 * random_tensor(4, 6)]:
        (found,) = steps.step(gradient)
        np.testing.assert_allclose(found, slow.step(mean.step(gradient)).clip(-5, 5), rtol=1e-4, atol=1e-4)
    assert found.abs().max() == 5


def test_the_first_direction_auto_is_that_of_the_gradient() -> None:
    gradient = random_tensor(40)
    (found,) = Steps(Parameters(gradient), "auto").step(gradient)
    torch.testing.assert_close(found, gradient.sign(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_momentum_is_that_of_the_formula_in_groups_with_a_beta1_of_their_own(dtype: torch.dtype) -> None:
    """Groups alternate, and one tensor has several pieces; the last group has no momentum."""
    betas = (0.9, 0.6, 0.0)
    shapes = (5, 2**17 + 3, 4, 7)
    flat = FlatModel(Parameters(*(torch.zeros(shape, dtype=dtype) for shape in shapes)))
    plan = Plan(scales="all", groups=(Scaling(0.99, 1e-8),) * 3, group_of=(0, 1, 0, 2), has_momentum=True)
    transform = GradientTransform(flat, plan)
    state = transform.new_state()
    slow = [(SlowMomentum(betas[group]), SlowRms()) for group in plan.group_of]
    for seed in range(5):
        gradients = [random_tensor(shape, seed=seed).to(dtype) for shape in shapes]
        for one, gradient in zip(flat.trained, gradients, strict=True):
            one.gradient.copy_(gradient)
        transform.direct(state, [GroupNow(beta1=beta1) for beta1 in betas])
        for one, gradient, (mean, rms) in zip(flat.trained, gradients, slow, strict=True):
            tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-4
            np.testing.assert_allclose(
                one.gradient.double(), rms.step(mean.step(gradient)), rtol=tolerance, atol=tolerance
            )


def test_with_a_beta1_that_changes_the_momentum_of_equal_gradients_is_the_gradient() -> None:
    """Otherwise a schedule of beta1 would change the size of steps."""
    flat = FlatModel(Parameters(torch.zeros(6)))
    transform = GradientTransform(flat, Plan(scales="all", groups=(Scaling(0.0),), has_momentum=True))
    state, gradient = transform.new_state(), random_tensor(6)
    for beta1 in (0.95, 0.9, 0.85, 0.9, 0.95):
        flat.trained[0].gradient.copy_(gradient)
        transform.direct(state, [GroupNow(beta1=beta1)])
        assert torch.allclose(flat.trained[0].gradient, gradient.sign())
        assert torch.allclose(state.means[0] / state.mean_weights[0], gradient)


def test_a_large_tensor_is_scaled_as_a_small_one() -> None:
    count = 2 * 2**17 + 3
    steps, slow = Steps(Parameters(torch.zeros(count), torch.zeros(5)), "rms"), SlowRms()
    for seed in range(2):
        gradient = random_tensor(count, seed=seed)
        found, _ = steps.step(gradient, torch.ones(5))
        np.testing.assert_allclose(found, slow.step(gradient), rtol=1e-4, atol=1e-6)


def test_clipping_leaves_small_gradients_bit_equal_and_gives_large_ones_the_norm() -> None:
    like = random_tensor(3, 4), random_tensor(5).double(), random_tensor(6).bfloat16()
    steps = Steps(Parameters(*like), clip_norm=8.0)
    gradients = [like[0], like[1], like[2]]
    norm = torch.cat([one.double().flatten() for one in gradients]).norm().item()
    assert norm < 8
    assert all(map(torch.equal, steps.step(*gradients), gradients))
    clipped = steps.step(*(100 * one for one in gradients))
    for one, gradient in zip(clipped, gradients, strict=True):
        torch.testing.assert_close(one, gradient * (8 / norm), rtol=1e-2, atol=1e-3)
    assert torch.cat([one.double().flatten() for one in clipped]).norm().item() == pytest.approx(8, rel=1e-3)


def test_clipping_comes_before_the_squares() -> None:
    slow, steps = SlowRms(), Steps(Parameters(torch.zeros(7)), "rms", 0.5)
    for number in range(3):
        gradient = random_tensor(7, seed=number) * 10**number
        (found,) = steps.step(gradient)
        np.testing.assert_allclose(found, slow.step(gradient * min(1.0, 0.5 / gradient.norm().item())), rtol=1e-4)


@pytest.mark.parametrize("bad", [INFINITE, OVERFLOWING], ids=["infinite", "overflowing norm"])
@pytest.mark.parametrize(("direction", "clip_norm"), [("gradient", 1.0), ("rms", 0.0), ("auto", 0.0)])
def test_what_is_not_finite_becomes_nan_everywhere_and_leaves_no_trace(
    bad: Tensor, direction: str, clip_norm: float
) -> None:
    matrix = random_tensor(4, 4)
    model = Parameters(matrix, bad)
    disturbed, undisturbed = Steps(model, direction, clip_norm), Steps(Parameters(matrix, bad), direction, clip_norm)
    for step in range(3):
        assert all(one.isnan().all() for one in disturbed.step(matrix, bad))
        gradients = random_tensor(4, 4, seed=step), random_tensor(3, seed=step)
        assert all(map(torch.equal, disturbed.step(*gradients), undisturbed.step(*gradients)))


def commit(ps: ParameterServer, *gradients: Tensor, scale: float = 1.0) -> list[Tensor]:
    """Make a step of rule downpour. Returns what it moved, divided by eta."""
    before = [one.detach().clone() for one in ps.model.parameters()]
    loss = ps.model(*gradients) * scale
    loss.backward()
    ps.step(loss)
    return [(old - new.detach()) / ETA for old, new in zip(before, ps.model.parameters(), strict=True)]


@pytest.mark.parametrize("shared", [False, True], ids=["stream", "shared memory"])
def test_a_worker_commits_the_direction_of_its_run(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gem_worker.client.session.SMALLEST_SHARED_BYTES", 1)
    place = {"shared_memory_socket": tmp_path / "memory"} if shared else {}
    steps = [(random_tensor(4, 6, seed=seed), random_tensor(6, seed=seed)) for seed in range(3)]
    model = Parameters(*steps[0])
    with (
        ServerThread(rule="downpour", direction="auto", clip_norm=0.5, eta=ETA, **place) as server,
        ParameterServer(server.address, model, client_settings=IMPATIENT) as ps,
    ):
        assert (ps.run_settings.direction, ps.run_settings.clip_norm) == ("auto", 0.5)
        moved = [commit(ps, *gradients) for gradients in steps]
    factors = [0.5 / torch.cat([one.flatten() for one in gradients]).norm() for gradients in steps]
    for place_of_one in range(2):
        mean, rms = SlowMomentum(), SlowRms()
        for gradients, factor, found in zip(steps, factors, moved, strict=True):
            expected = rms.step(mean.step(gradients[place_of_one] * factor))
            np.testing.assert_allclose(found[place_of_one], expected, rtol=1e-3, atol=1e-4)


def test_squares_survive_a_step_that_is_skipped_and_a_restarted_server(tmp_path: Path) -> None:
    settings = {"rule": "downpour", "direction": "rms", "eta": ETA, "data_dir": tmp_path, "resume": True}
    slow, gradients = SlowRms(), [random_tensor(3, seed=number) for number in range(4)]
    with ServerThread(**settings) as server:
        ps = ParameterServer(server.address, Parameters(gradients[0]), client_settings=IMPATIENT)
        ps.join()
        np.testing.assert_allclose(commit(ps, gradients[0])[0], slow.step(gradients[0]), rtol=1e-4)
        commit(ps, INFINITE)
        assert ps.skipped_steps == 1
        np.testing.assert_allclose(commit(ps, gradients[1])[0], slow.step(gradients[1]), rtol=1e-4)
    with ServerThread(**settings, bind=f"127.0.0.1:{server.port}"):
        commit(ps, gradients[2])
        assert not ps.last_report.applied  # the gradient of the earlier server's parameters is dropped
        slow.step(gradients[2])
        np.testing.assert_allclose(commit(ps, gradients[3])[0], slow.step(gradients[3]), rtol=1e-4)
        ps.close()


def test_a_restarted_server_with_another_direction_ends_its_workers() -> None:
    model = Parameters(random_tensor(3))
    with ServerThread(direction="rms") as server:
        ps = ParameterServer(server.address, model, client_settings=IMPATIENT)
        ps.join()
        commit(ps, random_tensor(3))
    with ServerThread(bind=f"127.0.0.1:{server.port}"):
        with pytest.raises(ServerMisbehavedError, match="another direction, clip_norm or recipe, or other local steps"):
            commit(ps, random_tensor(3))
        ps.close()


@pytest.mark.parametrize("other", [{"rule_settings": "local_rate=0.5"}, {"local_steps": 3}])
def test_a_restarted_server_with_other_local_steps_ends_its_workers(other: Any) -> None:
    with ServerThread(local_steps=2) as server:
        ps = ParameterServer(server.address, Parameters(random_tensor(3)), client_settings=IMPATIENT)
        ps.join()
    with ServerThread(**({"local_steps": 2} | other), bind=f"127.0.0.1:{server.port}"):
        commit(ps, random_tensor(3))
        with pytest.raises(ServerMisbehavedError, match="another direction, clip_norm or recipe, or other local steps"):
            commit(ps, random_tensor(3))
        ps.close()


def test_with_local_steps_the_direction_is_that_of_the_mean_and_steps_are_divided_by_its_root_mean_square() -> None:
    gradients = [random_tensor(3, 4, seed=number) for number in range(3)]
    clipped = [gradient / gradient.norm() for gradient in gradients]
    both = clipped[0] + clipped[1]
    chosen = {"local_steps": 2, "direction": "rms", "rule_settings": "momentum=0,local_rate=0.5"}
    model, slow = Parameters(gradients[0]), SlowRms()
    with ServerThread(eta=ETA, clip_norm=1.0, **chosen) as server:
        with ParameterServer(server.address, model, client_settings=IMPATIENT) as ps:
            commit(ps, gradients[0])
            assert not model.all[0].any(), "there is no commit yet"
            commit(ps, gradients[1])
            moved = model.all[0].detach().clone()
            np.testing.assert_allclose(moved, -ETA * slow.step(both / 2), rtol=1e-3, atol=1e-5)
            (step,) = commit(ps, gradients[2])
            torch.testing.assert_close(step, (clipped[2] / both.abs()).clamp(-2.5, 2.5), rtol=1e-4, atol=1e-5)
        # The end of the block has committed the third gradient.
        last = server.server.central.parameters.reshape(3, 4) - moved.numpy()
        np.testing.assert_allclose(last, -ETA * slow.step(clipped[2]), rtol=1e-3, atol=1e-5)


def test_scaled_gradients_are_unscaled_before_they_are_clipped() -> None:
    gradient = random_tensor(3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    model = Parameters(gradient)
    with (
        ServerThread(rule="downpour", clip_norm=100.0, eta=ETA) as server,
        ParameterServer(server.address, model, client_settings=IMPATIENT) as ps,
    ):
        scaler.scale(model(gradient)).backward()
        ps.step(scaler=scaler)
    assert torch.allclose(model.all[0], -ETA * gradient)
