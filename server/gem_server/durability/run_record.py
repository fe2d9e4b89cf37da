"""JSON values of run, workers and ledger, for checkpoints and log."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from gem_core import Statistics
from gem_core.visible_text import escape_invisible
from gem_server.state.ledger import Content, Entry, Ledger, Verdict
from gem_server.state.run import Run, RunState
from gem_server.state.workers import Worker, Workers, WorkerState
from gem_server.telemetry.run_totals import RunTotals
from gem_server.version import Version


@dataclass(frozen=True, slots=True)
class Committed:
    """One applied commit and its worker."""

    session_id: bytes
    worker: dict[str, Any]  # of `describe_worker`
    content: Content
    verdict: Verdict
    loss: float | None
    samples: int


def state_record(run: Run, workers: Workers, ledger: Ledger, seed: int, totals: RunTotals) -> dict[str, Any]:
    """The state for a restart; `totals`: sums over the commits of the run."""
    return {
        "run": run.identity,
        "run_name": run.name,
        "seed": seed,
        "commits": run.commits,
        "progress": run.progress,
        "budget": asdict(run.budget),
        "finished_because": run.finally_finished_because,
        "totals": totals.as_record(),
        "workers": [describe_worker(worker) for worker in workers.by_rank()],
        "ledger": [_line(session_id, entry) for session_id, entry in ledger.entries.items()],
    }


def describe_worker(worker: Worker) -> dict[str, Any]:
    """What outlives sessions."""
    return {
        "name": worker.name,
        "rank": worker.rank,
        "commits": worker.commits,
        "sessions": worker.sessions,
        "steps_per_epoch": worker.steps_per_epoch,
        "takes_part": worker.takes_part and worker.left > 0,
        "finished": worker.left_finished,
    }


def totals(run: Run) -> dict[str, Any]:
    """A record's values of the run."""
    return {"commits": run.commits, "progress": run.progress, "finished_because": run.finally_finished_because}


def describe_commit(commit: Committed) -> dict[str, Any]:
    """JSON values of one commit."""
    entry = Entry(commit.worker["name"], commit.verdict.sequence, commit.content, commit.verdict)
    return {
        "worker": commit.worker,
        "line": _line(commit.session_id, entry),
        "loss": commit.loss,
        "samples": commit.samples,
    }


def advance(state: dict[str, Any], records: Iterable[dict[str, Any]]) -> None:
    """Apply log records to the output of `describe`."""
    workers = {worker["name"]: worker for worker in state["workers"]}
    lines = {line["session"]: line for line in state["ledger"]}
    sums = saved_totals(state)
    for record in records:
        state["commits"] = record["commits"]
        state["progress"] = record.get("progress", 0.0)  # absent in older logs
        state["finished_because"] = record["finished_because"]
        state["rule"] = record.get("rule")  # absent in older logs
        for entry in record["entries"]:
            workers[entry["worker"]["name"]] = entry["worker"]
            lines[entry["line"]["session"]] = entry["line"]
            verdict = _read_verdict(entry["line"]["verdict"])
            sums = sums.with_commit(verdict.statistics, verdict.staleness)
    state["totals"] = sums.as_record()
    state["workers"], state["ledger"] = list(workers.values()), list(lines.values())


def saved_totals(state: dict[str, Any]) -> RunTotals:
    """Return the sums over the commits of a run. Raises TypeError or ValueError.

    Checkpoints of earlier versions have none, so theirs are 0.
    """
    return RunTotals.restored(state.get("totals", {}))


def restore(state: dict[str, Any], run: Run, workers: Workers, ledger: Ledger) -> None:
    """Restore the output of `describe`. Raises KeyError, TypeError or ValueError.

    A finished run stays finished unless its budget changed.
    """
    run.identity = str(state.get("run", run.identity))
    run.name = run.name or str(state.get("run_name", ""))  # the name that this process was given counts
    run.commits = int(state["commits"])
    run.progress = float(state.get("progress", 0.0))
    budget = run.budget
    if state["finished_because"] is not None and state["budget"] == asdict(budget):
        run.finish(str(state["finished_because"]))
    elif budget.commits and run.commits >= budget.commits:
        run.finish(f"{run.commits} commits")
    for saved in state["workers"]:
        name = escape_invisible(str(saved["name"]))  # earlier versions took names that are refused now
        worker = Worker(name, int(saved["rank"]), commits=int(saved["commits"]))
        worker.sessions = int(saved["sessions"])
        worker.state = WorkerState.LEFT
        worker.steps_per_epoch = int(saved.get("steps_per_epoch", 0))
        worker.limit = budget.limit_of(worker.steps_per_epoch)
        if worker.limit is not None and not worker.left:
            worker.done, worker.state = True, WorkerState.FINISHED
        worker.left_finished = bool(saved.get("finished", False))
        workers.restore(worker)
        run.count(worker, takes_part=bool(saved.get("takes_part", False)))
    for saved in state["ledger"]:
        entry = Entry(str(saved["worker"]), int(saved["last_applied"]))
        entry.content = Content(**saved["content"]) if saved["content"] else None
        entry.verdict = _read_verdict(saved["verdict"]) if saved["verdict"] else None
        ledger.entries[bytes.fromhex(saved["session"])] = entry


def _line(session_id: bytes, entry: Entry) -> dict[str, Any]:
    return {
        "session": session_id.hex(),
        "worker": entry.worker_name,
        "last_applied": entry.last_applied,
        "content": entry.content._asdict() if entry.content else None,
        "verdict": _verdict(entry.verdict) if entry.verdict else None,
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "sequence": verdict.sequence,
        "incarnation": verdict.version.incarnation,
        "clock": verdict.version.clock,
        "staleness": verdict.staleness,
        "statistics": verdict.statistics._asdict(),
        "next_eta": verdict.next_eta,
    }


def _read_verdict(saved: dict[str, Any]) -> Verdict:
    return Verdict(
        int(saved["sequence"]),
        Version(int(saved["incarnation"]), int(saved["clock"])),
        int(saved["staleness"]),
        Statistics(**saved["statistics"]),
        RunState.TRAINING,
        float(saved["next_eta"]),
    )
