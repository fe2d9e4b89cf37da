"""The compose files are valid, the overrides included (no engine needed)."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def has_compose() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not has_compose(), reason="there is no docker compose here")


def config(*files: str, **env: str) -> dict[str, Any]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("GEMPS_", "COMPOSE_"))}
    arguments = [argument for file in files for argument in ("--file", file)]
    done = subprocess.run(
        ["docker", "compose", *arguments, "config", "--format", "json"],
        cwd=ROOT,
        env=clean | env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_workers_have_neither_a_port_of_the_host_nor_a_name_that_stands_in_the_way_of_scaling() -> None:
    worker = config("docker-compose.yml")["services"]["worker"]
    assert "ports" not in worker
    assert "container_name" not in worker
    assert worker["depends_on"]["server"]["condition"] == "service_healthy"


@pytest.mark.parametrize("override", [(), ("docker/compose.tls.yml",)])
def test_the_servers_ports_are_open_to_this_machine_only(override: tuple[str, ...]) -> None:
    for env, published in (
        ({}, [(50051, "50051"), (50052, "50052")]),
        ({"GEMPS_PORT": "6000", "GEMPS_LANE_PORT": "6001"}, [(50051, "6000"), (50052, "6001")]),
    ):
        ports = config("docker-compose.yml", *override, **env)["services"]["server"]["ports"]
        assert {port["host_ip"] for port in ports} == {"127.0.0.1"}
        assert [(port["target"], port["published"]) for port in ports] == published


def test_server_and_workers_can_be_on_different_machines_when_they_are_told_so() -> None:
    services = config("docker-compose.yml", GEMPS_ADDRESS="10.77.0.1", GEMPS_SERVER="10.77.0.1:50051")["services"]
    assert {port["host_ip"] for port in services["server"]["ports"]} == {"10.77.0.1"}
    assert services["worker"]["environment"]["GEMPS_SERVER"] == "10.77.0.1:50051"


@pytest.mark.parametrize("service", ["server", "worker"])
def test_a_crash_is_followed_by_a_restart_but_not_for_ever(service: str) -> None:
    found = config("docker-compose.yml")["services"][service]
    assert found["restart"].startswith("on-failure:")
    assert found["stop_grace_period"]


def test_the_evaluator_is_there_only_when_it_is_asked_for() -> None:
    assert "evaluator" not in config("docker-compose.yml")["services"]
    services = config("docker-compose.yml", COMPOSE_PROFILES="evaluator", GEMPS_STOP_AT_ACCURACY="0.9")["services"]
    evaluator = services["evaluator"]
    assert evaluator["environment"]["GEMPS_STOP_AT_ACCURACY"] == "0.9"
    assert evaluator["environment"]["GEMPS_KEEP_BEST"] == "/data/best"
    assert "/data" in [volume["target"] for volume in evaluator["volumes"]]


def test_a_setting_of_the_environment_arrives() -> None:
    services = config("docker-compose.yml", GEMPS_RULE_SETTINGS="kappa=2", GEMPS_COMMITS="7", GEMPS_TASK="cifar10")[
        "services"
    ]
    assert services["server"]["environment"]["GEMPS_RULE_SETTINGS"] == "kappa=2"
    assert services["server"]["environment"]["GEMPS_COMMITS"] == "7"
    assert services["worker"]["environment"]["GEMPS_TASK"] == "cifar10"
    assert services["worker"]["environment"]["GEMPS_MODEL"] is None


def test_the_gpu_override_reserves_gpus_for_the_workers_alone() -> None:
    services = config("docker-compose.yml", "docker/compose.gpu.yml")["services"]
    (device,) = services["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia"
    assert device["capabilities"] == ["gpu"]
    assert device["count"] == -1  # all
    assert services["worker"]["environment"]["GEMPS_DEVICE"] == "cuda"
    assert services["worker"]["deploy"]["replicas"] == 4
    assert "deploy" not in services["server"]


def test_the_shards_override_starts_two_servers_with_their_own_volumes() -> None:
    services = config("docker-compose.yml", "docker/compose.shards.yml", GEMPS_RULE="downpour")["services"]
    primary, secondary = services["server"], services["shard-1"]
    other = {"GEMPS_SHARD": "1/2", "GEMPS_PRIMARY": "server:50051"}
    other |= {"GEMPS_SHARED_MEMORY_SOCKET": "/run/gemps-shared/memory-1"}
    assert primary["environment"] | other == secondary["environment"]
    assert primary["environment"]["GEMPS_SHARD"] == "0/2"
    assert "ports" not in secondary
    assert [volume["source"] for volume in secondary["volumes"]] == ["shard-1", "shared"]


def test_the_script_override_mounts_the_folder_and_runs_the_file() -> None:
    files = ("docker-compose.yml", "docker/compose.script.yml")
    worker = config(*files, SCRIPT_DIR="examples", SCRIPT="custom_training.py")["services"]["worker"]
    assert worker["command"] == ["python", "/script/custom_training.py"]
    (mount,) = [volume for volume in worker["volumes"] if volume["target"] == "/script"]
    assert mount["source"] == str(ROOT / "examples")
    assert mount["read_only"]


def test_the_tls_override_gives_each_service_its_own_folder_read_only() -> None:
    services = config("docker-compose.yml", "docker/compose.tls.yml")["services"]
    assert services["server"]["environment"]["GEMPS_INSECURE"] == "false"
    for name, variable in (("server", "GEMPS_CREDENTIALS"), ("worker", "GEMPS_CLIENT_CREDENTIALS")):
        (mount,) = [volume for volume in services[name]["volumes"] if volume["type"] == "bind"]
        assert mount["source"] == str(ROOT / "certs" / name)
        assert mount["target"] == services[name]["environment"][variable]
        assert mount["read_only"]
    elsewhere = config("docker-compose.yml", "docker/compose.tls.yml", CERTS="/etc/gemps")["services"]
    assert elsewhere["worker"]["volumes"][-1]["source"] == "/etc/gemps/worker"


def test_the_tls_override_gives_the_evaluator_an_observers_folder_or_an_operators() -> None:
    files = ("docker-compose.yml", "docker/compose.tls.yml")
    for env, folder in (({}, "observer"), ({"EVALUATOR_ROLE": "operator"}, "operator")):
        evaluator = config(*files, COMPOSE_PROFILES="evaluator", **env)["services"]["evaluator"]
        (mount,) = [volume for volume in evaluator["volumes"] if volume["type"] == "bind"]
        assert mount["source"] == str(ROOT / "certs" / folder)


def test_the_dashboard_override_shows_it_to_this_machine_alone() -> None:
    server = config("docker-compose.yml", "docker/compose.dashboard.yml")["services"]["server"]
    (port,) = [one for one in server["ports"] if str(one["target"]) == "8080"]
    assert (port["host_ip"], port["published"]) == ("127.0.0.1", "8080")
    assert server["environment"]["GEMPS_DASHBOARD"] == "0.0.0.0:8080"
    moved = config("docker-compose.yml", "docker/compose.dashboard.yml", DASHBOARD_PORT="9000")["services"]["server"]
    assert "9000" in [one["published"] for one in moved["ports"]]


def test_the_script_override_says_what_is_missing() -> None:
    clean = {name: value for name, value in os.environ.items() if name not in ("SCRIPT", "SCRIPT_DIR")}
    command = [
        "docker",
        "compose",
        "--file=docker-compose.yml",
        "--file=docker/compose.script.yml",
        "config",
        "--quiet",
    ]
    done = subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True)
    assert done.returncode != 0
    assert "set SCRIPT" in done.stderr


def test_the_monitoring_override_scrapes_within_the_project_and_shows_its_pages_to_this_machine_alone() -> None:
    services = config("docker-compose.yml", "docker/compose.monitoring.yml")["services"]
    address = services["server"]["environment"]["GEMPS_DASHBOARD"]
    scraped = (ROOT / "docker/monitoring/prometheus.yml").read_text(encoding="utf-8")
    assert f"server:{address.rpartition(':')[2]}]" in scraped
    assert all(port["host_ip"] == "127.0.0.1" for service in services.values() for port in service.get("ports", ()))
    assert {port["target"] for name in ("prometheus", "grafana") for port in services[name]["ports"]} == {9090, 3000}
    for name in ("prometheus", "grafana"):
        binds = [volume for volume in services[name]["volumes"] if volume["type"] == "bind"]
        assert binds
        assert all(Path(volume["source"]).is_file() and volume["read_only"] for volume in binds)
