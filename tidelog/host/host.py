"""All doors of one node, and those of a real one."""

import random
from dataclasses import dataclass
from uuid import UUID

from tidelog.host.clock import SystemClock
from tidelog.host.databases import DiskDatabases, SystemDatabases
from tidelog.host.disk import SystemDisk
from tidelog.host.doors import Clock, Databases, Disk, Network, Offload
from tidelog.host.network import LoopNetwork
from tidelog.host.threads import ThreadOffload


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Everything a node may touch outside of itself."""

    clock: Clock
    disk: Disk
    offload: Offload
    network: Network
    random: random.Random
    system_databases: Databases | None = None
    """None for databases that live in memory and are saved through `disk`."""

    @property
    def databases(self) -> Databases:
        return self.system_databases or DiskDatabases(self.disk)

    def new_id(self) -> UUID:
        """A random version 4 UUID. Kafka never uses one whose text starts with a dash."""
        while True:
            value = UUID(int=self.random.getrandbits(128), version=4)
            if value.bytes[0] >> 2 != 0b111110:  # base64url's first letter would be '-'
                return value


def system_host() -> Host:
    """The host of a real node."""
    return Host(
        clock=SystemClock(),
        disk=SystemDisk(),
        offload=ThreadOffload(),
        network=LoopNetwork(),
        random=random.SystemRandom(),
        system_databases=SystemDatabases(),
    )
