"""ParameterServer with gradients in memory that is shared with the server: the same training, whatever happens."""

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gem_worker import ClientSettings, ParameterServer
from gemps.v1 import shared_memory_pb2
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

from tests.wire.sharing import answer_to, needs_shared_memory
from tests.worker.serving import ServerThread

pytestmark = needs_shared_memory

STEPS = 24
MODELS: dict[str, Callable[[], nn.Module]] = {
    # Float32 without buffers: its gradients lie in shared memory themselves.
    "plain": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 10)),
    "batch norm": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 300), nn.BatchNorm1d(300), nn.ReLU(), nn.Linear(300, 10)
    ),
    # What is not float32 is scaled into shared memory.
    "float64": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 10)).double(),
}


def new_model(kind: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MODELS[kind]()


def train(ps: ParameterServer, model: nn.Module, before: Callable[[int], None]) -> None:
    """Steps as a loop may make them: two backward passes, gradients dropped in between, one that is not finite."""
    random = torch.Generator().manual_seed(1)
    kind = next(model.parameters()).dtype
    for step in range(STEPS):
        before(step)
        for _ in range(1 + step % 2):
            inputs = torch.randn(16, 1, 8, 8, generator=random).to(kind)
            labels = torch.randint(10, (16,), generator=random)
            loss = functional.cross_entropy(model(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]
        if step % 5 == 2:
            model.zero_grad(set_to_none=True)
            functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        if step % 7 == 3:
            gradient = next(model.parameters()).grad
            assert gradient is not None
            gradient.view(-1)[step] = float("nan")
        ps.step(loss, samples=16)


class Run:
    """A whole run of one worker; what may happen to it is told by `at_step_9`."""

    def __init__(self, folder: Path, kind: str, at_step_9: "Callable[[Run], None]", *, shares: bool) -> None:
        folder.mkdir()
        self.shares = shares
        self.socket = folder / "memory"
        self._settings = {"shared_memory_socket": self.socket, "eta": 0.1, "data_dir": folder / "state"}
        self._at_step_9 = at_step_9
        self.server = ServerThread(**self._settings)
        self.robber: socket.socket | None = None
        self.model = new_model(kind)
        with contextlib.ExitStack() as servers:
            self._servers = servers
            servers.enter_context(self.server)
            settings = ClientSettings(connect_timeout=60, backoff_first=0.01, backoff_limit=0.05, shared_memory=shares)
            with ParameterServer(self.server.address, self.model, name="w", client_settings=settings) as ps:
                self.ps = ps
                train(ps, self.model, self._before)
                self.counts = ps.applied_steps, ps.skipped_steps
                self.shares_at_the_end = ps.shares_memory
            self.held = {name: value.clone() for name, value in self.model.state_dict().items()}
            self.server.stop()
            self.checkpoint = load_file(self.server.checkpoint)

    def restart(self) -> None:
        """Another server goes on from the checkpoint of the one before, at its address."""
        address = self.server.address
        self.server.stop()
        self.server = ServerThread(**self._settings, bind=address, resume=True)
        self._servers.enter_context(self.server)

    def _before(self, step: int) -> None:
        if step == 1:
            assert self.ps.shares_memory == self.shares
        if step == 9:
            self._at_step_9(self)


def nothing(run: Run) -> None:
    """Nothing happens."""


def restart(run: Run) -> None:
    run.restart()


def rob(run: Run) -> None:
    """Whoever knows the session's id takes its delta region away, and keeps it."""
    if run.shares:
        request = shared_memory_pb2.SharedMemoryRequest(session_id=run.ps.client.session_id)
        answer, descriptors, connection = answer_to(run.socket, request.SerializeToString())
        assert not answer.refused
        for descriptor in descriptors:
            os.close(descriptor)
        run.robber = connection


def test_gradients_of_a_plain_model_lie_where_the_server_reads_them(tmp_path: Path) -> None:
    def look(run: Run) -> None:
        place = run.ps.client.shared_delta
        assert place is not None
        start = np.frombuffer(place, np.uint8).ctypes.data
        for parameter in run.model.parameters():
            assert parameter.grad is not None
            assert start <= parameter.grad.data_ptr() < start + place.nbytes

    Run(tmp_path / "run", "plain", look, shares=True)


@pytest.mark.parametrize("happens", [nothing, restart, rob])
@pytest.mark.parametrize("kind", MODELS)
def test_training_is_the_same_bit_by_bit_as_over_the_stream(
    kind: str, happens: Callable[[Run], None], tmp_path: Path
) -> None:
    shared = Run(tmp_path / "shared", kind, happens, shares=True)
    streamed = Run(tmp_path / "streamed", kind, happens, shares=False)
    assert shared.shares_at_the_end == (happens is not rob)
    assert not streamed.shares_at_the_end
    assert shared.counts == streamed.counts
    applied, skipped = shared.counts
    # Steps 3, 10 and 17 have a gradient that is not finite; a restarted server drops the delta that it did not see.
    assert (applied, skipped) == (STEPS - 3 - (happens is restart), 3)
    for name, value in streamed.held.items():
        assert torch.equal(shared.held[name], value), name
        assert torch.equal(shared.checkpoint[name], streamed.checkpoint[name]), name
