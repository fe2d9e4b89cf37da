"""A model of AlexNet's size (61 100 840 parameters, 244 MB) at default settings: no limit met, memory as predicted."""

from pathlib import Path

import numpy as np
import pytest

from tests.wire.model import Model, Tensor, Values
from tests.wire.oracle import Oracle
from tests.wire.processes import PeakMeter, server_process
from tests.wire.transfer import MIB


def _layer(name: str, *shape: int) -> list[Tensor]:
    return [Tensor(f"{name}.weight", shape), Tensor(f"{name}.bias", shape[:1])]


# torchvision.models.alexnet, its state_dict.
ALEXNET = Model(
    [
        *_layer("features.0", 64, 3, 11, 11),
        *_layer("features.3", 192, 64, 5, 5),
        *_layer("features.6", 384, 192, 3, 3),
        *_layer("features.8", 256, 384, 3, 3),
        *_layer("features.10", 256, 256, 3, 3),
        *_layer("classifier.1", 4096, 9216),
        *_layer("classifier.4", 4096, 4096),
        *_layer("classifier.6", 1000, 4096),
    ]
)
# What the process takes without any model (interpreter, NumPy, Numba, gRPC), and what gRPC holds on its way.
PROCESS_BYTES = 250 * MIB


@pytest.mark.long
async def test_model_of_alexnets_size_makes_a_round_trip_within_the_predicted_memory(tmp_path: Path) -> None:
    assert ALEXNET.parameter_count == 61_100_840
    vector = ALEXNET.byte_count()
    async with server_process(tmp_path) as server:
        with PeakMeter(server) as meter:
            worker = await server.joined(ALEXNET)
            first = Values(np.random.default_rng(1).standard_normal(ALEXNET.parameter_count, np.float32))
            await worker.initialize(first)
            pulled = await worker.pull()
            assert pulled.header.byte_count == 244_403_360
            assert np.array_equal(pulled.values.parameters, first.parameters)
            oracle = Oracle(first)
            oracle.pull(worker.name)
            for scale in (0.01, -0.02):
                delta = Values(np.float32(scale) * first.parameters)
                outcome = await worker.commit(delta)
                oracle.commit(worker.name, delta.parameters)
                assert np.array_equal(outcome.reply.values.parameters, oracle.parameters)
        predicted = vector * (1 + 2 + 1) + PROCESS_BYTES  # theta, two vectors a worker, one staging buffer in use
        told = f"peak {meter.peak / MIB:.0f} MiB of {predicted / MIB:.0f} MiB predicted"
        assert meter.peak <= predicted, told
        assert server.highest_anonymous_bytes() <= predicted, told
        status = (await server.status()).memory
        assert status.worker_bytes >= 2 * vector
        print(told)
