"""Clean machines for a reader: containers of the base image, each with an address of its own and a checkout.

`here` is a newcomer's machine: it has Python and make, and reaches a Docker engine. `server` and the workers have
gemps installed as README says: with `pip install ".[server]"` and `pip install ".[worker]"`. All run systemd. What pip
would fetch from an index lies in a folder of wheels that every pip here is set up for: these machines need no way out.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
BASE_IMAGE = os.environ.get("BASE_IMAGE", "python:3.11-slim")
# What README asks for beside Python, and what the pages take for granted on a machine.
PACKAGES = ("make", "systemd", "systemd-sysv", "dbus", "sudo")
ADDRESSES = {"here": "10.77.0.10", "server": "10.77.0.1"} | {f"worker-{n}": f"10.77.0.{10 + n}" for n in (1, 2, 3)}
SUBNET, GATEWAY = "10.77.0.0/24", "10.77.0.254"
NAME = "gemps-docs"  # of the network, the images, the containers and their label
CHECKOUT = f"{NAME}-checkout"  # the folder, and so compose's project
IMAGE = f"{NAME}-machine"

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / NAME
WHEELHOUSE = Path(os.environ.get("GEMPS_WHEELHOUSE") or CACHE / "wheels").resolve()
FOLDER = CACHE.resolve() / "machines"  # the machines see it under the same path
TORCH = os.environ.get("TORCH", "")  # what the images get instead of PyTorch's ordinary build


def why_not() -> str:
    """Return why there can be no machines here; empty when there can."""
    for what, check in {"a Docker engine": "info", "Compose": "compose version", "Buildx": "buildx version"}.items():
        if shutil.which("docker") is None or subprocess.run(["docker", *check.split()], capture_output=True).returncode:
            return f"{what} is missing here"
    if subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True).returncode:
        return "this is no git checkout, which the machines' checkouts are exported from"
    return ""


def run(*command: str, cwd: Path | None = None) -> str:
    """Run to the end and return what it printed; fails with all of it."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


@dataclass(frozen=True)
class Container:
    """A machine."""

    name: str
    folder: Path
    id: str

    @property
    def checkout(self) -> Path:
        return self.folder / CHECKOUT

    def on(self, *words: str) -> list[str]:
        return ["docker", "exec", "--workdir", str(self.checkout), self.id, *words]


class Place:
    """Makes machines; use `place()`."""

    def start(self, name: str) -> Container:
        """A fresh machine of this name, in the place of an older one."""
        if name == "here":
            taken = run("docker", "ps", "--filter", "publish=50051", "--format", "{{.Names}}")
            assert not taken, f"the engine's port 50051, which the pages' lines publish, is taken by {taken}"
        found = run("docker", "ps", "--all", "--quiet", "--filter", f"name=^{NAME}-{name}$")
        if found:
            run("docker", "rm", "--force", "--volumes", found)
        folder = FOLDER / name
        remove_folder(folder)
        checkout(folder / CHECKOUT)
        options = [*self._docker(folder / CHECKOUT)] if name == "here" else [*self._installed(name)]
        made = run(
            *("docker", "run", "--detach", "--label", NAME, "--name", f"{NAME}-{name}", "--hostname", name),
            *("--network", NAME, "--ip", ADDRESSES[name], "--shm-size", "2g"),
            *("--env", "GEMPS_LOG_FORMAT=human"),  # as on the reader's terminal
            *("--privileged", "--cgroupns", "private", "--tmpfs", "/run", "--tmpfs", "/run/lock"),  # for systemd
            *(*volumes(), *options, IMAGE),
        )
        wait_for_systemd(made)
        return Container(name, folder, made)

    def _docker(self, checkout: Path) -> Iterator[str]:
        """The newcomer's Docker: this machine's engine and client, with wheels for the images and names of our own."""
        engine = run("docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}")
        assert engine.startswith("unix://"), f"the engine is at {engine}, and not a socket that a machine can be lent"
        yield from ("--volume", f"{engine.removeprefix('unix://')}:/var/run/docker.sock")
        yield from ("--volume", f"{Path(str(shutil.which('docker'))).resolve()}:/usr/local/bin/docker:ro")
        plugins = json.loads(run("docker", "info", "--format", "{{json .ClientInfo.Plugins}}"))
        for plugin in plugins:
            if plugin["Name"] in ("compose", "buildx"):
                target = f"/usr/local/libexec/docker/cli-plugins/docker-{plugin['Name']}"
                yield from ("--volume", f"{Path(plugin['Path']).resolve()}:{target}:ro")
        for name, value in {
            "BASE_IMAGE": BASE_IMAGE,
            "SERVER_IMAGE": f"{NAME}-server",
            "WORKER_IMAGE": f"{NAME}-worker",
            **({"TORCH": TORCH} if TORCH else {}),
        }.items():
            yield from ("--env", f"{name}={value}")
        for wheel in image_wheels().glob("*.whl"):
            link_or_copy(wheel, checkout / "docker" / "wheels" / wheel.name)

    def _installed(self, name: str) -> Iterator[str]:
        """Gemps, installed once for all machines of a kind, and found as in an activated environment."""
        kind = name.partition("-")[0]
        folder = FOLDER / "installed" / kind
        if not folder.exists():
            source = FOLDER / "installed" / f"{kind}-{CHECKOUT}"
            checkout(source)
            what = ".[server]" if kind == "server" else ".[worker]"
            install = f"python3 -m venv '{folder}' && '{folder}/bin/pip' install --quiet '{what}'"
            in_checkout = ("--workdir", str(source), IMAGE, "bash", "-c", install)
            run("docker", "run", "--rm", "--label", NAME, *volumes(), *in_checkout)
        yield from ("--env", f"PATH={folder}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")


def wait_for_systemd(container: str) -> None:
    asked = ["docker", "exec", container, "systemctl", "is-system-running"]

    def state() -> str:
        return subprocess.run(asked, capture_output=True, text=True).stdout.strip()

    def explain() -> str:
        return f"systemd is {state()!r} in the machine {container}"

    eventually(lambda: state() in ("running", "degraded"), explain, patience=120.0, interval=0.5)


@contextmanager
def place() -> Iterator[Place]:
    """A network and an image for machines; all that was made is removed afterwards, what was fetched is kept."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove()  # what an earlier one left that was killed
        build_image()
        try:
            remove_folder(FOLDER)
            FOLDER.mkdir()
            fetch(WHEELHOUSE, "torch", "torchvision")
            run("docker", "network", "create", "--subnet", SUBNET, "--gateway", GATEWAY, NAME)
            yield Place()
        finally:
            remove()


def remove() -> None:
    """Machines, whatever they started with Docker, the network, images and folders."""
    ours = (f"label={NAME}", f"label=com.docker.compose.project={CHECKOUT}")
    for one in ours:
        remove_all("docker", "rm", "--force", "--volumes", found=("ps", "--all", "--filter", one))
        remove_all("docker", "volume", "rm", found=("volume", "ls", "--filter", one))
        remove_all("docker", "network", "rm", found=("network", "ls", "--filter", one))
    remove_all("docker", "network", "rm", found=("network", "ls", "--filter", f"name=^{NAME}$"))
    if run("docker", "image", "ls", "--quiet", IMAGE):
        remove_folder(FOLDER)
    for image in (IMAGE, f"{NAME}-server", f"{NAME}-worker"):
        remove_all("docker", "image", "rm", found=("image", "ls", image))


def remove_all(*command: str, found: Iterable[str]) -> None:
    ids = run("docker", *found, "--quiet").split()
    if ids:
        run(*command, *ids)


def remove_folder(folder: Path) -> None:
    """Also what root has made on a machine."""
    if folder.exists():
        mount = f"{folder.parent}:{folder.parent}"
        run("docker", "run", "--rm", "--volume", mount, IMAGE, "rm", "-rf", str(folder))


def volumes() -> list[str]:
    """What every machine sees: the folder of the machines, and the wheels in the place of a package index."""
    return [
        *("--volume", f"{FOLDER}:{FOLDER}", "--volume", f"{WHEELHOUSE}:{WHEELHOUSE}:ro"),
        *("--env", "PIP_NO_INDEX=1", "--env", f"PIP_FIND_LINKS={WHEELHOUSE}"),
    ]


def checkout(folder: Path) -> None:
    """Export what is committed, as a download of the repository has it: without git."""
    folder.mkdir(parents=True)
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", "HEAD"], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)


def build_image() -> None:
    """A base image without package sources gets its packages from this machine's, which must be of the same release."""
    context = CACHE / "image"
    packages = context / "packages"
    shutil.rmtree(context, ignore_errors=True)
    (packages / "partial").mkdir(parents=True)
    if not in_base_image("sh", "-c", "cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null; true"):
        status = context / "status"
        status.write_text(in_base_image("cat", "/var/lib/dpkg/status") + "\n")
        options = [f"Dir::State::status={status}", f"Dir::Cache::archives={packages}", "Debug::NoLocking=1"]
        run(
            *("apt-get", *(word for option in options for word in ("-o", option))),
            *("install", "--yes", "--download-only", "--no-install-recommends", *PACKAGES),
        )
    arguments = ("--build-arg", f"BASE_IMAGE={BASE_IMAGE}", "--build-arg", f"PACKAGES={' '.join(PACKAGES)}")
    dockerfile = str(Path(__file__).with_name("machine.Dockerfile"))
    run("docker", "build", "--label", NAME, *arguments, "--file", dockerfile, "--tag", IMAGE, str(context))


def image_wheels() -> Path:
    """The folder of wheels for the images that the newcomer builds."""
    if not TORCH:
        return WHEELHOUSE
    folder = CACHE / "wheels-for-images"
    fetch(folder, unconstrained=TORCH.split())
    return folder


def fetch(folder: Path, *torch: str, unconstrained: Sequence[str] = ()) -> None:
    """Fill a folder with the wheels of constraints.txt, for the base image's Python; again only when these change."""
    python = in_base_image("python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    extras = ("train", "lab", "certs", "--without", "torch", "torchvision")
    needed = run(sys.executable, "docker/requirements.py", *extras, cwd=ROOT).splitlines()
    constraints = ROOT / "constraints.txt"
    wanted = "\n".join([python, *needed, *torch, *unconstrained, constraints.read_text(encoding="utf-8")])
    done = folder / "fetched"
    if done.exists() and done.read_text(encoding="utf-8") == wanted:
        return
    folder.mkdir(parents=True, exist_ok=True)
    into_folder = ("--quiet", "--dest", str(folder), "--only-binary", ":all:", "--python-version", python)
    download = (sys.executable, "-m", "pip", "download", *into_folder)
    others = ("pip>=25.1", "hatchling", "editables", "setuptools", "dumb-init")
    run(*download, "--constraint", str(constraints), "--group", "dev", *needed, *others, *torch, cwd=ROOT)
    if unconstrained:
        run(*download, *unconstrained)
    done.write_text(wanted, encoding="utf-8")


def in_base_image(*command: str) -> str:
    return run("docker", "run", "--rm", BASE_IMAGE, *command)


def link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
