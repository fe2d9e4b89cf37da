"""Workers with equal first batches are found, once, and with a bounded memory."""

from gem_server.telemetry.first_batches import MOST_GROUPS, MOST_NAMES, MOST_REMEMBERED, REPORTED, FirstBatches


def batches(first: int) -> tuple[int, ...]:
    return tuple(range(first, first + REPORTED))


def test_workers_with_an_equal_report_are_a_group() -> None:
    found = FirstBatches()
    for name, first in (("a", 1), ("b", 2), ("c", 1), ("d", 1)):
        found.reported(name, batches(first))
    assert found.groups == [["a", "c", "d"]]


def test_the_same_worker_constant_inputs_and_reports_of_another_length_are_no_evidence() -> None:
    found = FirstBatches()
    for report in (batches(1), (7,) * REPORTED, batches(1)[:-1], (*batches(1), 9), ()):
        found.reported("a", report)
        if report != batches(1):
            found.reported("b", report)
    found.reported("a", batches(1))  # it has restarted
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
