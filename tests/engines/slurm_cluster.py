"""A Slurm cluster of two nodes, n1 and n2, in Linux namespaces on this machine.

All processes that Slurm starts end with the PID namespace; only the mount namespace has the nodes in /etc/hosts.
"""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.waiting import eventually

NODES = {"n1": "127.0.0.11", "n2": "127.0.0.12"}
PATIENCE = 120.0  # seconds: importing torch on a busy machine

_PROGRAMS = ("munged", "nsenter", "sbatch", "slurmctld", "slurmd", "unshare")
_NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private")
# A user's own settings must not decide what a test sees; `gemps` is found as in an activated environment.
_CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("GEMPS_", "SBATCH_", "SLURM_"))} | {
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "COLUMNS": "120",
}

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost=n1({addresses[n1]})
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SlurmdParameters=config_overrides
NodeName=n1 NodeAddr={addresses[n1]} NodeHostname=n1 Port={ports[1]} CPUs=4 RealMemory=2000
NodeName=n2 NodeAddr={addresses[n2]} NodeHostname=n2 Port={ports[2]} CPUs=4 RealMemory=2000
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE DefMemPerCPU=250
"""

_DAEMONS = """
mount --bind hosts /etc/hosts
munged --foreground --force --key-file="$PWD/munge.key" --socket="$PWD/munge.socket" --pid-file="$PWD/munged.pid" \
    --seed-file="$PWD/munge.seed" --log-file="$PWD/munged.log" &
until [ -S munge.socket ]; do sleep 0.05; done
unshare --uts sh -c 'hostname n1; exec slurmctld -D' &
for node in n1 n2; do unshare --uts sh -c 'hostname "$1"; exec slurmd -D -N "$1"' sh "$node" & done
wait
"""


def why_not() -> str:
    """Return why there can be no cluster here; empty when there can."""
    if missing := [name for name in _PROGRAMS if shutil.which(name) is None]:
        return f"there is no {', '.join(missing)}: apt-get install munge slurm-client slurmctld slurmd util-linux"
    if os.geteuid() != 0:
        return "slurmd and namespaces take root"
    made = subprocess.run([*_NAMESPACES, "true"], capture_output=True, text=True)
    return made.stderr.strip()


class Cluster:
    """Where jobs are submitted: `folder` is the one that all nodes see."""

    def __init__(self, folder: Path, configuration: Path, first_process: psutil.Process) -> None:
        self.folder = folder
        self._first_process = first_process
        self._environment = _CLEAN | {"SLURM_CONF": str(configuration)}

    def run(self, script: str) -> str:
        """Run lines of a page; return what they print, and fail unless they exit 0.

        Variables outlive the call, as in a terminal.
        """
        done = self.attempt(script)
        assert done.returncode == 0, f"{script}\nended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def attempt(self, script: str) -> "subprocess.CompletedProcess[str]":
        """Run lines as `run`, and return also when they fail."""
        keep = "declare -p job address array >.variables 2>/dev/null || true"
        enter = ["nsenter", "--target", str(self._first_process.pid), "--mount", "--pid", f"--wdns={self.folder}"]
        command = [*enter, "bash", "-ec", f"touch .variables; . ./.variables\n{script}\n{keep}"]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=PATIENCE)

    def log(self, job: str) -> str:
        """What a job has printed so far."""
        log = self.folder / f"slurm-{job}.out"
        return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""

    def about(self, job: str) -> dict[str, str]:
        """The fields that `scontrol show job` prints."""
        words = self.run(f"scontrol --oneliner show job {job}").split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for_state(self, job: str, state: str, patience: float = PATIENCE) -> dict[str, str]:
        """Return `about` when the job is in this state; fails when it ends in another one."""

        def look() -> dict[str, str]:
            found = self.about(job)
            assert found["JobState"] in ("PENDING", "RUNNING", "COMPLETING", state), self.explain(job)
            return found if found["JobState"] == state else {}

        return eventually(look, lambda: self.explain(job), patience=patience, interval=0.5)

    def explain(self, job: str) -> str:
        """What Slurm and the end of its log say of a job."""
        return "\n".join([str(self.about(job)), *self.log(job).splitlines()[-30:]])

    def process(self, command: str, task: str = "0", argument: str = "") -> psutil.Process:
        """The process `gemps COMMAND`, of this task, with this argument if any."""
        found = []
        for one in self._first_process.children(recursive=True):
            try:
                words = one.cmdline()
                is_it = command in words[:3] and one.environ().get("SLURM_PROCID") == task
                if is_it and (not argument or argument in words):
                    found.append(one)
            except psutil.Error:
                continue  # it has ended
        assert found, f"there is no process gemps {command}"
        return found[0]


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Start a cluster whose nodes are idle; gone, with all its processes, at the end of the block."""
    shared, own = folder / "shared", folder / "slurm"
    for path in (shared, own, own / "state", *(own / node for node in NODES)):
        path.mkdir()
    (own / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{at} {name}\n" for name, at in NODES.items()))
    (own / "munge.key").touch(mode=0o600)
    (own / "munge.key").write_bytes(os.urandom(128))
    configuration = own / "slurm.conf"
    configuration.write_text(_CONFIGURATION.format(folder=own, addresses=NODES, ports=_free_ports(3)))
    environment = _CLEAN | {"SLURM_CONF": str(configuration)}
    with (own / "daemons.log").open("wb") as log:
        command = [*_NAMESPACES, "bash", "-ec", _DAEMONS]
        daemons = subprocess.Popen(command, cwd=own, env=environment, stdout=log, stderr=log)
    try:
        (first_process,) = eventually(psutil.Process(daemons.pid).children)
        made = Cluster(shared, configuration, first_process)
        are_idle = "sinfo --noheader --format=%t | grep --line-regexp idle"
        eventually(lambda: made.attempt(are_idle).returncode == 0, (own / "daemons.log").read_text)
        yield made
    finally:
        daemons.kill()
        daemons.wait(PATIENCE)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports
