"""A server that is killed in the middle of a text run: the loss has no jump."""

import asyncio
import json
from itertools import groupby
from pathlib import Path
from statistics import mean

import pytest

from gem_trace.replay import replay
from tests.cli.processes import CLEAN, command
from tests.faults.processes import kill, start
from tests.figures import Figures
from tests.waiting import eventually_async

SIZES = ("--layers=1", "--width=16", "--heads=2", "--context=16", "--batch-size=8")
SETTINGS = {
    "direction": "auto",
    "clip_norm": 1.0,
    "weight_decay": 0.1,
    "eta": 0.004,
    "min_workers": 2,
    "commits": 600,
    "checkpoint_interval": 0.5,
}
UNTRAINED = 5.55  # nats: log 256
LEARNT = 3.1
WINDOW = 40  # steps of each worker
JUMP = 0.15  # nats; the loss falls by 0.1 from window to window
ON_TWO_CORES = 300.0  # seconds, to import PyTorch; nothing is measured by it


def steps(log: Path) -> list[dict[str, float]]:
    """Return the lines of a worker's log that have a loss."""
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    return [line for line in lines if "loss" in line and "incarnation" in line]


@pytest.mark.timeout(1200)
@pytest.mark.long
@pytest.mark.parametrize("level", ["interval", "commit"])
async def test_a_text_run_goes_on_after_a_kill(level: str, tmp_path: Path, figures: Figures) -> None:
    trace, logs = tmp_path / "run.trace", [tmp_path / f"worker-{number}.log" for number in range(2)]
    settings = SETTINGS | {"durability": level, "record": str(trace)}
    server = await start(tmp_path / "data", **settings)
    workers = []
    try:
        for log in logs:
            arguments = ("--device=cpu", "--log-format=json", "--log-interval=0", f"--worker-name={log.stem}", *SIZES)
            work = command("work", server.address, "--task=text", "--model=transformer", *arguments)
            with log.open("wb") as output:
                workers.append(await asyncio.create_subprocess_exec(*work, env=CLEAN, stdout=output, stderr=output))

        async def has_halved() -> bool:
            return (await server.status()).commits >= SETTINGS["commits"] // 2

        await eventually_async(has_halved, patience=ON_TWO_CORES)
        await kill(server)
        server = await start(tmp_path / "data", bind=server.address, **settings)

        assert [await asyncio.wait_for(worker.wait(), ON_TWO_CORES) for worker in workers] == [0, 0]
        server.process.terminate()
        assert await asyncio.wait_for(server.process.wait(), 60) == 0
        await server.close()
    finally:
        for process in (*workers, server.process):
            if process.returncode is None:
                process.kill()
                await process.wait()

    found = replay(trace)
    assert (found.compared_starts, found.compared_end, found.missing) == (1, True, 0)
    told = []
    for log in logs:
        lines = steps(log)
        before, after = (
            [line["loss"] for line in made] for _, made in groupby(lines, lambda line: line["incarnation"])
        )
        assert before[0] > UNTRAINED - 1
        assert mean(before[-WINDOW:]) < LEARNT
        assert mean(after[:WINDOW]) < mean(before[-WINDOW:]) + JUMP
        assert mean(after[-WINDOW:]) < mean(before[-WINDOW:])
        told.append(f"{mean(before[-WINDOW:]):.2f}, {mean(after[:WINDOW]):.2f}")
    figures(
        f"SIGKILL in the middle of a text run, {level}",
        f"mean loss of {WINDOW} steps before and after: {'; '.join(told)}; {found.lost} commits lost; theta at "
        "the recovery and the end bit-equal to the trace's",
    )
