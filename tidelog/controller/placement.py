"""Where replicas go: which brokers hold each partition of a topic, and who leads it by preference.

Rule 1: no broker holds a partition twice, and no two replicas share a rack while there are others.
Rule 2: each topic is spread evenly over the brokers, in replicas and in leaders; what is left over
        goes to those that hold, or lead, the least of all topics.
Rule 3: brokers that are fenced or about to stop get replicas only if there are not enough others;
        those that are cordoned, since they are to be drained, get none.
Rule 4: the same brokers, loads and start give the same placement.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from tidelog.controller.image import ClusterImage, TopicImage
from tidelog.errors import EligibleLeadersNotAvailable, InvalidReplicationFactor
from tidelog.model import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A broker that can hold replicas, and what it has of all topics."""

    node: NodeId
    rack: str | None = None
    is_active: bool = True
    is_cordoned: bool = False
    replicas: int = 0
    leaders: int = 0
    """Partitions that it leads by preference, whoever leads them now."""


def candidates(image: ClusterImage) -> list[Candidate]:
    """Every node of the cluster."""
    found = []
    for node in sorted(image.nodes):
        broker = image.brokers.get(node)
        found.append(
            Candidate(
                node=node,
                rack=None if broker is None else broker.rack,
                is_active=broker is None or broker.is_active,
                is_cordoned=image.is_cordoned(node),
                replicas=len(image.held.get(node, ())),
                leaders=image.preferred.get(node, 0),
            )
        )
    return found


def check_replication(among: Sequence[Candidate], replication: int) -> None:
    """Refuse what no placement can give."""
    among, cordoned = _open(among), [broker.node for broker in among if broker.is_cordoned]
    if not 1 <= replication <= len(among):
        besides = f" (nodes {cordoned} are cordoned)" if cordoned else ""
        raise InvalidReplicationFactor(
            f"{replication} replicas cannot be placed on {len(among)} nodes{besides}; "
            f"ask for 1 to {len(among)}"
        )
    if not any(broker.is_active for broker in among):
        raise EligibleLeadersNotAvailable(
            f"none of the {len(among)} brokers is running, so nothing would lead; start one, and retry"
        )


def place(
    among: Sequence[Candidate],
    *,
    partitions: int,
    replication: int,
    start: int = 0,
    topic: TopicImage | None = None,
) -> list[list[NodeId]]:
    """The replicas of `partitions` new partitions, of a new topic or beside those of `topic`."""
    check_replication(among, replication)
    among = _open(among)
    active = [broker for broker in among if broker.is_active]
    spread = _Spread(active if len(active) >= replication else among, topic)
    if len(active) < replication:
        spread.shun(broker.node for broker in among if not broker.is_active)
    placed = [spread.next_partition(start + number, replication) for number in range(partitions)]
    while spread.shift_leader(placed):
        pass  # each time two brokers come closer to each other
    return placed


def _open(among: Sequence[Candidate]) -> list[Candidate]:
    return [broker for broker in among if not broker.is_cordoned]


class _Spread:
    """Counts what each broker got, and gives the next replica to who has the least.

    Invariant: without racks, the replicas of the topic on two brokers differ by at most one.
    """

    def __init__(self, among: Sequence[Candidate], topic: TopicImage | None) -> None:
        self._ring = _alternate_racks(among)
        self._rack = {broker.node: broker.rack for broker in among}
        self._load = {broker.node: broker.replicas for broker in among}
        self._leader_load = {broker.node: broker.leaders for broker in among}
        self._shunned: frozenset[NodeId] = frozenset()
        self._weights: dict[NodeId, tuple[int, ...]] = {}
        """By which the next replica is placed, where there are no racks."""
        self._leader_weights: dict[NodeId, tuple[int, ...]] = {}
        self._held = dict.fromkeys(self._ring, 0)
        self._led = dict.fromkeys(self._ring, 0)
        self._rack_held = dict.fromkeys(self._rack.values(), 0)
        self._has_racks = any(rack is not None for rack in self._rack_held)
        for node in self._ring:
            self._weigh(node)
        for partition in () if topic is None else topic.partitions:
            self._count(partition.replicas)

    def shun(self, nodes: Iterable[NodeId]) -> None:
        """Use these last, and let none of them lead."""
        self._shunned = frozenset(nodes)
        for node in self._ring:
            self._weigh(node)

    def next_partition(self, number: int, replication: int) -> list[NodeId]:
        """One start further for each partition, and another one once all had a turn: otherwise
        the same brokers would meet again and again, and all fail over to each other."""
        count = len(self._ring)
        first = (number + number // count) % count
        ring = self._ring[first:] + self._ring[:first]
        if self._has_racks:
            chosen = self._choose(ring, replication)
        else:  # nothing that is weighed changes from one replica to the next
            chosen = sorted(ring, key=self._weights.__getitem__)[:replication]
        leader = min(chosen, key=self._leader_weights.__getitem__)
        chosen.remove(leader)
        chosen.insert(0, leader)
        self._count(chosen)
        return chosen

    def _choose(self, ring: Sequence[NodeId], replication: int) -> list[NodeId]:
        """Replicas for one partition, of racks that are all different while there are enough."""
        chosen: list[NodeId] = []
        racks = dict.fromkeys(self._rack_held, 0)
        while len(chosen) < replication:
            node = min((n for n in ring if n not in chosen), key=self._weight(racks))
            chosen.append(node)
            if self._rack[node] is not None:
                racks[self._rack[node]] += 1
        return chosen

    def shift_leader(self, placed: list[list[NodeId]]) -> bool:
        """Let a broker that leads too much lead one partition less, and one with too little more.

        They need not share a partition: leadership may be handed on along a chain of others.
        """
        most, least = max(self._led.values()), min(self._led.values())
        if most <= least + 1:
            return False
        led: dict[NodeId, list[list[NodeId]]] = {}
        for replicas in placed:
            led.setdefault(replicas[0], []).append(replicas)
        for source in sorted(self._ring, key=lambda node: -self._led[node]):
            chain = self._chain_from(source, led)
            if chain:
                for replicas, heir in reversed(chain):
                    replicas.remove(heir)
                    replicas.insert(0, heir)
                self._led[source] -= 1
                self._led[chain[-1][1]] += 1
                return True
        return False

    def _chain_from(
        self, source: NodeId, led: Mapping[NodeId, list[list[NodeId]]]
    ) -> list[tuple[list[NodeId], NodeId]]:
        """The shortest way to a broker that leads two less: each step a partition and its heir."""
        chains: dict[NodeId, list[tuple[list[NodeId], NodeId]]] = {source: []}
        queue = deque([source])
        while queue:
            node = queue.popleft()
            if self._led[node] <= self._led[source] - 2:
                return chains[node]
            for replicas in led.get(node, ()):
                for heir in replicas:
                    if heir not in chains and heir not in self._shunned:
                        chains[heir] = [*chains[node], (replicas, heir)]
                        queue.append(heir)
        return []

    def _weight(self, racks: Mapping[str | None, int]) -> Callable[[NodeId], tuple[int, ...]]:
        rack_of, shunned, held = self._rack, self._shunned, self._held
        rack_held, load = self._rack_held, self._load

        def weight(node: NodeId) -> tuple[int, ...]:
            rack = rack_of[node]
            return node in shunned, racks[rack], held[node], rack_held[rack], load[node]

        return weight

    def _weigh(self, node: NodeId) -> None:
        shunned = node in self._shunned
        self._weights[node] = (shunned, self._held[node], self._load[node])
        self._leader_weights[node] = (shunned, self._led[node], self._leader_load[node])

    def _count(self, replicas: Sequence[NodeId]) -> None:
        if replicas[0] in self._led:
            self._led[replicas[0]] += 1
        for node in replicas:
            if node in self._held:
                self._held[node] += 1
                if (rack := self._rack[node]) is not None:
                    self._rack_held[rack] += 1
                self._weigh(node)


def _alternate_racks(among: Sequence[Candidate]) -> list[NodeId]:
    """The brokers in an order in which neighbours are in different racks, as far as possible."""
    racks: dict[str, list[NodeId]] = {}
    for broker in sorted(among, key=lambda broker: broker.node):
        racks.setdefault(broker.rack or "", []).append(broker.node)
    rounds = zip_longest(*(racks[rack] for rack in sorted(racks)))
    return [node for turn in rounds for node in turn if node is not None]
