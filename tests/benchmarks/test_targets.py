from benchmarks.harness.targets import MANY, Row, memory_bound, rows
from benchmarks.peers.interface import Case
from tests.benchmarks.samples import results, run

SMALL, MANY_WORKERS = Case(2_048, 4), Case(4_194_304, MANY)


def row(found: list[Row], case: str, target: str) -> Row:
    (one,) = [one for one in found if one.case == case and target in one.target]
    return one


def test_nothing_measured_is_not_met_and_not_unmet() -> None:
    assert {one.verdict for one in rows(results())} == {"not measured"}


def test_a_ratio_is_held_against_its_target() -> None:
    found = rows(results(run("gemps-bfloat16", 24), run("gemps-shared-memory", 35), run("torch-rpc-tcp", 20)))
    assert row(found, "P = 4.2 M, bfloat16 both ways", "1.2").verdict == "met"
    assert row(found, "P = 4.2 M, bfloat16 both ways", "1.2").found == "1.20 (1.20..1.20)"
    assert row(found, "P = 4.2 M, shared memory", "the best peer").verdict == "not met"


def test_the_ratio_of_float32_to_torch_rpc_is_reported_only() -> None:
    found = rows(results(run("gemps-float32", 10), run("torch-rpc-tcp", 20)))
    assert row(found, "P = 4.2 M, stream, float32", "torch-rpc-tcp").verdict == "reported"


def test_the_best_peer_is_named() -> None:
    found = rows(results(run("gemps-float32", 30, case=SMALL), run("ray-actor", 20, case=SMALL)))
    assert row(found, "P = 2 048", "the best peer (ray-actor)").verdict == "met"


def test_many_workers_are_held_against_few() -> None:
    found = rows(results(run("gemps-float32", 20), run("gemps-float32", 17, case=MANY_WORKERS)))
    title = "32 workers against 4, P = 4,194,304, gemps-float32"
    assert row(found, title, "0.9 of").verdict == "not met"
    assert row(found, title, "Jain").verdict == "met"


def test_the_memory_bound_is_what_the_issue_says() -> None:
    vector = 4 * 4_194_304
    assert memory_bound(Case(4_194_304, 4)) == vector * (1 + 2 * 4 + 4 + 2) + 250_000_000


def test_memory_is_judged_by_the_worst_run() -> None:
    bound = memory_bound(Case(4_194_304, 4))
    found = rows(
        results(
            run("gemps-float32", 20, memory=bound // 2),
            run("gemps-float32", 20, 1, memory=bound + 1_000_000),
            run("gemps-bfloat16", 20, memory=bound // 4),
        )
    )
    one = row(found, "server memory, P = 4,194,304", "250 MB")
    assert one.verdict == "not met"
    assert "gemps-float32, 4 workers" in one.found
