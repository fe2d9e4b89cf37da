"""The chart with many values: linted, rendered, validated; wrong ones are refused with the reason."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .chart import CHART, VERSIONS, Helm, Rendered
from .value_sets import SHARDS, TLS, TRUSTED, VALUE_SETS


@pytest.mark.parametrize("name", VALUE_SETS)
def test_linter_finds_nothing(helm: Helm, name: str) -> None:
    checked = helm.checked("lint", "--strict", CHART, "--values", helm.values(VALUE_SETS[name]))
    assert "0 chart(s) failed" in checked


def test_manifests_are_valid_for_every_version(release: Rendered) -> None:
    assert release.wrong == []
    assert {"StatefulSet", "Service", "ConfigMap"} <= {one["kind"] for one in release.manifests}


def test_validation_finds_a_misspelt_field_and_a_wrong_type(helm: Helm) -> None:
    text = helm.checked("template", "gemps", CHART, "--values", helm.values(TRUSTED))
    for right, wrong in (("podManagementPolicy", "podManagmentPolicy"), ("replicas: 1", "replicas: one")):
        assert len(helm.read(text.replace(right, wrong), VERSIONS).wrong) == len(VERSIONS)


def test_an_older_cluster_is_refused(helm: Helm) -> None:
    arguments = ("template", "gemps", CHART, "--values", helm.values(TRUSTED), "--kube-version")
    assert "incompatible with Kubernetes" in helm.run("helm", *arguments, "1.30.9").stderr
    helm.checked(*arguments, VERSIONS[0])


def with_server(**values: Any) -> dict[str, Any]:
    return TRUSTED | {"server": values}


def with_workers(**values: Any) -> dict[str, Any]:
    return TRUSTED | {"workers": values}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "credentials.server.existingSecret (docs/kubernetes.md), or set insecure: true"),
        (TLS | TRUSTED, "insecure: true contradicts credentials.server"),
        ({"credentials": {"server": {"existingSecret": "a"}}}, "credentials.worker: workers need a Secret"),
        (TRUSTED | {"credentials": {"worker": {"existingSecret": "a"}}}, "credentials.worker needs credentials.server"),
        ({"credentials": {"server": {"existingSecret": "a", "files": {"tokens": "b"}}}}, "not both"),
        ({"credentials": {"server": {"files": {"tls.crt": "a"}}}}, "additional properties 'tls.crt' not allowed"),
        ({"credentials": {"server": {"existingSecret": "Not_A_Name"}}}, "'Not_A_Name' does not match pattern"),
        (TRUSTED | {"worker": {"replicas": 2}}, "additional properties 'worker' not allowed"),
        (TRUSTED | {"user": 0}, "at '/user': minimum: got 0, want 1"),
        (TRUSTED | {"imagePullPolicy": "Sometimes"}, "at '/imagePullPolicy': value must be one of"),
        (with_server(replicas=2), "additional properties 'replicas' not allowed"),
        (with_server(image=""), "at '/server/image': '' does not match pattern"),
        (with_server(settings={"eta": 0}), "at '/server/settings/eta': exclusiveMinimum: got 0, want 0"),
        (with_server(settings={"eta": "fast"}), "at '/server/settings/eta': got string, want"),
        (with_server(settings={"durability": "commits"}), "at '/server/settings/durability': value must be one of"),
        (with_server(settings={"steps": 1.5}), "at '/server/settings/steps': got number, want"),
        (with_server(settings={"learning_rate": 1}), "additional properties 'learning_rate' not allowed"),
        (with_server(settings={"bind": "0.0.0.0:1"}), "additional properties 'bind' not allowed"),
        (with_server(storage={"size": "10GB"}), "at '/server/storage/size': '10GB' does not match pattern"),
        (with_server(shards=0), "at '/server/shards': minimum: got 0, want 1"),
        (with_server(shards=257), "at '/server/shards': maximum: got 257, want 256"),
        (with_server(settings={"shard": "0/2"}), "additional properties 'shard' not allowed"),
        (TLS | {"server": {"shards": 2}}, "credentials.operator: with server.shards the servers need"),
        (SHARDS | {"server": {}}, "credentials.operator is for server.shards"),
        (SHARDS | {"server": {"shards": 2, "settings": {"record": "/data/trace"}}}, "server.settings.record is for"),
        (SHARDS | {"server": {"shards": 2, "serviceType": "LoadBalancer"}}, "server.serviceType: workers outside"),
        (with_server(serviceType="NodePort"), "at '/server/serviceType': value must be one of"),
        (with_server(resources={"request": {}}), "additional properties 'request' not allowed"),
        (with_server(tolerations=[{"keys": "a"}]), "additional properties 'keys' not allowed"),
        (with_workers(replicas="four"), "at '/workers/replicas': got string, want integer"),
        (with_workers(replicas=-1), "at '/workers/replicas': minimum: got -1, want 0"),
        (with_workers(elastic="yes"), "at '/workers/elastic': got string, want boolean"),
        (with_workers(command="python train.py"), "at '/workers/command': got string, want array"),
        (with_workers(settings={"task": "digit"}), "at '/workers/settings/task': value must be one of"),
        (with_workers(settings={"eta": 0.1}), "additional properties 'eta' not allowed"),
        (with_workers(env={"GEMPS_TASK": "text"}), "workers.env.GEMPS_TASK: write it into workers.settings as task"),
        (with_workers(gpus="all"), "at '/workers/gpus': got string, want integer"),
        (with_workers(gpuResource="gpu"), "at '/workers/gpuResource': 'gpu' does not match pattern"),
        (with_workers(succeededCount=5), "workers.succeededCount 5 is more than workers.replicas 4"),
        (with_workers(succeededCount=1, elastic=True), "workers.succeededCount is for a Job"),
        (with_workers(minAvailable=4), "workers.minAvailable: nodes could never be drained"),
        (with_workers(topologySpreadConstraints=[{"maxSkew": 1}]), "missing properties 'topologyKey'"),
        (TRUSTED | {"metrics": {"serviceMonitor": {"enabled": True}}}, "needs dashboard.service: true"),
        (TRUSTED | {"metrics": {"prometheusRule": {"enabled": True}}}, "needs metrics.serviceMonitor.enabled: true"),
        (TRUSTED | {"metrics": {"prometheusRule": {"rules": []}}}, "additional properties 'rules' not allowed"),
        (TRUSTED | {"dashboard": {"enabled": False, "service": True}}, "needs dashboard.enabled: true"),
        (TRUSTED | {"dashboard": {"hosts": ["http://a"]}}, "at '/dashboard/hosts/0': 'http://a' does not match"),
        (
            TRUSTED | {"networkPolicy": {"enabled": True}, "dashboard": {"service": True}},
            "networkPolicy.viewers: nothing could reach",
        ),
        (
            with_server(serviceType="LoadBalancer") | {"networkPolicy": {"enabled": True}},
            "networkPolicy.clients: nothing could come through",
        ),
        (TRUSTED | {"networkPolicy": {"viewers": ["all"]}}, "at '/networkPolicy/viewers/0': got string, want object"),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_with_the_reason(helm: Helm, values: dict[str, Any], said: str) -> None:
    assert said in helm.refusal(values)


def test_a_release_whose_name_no_service_can_have_is_refused(helm: Helm) -> None:
    assert "begins with a letter" in helm.refusal(TRUSTED, release="1st-run")


def test_schema_has_the_settings_of_today(tmp_path: Path) -> None:
    fresh = tmp_path / "schema.json"
    generator = CHART.parent / "generate_schema.py"
    subprocess.run([sys.executable, generator, "--out", fresh], check=True)
    written = (CHART / "values.schema.json").read_text(encoding="utf-8")
    assert json.loads(fresh.read_text(encoding="utf-8")) == json.loads(written), "run `make settings`"
