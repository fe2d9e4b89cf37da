"""Links of a limited rate between servers and workers on this machine: network namespaces and `tc tbf`; needs root."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.served import Place

# Of a full Ethernet frame, which tbf counts, the share that is TCP's payload.
GOODPUT = 1448 / 1514
# A large burst exceeds the rate.
LIMIT = "burst 4kb limit 128kb"


@contextmanager
def limited_links(megabits: float, servers: int) -> Iterator[tuple[list[Place], list[str]]]:
    """A link for each server; yields their places, and a command that runs another at the workers.

    Each link is limited in both directions. The workers share a namespace, which has an end of every link
    and routes between the servers. TCP is cubic, Linux's default.
    """
    names = [f"gemps-{os.getpid()}-{number}" for number in range(servers + 1)]
    *at_servers, at_workers = (["ip", "netns", "exec", name] for name in names)
    try:
        for name in names:
            _run("ip", "netns", "add", name)
        for number, at_server in enumerate(at_servers):
            ends = [f"gemps{os.getpid() % 10**6}{side}{number}" for side in "sw"]
            _run("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
            hosts = _server_host(number), f"10.99.{number}.2"
            for name, end, host, within in zip(
                (names[number], names[-1]), ends, hosts, (at_server, at_workers), strict=True
            ):
                _run("ip", "link", "set", end, "netns", name)
                _run(*within, "ip", "address", "add", f"{host}/24", "dev", end)
                _run(*within, "ip", "link", "set", end, "up")
                _run(*within, *f"ip route change 10.99.{number}.0/24 dev {end} congctl cubic".split())
                _run(*within, *f"tc qdisc add dev {end} root tbf rate {megabits}mbit {LIMIT}".split())
            _run(*at_server, *f"ip route add default via {hosts[1]}".split())
        _run(*at_workers, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        yield [Place(_server_host(number), within) for number, within in enumerate(at_servers)], at_workers
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def _server_host(number: int) -> str:
    return f"10.99.{number}.1"


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
