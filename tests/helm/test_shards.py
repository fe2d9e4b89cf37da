"""Several servers: their command, addresses, certificates, credentials and what may reach them."""

import subprocess
from pathlib import Path

import pytest

from tests.docs import command_line

from .chart import NAMESPACE, Manifest, Rendered, container_of, image_variables, pod_of, pods_of, selects
from .pods import address

OPERATOR = "/etc/gemps/operator"


@pytest.fixture
def shards(releases: dict[str, Rendered]) -> Rendered:
    """Three, with TLS."""
    return releases["shards"]


def started(release: Rendered, folder: Path) -> list[list[str]]:
    """What each pod's command starts, as a program named gemps sees it."""
    program = folder / "gemps"
    program.write_text('#!/bin/sh\nfor word; do printf "%s\\n" "$word"; done\n', encoding="utf-8")
    program.chmod(0o755)
    found = []
    for pod in pods_of(release.server):
        environment = {"PATH": f"{folder}:/usr/bin:/bin", "HOSTNAME": pod["metadata"]["name"]}
        done = subprocess.run(
            container_of(release.server)["args"], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        found.append(done.stdout.splitlines())
    return found


def headless(release: Rendered) -> Manifest:
    return release.one("Service", release.server["spec"]["serviceName"])


def test_each_pod_starts_its_shard_and_names_pod_0_as_primary(shards: Rendered, tmp_path: Path) -> None:
    names = [f"{address(headless(shards), pod['metadata']['name'])}:50051" for pod in pods_of(shards.server)]
    assert names[1] == f"gemps-server-1.gemps-server.{NAMESPACE}.svc:50051"
    assert started(shards, tmp_path) == [
        ["serve", "--shard", "0/3"],
        *(
            ["serve", "--shard", f"{index}/3", "--primary", names[0], "--shard-address", names[index],
             "--primary-credentials", OPERATOR]
            for index in (1, 2)
        ),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "secret"),
    [("shards", "gemps-operator"), ("shards-in-values", "gemps-operator-credentials"), ("trusted-shards", None)],
)
def test_gemps_takes_the_command_with_the_variables_of_the_pod(
    releases: dict[str, Rendered], name: str, secret: str | None, tmp_path: Path
) -> None:
    release = releases[name]
    variables = image_variables("server.Dockerfile") | release.variables(release.server)
    of_gemps = {name: value for name, value in variables.items() if name.startswith("GEMPS_")}
    found = started(release, tmp_path)
    assert len(found) == release.server["spec"]["replicas"]
    for words in found:
        assert command_line.objection(words, of_gemps) == ""
        assert ("--primary-credentials" in words) is (secret is not None and words[2][0] != "0")
    volumes = {
        one["name"]: one.get("secret", {}).get("secretName") for one in pod_of(release.server)["spec"]["volumes"]
    }
    mounted = {one["mountPath"]: volumes.get(one["name"]) for one in container_of(release.server)["volumeMounts"]}
    assert mounted.get(OPERATOR) == secret
    if name == "shards-in-values":
        made = release.one("Secret", secret or "")
        assert made["data"].keys() == {"ca.crt", "client.crt", "client.key", "token"}


def test_workers_and_viewers_reach_the_first_server_and_servers_each_other_before_they_are_ready(
    shards: Rendered,
) -> None:
    pods = pods_of(shards.server)
    reached = {
        service["metadata"]["name"]: [selects(service["spec"]["selector"], pod) for pod in pods]
        for service in shards.of_kind("Service")
    }
    first, every = [True, False, False], [True, True, True]
    assert reached == {
        "gemps": first, "gemps-dashboard": first, "gemps-server": every
    }  # fmt: skip
    assert headless(shards)["spec"]["publishNotReadyAddresses"] is True
    assert headless(shards)["spec"]["clusterIP"] == "None"


def test_a_drain_waits_for_every_server_and_an_upgrade_for_none(shards: Rendered) -> None:
    budget = shards.one("PodDisruptionBudget", "gemps-server")["spec"]
    assert budget["minAvailable"] == shards.server["spec"]["replicas"] == 3
    assert shards.server["spec"]["podManagementPolicy"] == "Parallel"
    strategy = shards.server["spec"]["updateStrategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}}


def test_the_network_policy_lets_servers_and_workers_in_and_servers_out_to_servers_and_dns(shards: Rendered) -> None:
    policy = shards.one("NetworkPolicy", "gemps-server")["spec"]
    server, worker = pod_of(shards.server), pod_of(shards.workers)
    peers = [one["podSelector"]["matchLabels"] for one in policy["ingress"][0]["from"]]
    assert all(any(selects(labels, pod) for labels in peers) for pod in (server, worker))
    to_servers, to_dns = policy["egress"]
    (peer,) = to_servers["to"]
    assert selects(peer["podSelector"]["matchLabels"], server)
    assert not selects(peer["podSelector"]["matchLabels"], worker)
    assert to_servers["ports"] == [{"port": 50051}]
    assert {(one["port"], one.get("protocol", "TCP")) for one in to_dns["ports"]} >= {(53, "UDP"), (53, "TCP")}
