"""`gemps launch slurm`, where there is no Slurm."""

import subprocess
from pathlib import Path

import pytest
from gem_cli.errors import FAILED, USAGE

from tests.cli.processes import gemps, gemps_here

COMMON = ("launch", "slurm", "--workers", "3")


def test_the_printed_script_is_what_bash_reads() -> None:
    own = ("--data-dir", "my run", "--set=insecure=true", "--sbatch=--time=4:00:00", "--sbatch=--comment='a b'")
    done = gemps(*COMMON, *own, "--print", "--", "python", "train.py", "it's $HOME")
    assert done.returncode == 0
    header = [line for line in done.stdout.splitlines() if line.startswith("#SBATCH ")]
    assert header[-2:] == ["#SBATCH --time=4:00:00", "#SBATCH --comment='a b'"]
    assert "#SBATCH --ntasks=4" in header
    shown = done.stdout.partition("GEMPS_WORKERS=3")[0] + 'printf "%s\\n" "${server[@]}" "${worker[@]}"'
    words = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, check=True).stdout.splitlines()
    assert words[:4] == ["gemps", "serve", "--insecure", "--data-dir=my run"]
    assert words[-3:] == ["python", "train.py", "it's $HOME"]
    assert subprocess.run(["bash", "-n"], input=done.stdout, text=True, capture_output=True).stderr == ""


@pytest.mark.parametrize(("own", "name"), [((), "17"), (("--set=run=digits' run",), "digits' run")])
def test_server_and_workers_name_the_run_by_the_job_or_by_its_setting(own: tuple[str, ...], name: str) -> None:
    done = gemps_here(*COMMON, "--data-dir", "run", "--set=insecure=true", *own, "--print")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("run=")]
    (export,) = [line for line in done.stdout.splitlines() if line.startswith("export GEMPS_RUN=")]
    shown = f'{line}\nSLURM_JOB_ID=17\n{export}\nprintf "%s" "$GEMPS_RUN"'
    assert subprocess.run(["bash", "-c", shown], capture_output=True, text=True, check=True).stdout == name


def test_an_array_has_the_address_of_its_server() -> None:
    done = gemps_here(*COMMON, "--server", "n1:20000", "--print")
    assert "#SBATCH --array=1-3\n" in done.stdout
    assert "export GEMPS_SERVER=n1:20000\n" in done.stdout
    assert "worker=(gemps work)\n" in done.stdout


def test_each_shard_has_a_task_and_a_folder() -> None:
    done = gemps_here(
        *COMMON, "--shards", "3", "--data-dir", "run", "--set=insecure=true", "--set=lane_port=-1", "--print"
    )
    assert "#SBATCH --ntasks=6\n" in done.stdout
    common = "gemps serve --insecure --lane-port=-1 --data-dir=run"
    assert f"server=({common} --exit-when-finished --shard=0/3 --data-dir=run/shards/0)\n" in done.stdout
    other = "--bind=0.0.0.0:0 --shard=2/3 --dashboard= --data-dir=run/shards/2"
    assert f"shard_2=({common} {other})\n" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--data-dir", "run", "--set=insecure=true", "--shards", "0"), "--shards 0: "),
        (
            ("--data-dir", "run", "--set=insecure=true", "--shards", "2", "--set=record=trace"),
            "--record is for one server",
        ),
        (("--server", "n1:20000", "--shards", "2"), "leave out --shards"),
        (("--set=insecure=true",), "--data-dir DIRECTORY is missing"),
        (("--data-dir", "run"), "add --insecure"),
        (("--server", "n1:20000", "--set", "eta=0.1"), "leave out --eta=0.1"),
        (("--server", "n1"), "HOST:PORT"),
        (("--data-dir", "run", "--set=insecure=true", "--sbatch", "time=1"), "'time=1': write one option"),
        (("--data-dir", "run", "--set=insecure=true", "--sbatch", "--time=1\nrm -r x"), "write one option"),
    ],
)
def test_wrong_usage_is_explained(arguments: tuple[str, ...], said: str) -> None:
    done = gemps_here(*COMMON, *arguments)
    assert done.returncode == USAGE
    assert said in done.stderr


def test_a_machine_without_sbatch_is_explained(tmp_path: Path) -> None:
    done = gemps_here(*COMMON, "--data-dir", "run", "--set=insecure=true", env={"PATH": str(tmp_path)})
    assert done.returncode == FAILED
    assert "there is no sbatch here" in done.stderr
