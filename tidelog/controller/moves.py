"""Plans: which replicas to move so that brokers are drained, more, fewer or evenly loaded.

Rule 1: a plan is a target for each partition that has to change, and for no other. It decides
        nothing: `reassignment` takes it or refuses it.
Rule 2: as few replicas move as possible, since each is a copy over the network. Another order of
        the same replicas costs nothing.
Rule 3: replicas go to brokers that are there and not cordoned; no two of a partition to one broker,
        nor to one rack while there are others. No plan makes that worse.
Rule 4: who gets a replica is who has the least, of the topic and then of all; who leads likewise.
Rule 5: the same layout gives the same plan.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tidelog.controller.image import ClusterImage
from tidelog.errors import BrokerIdNotRegistered, InvalidReplicationFactor, UnknownTopicOrPartition
from tidelog.model import NodeId, TopicPartition

Replicas: TypeAlias = tuple[NodeId, ...]
Moves: TypeAlias = dict[TopicPartition, Replicas]
"""The target of every partition that changes, the preferred leader first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Who holds what, and who can hold more."""

    racks: Mapping[NodeId, str | None]
    """Every broker, with its rack."""
    open: frozenset[NodeId]
    """Those who are there and not cordoned."""
    replicas: Mapping[TopicPartition, Replicas]
    """Of partitions whose replicas move already, those that shall be there in the end."""
    in_sync: Mapping[TopicPartition, frozenset[NodeId]] = field(default_factory=dict)

    @classmethod
    def of(cls, image: ClusterImage) -> "Layout":
        places = sorted(image.places.values(), key=lambda place: place.name)
        brokers = image.brokers
        return cls(
            racks={n: brokers[n].rack if n in brokers else None for n in sorted(image.nodes)},
            open=frozenset(n for n in image.active_nodes() if not image.is_cordoned(n)),
            replicas={place.name: place.partition.target for place in places},
            in_sync={place.name: place.partition.in_sync for place in places},
        )


def drain(layout: Layout, nodes: Collection[NodeId]) -> Moves:
    """Let others hold all that `nodes` hold."""
    for node in nodes:
        if node not in layout.racks:
            raise BrokerIdNotRegistered(node)
    able = layout.open.difference(nodes)
    counts = _Counts(layout)
    left = {
        name: [node for node in replicas if node not in nodes]
        for name, replicas in layout.replicas.items()
        if not set(replicas).isdisjoint(nodes)
    }
    _check_room(left, able, {name: len(layout.replicas[name]) for name in left}, nodes)
    moves: Moves = {}
    for name, stay in left.items():
        replicas = layout.replicas[name]
        target = list(stay)
        while len(target) < len(replicas):
            target.append(counts.least(name, able.difference(target), target))
            counts.add(name, target[-1])
        counts.drop(name, [node for node in replicas if node in nodes])
        moves[name] = counts.led(name, replicas, target)
    return moves


def change_replication(layout: Layout, topic: str, factor: int) -> Moves:
    """Let every partition of `topic` have `factor` replicas."""
    before = {name: list(r) for name, r in layout.replicas.items() if name.topic == topic}
    if not before:
        raise UnknownTopicOrPartition(topic)
    if factor < 1:
        raise InvalidReplicationFactor(f"{topic!r} needs 1 replica at least, not {factor}")
    _check_room(before, layout.open, dict.fromkeys(before, factor), ())
    counts = _Counts(layout)
    moves: Moves = {}
    for name, replicas in before.items():
        target = list(replicas)
        while len(target) < factor:
            target.append(counts.least(name, layout.open.difference(target), target))
            counts.add(name, target[-1])
        while len(target) > factor:
            node = counts.most(name, target, layout)
            target.remove(node)
            counts.drop(name, [node])
        if target != replicas:
            moves[name] = counts.led(name, tuple(replicas), target)
    return moves


def balance(layout: Layout) -> Moves:
    """Let the brokers that can hold more hold, and lead by preference, as many as each other.

    What lies on others stays there.
    """
    counts = _Counts(layout)
    placed = {name: list(replicas) for name, replicas in layout.replicas.items()}
    on: dict[NodeId, dict[TopicPartition, None]] = {node: {} for node in sorted(layout.open)}
    for name, replicas in placed.items():
        for node in layout.open.intersection(replicas):
            on[node][name] = None
    mover = _Mover(counts, placed, on)
    mover.spread_racks()
    while mover.even_out():
        pass  # each time two brokers come closer to each other
    leads = _Leads(placed, layout.open)
    while leads.shift():
        pass
    return {name: tuple(target) for name, target in placed.items() if tuple(target) != layout.replicas[name]}


def moved(layout: Layout, moves: Moves) -> int:
    """How many replicas must be copied for it."""
    return sum(len(set(target).difference(layout.replicas[n])) for n, target in moves.items())


def _check_room(
    stay: Mapping[TopicPartition, Sequence[NodeId]],
    able: frozenset[NodeId],
    wanted: Mapping[TopicPartition, int],
    gone: Collection[NodeId],
) -> None:
    short: dict[str, int] = {}
    for name, nodes in stay.items():
        if len(able.union(nodes)) < wanted[name]:
            short[name.topic] = max(short.get(name.topic, 0), wanted[name])
    if short:
        topics = ", ".join(f"{topic} ({factor})" for topic, factor in sorted(short.items()))
        without = f" without {sorted(gone)}" if gone else ""
        raise InvalidReplicationFactor(
            f"too few brokers are left{without}: {sorted(able)} are there and not cordoned; these "
            f"topics need more for their replicas: {topics}. Add brokers, or lower their number"
        )


class _Counts:
    """How many replicas each broker holds, and is the first of: of a topic, and of all."""

    def __init__(self, layout: Layout) -> None:
        self._racks = layout.racks
        self.held: Counter[NodeId] = Counter()
        self.of_topic: Counter[tuple[str, NodeId]] = Counter()
        self._led: Counter[NodeId] = Counter()
        self._led_of_topic: Counter[tuple[str, NodeId]] = Counter()
        for name, replicas in layout.replicas.items():
            for node in replicas:
                self.add(name, node)
            self._lead(name, replicas[0], 1)

    def add(self, name: TopicPartition, node: NodeId) -> None:
        self.held[node] += 1
        self.of_topic[name.topic, node] += 1

    def drop(self, name: TopicPartition, nodes: Iterable[NodeId]) -> None:
        for node in nodes:
            self.held[node] -= 1
            self.of_topic[name.topic, node] -= 1

    def _lead(self, name: TopicPartition, node: NodeId, count: int) -> None:
        self._led[node] += count
        self._led_of_topic[name.topic, node] += count

    def beside(self, node: NodeId, replicas: Iterable[NodeId]) -> int:
        """How many others of `replicas` are in the rack of `node`."""
        rack = self._racks.get(node)
        if rack is None:
            return 0
        return sum(self._racks.get(other) == rack for other in replicas if other != node)

    def least(self, name: TopicPartition, among: Iterable[NodeId], replicas: Sequence[NodeId]) -> NodeId:
        """Who of `among` should hold one more, beside `replicas`."""
        return min(
            among,
            key=lambda node: (
                self.beside(node, replicas),
                self.of_topic[name.topic, node],
                self.held[node],
                node,
            ),
        )

    def most(self, name: TopicPartition, replicas: Sequence[NodeId], layout: Layout) -> NodeId:
        """Who of `replicas` should hold one less: rather who is away, and not the first."""
        in_sync = layout.in_sync.get(name, frozenset(replicas))
        return max(
            replicas,
            key=lambda node: (
                node not in in_sync,
                node not in layout.open,
                node != replicas[0],
                self.beside(node, replicas),
                self.of_topic[name.topic, node],
                self.held[node],
                node,
            ),
        )

    def led(self, name: TopicPartition, before: Replicas, target: list[NodeId]) -> Replicas:
        """The target with its first: who was it before, or else who leads the least."""
        first = before[0]
        if first not in target:
            first = min(
                target,
                key=lambda node: (self._led_of_topic[name.topic, node], self._led[node], target.index(node)),
            )
            self._lead(name, before[0], -1)
            self._lead(name, first, 1)
        return (first, *(node for node in target if node != first))


class _Mover:
    """Moves replicas one by one, until all brokers hold the same, give or take one."""

    def __init__(
        self,
        counts: _Counts,
        placed: dict[TopicPartition, list[NodeId]],
        on: dict[NodeId, dict[TopicPartition, None]],
    ) -> None:
        self._counts = counts
        self._placed = placed
        self._on = on

    def spread_racks(self) -> None:
        """Move replicas that share a rack though another rack has none."""
        counts = self._counts
        for name, replicas in self._placed.items():
            for source in sorted(replicas, key=lambda node: -counts.held[node]):
                others = [node for node in self._on if node not in replicas]
                if source not in self._on or not others or not counts.beside(source, replicas):
                    continue
                heir = counts.least(name, others, replicas)
                if not counts.beside(heir, [node for node in replicas if node != source]):
                    self._move(name, source, heir)

    def even_out(self) -> bool:
        """Move one replica from who has the most to who has the least; False if all is even."""
        held = self._counts.held
        ranked = sorted(self._on, key=lambda node: (held[node], node))
        for source in reversed(ranked):
            for heir in ranked:
                if held[source] - held[heir] < 2:
                    break  # the others have even more
                name = self._best(source, heir)
                if name is not None:
                    self._move(name, source, heir)
                    return True
        return False

    def _best(self, source: NodeId, heir: NodeId) -> TopicPartition | None:
        """What to move: of the topic of which the two differ the most."""
        counts, of_topic = self._counts, self._counts.of_topic
        best, most = None, -(1 << 62)
        for name in self._on[source]:
            replicas = self._placed[name]
            gap = of_topic[name.topic, source] - of_topic[name.topic, heir]
            if gap > most and heir not in replicas:
                rest = [node for node in replicas if node != source]
                if counts.beside(heir, rest) <= counts.beside(source, rest):
                    best, most = name, gap
        return best

    def _move(self, name: TopicPartition, source: NodeId, heir: NodeId) -> None:
        replicas = self._placed[name]
        replicas[replicas.index(source)] = heir
        self._counts.drop(name, [source])
        self._counts.add(name, heir)
        del self._on[source][name]
        self._on[heir][name] = None


class _Leads:
    """Whose turn it is to be the first of which replicas."""

    def __init__(self, placed: dict[TopicPartition, list[NodeId]], able: Collection[NodeId]) -> None:
        self._placed = placed
        self._able = frozenset(able)
        self._by: dict[NodeId, dict[TopicPartition, None]] = {node: {} for node in sorted(able)}
        for name, replicas in placed.items():
            if replicas[0] in self._able:
                self._by[replicas[0]][name] = None

    def shift(self) -> bool:
        """Let who leads the most lead one less, and who leads two less or fewer one more.

        They need not share a partition: the lead may be handed on along a chain of others.
        """
        ranked = sorted(self._by, key=lambda node: (-len(self._by[node]), node))
        for source in ranked:
            if len(self._by[source]) - len(self._by[ranked[-1]]) < 2:
                return False
            if chain := self._chain_from(source):
                for name, heir in chain:
                    replicas = self._placed[name]
                    del self._by[replicas[0]][name]
                    self._by[heir][name] = None
                    replicas.remove(heir)
                    replicas.insert(0, heir)
                return True
        return False

    def _chain_from(self, source: NodeId) -> list[tuple[TopicPartition, NodeId]]:
        """The shortest way to a broker that leads two less: each step a partition and its heir."""
        chains: dict[NodeId, list[tuple[TopicPartition, NodeId]]] = {source: []}
        queue = deque([source])
        while queue:
            node = queue.popleft()
            if len(self._by[node]) <= len(self._by[source]) - 2:
                return chains[node]
            for name in self._by[node]:
                for heir in self._placed[name]:
                    if heir not in chains and heir in self._able:
                        chains[heir] = [*chains[node], (name, heir)]
                        queue.append(heir)
        return []
