"""The shards in a RunStatus."""

from dataclasses import dataclass

from gemps.v1 import status_pb2

from gem_core.shards import Shard
from gem_server.service.membership_handler import Ports
from gem_server.shards.primary import PrimaryOrder
from gem_server.state.central_variable import CentralVariable


@dataclass(frozen=True, slots=True)
class ShardList:
    """Adds them; `ordering`: the primary's; `address`: this shard's, "" for its port."""

    shard: Shard
    ordering: PrimaryOrder | None
    central: CentralVariable
    ports: Ports
    address: str
    primary: str

    def add_to(self, status: status_pb2.RunStatus) -> None:
        """Add the shards, if there are several."""
        count = self.shard.count
        if count == 1:
            return
        shards = status.shards
        shards.index, shards.count, shards.primary = self.shard.index, count, self.primary
        for index in range(count) if self.ordering is not None else (self.shard.index,):
            shown = shards.servers.add(index=index)
            if self.central.layout is not None:
                held = Shard(index, count).range_of(self.central.layout.whole.parameter_count)
                shown.begin, shown.end = held.start, held.stop
            if index == self.shard.index:
                shown.address, shown.ready = self.address or f":{self.ports.ordinary}", True
                shown.clock, shown.anonymous_bytes = self.central.clock, status.memory.anonymous_bytes
            elif self.ordering is not None and (other := self.ordering.connected(index)) is not None:
                shown.address, shown.ready = other.hello.address, other.is_ready
                shown.clock, shown.anonymous_bytes = other.state.clock, other.state.anonymous_bytes
