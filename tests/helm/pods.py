"""Pods of the chart on a Docker engine: what kubelet makes of a pod, as far as a container can have it.

Image, arguments, variables, user, read-only root, volumes and probes are those of the manifest. A pod's addresses
are the names of its Services.
"""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.containers.project import docker, inspect, logs, wait_until

from .chart import NAMESPACE, Manifest, Rendered, container_of, pod_of, pods_of, selects

INDEX = "batch.kubernetes.io/job-completion-index"


class Pod:
    """One pod of a workload.

    Args:
        rendered: the release.
        workload: its StatefulSet, Job or Deployment.
        name: of the pod, which is its host name.
        network: of the engine.
        folder: of this pod's volumes; claims are in folders of their own, and outlive it.
        claims: folder of each claim, by name of the volume.
        secrets: folder with the files of each Secret, by its name.
        index: of a Job's pod.
    """

    def __init__(
        self,
        rendered: Rendered,
        workload: Manifest,
        name: str,
        *,
        network: str,
        folder: Path,
        claims: Mapping[str, Path] | None = None,
        secrets: Mapping[str, Path] | None = None,
        index: int | None = None,
    ) -> None:
        self.name = name
        self._container = container_of(workload)
        self._spec = pod_of(workload)["spec"]
        self._network = network
        self._folder = folder
        self._claims = claims or {}
        self._secrets = secrets or {}
        fields = {"metadata.name": name, f"metadata.annotations['{INDEX}']": str(index)}
        self._variables = rendered.variables(workload)
        for one in self._container.get("env", ()):
            if "valueFrom" in one:
                self._variables[one["name"]] = fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
        for variable, value in self._variables.items():
            self._variables[variable] = re.sub(r"\$\((\w+)\)", lambda found: self._variables[found[1]], value)
        own = next((one for one in pods_of(workload) if one["metadata"].get("name") == name), pod_of(workload))
        self._alias = [
            f"--network-alias={address(service, name)}"
            for service in rendered.of_kind("Service")
            if selects(service["spec"]["selector"], own)
        ]
        self.id = ""

    def start(self) -> None:
        """Start its container, also again: the folders of its volumes stay."""
        assert "command" not in self._container
        context, own = self._spec["securityContext"], self._container["securityContext"]
        assert own["readOnlyRootFilesystem"]
        assert not own["allowPrivilegeEscalation"]
        self.id = docker(
            "run", "--detach", f"--network={self._network}", *self._alias, f"--hostname={self.name}",
            "--read-only", "--security-opt=no-new-privileges:true",
            *(f"--cap-drop={one}" for one in own["capabilities"]["drop"]),
            f"--user={context['runAsUser']}:{context['runAsGroup']}",
            f"--stop-timeout={self._spec['terminationGracePeriodSeconds']}",
            *(f"--env={name}={value}" for name, value in self._variables.items()),
            *(word for mount in self._container["volumeMounts"] for word in self._mounted(mount, context["fsGroup"])),
            self._container["image"], *self._container.get("args", ()),
        )  # fmt: skip

    def _mounted(self, mount: Manifest, group: int) -> list[str]:
        name, path = mount["name"], mount["mountPath"]
        volume = next((one for one in self._spec["volumes"] if one["name"] == name), {})
        if volume.get("emptyDir", {}).get("medium") == "Memory":
            return [f"--tmpfs={path}:rw,mode=1777"]
        if "emptyDir" in volume:
            folder = given(self._folder / name, group, 0o2777)
        elif "secret" in volume:
            folder = given(self._folder / name, group, 0o755)
            for file in self._secrets[volume["secret"]["secretName"]].iterdir():
                shutil.copy(file, folder)
                os.chown(folder / file.name, 0, group)
                (folder / file.name).chmod(volume["secret"]["defaultMode"])
        else:
            folder = given(self._claims[name], group, 0o2775)
        return [f"--volume={folder}:{path}{':ro' if mount.get('readOnly') else ''}"]

    def passes(self, probe: str) -> bool:
        """Whether the container runs, and its startup, readiness or liveness probe succeeds."""
        command = self._container[f"{probe}Probe"]["exec"]["command"]
        try:
            docker("exec", self.id, *command)
        except AssertionError:
            return False
        return True

    def exec(self, *command: str) -> str:
        """Run a command in it, as kubectl exec does; returns what it printed."""
        return docker("exec", self.id, *command)

    def kill(self) -> None:
        docker("kill", self.id)
        docker("wait", self.id)

    def stop(self) -> int:
        """End it as kubelet does, with SIGTERM; returns its exit code."""
        docker("stop", self.id)
        return self.exit_code()

    def exit_code(self) -> int:
        """Wait for its end."""
        wait_until(lambda: not inspect(self.id)["State"]["Running"], f"{self.name} ends")
        return int(inspect(self.id)["State"]["ExitCode"])

    @property
    def log(self) -> str:
        return logs(self.id)


def address(service: Manifest, pod: str) -> str:
    """The name by which others of its namespace reach a pod through a Service."""
    name = service["metadata"]["name"]
    return f"{pod}.{name}.{NAMESPACE}.svc" if service["spec"].get("clusterIP") == "None" else name


def given(folder: Path, group: int, mode: int) -> Path:
    """A folder as kubelet gives it to pods with fsGroup."""
    folder.mkdir(exist_ok=True)
    os.chown(folder, 0, group)
    folder.chmod(mode)
    return folder
