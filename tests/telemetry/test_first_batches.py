"""Workers with equal first batches are found, once, and with a bounded memory."""

from gem_server.telemetry.first_batches import MOST_GROUPS, MOST_NAMES, MOST_REMEMBERED, REPORTED, FirstBatches


def batches(first: int) -> tuple[int, ...]:
    return tuple(range(first, first + REPORTED))


def test_an_equal_report_is_told_once_with_the_other_workers_name() -> None:
    found = FirstBatches()
    assert found.reported("a", batches(1)) is None
    assert found.reported("b", batches(2)) is None
    assert found.reported("c", batches(1)) == "a"
    assert found.reported("d", batches(1)) is None
    assert found.groups == [["a", "c", "d"]]


def test_the_same_worker_constant_inputs_and_reports_of_another_length_are_no_evidence() -> None:
    found = FirstBatches()
    for report in (batches(1), (7,) * REPORTED, batches(1)[:-1], (*batches(1), 9), ()):
        assert found.reported("a", report) is None
        if report != batches(1):
            assert found.reported("b", report) is None
    assert found.reported("a", batches(1)) is None  # it has restarted
    assert not found.groups


def test_memory_is_bounded() -> None:
    found = FirstBatches()
    for number in range(3 * MOST_REMEMBERED):
        found.reported(f"worker {number}", batches(number))
    assert len(found.reports) == MOST_REMEMBERED
    for number in range(100):
        for first in range(10):
            found.reported(f"{first}, {number}", batches(1 << 20 | first))
    assert len(found.groups) == MOST_GROUPS
    assert all(len(names) == MOST_NAMES for names in found.groups)
