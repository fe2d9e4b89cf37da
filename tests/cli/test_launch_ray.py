"""What `gemps launch ray` refuses before it asks for a cluster; tests/engines has the rest."""

import subprocess

import pytest
from gem_cli.errors import FAILED, USAGE

from tests.cli.processes import CLEAN, PATIENCE, command_without, gemps

INSECURE = ("--set", "insecure=true")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--data-dir", "/srv/run"], "bind 0.0.0.0:0 is beyond loopback"),
        ([*INSECURE], "--data-dir DIRECTORY is missing"),
        ([*INSECURE, "--data-dir", "run"], "--data-dir needs an absolute path"),
        ([*INSECURE, "--data-dir", "/srv/run", "--set", "eta=fast"], "--set eta fast: "),
        ([*INSECURE, "--data-dir", "/srv/run", "--shards", "0"], "--shards 0: "),
        ([*INSECURE, "--data-dir", "/s", "--shards", "2", "--set", "record=trace"], "--record is for one server"),
        (["--server", "127.0.0.1:1", "--shards", "2"], "leave out --shards"),
        (["--server", "here"], "here"),
        (["--server", "127.0.0.1:1", "--set", "eta=0.1"], "leave out --eta=0.1"),
        (
            [*INSECURE, "--data-dir", "/s", "--eta", "0.1"],
            "write --set eta=VALUE, or eta = VALUE in the file of --config",
        ),
    ],
)
def test_wrong_settings_are_one_line_with_the_fix(arguments: list[str], said: str) -> None:
    done = gemps("launch", "ray", "--workers", "2", *arguments)
    assert done.returncode == USAGE
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_missing_ray_is_named_with_the_line_that_installs_it() -> None:
    arguments = command_without(["ray"], "launch", "ray", "--workers", "2", *INSECURE, "--data-dir", "/srv/run")
    done = subprocess.run(arguments, env=CLEAN, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == FAILED
    assert (
        done.stderr
        == 'gemps: launch ray needs ray, which is not installed: pip install ".[ray]" in a checkout of gemps\n'
    )
