"""Servers of one model behind proxies that cut connections, each port behind its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.client.cutting_proxy import CuttingProxy
from tests.security.authority import Authority
from tests.shards.group import Group, serving

# Another address of this machine. There each proxy can have its server's port: workers use the lane only if the port
# at which they reach the server is the one that the server names.
HOST = "127.0.0.9"
TRANSPORTS = ("gRPC", "lane", "gRPC over TLS", "lane over TLS")


class BehindProxies:
    """Servers, and proxies before their ports.

    Attributes:
        address: of the proxy before the primary.
        of_client: settings of clients that connect through the proxies.
        commits: of each shard, the proxy that commits go through.
        all: all proxies.
    """

    def __init__(self, group: Group, transport: str, of_client: dict[str, Any]) -> None:
        self.group = group
        self.shards = len(group.servers)
        self.of_client = of_client
        lane = transport.startswith("lane")
        ordinary = [CuttingProxy(server.port, listen=(HOST, server.port)) for server in group.servers]
        lanes = [CuttingProxy(one.server.lane.port, listen=(HOST, one.server.lane.port)) for one in group.servers]
        self.commits = lanes if lane else ordinary
        self.all = [*ordinary, *lanes] if lane else ordinary
        self.address = ordinary[0].address
        self._proxies = [*ordinary, *lanes]

    @property
    def cuts(self) -> int:
        return sum(proxy.cuts for proxy in self._proxies)

    def disarm(self) -> None:
        """Cancel all cuts that have not happened."""
        for proxy in self._proxies:
            proxy.server_learns_after = 0.0
            proxy.disarm()

    def close(self) -> None:
        for proxy in self._proxies:
            proxy.close()


@contextmanager
def behind_proxies(shards: int, transport: str, folder: Path, **settings: Any) -> Iterator[BehindProxies]:
    """Start servers with these settings, and proxies. `transport` is one of TRANSPORTS."""
    of_client: dict[str, Any] = {"lane": transport.startswith("lane")}
    of_secondaries: dict[str, Any] = {}
    if "TLS" in transport:
        authority = Authority(folder, "ca")
        certificate, key = authority.pair("server", ["localhost", "127.0.0.1", HOST]).write(folder, "server")
        settings |= {"tls_cert": certificate, "tls_key": key}
        of_secondaries = {"primary_credentials": folder} if shards > 1 else {}
        of_client["tls_ca"] = str(authority.file)
    with serving(shards, of_secondaries=of_secondaries, **settings) as group:
        proxies = BehindProxies(group, transport, of_client)
        try:
            yield proxies
        finally:
            proxies.close()
