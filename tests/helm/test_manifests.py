"""What the chart renders fits gemps: ports, settings, paths, users, labels, credentials, exit codes."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gem_cli.commands.known import KNOWN
from gem_cli.options import variable
from gem_server.settings import ServerSettings
from gem_worker.client import ClientSettings
from gem_worker.exit_status import FINAL, FINISHED_BEFORE
from gem_worker.settings import WorkerSettings
from gem_worker.trainer import FINISHED

from .chart import CHART, ROOT, Helm, Manifest, Rendered, container_of, image_variables, pod_of, pods_of, selects
from .value_sets import LARGE, TLS, TRUSTED

SERVER_FILE, WORKER_FILE = "server.Dockerfile", "worker.Dockerfile"
ALERTS = ROOT / "docker" / "monitoring" / "alerts.yml"
CREDENTIALS = "/etc/gemps/credentials"
DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def settings_of(
    monkeypatch: pytest.MonkeyPatch, rendered: Rendered, workload: Manifest, dockerfile: str
) -> dict[str, str]:
    """Set the variables of a workload's container, and no others of gemps; return them."""
    found = image_variables(dockerfile) | rendered.variables(workload)
    for one in (*KNOWN, ClientSettings):
        for name in one.model_fields:
            monkeypatch.delenv(variable(one, name), raising=False)
    for name, value in found.items():
        if name.startswith("GEMPS_"):
            monkeypatch.setenv(name, value)
    return found


def ports(container: Manifest) -> dict[str, int]:
    return {one["name"]: one["containerPort"] for one in container["ports"]}


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def test_ports_are_those_that_the_server_listens_on(release: Rendered, monkeypatch: pytest.MonkeyPatch) -> None:
    settings_of(monkeypatch, release, release.server, SERVER_FILE)
    settings = ServerSettings()
    listens = {"grpc": port_of(settings.bind), "lane": settings.lane_port}
    if settings.dashboard:
        listens["dashboard"] = port_of(settings.dashboard)
    assert ports(container_of(release.server)) == listens
    assert settings.host == "0.0.0.0"
    for service in release.of_kind("Service"):
        for port in service["spec"]["ports"]:
            assert port["port"] == listens[port["targetPort"]], "the lane and cached addresses need the same numbers"
            if port["targetPort"] == "dashboard":
                assert settings.dashboard.startswith("0.0.0.0:"), "a Service cannot reach loopback"
    for policy in release.of_kind("NetworkPolicy"):
        for rule in policy["spec"].get("ingress", ()):
            assert {one["port"] for one in rule["ports"]} <= listens.keys()


def test_workers_connect_to_the_service_at_its_port(release: Rendered) -> None:
    host, _, port = release.variables(release.workers)["GEMPS_SERVER"].partition(":")
    service = release.one("Service", host)
    assert [selects(service["spec"]["selector"], pod) for pod in pods_of(release.server)].index(True) == 0
    assert {one["name"]: one["port"] for one in service["spec"]["ports"]} == {"grpc": int(port), "lane": 50052}


def test_dashboard_is_not_open_unless_it_is_asked_for(releases: dict[str, Rendered]) -> None:
    addresses = {name: one.variables(one.server).get("GEMPS_DASHBOARD") for name, one in releases.items()}
    assert addresses["closed"] is None
    assert addresses["elastic-observed"] == "0.0.0.0:8080"
    assert set(addresses.values()) == {None, "0.0.0.0:8080", "127.0.0.1:8080"}
    hosts = releases["elastic-observed"].variables(releases["elastic-observed"].server)["GEMPS_DASHBOARD_HOSTS"]
    assert {"run.example.org", "gemps-dashboard", "gemps-dashboard.team.svc"} <= set(hosts.split(","))


def test_every_variable_is_a_setting_with_a_valid_value(release: Rendered, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {variable(one, name) for one in (*KNOWN, ClientSettings) for name in one.model_fields}
    for workload, dockerfile, classes in (
        (release.server, SERVER_FILE, (ServerSettings,)),
        (release.workers, WORKER_FILE, (WorkerSettings, ClientSettings)),
    ):
        found = settings_of(monkeypatch, release, workload, dockerfile)
        assert {name for name in found if name.startswith("GEMPS_")} <= known
        for one in classes:
            one()


def test_settings_arrive_as_they_were_written(
    releases: dict[str, Rendered], monkeypatch: pytest.MonkeyPatch, helm: Helm
) -> None:
    large = releases["large-numbers"]
    settings_of(monkeypatch, large, large.server, SERVER_FILE)
    settings = ServerSettings()
    assert (settings.commits, settings.memory_limit, settings.seed) == (LARGE, LARGE, 7_000_000)
    assert (settings.eta, settings.epochs) == (0.00001, 2.5)
    settings_of(monkeypatch, large, large.workers, WORKER_FILE)
    assert (WorkerSettings().batch_size, ClientSettings().connect_timeout) == (1_000_000, 1_500_000)

    left_out = releases["without-defaults"]
    assert "GEMPS_COMMITS" not in left_out.variables(left_out.server)
    assert left_out.variables(left_out.server)["GEMPS_REFLECTION"] == "false"
    assert left_out.variables(left_out.workers).keys().isdisjoint({"GEMPS_TASK", "OMP_NUM_THREADS"})


def test_defaults_are_those_of_compose() -> None:
    compose = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    values = (CHART / "values.yaml").read_text(encoding="utf-8")
    for name in ("commits", "checkpoint_interval"):
        (given,) = re.findall(rf"^    {name}: (\S+)$", values, re.MULTILINE)
        assert f"GEMPS_{name.upper()}: ${{GEMPS_{name.upper()}:-{given}}}" in compose
    for image in re.findall(r"^  image: (\S+)", values, re.MULTILINE):
        assert f"_IMAGE:-{image}}}" in compose


def test_images_are_what_the_chart_counts_on(release: Rendered) -> None:
    container = container_of(release.server)
    probes = [container[f"{name}Probe"]["exec"]["command"] for name in ("startup", "readiness", "liveness")]
    assert probes == [["gemps-healthy"]] * 3
    dockerfile = (ROOT / "docker" / SERVER_FILE).read_text(encoding="utf-8")
    assert "COPY docker/healthy.sh /usr/local/bin/gemps-healthy" in dockerfile
    assert "command" not in container, "the image's entry point passes signals on"
    assert "command" not in container_of(release.workers)
    assert 'ENTRYPOINT ["dumb-init", "--"]' in dockerfile
    if release.server["spec"]["replicas"] == 1:
        assert "args" not in container
    assert 'CMD ["gemps", "serve"]' in dockerfile
    for workload, file in ((release.server, SERVER_FILE), (release.workers, WORKER_FILE)):
        (user,) = re.findall(r"^USER (\d+):\d+$", (ROOT / "docker" / file).read_text(encoding="utf-8"), re.MULTILINE)
        assert pod_of(workload)["spec"]["securityContext"].get("runAsUser", int(user)) == int(user)


def test_the_probes_command_checks_the_ready_file(tmp_path: Path) -> None:
    command = [ROOT / "docker" / "healthy.sh"]
    environment = {"PATH": "/usr/bin:/bin", "GEMPS_READY_FILE": str(tmp_path / "ready.json")}
    assert subprocess.run(command, env=environment).returncode != 0
    (tmp_path / "ready.json").touch()
    assert subprocess.run(command, env=environment).returncode == 0


def written_paths(dockerfile: str, variables: dict[str, str]) -> set[Path]:
    """What a container may write to: folders that settings name, its user's home, where it starts, and /tmp."""
    text = (ROOT / "docker" / dockerfile).read_text(encoding="utf-8")
    homes = re.findall(r"--home-dir (\S+)", text) + re.findall(r"^WORKDIR (\S+)$", text, re.MULTILINE)
    found = {Path(value) for name, value in variables.items() if value.startswith("/") and name != "PATH"}
    files = {one for one in found if one.suffix}
    read_only = {Path(CREDENTIALS)}
    return {*map(Path, homes), Path("/tmp"), *(found - files), *(one.parent for one in files)} - read_only


def test_the_root_is_read_only_and_what_is_written_is_on_a_volume(release: Rendered) -> None:
    for workload, dockerfile in ((release.server, SERVER_FILE), (release.workers, WORKER_FILE)):
        container, pod = container_of(workload), pod_of(workload)["spec"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        claims = [one["metadata"]["name"] for one in workload["spec"].get("volumeClaimTemplates", ())]
        volumes = [one["name"] for one in pod["volumes"]] + claims
        mounts = container["volumeMounts"]
        assert sorted(one["name"] for one in mounts) == sorted(volumes)
        assert len({one["mountPath"] for one in mounts}) == len(mounts)
        writable = {Path(one["mountPath"]) for one in mounts if not one.get("readOnly")}
        variables = image_variables(dockerfile) | release.variables(workload)
        for path in written_paths(dockerfile, variables):
            mounted = {path, *path.parents} & writable
            is_data = path == Path("/datasets") and any(one.get("readOnly") for one in mounts)
            assert mounted or is_data, f"{path} is on no volume"
    (data,) = [one for one in container_of(release.server)["volumeMounts"] if one["mountPath"] == "/data"]
    (claim,) = release.server["spec"]["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == data["name"], "checkpoints outlive the pod"
    assert image_variables(SERVER_FILE)["GEMPS_DATA_DIR"] == data["mountPath"]


def test_pods_keep_to_the_restricted_standard(release: Rendered) -> None:
    for workload in (release.server, release.workers):
        pod, container = pod_of(workload)["spec"], container_of(workload)
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert pod["automountServiceAccountToken"] is False
        assert not any("hostPath" in one for one in pod["volumes"])
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()


def test_no_variable_of_a_service_can_look_like_a_setting(release: Rendered) -> None:
    """A Service named gemps gives GEMPS_PORT, one named gemps-server GEMPS_SERVER_PORT."""
    assert pod_of(release.server)["spec"]["enableServiceLinks"] is False
    assert pod_of(release.workers)["spec"]["enableServiceLinks"] is False


def selectors(rendered: Rendered) -> Iterator[tuple[str, dict[str, str]]]:
    """(component that it is for, labels) of everything that selects pods."""
    for one in rendered.of_kind("StatefulSet", "Deployment"):
        yield one["metadata"]["name"].rpartition("-")[2], one["spec"]["selector"]["matchLabels"]
    for one in rendered.of_kind("Service"):
        yield "server", one["spec"]["selector"]
    for one in rendered.of_kind("PodDisruptionBudget"):
        yield one["metadata"]["name"].rpartition("-")[2], one["spec"]["selector"]["matchLabels"]
    for one in rendered.of_kind("NetworkPolicy"):
        yield one["metadata"]["name"].rpartition("-")[2], one["spec"]["podSelector"]["matchLabels"]
        for rule in one["spec"].get("ingress", ())[:1]:
            yield "worker", rule["from"][0]["podSelector"]["matchLabels"]
    for component, workload in (("server", rendered.server), ("worker", rendered.workers)):
        for one in pod_of(workload)["spec"].get("topologySpreadConstraints", ()):
            yield component, one["labelSelector"]["matchLabels"]


def test_selectors_find_the_pods_that_they_are_for_and_no_others(release: Rendered) -> None:
    pods = {"server": pods_of(release.server), "worker": pods_of(release.workers)}
    found = list(selectors(release))
    assert found
    for component, labels in found:
        assert [name for name, alike in pods.items() if any(selects(labels, pod) for pod in alike)] == [component]


def test_prometheus_finds_the_service_of_the_dashboard(releases: dict[str, Rendered]) -> None:
    monitor = releases["watched"].one("ServiceMonitor")
    labels = monitor["spec"]["selector"]["matchLabels"]
    (service,) = [one for one in releases["watched"].of_kind("Service") if selects(labels, one)]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    job = service["metadata"]["labels"][monitor["spec"]["jobLabel"]]
    assert f'up{{job="{job}"}}' in ALERTS.read_text(encoding="utf-8")


def test_prometheus_gets_the_alerts_of_the_repository(helm: Helm, releases: dict[str, Rendered]) -> None:
    given = releases["watched"].one("PrometheusRule")
    assert given["metadata"]["labels"]["release"] == "prometheus"
    (rules,) = helm.read(ALERTS.read_text(encoding="utf-8")).manifests
    assert given["spec"] == rules
    assert not releases["trusted"].of_kind("PrometheusRule")


def test_grafana_gets_the_dashboard_of_the_repository(releases: dict[str, Rendered]) -> None:
    given = releases["watched"].one("ConfigMap", "gemps-grafana")
    assert given["metadata"]["labels"]["grafana_dashboard"] == "1"
    dashboard = ROOT / "docker" / "monitoring" / "grafana" / "gemps.json"
    assert given["data"]["gemps.json"] == dashboard.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `gemps certs` makes."""
    folder = tmp_path_factory.mktemp("certs") / "certs"
    subprocess.run([sys.executable, "-m", "gem_cli", "certs", folder, "--name", "gemps"], check=True)
    return folder


@pytest.mark.parametrize("role", ["server", "worker"])
def test_secrets_hold_the_files_that_gemps_reads(
    helm: Helm, releases: dict[str, Rendered], certs: Path, role: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = ("create", "secret", "generic", f"gemps-{role}", f"--from-file={certs / role}")
    existing = helm.read(helm.run("kubectl", *command, "--dry-run=client", "--output=yaml").stdout).one("Secret")
    made = releases["tls-in-values"].one("Secret", f"gemps-{role}-credentials")
    assert existing["data"].keys() == made["data"].keys() == {one.name for one in (certs / role).iterdir()}

    for name, secret in (("tls", f"gemps-{role}"), ("tls-in-values", f"gemps-{role}-credentials")):
        workload = releases[name].server if role == "server" else releases[name].workers
        (volume,) = [one["name"] for one in pod_of(workload)["spec"]["volumes"]
                     if one.get("secret", {}).get("secretName") == secret]  # fmt: skip
        (mount,) = [one for one in container_of(workload)["volumeMounts"] if one["name"] == volume]
        assert (mount["mountPath"], mount["readOnly"]) == (CREDENTIALS, True)
        settings_of(monkeypatch, releases[name], workload, SERVER_FILE if role == "server" else WORKER_FILE)
        setting = "GEMPS_CREDENTIALS" if role == "server" else "GEMPS_CLIENT_CREDENTIALS"
        assert image_variables(SERVER_FILE).get(setting, releases[name].variables(workload)[setting]) == CREDENTIALS

    # As mounted, in another folder.
    for key in existing["data"]:
        (tmp_path / key).touch()
    monkeypatch.setenv(setting, str(tmp_path))
    if role == "server":
        server = ServerSettings()
        used = {server.tls.cert, server.tls.key, server.tls.client_ca, server.tls.tokens}
    else:
        client = ClientSettings()
        used = {Path(client.tls_ca), client.tls_cert, client.tls_key, client.token_file}
    assert used == {tmp_path / key for key in existing["data"]}


def test_group_of_the_pods_can_read_the_credentials(releases: dict[str, Rendered]) -> None:
    for workload in (releases["tls"].server, releases["tls"].workers):
        spec = pod_of(workload)["spec"]
        (secret,) = [one["secret"] for one in spec["volumes"] if "secret" in one]
        assert secret["defaultMode"] == 0o440
        assert spec["securityContext"]["fsGroup"] == spec["securityContext"]["runAsGroup"]


def test_a_replaced_worker_of_a_job_keeps_its_name(releases: dict[str, Rendered]) -> None:
    job = releases["tls"].workers
    names = [one["name"] for one in container_of(job)["env"]]
    given = releases["tls"].variables(job)["GEMPS_WORKER_NAME"]
    assert given == "gemps-worker-$(JOB_COMPLETION_INDEX)"
    assert names.index("JOB_COMPLETION_INDEX") < names.index("GEMPS_WORKER_NAME"), "only earlier ones are put in"
    (index,) = [one for one in container_of(job)["env"] if one["name"] == "JOB_COMPLETION_INDEX"]
    path = index["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def test_a_job_gives_up_only_where_another_attempt_is_useless(releases: dict[str, Rendered]) -> None:
    job = releases["late-workers"].workers["spec"]
    assert job["completionMode"] == "Indexed"
    assert job["completions"] == job["parallelism"] == 16
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    failures = {one["action"]: one for one in job["podFailurePolicy"]["rules"]}
    codes = failures["FailJob"]["onExitCodes"]
    assert (codes["operator"], codes["values"]) == ("In", [FINAL, FINISHED_BEFORE])
    assert codes["containerName"] == container_of(releases["late-workers"].workers)["name"]
    assert failures["Ignore"]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert FINISHED == 0
    assert job["backoffLimitPerIndex"] == 0
    assert job["successPolicy"] == {"rules": [{"succeededCount": 12}]}
    assert "successPolicy" not in releases["tls"].workers["spec"], "a script may save its model after others ended"


def test_elastic_workers_can_be_scaled(releases: dict[str, Rendered]) -> None:
    workers = releases["elastic"].workers
    assert (workers["kind"], workers["spec"]["replicas"]) == ("Deployment", 8)
    assert pod_of(workers)["spec"]["restartPolicy"] == "Always"
    (name,) = [one for one in container_of(workers)["env"] if one["name"] == "GEMPS_WORKER_NAME"]
    assert name["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}


def test_own_image_and_command_get_what_they_need(releases: dict[str, Rendered]) -> None:
    container = container_of(releases["own-script"].workers)
    assert container["image"] == "registry.example.org:5000/team/train:1.2@sha256:0123abcd"
    assert container["args"] == ["python", "/script/train.py", "--rate=0.1"]
    assert {"secretRef": {"name": "wandb"}} in container["envFrom"]
    variables = releases["own-script"].variables(releases["own-script"].workers)
    assert (variables["HOME"], variables["USER"], variables["OMP_NUM_THREADS"]) == ("/tmp", "gemps", "4")
    assert variables["GEMPS_WORKERS"] == "4"


def test_gpus_and_places_reach_the_pods(releases: dict[str, Rendered]) -> None:
    spec = pod_of(releases["gpus"].workers)["spec"]
    resources: dict[str, Any] = container_of(releases["gpus"].workers)["resources"]
    assert resources["limits"] == {"nvidia.com/gpu": 1, "memory": "32Gi"}
    assert resources["requests"]["cpu"] == 4
    assert spec["nodeSelector"] == {"nvidia.com/gpu.product": "H100"}
    assert spec["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert "limits" not in container_of(releases["gpus"].server)["resources"]
    assert container_of(releases["other-gpus"].workers)["resources"]["limits"] == {"amd.com/gpu": 2}


def test_names_fit_also_for_the_longest_release(helm: Helm) -> None:
    values = TRUSTED | {"dashboard": {"service": True}, "workers": {"replicas": 1024}}
    found = helm.template(values, release="a" * 52 + "z")
    hosts = [f"{found.workers['metadata']['name']}-1023", f"{found.server['metadata']['name']}-255"]
    for name in [*hosts, *(one["metadata"]["name"] for one in found.manifests)]:
        assert DNS_LABEL.fullmatch(name), name
    with_dot = helm.template(TLS, release="run.v2")
    assert DNS_LABEL.fullmatch(with_dot.variables(with_dot.workers)["GEMPS_SERVER"].partition(":")[0])


def test_two_releases_share_no_name_and_no_pod(helm: Helm, releases: dict[str, Rendered]) -> None:
    other = helm.template(TLS, release="second")
    ours = {(one["kind"], one["metadata"]["name"]) for one in releases["tls"].manifests}
    assert ours.isdisjoint({(one["kind"], one["metadata"]["name"]) for one in other.manifests})
    assert not any(selects(labels, pod) for pod in pods_of(other.server) for _, labels in selectors(releases["tls"]))


def test_version_is_that_of_the_project() -> None:
    chart = (CHART / "Chart.yaml").read_text(encoding="utf-8")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert re.findall(r"^(?:version|appVersion): (\S+)", chart, re.MULTILINE) == [version, version]
