"""The command as such: help, completion, versions, and environments without PyTorch."""

import json
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path

import grpc
import pytest
from gem_cli.environment import misspelt
from gem_cli.errors import FAILED, USAGE, refused
from gem_cli.main import app
from gem_worker.client import Client, RunFinishedError, ServerRefusedError
from typer.main import get_command

from gem_core.extras import PACKAGES
from tests.cli.processes import (
    PATIENCE,
    command_without,
    gemps,
    gemps_here,
    in_terminal,
    json_lines,
    served,
    started,
    stop,
    wait_for,
)
from tests.client.models import SMALL, payload
from tests.client.real_server import begin
from tests.client.test_connecting import web_server

PYTORCH = ("torch", "torchvision", "sklearn", "matplotlib")


@pytest.mark.parametrize("command", ["train", "serve", "work", "evaluate", "status", "checkpoint", "finish", "doctor"])
def test_help_teaches_with_two_examples(command: str) -> None:
    done = gemps_here(command, "--help")
    assert done.returncode == 0
    assert "Examples" in done.stdout
    assert sum(f"gemps {command}" in line for line in done.stdout.splitlines()) >= 3  # usage and two examples


def _options_shown(help_text: str) -> set[str]:
    return {line.split()[1] for line in help_text.splitlines() if line.startswith("│ --")}


@pytest.mark.parametrize(
    ("command", "common", "rare", "most"),
    [("train", "--workers", "--clip-norm", 45), ("serve", "--bind", "--lane-port", 43)],
)
def test_help_shows_the_common_options_and_names_the_way_to_all(
    command: str, common: str, rare: str, most: int
) -> None:
    wide = {"COLUMNS": "200"}
    shown, every = (_options_shown(gemps_here(command, one, env=wide).stdout) for one in ("--help", "--help-all"))
    assert {common, "--config", "--help", "--help-all"} <= shown
    assert len(shown) <= 18
    assert rare not in shown
    assert shown | {rare} <= every
    assert len(every) <= most


def test_the_common_options_of_each_command_are_options_of_it() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    found = {name: getattr(one.callback, "common_options", frozenset()) for name, one in commands.items()}
    assert {name for name, common in found.items() if common} == {"train", "serve", "work", "evaluate", "simulate"}
    for name, common in found.items():
        assert common <= {one.name for one in commands[name].params}, name


def test_wrong_usage_exits_with_2() -> None:
    assert gemps_here("serve", "--no-such-option").returncode == USAGE
    assert gemps_here("fly").returncode == USAGE


def test_shell_completion_knows_commands_options_and_values() -> None:
    def complete(line: str) -> list[str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
        return gemps(env={"_GEMPS_COMPLETE": "complete_bash", **words}).stdout.split()

    assert "train" in complete("gemps tr")
    assert "--checkpoint-commits" in complete("gemps serve --checkpoint-c")  # --help does not show it
    assert complete("gemps serve --order r") == ["round-robin"]


def test_an_option_prints_the_version() -> None:
    assert gemps_here("--version").stdout == f"gemps {metadata.version('gemps')}\n"


def test_the_server_runs_where_torch_is_not_installed(tmp_path: Path) -> None:
    ready, log = tmp_path / "ready.json", tmp_path / "log"
    serve = command_without(PYTORCH, "serve", "--bind", "127.0.0.1:0", "--ready-file", str(ready))
    with started(serve, log) as process:
        wait_for(ready.exists, process, log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0, log.read_text(encoding="utf-8")


@pytest.mark.parametrize("arguments", [["work"], ["evaluate", "model.safetensors"]])
def test_a_worker_without_torch_says_what_to_install(arguments: list[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    with started(command_without(PYTORCH, *arguments), log) as process:
        assert process.wait(PATIENCE) == FAILED
    assert log.read_text(encoding="utf-8") == (
        f'gemps: {arguments[0]} needs torch, which is not installed: pip install ".[worker]" in a checkout of gemps\n'
    )


def test_a_worker_runs_without_the_packages_of_the_server(tmp_path: Path) -> None:
    of_the_server = {*PACKAGES["server"], *PACKAGES["train"]} - {*PACKAGES["worker"]}
    assert {"numba", "aiohttp"} <= of_the_server
    log = tmp_path / "log"
    with (
        served(tmp_path, "--steps", "3") as (address, _),
        started(command_without(of_the_server, "work", address), log) as process,
    ):
        assert process.wait(PATIENCE) == 0, log.read_text(encoding="utf-8")


def test_a_port_in_use_is_one_line_with_the_fix(tmp_path: Path) -> None:
    with served(tmp_path) as (address, _):
        done = gemps("serve", "--bind", address)
    assert done.returncode == USAGE
    assert done.stderr.strip().count("\n") == 0
    assert address in done.stderr
    assert "--bind" in done.stderr


def test_no_server_is_one_line_with_the_fix() -> None:
    done = gemps("status", "127.0.0.1:9")
    assert done.returncode == FAILED
    assert done.stderr.strip().count("\n") == 0
    assert "gemps serve" in done.stderr


def test_a_server_of_another_kind_is_one_line_with_the_fix() -> None:
    """A gRPC server that does not offer our service: another version of it, or somebody else's."""
    stranger = grpc.server(ThreadPoolExecutor(1))
    port = stranger.add_insecure_port("127.0.0.1:0")
    stranger.start()
    try:
        done = gemps("status", f"127.0.0.1:{port}")
    finally:
        stranger.stop(None)
    assert done.returncode == FAILED
    assert done.stderr.strip().count("\n") == 0
    assert "version" in done.stderr


@pytest.mark.long
def test_a_web_server_in_its_place_is_one_line_with_the_fix() -> None:
    with web_server() as address:
        for command in (("status", address), ("work", address)):
            done = gemps(*command)
            assert done.returncode == FAILED
            assert done.stderr.strip().count("\n") == 0
            assert "gemps serve" in done.stderr
            assert "Traceback" not in done.stderr


@pytest.mark.long
def test_a_name_that_does_not_resolve_is_one_line_with_the_fix() -> None:
    done = gemps("status", "no-such-host.invalid:50051")
    assert done.returncode == FAILED
    assert done.stderr.strip().count("\n") == 0
    assert "no-such-host.invalid" in done.stderr
    waiting = gemps("work", "no-such-host.invalid:50051", env={"GEMPS_CLIENT_CONNECT_TIMEOUT": "0.2"})
    assert waiting.returncode == FAILED
    assert waiting.stderr.strip().count("\n") == 0
    assert waiting.stdout.count("waiting-for-server") == 1


def test_check_of_a_server_that_does_not_answer_and_of_one_that_does(tmp_path: Path) -> None:
    done = gemps_here("status", "127.0.0.1:9", "--check")
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.startswith("GEMPS UNKNOWN - ")
    assert done.stdout.count("\n") == 1
    wrong = gemps_here("status", "--check", "--json")
    assert wrong.returncode == USAGE
    with served(tmp_path) as (address, process):
        done = gemps_here("status", address, "--check")
        assert (done.returncode, done.stderr) == (0, "")
        told = "GEMPS OK - waiting, 0 workers, version 0, 0 updates/s | problems=0 workers=0 commits=0c rate=0"
        assert done.stdout == f"{told}\n"
        assert stop(process) == 0


@pytest.mark.long
def test_status_of_a_live_server_in_all_three_forms(tmp_path: Path) -> None:
    with served(tmp_path, "--eta", "0.25") as (address, process):
        plain = gemps("status", address)
        assert "waiting" in plain.stdout
        assert "version 0" in plain.stdout
        (status,) = json_lines(gemps_here("status", address, "--json").stdout)
        assert status["run_state"] == "RUN_STATE_WAITING"
        assert status["settings"]["eta"] == 0.25
        code, tables = in_terminal("status", address)
        assert code == 0
        assert "╭" in tables
        assert "parameters" in tables
        by_environment = gemps_here("status", "--json", env={"GEMPS_SERVER": address})
        assert json_lines(by_environment.stdout)[0]["settings"] == status["settings"]

        log = tmp_path / "watch.log"
        watch = [sys.executable, "-m", "gem_cli", "status", address, "--watch", "--json", "--interval", "0.1"]
        with started(watch, log) as watcher:
            wait_for(lambda: len(log.read_text(encoding="utf-8").splitlines()) >= 3, watcher, log)
            watcher.send_signal(signal.SIGINT)
            watcher.wait(PATIENCE)
        whole = log.read_text(encoding="utf-8").splitlines()[:3]
        assert all(json_lines(line)[0]["settings"]["eta"] == 0.25 for line in whole)
        assert stop(process) == 0


def test_an_address_that_is_given_twice_is_wrong_usage() -> None:
    done = gemps_here("work", "127.0.0.1:9", "--server", "127.0.0.1:9")
    assert done.returncode == USAGE
    assert done.stderr.strip().count("\n") == 0


@pytest.mark.parametrize("command", [["status"], ["finish"], ["checkpoint"], ["work"], ["evaluate", "--server"]])
def test_an_address_without_a_port_is_one_line_with_the_fix(command: list[str]) -> None:
    ended = gemps_here(*command, "nonsense")
    assert ended.returncode == USAGE
    assert ended.stderr.count("\n") == 1
    assert "write HOST:PORT" in ended.stderr


@pytest.mark.parametrize("command", [["status"], ["finish"], ["work"]])
def test_a_token_that_others_could_read_on_its_way_is_wrong_usage(command: list[str]) -> None:
    ended = gemps_here(*command, "10.77.0.1:50051", env={"GEMPS_CLIENT_TOKEN": "0123456789abcdef"})
    assert ended.returncode == USAGE
    assert ended.stderr.count("\n") == 1
    assert "GEMPS_CLIENT_INSECURE" in ended.stderr


@pytest.mark.parametrize(("flag", "name"), [("--task", "digit"), ("--rule", "gems"), ("--model", "resnet81")])
def test_unknown_names_are_refused_before_anything_starts(flag: str, name: str, tmp_path: Path) -> None:
    ended = gemps_here("train", flag, name, "--run-dir", str(tmp_path / "run"))
    assert ended.returncode == USAGE
    assert flag in ended.stderr
    assert not (tmp_path / "run").exists()


def test_a_model_that_resembles_none_is_refused_by_a_worker_too() -> None:
    ended = gemps_here("work", "--model", "no-such-model")
    assert ended.returncode == USAGE
    assert ended.stderr.count("\n") == 1
    assert "mlp" in ended.stderr


def test_a_misspelt_variable_is_told_and_ignored() -> None:
    done = gemps_here("conformance", "list", env={"GEMPS_ETTA": "0.1", "GEMPS_CLIENT_TOKENFILE": "x"})
    assert done.returncode == 0
    assert done.stdout == gemps_here("conformance", "list").stdout
    assert done.stderr.splitlines() == [
        "gemps: GEMPS_CLIENT_TOKENFILE is ignored, since there is no such setting: did you mean "
        "GEMPS_CLIENT_TOKEN_FILE?",
        "gemps: GEMPS_ETTA is ignored, since there is no such setting: did you mean GEMPS_ETA?",
    ]


@pytest.mark.long
def test_a_misspelt_variable_is_a_line_of_a_log_in_json(tmp_path: Path) -> None:
    env = {"GEMPS_ETTA": "0.1", "GEMPS_CLIENT_CONNECT_TIMEOUT": "0.1"}
    with served(tmp_path, "--log-format=json", env=env):
        of_server = (tmp_path / "server.log").read_text(encoding="utf-8")
    of_worker = gemps("work", "127.0.0.1:1", "--log-format=json", env=env)
    for text in (of_server, of_worker.stderr):
        (line,) = [json.loads(one) for one in text.splitlines() if "GEMPS_ETTA" in one]
        assert (line["level"], "did you mean GEMPS_ETA?" in line["message"]) == ("warning", True)
    failed = gemps_here("serve", "--eta=0", env=env)
    assert [line[:17] for line in failed.stderr.splitlines()] == ["gemps: GEMPS_ETTA", "gemps: --eta 0: s"]


def test_variables_of_others_and_our_own_are_not_told() -> None:
    """Those that Kubernetes makes of a service's name, those of compose, of tests, and those that scripts read."""
    others = ["GEMPS_PORT", "GEMPS_PORT_50051_TCP_ADDR", "GEMPS_SERVICE_HOST", "GEMPS_SERVICE_PORT", "GEMPS_ADDRESS"]
    ours = ["GEMPS_SERVER", "GEMPS_WORKERS", "GEMPS_WORKER_INDEX", "GEMPS_CONFIG", "GEMPS_CLIENT_TLS_CA", "GEMPS_ETA"]
    assert misspelt([*others, *ours, "GEMPS_TEST_FULL", "GEMPS_NETLAB", "GEMPS_ENGINE", "PATH"]) == {}


def test_an_operator_ends_a_run_and_has_checkpoints_written(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with served(tmp_path, "--data-dir", str(state), "--exit-when-finished", "--set=limits.exit_grace=5") as (
        address,
        process,
    ):
        empty = gemps_here("checkpoint", address)
        assert (empty.returncode, empty.stderr.count("\n")) == (FAILED, 1)
        with Client(address, worker_name="w", layout=SMALL) as client:
            into = begin(client, SMALL)
            written = Path(gemps("checkpoint", address).stdout.strip())
            assert written.resolve() == (state / "latest").resolve()
            done = gemps("finish", address, "--reason", "it is good enough")
            assert done.stdout == f"the run at {address} is finished, at version 1\n"
            with pytest.raises(RunFinishedError, match="it is good enough"):
                client.commit(payload(SMALL, 1.0), into)
        assert process.wait(PATIENCE) == 0
    assert "finished: it is good enough" in (tmp_path / "server.log").read_text(encoding="utf-8")


def test_an_operator_sees_and_ends_a_quarantine(tmp_path: Path) -> None:
    with served(tmp_path) as (address, _), ExitStack() as clients:
        workers = []
        for name in ("good", "wild"):
            client = clients.enter_context(Client(address, worker_name=name, layout=SMALL))
            workers.append((client, begin(client, SMALL)))
        (good, for_good), (wild, for_wild) = workers
        for _ in range(4):
            good.commit(payload(SMALL, 0.001), for_good)
        outcomes = [wild.commit(payload(SMALL, 1.0), for_wild) for _ in range(21)]
        assert [outcome.verdict.withheld for outcome in outcomes] == [False] * 20 + [True]
        assert re.search(r"wild: .*state quarantined", gemps("status", address).stdout)
        assert "their deltas were much larger" in gemps("status", address).stdout
        ended = gemps("readmit", "wild", address, "--reason", "repaired")
        assert ended.stdout == "the deltas of worker wild count again\n"
        again = gemps_here("readmit", "wild", address)
        assert (again.returncode, again.stderr.count("\n")) == (FAILED, 1)
        assert "quarantined" not in gemps("status", address).stdout
    assert "no longer quarantined: repaired" in (tmp_path / "server.log").read_text(encoding="utf-8")


@pytest.mark.parametrize(("metadata", "code"), [({"final": "true"}, USAGE), ({}, FAILED)])
def test_a_command_ends_with_2_when_starting_it_again_would_change_nothing(metadata: dict[str, str], code: int) -> None:
    refusal = ServerRefusedError("LAYOUT_MISMATCH", "another model", metadata=metadata)
    assert refused(refusal).code == code
