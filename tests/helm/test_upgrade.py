"""An upgrade or rollback changes nothing that Kubernetes does not let change, and keeps the volume."""

from pathlib import Path
from typing import Any

import pytest

from .chart import CHART, Helm, Rendered, pod_of
from .value_sets import TLS, TRUSTED, VALUE_SETS

# Of a StatefulSet's spec; the API server refuses changes of all others.
MUTABLE = {
    "replicas", "template", "updateStrategy", "persistentVolumeClaimRetentionPolicy", "minReadySeconds", "ordinals",
}  # fmt: skip


def fixed(rendered: Rendered) -> dict[str, Any]:
    return {name: value for name, value in rendered.server["spec"].items() if name not in MUTABLE}


@pytest.fixture(scope="module")
def next_version(helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart with another version."""
    folder = tmp_path_factory.mktemp("package")
    helm.checked("package", CHART, "--version", "9.8.7", "--app-version", "9.8.7", "--destination", folder)
    return folder / "gemps-9.8.7.tgz"


def test_volume_and_selectors_stay_over_every_change_of_values(releases: dict[str, Rendered]) -> None:
    shards = {name for name, one in releases.items() if one.server["spec"]["replicas"] > 1}
    everywhere = [fixed(one) for name, one in releases.items() if name not in {"storage", *shards}]
    assert all(one == everywhere[0] for one in everywhere)
    of_shards = [fixed(releases[name]) for name in shards]
    assert all(one == of_shards[0] for one in of_shards)
    assert of_shards[0] != everywhere[0], "Kubernetes must refuse shards on the volume of one server"
    assert {"volumeClaimTemplates", "selector", "serviceName"} <= everywhere[0].keys()
    deployments = [one.workers for one in releases.values() if one.workers["kind"] == "Deployment"]
    assert len({str(one["spec"]["selector"]) for one in deployments}) == 1
    assert len({one["metadata"]["name"] for one in deployments}) == 1


def test_volume_stays_when_the_release_is_removed(release: Rendered) -> None:
    policy = release.server["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert policy == {"whenDeleted": "Retain", "whenScaled": "Retain"}


@pytest.mark.parametrize("name", ["tls", "elastic", "storage", "shards"])
def test_another_version_of_the_chart_keeps_volume_selectors_and_job(
    helm: Helm, releases: dict[str, Rendered], next_version: Path, name: str
) -> None:
    before, after = releases[name], helm.template(VALUE_SETS[name], chart=next_version)
    assert after.server["metadata"]["labels"]["helm.sh/chart"] == "gemps-9.8.7"
    assert fixed(after) == fixed(before)
    assert pod_of(after.server) == pod_of(before.server), "nothing restarts for a number"
    assert after.workers["metadata"]["name"] == before.workers["metadata"]["name"]
    assert after.workers["spec"] == before.workers["spec"]


def test_packaged_chart_has_the_linked_file(helm: Helm, releases: dict[str, Rendered], next_version: Path) -> None:
    packaged = helm.template(VALUE_SETS["watched"], chart=next_version)
    grafana = [one.one("ConfigMap", "gemps-grafana")["data"] for one in (packaged, releases["watched"])]
    assert grafana[0] == grafana[1]


@pytest.mark.parametrize(
    ("change", "restarts_server", "replaces_job"),
    [
        ({"server": {"settings": {"commits": 40000}}}, True, True),
        ({"server": {"resources": {"requests": {"memory": "4Gi"}}}}, True, False),
        ({"server": {"serviceType": "LoadBalancer"}}, False, False),
        ({"workers": {"replicas": 5}}, False, True),
        ({"workers": {"settings": {"model": "cnn"}}}, False, True),
        ({"workers": {"image": "train:2"}}, False, True),
        ({"networkPolicy": {"enabled": True}}, False, False),
    ],
)  # fmt: skip
def test_a_job_is_replaced_when_it_or_the_run_changes(
    helm: Helm, releases: dict[str, Rendered], change: dict[str, Any], restarts_server: bool, replaces_job: bool
) -> None:
    before, after = releases["tls"], helm.template(TLS | change)
    assert (pod_of(after.server) != pod_of(before.server)) is restarts_server
    names = [one.workers["metadata"]["name"] for one in (before, after)]
    assert (names[0] != names[1]) is replaces_job
    assert (before.workers["spec"] != after.workers["spec"]) is replaces_job, "a Job of this name cannot be changed"


def test_every_difference_of_a_jobs_spec_gives_it_another_name(releases: dict[str, Rendered]) -> None:
    jobs = [one.workers for one in releases.values() if one.workers["kind"] == "Job"]
    specs = {str(one["spec"]): one["metadata"]["name"] for one in jobs}
    assert len(set(specs.values())) == len(specs)


def test_rendering_is_repeatable(helm: Helm, releases: dict[str, Rendered]) -> None:
    assert helm.template(TRUSTED).manifests == releases["trusted"].manifests
