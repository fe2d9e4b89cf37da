"""benchmarks.foreign_scripts, with a script and its port that take no time."""

from pathlib import Path

import pytest

pytest.importorskip("torch", exc_type=ImportError)

from benchmarks.foreign_scripts import ALONE, SYNCHRONOUS, WORKERS, Case, FailedRunError, measure, read_scripts, table

SCRIPT = """\
import argparse, json
import torch

parser = argparse.ArgumentParser()
for name in ("--seed", "--steps", "--batch"):
    parser.add_argument(name, type=int)
args = parser.parse_args()
torch.manual_seed(args.seed)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for _ in range(args.steps):
    x = torch.randn(args.batch, 3)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(json.dumps({"loss": (model.weight - 1).square().sum().item()}))
"""
TABLE = """\
[linear]
script = "linear.py"
port = "port.py"
arguments = "--seed {seed} --steps {steps} --batch {batch}"
steps = 20
batch = 4
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a script and its port of three changed lines."""
    (tmp_path / "scripts.toml").write_text(TABLE)
    (tmp_path / "linear.py").write_text(SCRIPT)
    head, loop = SCRIPT.replace("import torch\n", "import torch, gemps\n", 1).split("for _", 1)
    loop, end = f"for _{loop}".split("print(")
    loop = "".join(f"    {line}\n" for line in loop.replace("optimizer.step()", "ps.step(loss)").splitlines())
    (tmp_path / "port.py").write_text(
        f"{head}with gemps.ParameterServer(model=model, optimizer=optimizer) as ps:\n{loop}print({end}"
    )
    return tmp_path


def test_a_port_s_changed_lines_are_counted_without_its_indentation(folder: Path) -> None:
    (script,) = read_scripts(folder)
    assert script.changed_lines == 3


def test_a_longer_run_alone_ends_with_a_lower_loss(folder: Path) -> None:
    (script,) = read_scripts(folder)
    short, long = (measure(script, Case(ALONE, 1, growth), 0)["result"] for growth in (1, 4))
    assert long < short / 2


def test_a_synchronous_run_has_as_many_steps_and_a_larger_batch(folder: Path) -> None:
    (script,) = read_scripts(folder)
    command = script.command(script.script, seed=5, growth=3, batch_growth=3)
    assert command[1:] == ["linear.py", "--seed", "5", "--steps", "20", "--batch", "12"]


@pytest.mark.long
def test_two_workers_of_a_real_server_learn_together(folder: Path) -> None:
    (script,) = read_scripts(folder)
    alone = measure(script, Case(ALONE, 1, 1), 0)["result"]
    assert measure(script, Case(WORKERS, 2, 2), 0)["result"] < alone


def test_a_script_that_fails_is_named_with_its_last_lines(folder: Path) -> None:
    (folder / "linear.py").write_text('raise SystemExit("no such model")')
    (script,) = read_scripts(folder)
    with pytest.raises(FailedRunError, match=r"exit code 1:\nno such model"):
        measure(script, Case(ALONE, 1, 1), 0)


def test_the_table_has_the_share_of_the_gain_that_the_workers_reach(folder: Path) -> None:
    found = {
        Case(ALONE, 1, 1): {"0": 2.5, "1": 1.5},
        Case(ALONE, 1, 3): {"0": 1.0},
        Case(SYNCHRONOUS, 3, 3): {"0": 1.5},
        Case(WORKERS, 3, 3): {"0": 1.25},
    }
    results = {
        "linear": {str(case): {seed: {"result": one} for seed, one in runs.items()} for case, runs in found.items()}
    }
    row = table(read_scripts(folder), results, [3]).splitlines()[2]
    assert row == "| linear | 3 | 3 | 1 | 2 | 1 | 1.5 |  |  | 1.25 | 0.67 | 0.83 |  |"
