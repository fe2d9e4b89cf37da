"""The last shard has the BUFFERs: a selection goes to it alone, and what it leaves out is left out of the whole."""

import numpy as np
import pytest

from gem_core.selection import Selection
from gem_core.wire_types import WireType
from tests.shards.group import MODEL, Worker, serving

NOTHING, STEPS = Selection(()), Selection((0, 1))
PARAMETER_BYTES = 4 * MODEL.parameter_count


@pytest.mark.parametrize("wire_type", [WireType.FLOAT32, WireType.INT4_BLOCK])
def test_buffers_that_did_not_change_do_not_travel(wire_type: WireType) -> None:
    with serving(3) as group:
        first, second = (Worker(group.address, number, parameter_wire_types=[wire_type]) for number in (1, 2))
        for worker in (first, second):
            worker.begin()
            worker.pull()

        def commit(worker: Worker, steps: int | None) -> list[int] | None:
            delta = bytes(worker.delta()[:PARAMETER_BYTES])
            if steps is not None:
                delta += np.int64(steps).tobytes()
            selection = NOTHING if steps is None else STEPS
            outcome = worker.client.commit(memoryview(delta), worker.into, buffers=selection)
            assert outcome.applied
            if outcome.rest is None:
                return None
            return np.frombuffer(outcome.rest, np.int64).tolist()

        assert commit(first, 5) == []
        assert commit(second, None) == [5]
        assert commit(second, None) == []
        assert commit(first, None) == []
        assert commit(second, 9) == []
        assert commit(first, 7) == []
        assert commit(second, None) == [7]
        second.pull()
        assert second.buffers == 7
        for worker in (first, second):
            worker.end()
