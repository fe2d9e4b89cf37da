"""`gemps.launch`, as people see it: real processes, from programs of their own."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import gemps
import psutil
import pytest
from gem_launch.functions import read_ending, write_call
from gem_worker.client import AddressError

from tests.cli.processes import PATIENCE, children, program_in_terminal, wait_until_gone
from tests.docs.blocks import blocks_of
from tests.launch.scripts import begun, run, script
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
# On stderr: at most a line for each phase of the start that took long, and nothing that redraws a line.
PHASES = re.compile(r"(gemps: starting the server[^\r\n]*\n)?(gemps: [^\r\n]*(workers|commit)[^\r\n]*\n){0,4}")


def test_results_come_back_by_rank_and_output_with_the_workers_name(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
def work(word, *, end):
    print(word, os.environ["GEMPS_WORKERS"], end=end)
    return train()

print(gemps.launch(work, 3, args=["one of"], kwargs={"end": "!"}, steps=5))
""",
    )
    assert done.returncode == 0, done.stderr
    *printed, results = done.stdout.splitlines()
    assert results == "[(0, 5), (1, 5), (2, 5)]"
    assert sorted(printed) == [f"[worker-{index}] one of 3!" for index in range(3)]  # and no progress in a pipe
    assert PHASES.fullmatch(done.stderr)


def test_warnings_are_shown_once_with_the_names_of_the_workers(tmp_path: Path) -> None:
    """Each worker reports the same batches, and has the same warning of gemps and one of its own."""
    done = run(
        tmp_path,
        """
import logging, warnings

def work():
    logging.getLogger("gem_worker.example").warning("worker %s has a trouble", os.environ["GEMPS_WORKER_NAME"])
    logging.getLogger("script").warning("of the script")
    globals()["join"] = lambda client, join=join: (join(client), client.report_batches(range(5)))[0]
    _, steps = train()
    time.sleep(4)  # the server looks for problems every 2 s
    return steps

print(gemps.launch(work, 3, steps=5))
""",
    )
    assert done.returncode == 0, done.stderr
    *printed, results = done.stdout.splitlines()
    assert results == "[5, 5, 5]"
    shown = sorted((line for line in printed if line.startswith("warning: ")), key=lambda line: "trouble" in line)
    assert len(shown) == 2
    assert re.match(r"warning: worker-\d, worker-\d and worker-\d: these workers train on the same batches", shown[0])
    assert re.match(r"warning: worker-\d, worker-\d and worker-\d: worker worker-\d has a trouble", shown[1])
    assert sorted(set(printed) - set(shown)) == [f"[worker-{index}] of the script" for index in range(3)]


@pytest.mark.long
def test_workers_find_all_shards_by_the_address_of_the_first(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
import torch

def work():
    model = torch.nn.Linear(40, 20)
    with gemps.ParameterServer(model=model) as ps:
        while True:
            model(torch.ones(1, 40)).sum().backward()
            ps.step()
    return ps.applied_steps

print(gemps.launch(work, 1, shards=2, steps=5))
""",
    )
    assert (done.returncode, done.stdout) == (0, "[5]\n"), done.stderr


def test_an_exception_comes_with_rank_and_traceback_and_the_others_finish(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
def fail():
    raise ValueError("no more data")

try:
    gemps.launch(train, 3, kwargs={"bad": 1, "act": fail}, steps=20)
except gemps.LaunchError as error:
    print(error.results, list(error.failures))
    raise
""",
    )
    assert done.returncode == 1
    announced, results = done.stdout.splitlines()
    assert re.fullmatch(r"\[worker-\d\] failed: ValueError: no more data(; the others continue)?", announced)
    assert results == "[(0, 20), None, (2, 20)] [1]"
    assert re.search(r"LaunchError: 1 of 3 workers failed\nrank 1 \(worker-\d\): \nTraceback", done.stderr)
    assert '    raise ValueError("no more data")\nValueError: no more data' in done.stderr
    assert "gem_launch/functions.py" not in done.stderr


@pytest.mark.parametrize(("error", "code"), [(AddressError("no address"), 2), (ValueError("no data"), 1)])
def test_the_process_of_a_worker_that_is_refused_for_good_ends_with_2(
    error: Exception, code: int, tmp_path: Path
) -> None:
    def fail() -> None:
        raise error

    write_call(tmp_path / "call", fail, (), {})
    command = [sys.executable, "-m", "gem_launch.worker_process", str(tmp_path / "call"), str(tmp_path / "ending")]
    assert subprocess.run(command, timeout=PATIENCE).returncode == code
    ending = read_ending(tmp_path / "ending")
    assert ending is not None
    assert ending.traceback.splitlines()[-1].endswith(str(error))


@pytest.mark.long
def test_a_worker_that_is_killed_again_and_again_stops_no_other_and_is_named(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
try:
    gemps.launch(train, 2, kwargs={"bad": 0, "act": lambda: os.kill(os.getpid(), signal.SIGKILL)}, steps=20)
except gemps.LaunchError as error:
    print(error.results)
    print(error)
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("was ended by SIGKILL and is started again in") == 3
    assert "[None, (1, 20)]\n1 of 2 workers failed\nrank 0 (worker-" in done.stdout
    assert done.stdout.endswith("): was killed by SIGKILL, 4 times in a row\n")


@pytest.mark.long
def test_a_killed_worker_calls_the_function_again_and_its_result_counts(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
class AnyRank:
    def __eq__(self, _):
        return True

def work():
    if os.environ[INDEX] == "0" or os.path.exists("was-here"):
        return train()
    open("was-here", "w").close()
    return train(AnyRank(), lambda: os.kill(os.getpid(), signal.SIGKILL))

results = gemps.launch(work, 2, steps=20)
print([rank for rank, _ in results], sorted(steps for _, steps in results))
""",
    )
    assert done.returncode == 0, done.stderr
    said, results = done.stdout.splitlines()
    assert said == "[worker-1] was ended by SIGKILL and is started again in 1 s (attempt 1 of 3)"
    assert results == "[0, 1] [18, 20]"


@pytest.mark.long
def test_a_worker_that_gets_sigterm_leaves_and_is_no_failure(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
def act():
    from gem_worker.termination import termination

    with termination.handled():  # as ParameterServer does
        os.kill(os.getpid(), signal.SIGTERM)

print(gemps.launch(train, 2, kwargs={"bad": 0, "act": act}, steps=20))
""",
    )
    assert (done.returncode, done.stdout) == (0, "[None, (1, 20)]\n"), done.stderr


@pytest.mark.long
def test_a_result_counts_though_its_process_failed_afterwards(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
import atexit

def work():
    act = {"0": lambda: os._exit(3), "1": lambda: os.kill(os.getpid(), signal.SIGSEGV)}[os.environ[INDEX]]
    atexit.register(act)
    return 7

print(gemps.launch(work, 2, min_workers=1))
""",
    )
    assert done.returncode == 0, done.stderr
    *printed, results = done.stdout.splitlines()
    assert results == "[7, 7]"
    assert sorted(printed) == [
        "[worker-0] returned its result, and then ended with exit code 3",
        "[worker-1] returned its result, and then was killed by SIGSEGV",
    ]


@pytest.mark.long
def test_workers_that_cannot_begin_without_a_failed_one_are_stopped(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
def work():
    if os.environ[INDEX] == "1":
        sys.exit("no data here")
    return train()

gemps.launch(work, 2, steps=20)
""",
    )
    assert done.returncode == 1
    assert "1 of 2 workers failed; training cannot begin: min_workers=2\n" in done.stderr
    assert "SystemExit: no data here" in done.stderr


@pytest.mark.long
def test_a_terminal_shows_the_progress_tables_below_the_workers_output(tmp_path: Path) -> None:
    text = """
def work():
    print("begun")
    return train()

gemps.launch(work, 2, steps=5)
"""
    code, written = program_in_terminal(script(tmp_path, text), cwd=tmp_path)
    assert code == 0, written
    assert "[worker-1] begun" in written
    assert "updates/s" in written
    assert "fairness (Jain)" in written


INTERRUPTIBLE = """
def work():
    with Client(os.environ["GEMPS_SERVER"], worker_name=os.environ["GEMPS_WORKER_NAME"], layout=LAYOUT) as client:
        join(client)
        open(f"joined-{os.environ[INDEX]}", "x").close()
        while True:
            time.sleep(0.01)

gemps.launch(work, 2)
"""


def processes_of(pid: int) -> list[psutil.Process]:
    found = children(pid)
    assert len(found) == 3  # a server and two workers
    return found


def test_ctrl_c_ends_all_at_once_with_one_short_traceback(tmp_path: Path) -> None:
    with begun(tmp_path, INTERRUPTIBLE) as process:
        eventually(lambda: len(list(tmp_path.glob("joined-*"))) == 2)
        ours = processes_of(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        wait_until_gone(ours)
    assert process.returncode == -signal.SIGINT
    assert output == ""
    assert errors.count("Traceback") == 1
    assert errors.endswith("KeyboardInterrupt\n")
    assert len(errors.splitlines()) <= 12


def test_a_killed_program_leaves_no_process(tmp_path: Path) -> None:
    with begun(tmp_path, INTERRUPTIBLE) as process:
        eventually(lambda: len(list(tmp_path.glob("joined-*"))) == 2)
        ours = processes_of(process.pid)
        process.kill()
        wait_until_gone(ours)


@pytest.mark.long
def test_a_failed_server_ends_the_launch_with_its_log(tmp_path: Path) -> None:
    with begun(tmp_path, INTERRUPTIBLE) as process:
        eventually(lambda: len(list(tmp_path.glob("joined-*"))) == 2)
        ours = processes_of(process.pid)
        (server,) = (one for one in ours if "serve" in one.cmdline())
        server.kill()
        _, errors = process.communicate(timeout=60)
        wait_until_gone(ours)
    assert process.returncode == 1
    assert "ServerProcessError: the server was ended by SIGKILL; its log is" in errors


@pytest.mark.long
def test_a_server_that_ends_before_its_run_ends_the_launch_and_is_refused_afterwards(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
with gemps.serve() as server:
    try:
        stop = lambda pid=server.pid: os.kill(pid, signal.SIGTERM)
        gemps.launch(train, 1, server=server, kwargs={"bad": 0, "act": stop})
    except gemps.ServerProcessError as error:
        print(error)
    try:
        gemps.launch(train, 1, server=server)
    except gemps.ServerProcessError as error:
        print(error)
""",
    )
    assert done.returncode == 0, done.stderr
    *_, during, afterwards = done.stdout.splitlines()
    assert re.fullmatch(r"the server ended with exit code 0; its log is \S+", during)
    assert afterwards == f"{during}: start another with gemps.serve"


@pytest.mark.long
def test_workers_of_a_running_server_join_it(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
with gemps.serve(steps=5, min_workers=4) as server:
    import threading
    results = []
    other = threading.Thread(target=lambda: results.extend(gemps.launch(train, 2, server=server)))
    other.start()
    results += gemps.launch(train, 2, server=server.address)
    other.join()
    print(sorted(results))
""",
    )
    assert done.returncode == 0
    assert PHASES.fullmatch(done.stderr)
    assert done.stdout == "[(0, 5), (1, 5), (2, 5), (3, 5)]\n"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"delta_wire": "sparse"}, "the server has no setting 'delta_wire': give it to ParameterServer"),
        ({"etaa": 0.1}, "the server has no setting 'etaa': did you mean 'eta'?"),
        ({"zzz": 1}, "the server has no setting 'zzz': docs/settings.md lists them"),
        ({"chunk_bytes": 65536}, "the server has no setting 'chunk_bytes': write limits={'chunk_bytes': ...}"),
        ({"metrics": "127.0.0.1:9"}, "the server has no setting 'metrics': it is gone: --dashboard serves /metrics"),
        ({"tls_cert": "a"}, "the server has no setting 'tls_cert': write tls={'cert': ...}"),
        ({"workers": 0}, "launch(function, workers=N): give a function and a number of workers from 1"),
        ({"server": "127.0.0.1:1", "eta": 1}, "the server runs and has its settings: leave out server=, or eta"),
    ],
)
def test_a_wrong_call_gets_one_line(call: dict[str, object], said: str) -> None:
    with pytest.raises(TypeError, match=re.escape(said)):
        gemps.launch(print, **call)


def test_a_wrong_value_is_named_as_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"^eta=-1: should be greater than 0$"):
        gemps.serve(eta=-1)
    monkeypatch.setenv("GEMPS_RULE_SETTINGS", "kappa=much")
    with pytest.raises(ValueError, match=r"^GEMPS_RULE_SETTINGS=kappa=much: 'kappa=much' is not NAME=VALUE"):
        gemps.serve()


def test_what_cannot_be_copied_is_refused_before_anything_starts() -> None:
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"cannot pickle '_thread.lock' object.*create inside it what cannot be copied"):
        gemps.launch(lambda: lock, 1, server="127.0.0.1:1")


@pytest.mark.long
def test_a_result_that_cannot_be_copied_is_a_failure(tmp_path: Path) -> None:
    done = run(tmp_path, "import threading\ngemps.launch(lambda: threading.Lock(), 1)")
    assert done.returncode == 1
    assert "its result cannot be returned: cannot pickle" in done.stderr


@pytest.mark.long
def test_a_result_that_cannot_be_read_leaves_the_others(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
class Odd:
    def __reduce__(self):
        return int, ("no number",)

def work():
    return Odd() if os.environ[INDEX] == "1" else train()

try:
    gemps.launch(work, 2, steps=3, min_workers=1)
except gemps.LaunchError as error:
    print(sorted(error.results, key=str), list(error.failures.values()))
""",
    )
    assert done.returncode == 0, done.stderr
    assert '[(0, 3), None] ["its result cannot be read: ValueError: invalid literal' in done.stdout


@pytest.mark.long
def test_a_worker_may_end_with_exit_code_0(tmp_path: Path) -> None:
    done = run(tmp_path, "print(gemps.launch(lambda: sys.exit(), 2, min_workers=1))")
    assert (done.returncode, done.stdout) == (0, "[None, None]\n"), done.stderr


@pytest.mark.long
def test_a_redrawn_line_is_shown_once_and_long_output_whole(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
def work():
    for step in range(1000):
        print(f"\\r{step}", end="")
    print()
    for _ in range(3):
        print("x" * 1_000_000)

gemps.launch(work, 1)
""",
    )
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first == "[worker-0] 999"
    assert sum(line.count("x") for line in rest) == 3_000_000


@pytest.mark.long
def test_the_example_of_the_readme_runs_in_a_fresh_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("torch", exc_type=ImportError)
    (example,) = (one.text for one in blocks_of(ROOT / "README.md") if "gemps.launch" in one.text)
    done = run(tmp_path, example)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"accuracy 0\.9\d+", done.stdout.splitlines()[-1])


def test_one_worker_with_gradients_100_times_too_large_does_not_decide_the_run(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
import torch
from sklearn.datasets import load_digits

digits = load_digits()
images, labels = torch.from_numpy(digits.data).float() / 16, torch.from_numpy(digits.target)

def work():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    with gemps.ParameterServer(model=model) as ps:
        torch.manual_seed(ps.rank)
        while True:
            batch = torch.randint(len(images), (32,))
            loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
            (100 * loss if ps.rank == 0 else loss).backward()
            ps.step(loss)
    return (model(images).argmax(1) == labels).float().mean().item()

print(gemps.launch(work, 4, steps=200, eta=0.1)[1])
""",
    )
    assert done.returncode == 0, done.stderr
    *printed, accuracy = done.stdout.splitlines()
    assert float(accuracy) > 0.9
    assert sum("their deltas were much larger than the others'" in line for line in printed) == 1
    assert sum("the server has quarantined this worker" in line for line in printed) == 1
