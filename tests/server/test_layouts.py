"""Layouts of sessions that join: shared, decoded once, and never on the event loop where they are large."""

import asyncio
import gc
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor

import pytest
from gem_server.errors import Reason, RefusedError
from gem_server.service import layouts
from gem_server.service.layouts import Layouts
from gemps.v1 import layout_pb2

from gem_core import LayoutError
from gem_core.shards import Shard


class Counted(ThreadPoolExecutor):
    """Counts its jobs, which wait for `go`."""

    def __init__(self) -> None:
        super().__init__(1)
        self.jobs = 0
        self.go = threading.Event()

    def submit(self, job, *arguments):  # type: ignore[no-untyped-def]
        self.jobs += 1
        return super().submit(lambda: (self.go.wait(), job(*arguments))[1])


@pytest.fixture
def thread() -> Iterator[Executor]:
    with Counted() as thread:
        yield thread
        thread.go.set()


def raw(tensors: int, name: str = "layer") -> memoryview:
    specs = [layout_pb2.TensorSpec(name=f"{name}.{i}", shape=[2], element_type=1, kind=1) for i in range(tensors)]
    return memoryview(layout_pb2.Layout(tensors=specs).SerializeToString())


async def test_equal_layouts_are_one_object_and_a_large_one_is_decoded_once(thread: Counted) -> None:
    known = Layouts(thread, Shard())
    waiting = [asyncio.create_task(known.decode(raw(2000))) for _ in range(20)]
    await asyncio.sleep(0)
    thread.go.set()
    first, *others = await asyncio.gather(*waiting)
    assert all(one is first for one in others)
    assert await known.decode(raw(2000)) is first
    assert thread.jobs == 1
    other_bytes = memoryview(bytes(raw(2000)) + b"\xf8\x3f\x01")  # a field that this version does not know
    assert await known.decode(other_bytes) is first
    small = await known.decode(raw(3))
    assert await known.decode(raw(3)) is small
    assert thread.jobs == 2


async def test_equal_layouts_in_several_forms_are_each_decoded_once(thread: Counted) -> None:
    thread.go.set()
    known = Layouts(thread, Shard())
    forms = [memoryview(bytes(raw(2000)) + bytes([0xF8, 0x3F, number])) for number in range(4)]
    first = await known.decode(forms[0])
    for _ in range(3):
        for form in forms:
            assert await known.decode(form) is first
    assert thread.jobs == 4


async def test_layout_of_a_recovered_run_is_that_of_the_sessions_that_join(thread: Counted) -> None:
    thread.go.set()
    recovered = await Layouts(thread, Shard()).decode(raw(2000))
    known = Layouts(thread, Shard())
    known.know(recovered)
    assert await known.decode(raw(2000)) is recovered


async def test_layout_that_nobody_holds_is_forgotten(thread: Counted) -> None:
    thread.go.set()
    known = Layouts(thread, Shard())
    await known.decode(raw(2000))
    await known.decode(raw(2000, "other"))  # the thread has forgotten the first one
    gc.collect()
    await known.decode(raw(2000))
    assert thread.jobs == 3


async def test_layouts_that_wait_to_be_decoded_are_bounded(thread: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "MAX_WAITING", 2)
    known = Layouts(thread, Shard())
    waiting = [asyncio.create_task(known.decode(raw(2000, name))) for name in ("a", "b")]
    await asyncio.sleep(0)
    with pytest.raises(RefusedError) as refused:
        await known.decode(raw(2000, "c"))
    assert refused.value.reason is Reason.TOO_MANY
    assert refused.value.retry_after is not None
    await known.decode(raw(3))
    thread.go.set()
    await asyncio.gather(*waiting)
    await known.decode(raw(2000, "c"))


async def test_large_layout_that_is_wrong_is_refused_to_all_who_sent_it(thread: Counted) -> None:
    known = Layouts(thread, Shard())
    wrong = memoryview(bytes(raw(2000)) + bytes(raw(1)))
    waiting = [asyncio.create_task(known.decode(wrong)) for _ in range(2)]
    await asyncio.sleep(0)
    thread.go.set()
    for one in waiting:
        with pytest.raises(LayoutError):
            await one


async def test_a_shard_knows_its_part_of_a_layout(thread: Counted) -> None:
    thread.go.set()
    known = Layouts(thread, Shard(1, 2))
    part = await known.decode(raw(2000))
    assert await known.decode(raw(2000)) is part
    whole = await Layouts(thread, Shard()).decode(raw(2000))
    assert part == Shard(1, 2).layout_of(whole)
