"""The chart, rendered by the real helm, and what is in it."""

import json
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "gemps"
NAMESPACE = "team"
VERSIONS = tuple(f"1.{minor}" for minor in range(31, 38))
Manifest = dict[str, Any]
# Without one, kubectl asks port 8080 of this machine, which other programs may use.
NO_CLUSTER = {
    "current-context": "none",
    "contexts": [{"name": "none", "context": {"cluster": "none"}}],
    "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:1"}}],
}


@dataclass(frozen=True)
class Rendered:
    """Manifests of a release."""

    manifests: list[Manifest]
    wrong: list[str]  # what Kubernetes' schemas object to

    def of_kind(self, *kinds: str) -> list[Manifest]:
        return [one for one in self.manifests if one["kind"] in kinds]

    def one(self, kind: str, name: str = "") -> Manifest:
        (found,) = [one for one in self.of_kind(kind) if name in ("", one["metadata"]["name"])]
        return found

    @property
    def server(self) -> Manifest:
        return self.one("StatefulSet")

    @property
    def workers(self) -> Manifest:
        (found,) = self.of_kind("Job", "Deployment")
        return found

    def variables(self, workload: Manifest) -> dict[str, str]:
        """Variables that the chart sets in the workload's container; those of the cluster as they are written."""
        container = container_of(workload)
        found: dict[str, str] = {}
        for source in container["envFrom"]:
            if "configMapRef" in source:
                found |= self.one("ConfigMap", source["configMapRef"]["name"])["data"]
        assert len({one["name"] for one in container.get("env", ())}) == len(container.get("env", ()))
        return found | {one["name"]: one.get("value", "") for one in container.get("env", ())}


def pod_of(workload: Manifest) -> Manifest:
    found: Manifest = workload["spec"]["template"]
    return found


def pods_of(workload: Manifest) -> list[Manifest]:
    """Its pods, with the labels that they have in a cluster; of a Job or Deployment, whose pods are alike, one."""
    pod = pod_of(workload)
    if workload["kind"] != "StatefulSet":
        return [pod]
    names = [f"{workload['metadata']['name']}-{index}" for index in range(workload["spec"]["replicas"])]
    labels = pod["metadata"]["labels"]
    return [
        pod | {"metadata": {"name": name, "labels": labels | {"statefulset.kubernetes.io/pod-name": name}}}
        for name in names
    ]


def container_of(workload: Manifest) -> Manifest:
    (found,) = pod_of(workload)["spec"]["containers"]
    return dict(found)


def image_variables(dockerfile: str) -> dict[str, str]:
    """What ENV of a file in docker/ sets, joined over its lines."""
    text = (ROOT / "docker" / dockerfile).read_text(encoding="utf-8").replace("\\\n", " ")
    return dict(word.split("=", 1) for line in re.findall(r"^ENV (.*)$", text, re.MULTILINE) for word in line.split())


class Helm:
    """helm, kubectl and the reader of manifests, in the environment that `make test` makes."""

    def __init__(self, environment: Path, folder: Path) -> None:
        self._bin = environment / "bin"
        self._folder = folder
        self._number = 0
        self._no_cluster = folder / "no-cluster.json"
        self._no_cluster.write_text(json.dumps(NO_CLUSTER), encoding="utf-8")
        self._reader = subprocess.Popen(
            [self._bin / "python", Path(__file__).with_name("manifest_reader.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        assert self._reader.stdin is not None
        self._reader.stdin.close()
        assert self._reader.wait(60) == 0

    def run(self, tool: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run helm or kubectl, which find no cluster."""
        environment = {"HOME": str(self._folder), "PATH": "/usr/bin:/bin", "KUBECONFIG": str(self._no_cluster)}
        return subprocess.run(
            [self._bin / tool, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
        )

    def values(self, values: Mapping[str, Any]) -> str:
        """A file with these values."""
        self._number += 1
        path = self._folder / f"values-{self._number}.json"
        path.write_text(json.dumps(values), encoding="utf-8")
        return str(path)

    def refusal(self, values: Mapping[str, Any], *, release: str = "gemps") -> str:
        """What helm says to values that it does not take."""
        done = self.run("helm", "template", release, CHART, "--values", self.values(values))
        assert done.returncode == 1, done.stdout
        return done.stderr

    def template(
        self,
        values: Mapping[str, Any],
        *,
        release: str = "gemps",
        chart: Path = CHART,
        versions: Iterable[str] = (VERSIONS[-1],),
    ) -> Rendered:
        text = self.checked("template", release, chart, "--namespace", NAMESPACE, "--values", self.values(values))
        return self.read(text, versions)

    def notes(self, values: Mapping[str, Any], *, release: str = "gemps") -> str:
        arguments = ("--namespace", NAMESPACE, "--dry-run=client", "--values", self.values(values))
        return self.checked("install", release, CHART, *arguments).partition("\nNOTES:\n")[2]

    def checked(self, *arguments: str | Path) -> str:
        done = self.run("helm", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def read(self, text: str, versions: Iterable[str] = ()) -> Rendered:
        assert self._reader.stdin is not None
        assert self._reader.stdout is not None
        print(json.dumps({"text": text, "versions": list(versions)}), file=self._reader.stdin, flush=True)
        return Rendered(**json.loads(self._reader.stdout.readline()))


@contextmanager
def opened(environment: Path, folder: Path) -> Iterator[Helm]:
    helm = Helm(environment, folder)
    try:
        yield helm
    finally:
        helm.close()


def selects(selector: Mapping[str, str], manifest: Manifest) -> bool:
    """Whether labels of a manifest, or of a pod's template, match."""
    return bool(selector) and selector.items() <= manifest["metadata"]["labels"].items()
