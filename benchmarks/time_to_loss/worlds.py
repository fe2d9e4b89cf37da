"""Machines and networks made of network namespaces and control groups; needs root."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.limited_cores import PERIOD_MICROSECONDS, VERSION_1, VERSION_2

WORKERS = 4
SHARE = 0.3  # of a core, each host: 5 hosts, so that links and the evaluation have the rest of two cores


@dataclass(frozen=True)
class World:
    """slow: one worker has a quarter of the others' share. link: Mbit/s, and seconds of delay of each host's link.

    failures: a worker's host is killed every 60 s, and starts again 20 s later.
    """

    name: str
    slow: bool = False
    link: tuple[float, float] | None = None
    failures: bool = False
    limited: bool = True

    def share(self, host: int) -> float | None:
        """Of a core; None: no limit. Host 0 is the server's, 1 the slow worker's."""
        if not self.limited:
            return None
        return SHARE / 4 if self.slow and host == 1 else SHARE


UNLIMITED = World("unlimited", limited=False)
SLOW_LINK = 100.0, 0.010  # two links between two hosts: 20 ms
WORLDS = {
    world.name: world
    for world in (
        World("equal"),
        World("slow-worker", slow=True),
        World("slow-network", link=SLOW_LINK),
        World("failures", failures=True),
        World("all-together", slow=True, link=SLOW_LINK, failures=True),
    )
}


@dataclass(frozen=True)
class Host:
    """A namespace with an address, and a control group."""

    address: str
    namespace: str
    group: Path

    @property
    def within(self) -> list[str]:
        """A command that runs another on this host, whose name is its address."""
        enter = f'hostname {self.address}; echo $$ > {self.group}/cgroup.procs; exec "$@"'
        return ["unshare", "--uts", "sh", "-c", enter, "sh", "ip", "netns", "exec", self.namespace]

    def limit(self, share: float) -> None:
        """Limit all processes to a share of a core."""
        period = 4 * PERIOD_MICROSECONDS
        quota = round(share * period)
        if VERSION_1.exists():
            (self.group / "cpu.cfs_period_us").write_text(f"{period}")
            (self.group / "cpu.cfs_quota_us").write_text(f"{quota}")
        else:
            (self.group / "cpu.max").write_text(f"{quota} {period}")

    def kill(self) -> None:
        """SIGKILL to all its processes; return when none is left."""
        while pids := (self.group / "cgroup.procs").read_text().split():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), 9)
            time.sleep(0.02)

    def bytes_sent(self) -> int:
        """By its network interface."""
        counter = "/sys/class/net/eth0/statistics/tx_bytes"
        command = ["ip", "netns", "exec", self.namespace, "cat", counter]
        return int(subprocess.run(command, check=True, capture_output=True).stdout)


@contextmanager
def made(world: World) -> Iterator[list[Host]]:
    """The server's host, then the workers'. All processes on them end with the block."""
    name = f"ttl-{os.getpid()}"
    switch = f"{name}-switch"
    with ExitStack() as stack:
        _namespace(stack, switch)
        _ip(f"-n {switch} link add br0 mtu 9000 type bridge")
        _ip(f"-n {switch} link set br0 up")
        hosts = []
        for number in range(WORKERS + 1):
            host = Host(f"10.98.0.{number + 1}", f"{name}-{number}", _group(stack, f"{name}-{number}"))
            _namespace(stack, host.namespace)
            if world.link is None:
                _connect(switch, f"port{number}", host)
            else:
                _connect_slowly(stack, switch, f"port{number}", host, *world.link)
            stack.callback(host.kill)
            hosts.append(host)
        yield hosts


def _namespace(stack: ExitStack, name: str) -> None:
    _ip(f"netns add {name}")
    stack.callback(_ip, f"netns delete {name}")
    _ip(f"-n {name} link set lo up")


def _group(stack: ExitStack, name: str) -> Path:
    if not VERSION_1.exists():
        (VERSION_2 / "cgroup.subtree_control").write_text("+cpu")
    group = (VERSION_1 if VERSION_1.exists() else VERSION_2) / name
    group.mkdir()
    stack.callback(group.rmdir)
    return group


def _connect(switch: str, port: str, host: Host) -> None:
    _ip(f"-n {switch} link add {port} mtu 9000 type veth peer name eth0 mtu 9000 netns {host.namespace}")
    _ip(f"-n {switch} link set {port} master br0 up")
    _ip(f"-n {host.namespace} address add {host.address}/24 dev eth0")
    _ip(f"-n {host.namespace} link set eth0 up")


def _connect_slowly(stack: ExitStack, switch: str, port: str, host: Host, megabits: float, delay: float) -> None:
    arguments = [switch, port, host.namespace, host.address, f"{megabits}", f"{delay}"]
    command = [sys.executable, "-m", "benchmarks.time_to_loss.delayed_link", *arguments]
    link = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
    stack.callback(link.kill)
    if link.stdout is None or link.stdout.readline() != b"up\n":
        sys.exit("the delayed link does not come up: it needs root, and /dev/net/tun")


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True)
