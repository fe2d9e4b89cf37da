import pytest

from benchmarks import bench
from benchmarks.harness import plan
from benchmarks.harness.plan import Part, Room
from benchmarks.peers import CONTENDERS, USUAL
from benchmarks.peers.interface import Case, Contender, Desk

SOME = Case(100, 3)
PLENTY = Room(1 << 50, 1 << 50)


class Imagined(Contender):
    name = title = "imagined"
    does = "nothing"

    def __init__(self, missing: str | None = None, unfit: str | None = None, shared: int = 0) -> None:
        self._missing = missing
        self._unfit = unfit
        self._shared = shared

    def unavailable(self) -> str | None:
        return self._missing

    def unfit(self, case: Case) -> str | None:
        return self._unfit

    def server_memory(self, case: Case) -> int:
        return 1000 + case.workers * case.vector

    def worker_memory(self, case: Case) -> int:
        return 500 + 2 * case.vector

    def shared_memory(self, case: Case) -> int:
        return self._shared

    def work(self, case: Case, address: str, rank: int, desk: Desk) -> None:
        raise NotImplementedError


def made(contender: Contender, room: Room = PLENTY, case: Case = SOME) -> plan.Plan:
    return plan.make([Part(("imagined",), (case,))], {"imagined": contender}, room)


def test_memory_is_that_of_the_server_and_of_all_workers() -> None:
    assert Imagined().memory(Case(100, 3)) == 1000 + 3 * 400 + 3 * (500 + 2 * 400)


def test_what_fits_is_run() -> None:
    found = made(Imagined(), Room(6100, 0))
    assert [one.name for one in found.contenders[Case(100, 3)]] == ["imagined"]
    assert found.skipped == []
    assert found.runs == 1


def test_what_takes_more_memory_than_there_is_is_named_with_the_numbers() -> None:
    found = made(Imagined(), Room(7 * 10**9, 0), Case(10**9, 1))
    assert found.contenders == {}
    (skipped,) = found.skipped
    assert (skipped.contender, skipped.parameters, skipped.workers) == ("imagined", 10**9, 1)
    assert "12.0 GB" in skipped.reason
    assert "7.0 GB" in skipped.reason


def test_shared_memory_has_a_limit_of_its_own() -> None:
    (skipped,) = made(Imagined(shared=3 * 10**9), Room(1 << 50, 10**9)).skipped
    assert "/dev/shm has 1.0 GB" in skipped.reason


@pytest.mark.parametrize("contender", [Imagined(missing="not installed"), Imagined(unfit="not installed")])
def test_what_cannot_run_is_named_with_its_reason(contender: Contender) -> None:
    assert [one.reason for one in made(contender).skipped] == ["not installed"]


@pytest.mark.long
def test_everything_asked_for_is_either_run_or_skipped() -> None:
    parts = plan.product(USUAL, plan.PARAMETERS, plan.WORKERS)
    found = plan.make(parts, CONTENDERS, Room(20 * 10**9, 10 * 10**9))
    ran = {(one.name, case) for case, contenders in found.contenders.items() for one in contenders}
    skipped = {(one.contender, Case(one.parameters, one.workers)) for one in found.skipped}
    assert ran | skipped == {
        (name, Case(size, count)) for name in USUAL for size in plan.PARAMETERS for count in plan.WORKERS
    }
    assert not ran & skipped
    assert ("gemps-float32", Case(61_100_840, 32)) in skipped


def test_the_default_covers_the_cases_of_most_targets() -> None:
    asked = {(name, case) for part in plan.quick(USUAL) for case in part.cases for name in part.contenders}
    assert {("gemps-shared-memory", Case(4_194_304, 4)), ("ray-actor", Case(2_048, 4))} <= asked
    assert ("gemps-float32", Case(4_194_304, 32)) in asked
    assert ("ray-actor", Case(4_194_304, 32)) not in asked


def test_the_targets_preset_has_all_that_a_target_is_about() -> None:
    asked = {(name, case) for part in plan.targets(USUAL) for case in part.cases for name in part.contenders}
    assert {(name, Case(size, 4)) for name in USUAL for size in plan.PARAMETERS} <= asked
    assert {(name, Case(4_194_304, count)) for name in plan.CURVES for count in plan.WORKERS} <= asked
    assert {("gemps-float32", Case(size, 32)) for size in plan.PARAMETERS} <= asked


def test_what_several_parts_ask_for_is_run_once() -> None:
    part = Part(("imagined",), (SOME,))
    assert plan.make([part, part], {"imagined": Imagined()}, PLENTY).runs == 1
    assert len(plan.make([part, part], {"imagined": Imagined(missing="no")}, PLENTY).skipped) == 1


def test_large_models_are_timed_for_longer() -> None:
    assert plan.window(Case(4_194_304, 4), 3.0) == 3.0
    assert plan.window(Case(61_100_840, 4), 3.0) == 12.0


def test_the_room_here_is_what_the_machine_can_give() -> None:
    room = Room.here()
    assert 0 < room.memory < 1 << 50
    assert room.shared >= 0


def test_the_usual_contenders_are_known() -> None:
    assert set(USUAL) <= set(CONTENDERS)


@pytest.mark.parametrize(
    "arguments",
    [["--rounds", "0"], ["--seconds", "0"], ["--workers", "0"], ["--contenders", "nobody"], ["--preset", "none"]],
)
def test_bad_arguments_are_refused(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["bench.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert ended.value.code == 2


def test_show_without_a_file_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr("sys.argv", ["bench.py", "--show", "--output", f"{tmp_path}/none.json"])
    with pytest.raises(SystemExit, match=r"none\.json"):
        bench.main()


def test_narrow_wire_types_take_less_memory_of_a_worker_for_payloads() -> None:
    case = Case(1_000_000, 4)
    float32, narrow = (CONTENDERS[f"gemps-{name}"].worker_memory(case) for name in ("float32", "float32-bfloat16"))
    assert float32 - narrow == 2_000_000
