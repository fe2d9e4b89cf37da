"""What the server keeps of BUFFERs: one copy of what does not change, and when the rest did."""

import sys

import pytest
from gem_server.shared_memory.regions import SnapshotRegion
from gem_server.state.buffers import Buffers, with_commit
from gem_server.version import Version

from gem_core import ElementType, Layout, PayloadFormat, TensorKind, TensorSpec, WireType
from gem_core.selection import Selection

LAYOUT = Layout(
    [
        TensorSpec("weight", (2,), ElementType.FLOAT32, TensorKind.PARAMETER),
        *(TensorSpec(name, (4,), ElementType.UINT8, TensorKind.BUFFER) for name in ("mask", "mean", "count")),
    ]
)
FIRST = Buffers.split(LAYOUT, b"mmmmaaaacccc", 1)


def commit(central: Buffers, indices: list[int] | None, data: bytes, clock: int) -> tuple[Buffers, set]:
    selection = None if indices is None else Selection.of(indices)
    after, held = with_commit(central, PayloadFormat(LAYOUT, WireType.FLOAT32, selection), memoryview(data), clock)
    return after, set(held)


def test_a_commit_shares_what_it_does_not_change_with_the_version_before() -> None:
    after, held = commit(FIRST, [1], b"bbbb", 5)
    assert (after.joined(), after.changed_at, held) == (b"mmmmbbbbcccc", (1, 5, 1), {1})
    assert after.pieces[0] is FIRST.pieces[0]
    same, held = commit(after, None, b"mmmmbbbbcccc", 6)
    assert same is after
    assert held == {0, 1, 2}


def test_what_changed_since_a_clock_leaves_out_what_the_worker_brought() -> None:
    central, _ = commit(FIRST, [2], b"dddd", 2)
    after, held = commit(central, [1], b"eeee", 3)
    assert (after.joined(), after.changed_at, held) == (b"mmmmeeeedddd", (1, 3, 2), {1})
    assert after.changed_since(1, frozenset(held)) == [2]
    assert after.changed_since(2, frozenset()) == [1]
    assert after.changed_since(3, frozenset()) == []


def test_the_same_change_by_two_workers_is_one() -> None:
    central, _ = commit(FIRST, [1], b"bbbb", 2)
    after, held = commit(central, [1], b"bbbb", 3)
    assert after is central
    assert held == {1}


def test_selected_values_come_in_the_order_of_the_layout() -> None:
    assert FIRST.selected(Selection((0, 1, 1, 1))) == b"mmmmcccc"
    assert FIRST.selected(None) == b"mmmmaaaacccc"
    assert FIRST.selected(Selection(())) == b""


@pytest.mark.skipif(sys.platform != "linux", reason="no shared memory here")
def test_a_region_always_has_all_buffers_of_its_version() -> None:
    region = SnapshotRegion(1, LAYOUT)
    versions = [FIRST]
    for clock, (index, value) in enumerate([(1, b"bbbb"), (2, b"dddd"), (1, b"aaaa"), (0, b"nnnn")], 2):
        versions.append(commit(versions[-1], [index], value, clock)[0])
    for clock in (0, 1, 2, 4, 3, 0):
        region.publish(Version(1, clock + 1), versions[clock].pieces)
        assert bytes(region.rest) == versions[clock].joined()
