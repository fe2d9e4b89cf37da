"""The status as text and tables, in terminals of every width and with any names of workers."""

import copy
from typing import Any

import pytest
from gem_cli import status_check, status_view
from rich.console import Console, RenderableType

WORKER: dict[str, Any] = {
    "name": "worker-0", "rank": 0, "state": "WORKER_STATE_TRAINING", "device": "cuda:0", "commits": 120,
    "commits_per_second": 61.5, "loss": 0.25, "staleness_mean": 2.5, "wait_mean_seconds": 0.002,
    "statistics": {"mean_pi": 0.75, "blocked_fraction": 0.125, "clamped_fraction": 0.0625},
}  # fmt: skip
STATUS: dict[str, Any] = {
    "version": {"incarnation": 7, "clock": 241}, "run_state": "RUN_STATE_TRAINING", "run_seconds": 4.0, "commits": 240,
    "commits_per_second": 61.5, "loss": 0.25, "staleness_mean": 2.5, "mean_pi": 0.75, "blocked_fraction": 0.125,
    "jain_index": 0.999, "next_eta": 0.05, "parameter_count": 4810, "tensor_count": 4,
    "settings": {"rule": "gem", "eta": 0.05, "min_workers": 2, "order": "SERVING_ORDER_ROUND_ROBIN",
                 "budget": {"steps": 500, "epochs": 0.0, "commits": 0}, "rule_settings": {"momentum": 0.9}},
    "workers": [WORKER],
}  # fmt: skip


SHARDS: dict[str, Any] = {
    "index": 0, "count": 3, "primary": "",
    "servers": [
        {"index": 0, "address": ":50051", "begin": 0, "end": 1536, "ready": True, "clock": 241,
         "anonymous_bytes": 3 << 20},
        {"index": 1, "address": "10.0.0.2:50051", "begin": 1536, "end": 3072, "ready": False, "clock": 0,
         "anonymous_bytes": 0},
        {"index": 2, "address": "", "begin": 3072, "end": 4810, "ready": False, "clock": 0, "anonymous_bytes": 0},
    ],
}  # fmt: skip


def changed(**fields: Any) -> dict[str, Any]:
    return {**copy.deepcopy(STATUS), **fields}


def rendered(status: dict[str, Any], width: int) -> str:
    return printed(status_view.report(status, width=width), width)


def printed(view: RenderableType, width: int) -> str:
    console = Console(width=width, record=True, file=None, force_terminal=False, quiet=False)
    with console.capture() as captured:
        console.print(view)
    return captured.get()


def test_the_rule_is_shown_with_the_direction() -> None:
    assert {("rule", "gem"), ("rule settings", "momentum=0.9")} <= {*status_view.facts(STATUS)}
    with_one = changed(settings={**STATUS["settings"], "direction": "rms"})
    assert ("rule", "gem of rms directions") in status_view.facts(with_one)


def test_the_rule_is_told_in_the_words_of_the_server_and_shortly_by_whose_optimizer() -> None:
    of_run = {**STATUS["settings"], "recipe": {"kind": "rms", "optimizer": "AdamW", "groups": []}}
    seen = changed(
        settings=of_run,
        rule="rule gem by the first worker's AdamW (gradients at its rate, lr 0.001 and 2 groups)",
    )
    assert (
        "rule",
        "gem by the first worker's AdamW (gradients at its rate, lr 0.001 and 2 groups)",
    ) in status_view.facts(seen)
    assert status_view.rule_name(of_run) == "gem by AdamW"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "0.05 now, 0.05 set"),
        ({"rule": "auto", "eta": 0.0}, "the first worker decides"),
        ({"eta": 0.0}, "that of each worker's optimizer"),
        ({"eta": 0.001, "recipe": {"optimizer": "AdamW"}}, "0.001 of AdamW, and its schedule"),
    ],
)
def test_eta_is_a_number_only_where_the_server_decides_it(settings: dict[str, Any], words: str) -> None:
    seen = changed(settings={**STATUS["settings"], **settings})
    assert ("eta", words) in status_view.facts(seen)
    assert ("0.05" in printed(status_view.run_figures(seen), 120)) is (words[0] == "0")


def test_one_worker_is_not_several() -> None:
    assert status_view.describe_waiting(changed(commits_of_process=0)).startswith("waiting: 1 worker has joined, and")


def test_a_line_has_the_figures_to_watch() -> None:
    line = status_view.plain_line(STATUS)
    for text in (
        "4.0 s",
        "training",
        "version 241",
        "61.5 updates/s",
        "loss 0.25",
        "staleness 2.5",
        "pi 0.75",
        "12.5 %",
    ):
        assert text in line
    assert "\n" not in line


def test_the_newest_evaluation_is_shown_with_the_bits_of_a_text() -> None:
    seen = {"version": {"clock": 9}, "loss": 2.0, "accuracy": 0.5, "samples": 10}
    assert "held out" not in status_view.plain_line(STATUS)
    assert "held out 2  newest commits" in status_view.plain_line(changed(last_evaluation=seen))
    seen |= {"bits_per_character": 2.89}
    text = changed(last_evaluation=seen, best_evaluation=seen)
    assert "held out 2, 2.89 bits a character  newest commits" in status_view.plain_line(text)
    assert "accuracy 0.5000, loss 2, 2.89 bits a character at version 9" in status_view.plain_report(text)
    assert status_view.describe_evaluation(seen) == (
        "accuracy 0.5000, loss 2.0000 nats, 2.8900 bits a character, on 10 samples"
    )
    del seen["bits_per_character"]
    assert status_view.describe_evaluation(seen | {"loss": 1.25e36}) == "accuracy 0.5000, loss 1.2e+36 on 10 samples"


def test_a_waiting_run_says_whom_it_waits_for() -> None:
    line = status_view.plain_line(changed(run_state="RUN_STATE_WAITING"))
    assert line == "waiting: 1 of 2 workers have joined, 1 missing, version 241"


def test_a_run_that_was_resumed_says_what_this_process_did() -> None:
    lines = status_view.plain_report(changed(commits=1240, commits_of_process=240))
    assert "commits: 1,240 applied, 240 of them by this server process in 4 s" in lines
    assert "commits: 240 applied in 4 s" in status_view.plain_report(changed(commits_of_process=240))
    assert "commits: 240 applied in 4 s" in status_view.plain_report(STATUS)


MEANS = {"commits": 240, "staleness_mean": 1.9, "mean_pi": 2.08, "blocked_fraction": 0.31, "clamped_fraction": 0.02}
FINISHED = changed(run_state="RUN_STATE_FINISHED", commits_of_process=240, commits_per_second=99.0, means=MEANS)


def test_a_finished_run_has_its_means_and_one_that_trains_its_newest_figures() -> None:
    assert status_view.plain_line(FINISHED).endswith(
        "60 updates/s in the mean  loss 0.25  means of the run: staleness 1.9  pi 2.08  blocked 31.0 %  "
        "fairness 0.999  1 worker"
    )
    assert "60 updates/s since the restart" in status_view.plain_line({**FINISHED, "commits": 5000})
    assert status_view.plain_line(changed(means=MEANS)).endswith(
        "61.5 updates/s  newest commits: loss 0.25  staleness 2.5  pi 0.75  blocked 12.5 %  fairness 0.999  1 worker"
    )
    without = status_view.plain_line({**FINISHED, "means": None})
    assert "staleness -  pi -  blocked -" in without  # the server kept no telemetry


@pytest.mark.parametrize(
    ("status", "words"), [(FINISHED, ("1.9", "60 updates/s in the mean")), (STATUS, ("2.5", "61.5 "))]
)
def test_the_table_of_figures_says_of_what_they_are(status: dict[str, Any], words: tuple[str, ...]) -> None:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(status_view.summary_panel(status, status_view.run_figures(status)))
    text = captured.get()
    is_over = status is FINISHED
    assert ("staleness (run)" in text, "staleness (newest)" in text) == (is_over, not is_over)
    assert all(word in text for word in words)


def test_rows_of_workers_say_over_which_time_their_figures_are() -> None:
    assert status_view.plain_report(STATUS).splitlines()[-1] == status_view.OF_WORKERS
    recent = {**WORKER, "recent_mean_pi": 0.5, "recent_blocked_fraction": 0.4}
    assert "pi 0.5, blocked 40.0 %" in status_view.plain_report(changed(workers=[recent]))
    assert "pi 0.75, blocked 12.5 %" in status_view.plain_report(STATUS)  # without telemetry


@pytest.mark.parametrize("width", [80, 120, 160])
def test_tables_fit_the_terminal_and_cut_no_figure(width: int) -> None:
    text = rendered(STATUS, width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    for cell in ("worker-0", "training", "120", "61.5", "12.5 %", "round-robin", "500 steps"):
        assert cell in text
    assert ("cuda:0" in text) == (width >= 120)


@pytest.mark.parametrize("state", ["JOINED", "TRAINING"])
def test_a_worker_that_was_not_heard_of_for_long_is_shown_as_silent(state: str) -> None:
    worker = {**WORKER, "state": f"WORKER_STATE_{state}", "seconds_since_last_call": 45.4}
    silent = {**worker, "condition": "WORKER_CONDITION_SILENT"}
    assert "silent 45 s" in rendered(changed(workers=[silent]), 80)
    assert "state silent 45 s" in status_view.plain_report(changed(workers=[silent]))
    worker["condition"] = "WORKER_CONDITION_WELL"
    assert f"state {state.lower()}" in status_view.plain_report(changed(workers=[worker]))


@pytest.mark.parametrize(("state", "condition"), [("TRAINING", "SLOW"), ("TRAINING", "MUTED"), ("EXPIRED", "GONE")])
def test_what_is_wrong_with_a_worker_stands_in_place_of_its_state(state: str, condition: str) -> None:
    worker = {**WORKER, "state": f"WORKER_STATE_{state}", "condition": f"WORKER_CONDITION_{condition}"}
    assert condition.lower() in rendered(changed(workers=[worker]), 80)
    report = status_view.plain_report(changed(workers=[worker]))
    assert f"state {condition.lower()}," in report


def test_a_worker_that_has_left_is_neither_silent_nor_well() -> None:
    gone = {
        **WORKER,
        "state": "WORKER_STATE_LEFT",
        "condition": "WORKER_CONDITION_WELL",
        "seconds_since_last_call": 999.0,
    }
    assert "state left" in status_view.plain_report(changed(workers=[gone]))


PROBLEMS: list[dict[str, Any]] = [
    {"kind": "disk-space", "severity": "PROBLEM_SEVERITY_CRITICAL", "seconds": 31.4, "workers": [],
     "text": "the disk is | full\x1b[2J", "fix": "free some room"},
    {"kind": "same-batches", "severity": "PROBLEM_SEVERITY_WARNING", "seconds": 2.0, "text": "equal batches",
     "fix": "shuffle", "workers": ["a", "b\x1b[2J"]},
]  # fmt: skip


def test_problems_come_first_with_fix_and_names() -> None:
    seen = changed(problems=PROBLEMS)
    expected = [
        "CRITICAL disk-space (31 s): the disk is | full\\x1b[2J. Free some room",
        "WARNING same-batches (2 s): a, b\\x1b[2J: equal batches. Shuffle",
    ]
    assert status_view.plain_report(seen).splitlines()[:2] == expected
    assert [text.rstrip() for text in rendered(seen, 160).splitlines()[:2]] == expected
    assert "WARNING" not in status_view.plain_report(changed(problems=[])) + status_view.plain_report(STATUS)


@pytest.mark.parametrize(("found", "state"), [(PROBLEMS, "CRITICAL"), (PROBLEMS[1:], "WARNING"), ([], "OK")])
def test_a_check_is_one_line_for_monitoring(found: list[dict[str, Any]], state: str) -> None:
    worst, line = status_check.check(changed(problems=found))
    assert worst == state
    text, figures = line.split(" | ")
    assert text.startswith(f"GEMPS {state} - {found[0]['kind'] if found else 'training, 1 worker, version 241, 61.5'}")
    assert figures == f"problems={len(found)} workers=1 commits=240c rate=61.5"
    assert "\x1b" not in line


def test_a_check_of_many_problems_is_bounded() -> None:
    _, line = status_check.check(changed(problems=PROBLEMS * 20))
    assert len(line) < 1024


def test_shards_are_listed_where_there_are_several() -> None:
    status = changed(shards=SHARDS)
    lines = status_view.plain_report(status).splitlines()
    assert "shard: 0/3; 1 of 3 ready" in lines
    assert [line for line in lines if line.startswith(("shard 0", "shard 1", "shard 2"))] == [
        "shard 0: state ready, address :50051, elements [0, 1,536), clock 241, memory 3 MiB",
        "shard 1: state starting, address 10.0.0.2:50051, elements [1,536, 3,072), clock 0, memory 0 MiB",
        "shard 2: state lost, address -, elements [3,072, 4,810), clock 0, memory 0 MiB",
    ]
    assert "10.0.0.2:50051" in rendered(status, 80)
    assert "shard" not in status_view.plain_report(STATUS) + rendered(STATUS, 80)


def test_a_secondary_names_the_primary() -> None:
    secondary = {**SHARDS, "index": 1, "primary": "10.0.0.1:50051", "servers": SHARDS["servers"][1:2]}
    assert "shard: 1/3; primary at 10.0.0.1:50051" in status_view.plain_report(changed(shards=secondary))


def test_more_workers_than_rows_are_counted() -> None:
    many = [{**WORKER, "name": f"worker-{rank}", "rank": rank} for rank in range(100)]
    text = printed(status_view.worker_table(changed(workers=many), width=160, rows=10), 160)
    assert len(text.splitlines()) <= 11  # with the headings
    assert "worker-0" in text
    assert "and 91 more" in text


def test_a_workers_name_is_text_whatever_it_holds() -> None:
    hostile = changed(workers=[{**WORKER, "name": "[/bold][red]x\x1b[2J", "device": "[link"}])
    assert r"[/bold][red]x\x1b[2J" in rendered(hostile, 160)
    assert "\x1b" not in status_view.plain_report(hostile)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (0.12345, "0.123"),
        (12.345, "12.3"),
        (123456.7, "123457"),
        (1.25e36, "1.2e+36"),
        ("NaN", "nan"),
    ],
)
def test_numbers_are_short(value: Any, text: str) -> None:
    assert status_view.number(value) == text


def test_workers_are_counted_by_their_wire_types() -> None:
    assert "wire types" not in status_view.plain_report(STATUS)
    sparse = {**WORKER, "delta_wire_type": "WIRE_TYPE_SPARSE_BLOCK", "parameter_wire_type": "WIRE_TYPE_INT4_BLOCK"}
    plain = {**WORKER, "delta_wire_type": "WIRE_TYPE_FLOAT32", "parameter_wire_type": "WIRE_TYPE_FLOAT32"}
    report = status_view.plain_report(
        changed(workers=[sparse, plain, sparse, {**sparse, "state": "WORKER_STATE_LEFT"}])
    )
    assert (
        "wire types: 1 with float32 deltas and float32 parameters; 2 with sparse deltas and int4 parameters" in report
    )


def over(kind: str) -> dict[str, Any]:
    return {**WORKER, "transport": f"TRANSPORT_KIND_{kind}"}


def test_transports_of_commits_are_shown_and_counted() -> None:
    workers = [over("LANE"), over("GRPC"), over("LANE"), over("SHARED_MEMORY"), WORKER]
    report = status_view.plain_report(changed(workers=workers))
    assert "exchange: 1 over gRPC, 2 over lane, 1 over shared-memory" in report
    ways = [line.partition("exchange ")[2].partition(",")[0] for line in report.splitlines() if "exchange " in line]
    assert ways == ["lane", "gRPC", "lane", "shared-memory", "network"]
    assert "1 over gRPC" in rendered(changed(workers=workers), 80)


def test_workers_that_share_memory_are_counted_and_each_says_its_way() -> None:
    assert "shared-memory" not in status_view.plain_report(STATUS)
    assert "exchange network" in status_view.plain_report(STATUS)
    sharing = {**WORKER, "shares_memory": True}
    gone = [{**WORKER, "state": f"WORKER_STATE_{state}"} for state in ("FINISHED", "LEFT")]
    report = status_view.plain_report(changed(workers=[sharing, WORKER, *gone]))
    assert "exchange: 1 over shared-memory" in report
    ways = [line.partition("exchange ")[2].partition(",")[0] for line in report.splitlines() if "exchange " in line]
    assert ways == ["shared-memory", "network", "-", "-"]
    for width in (120, 80):
        text = rendered(changed(workers=[sharing]), width)
        assert text.count("shared-memory") == (2 if width == 120 else 1)
        assert "…" not in text


def test_a_wide_table_says_where_a_worker_runs_and_what_started_it() -> None:
    there = {**WORKER, "host_name": "node-7", "engine": "slurm"}
    assert "node-7 (slurm)" in rendered(changed(workers=[there]), 160)
    assert "host node-7 (slurm)" in status_view.plain_report(changed(workers=[there]))
    assert "node-7" not in rendered(changed(workers=[there]), 120)
    hostile = {**WORKER, "host_name": "[red]\x1b[2J", "engine": "\x1b]0;x"}
    assert "\x1b[2J" not in rendered(changed(workers=[hostile]), 160)
