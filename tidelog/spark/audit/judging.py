"""What was told of the replicas, and what that means.

Rule 1: nothing here asks a cluster or Spark; every function is pure.
Rule 2: a finding is what no healthy cluster shows, however busy. Whatever could not be looked at is
        no finding, but the audit is not whole then: it says so, and does not call anything clean.
Rule 3: a replica that is no longer one, or whose topic is gone, need not be looked at.
Rule 4: where replicas differ, the many are right; without a majority, the leader is.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from tidelog.model import NO_NODE, NodeId, Offset, TopicPartition
from tidelog.spark.audit.found import Bad, Disorder, Dispute, Found, Gap, Lost, Seen
from tidelog.spark.audit.plan import AuditPlan, Replica
from tidelog.spark.audit.walk import Kind

Copy: TypeAlias = tuple[str, int, NodeId]
"""Topic, partition and node: one replica."""


class Fault(StrEnum):
    """What can be wrong with a replica."""

    CORRUPT = "corrupt"
    """A batch whose bytes are not those that were written."""
    UNREADABLE = "unreadable"
    """The node itself says that its disk is damaged there."""
    MISSING = "missing"
    """Committed offsets that the replica does not hold."""
    DISORDER = "disorder"
    """A batch that cannot follow the one before it, by its offsets or its epoch."""
    DIFFERENT = "different"
    """A sound batch or record that is another one elsewhere."""
    LOST = "lost"
    """The newest record of a key, in a compacted topic."""


class Outcome(StrEnum):
    CLEAN = "clean"
    FINDINGS = "findings"
    INCOMPLETE = "incomplete"

    @property
    def exit_code(self) -> int:
        return {Outcome.CLEAN: 0, Outcome.FINDINGS: 1, Outcome.INCOMPLETE: 2}[self]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Finding:
    """Something wrong with one replica, from `first` to `last`."""

    topic: str
    partition: int
    node: NodeId
    first: Offset
    last: Offset
    fault: Fault
    detail: str
    total: int = 1
    """How many of this fault the replica has, this one and those not listed included."""

    @property
    def copy(self) -> Copy:
        return self.topic, self.partition, self.node

    @property
    def offsets(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}..{self.last}"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Unread:
    """A replica that was not read, or not to its end."""

    topic: str
    partition: int
    node: NodeId
    why: str
    is_gone: bool = False
    """Whether it need not be read any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """All there is to say."""

    findings: tuple[Finding, ...]
    unread: tuple[Unread, ...]
    seen: Mapping[Copy, Seen]

    @property
    def outcome(self) -> Outcome:
        if self.findings:
            return Outcome.FINDINGS
        is_whole = all(one.is_gone for one in self.unread)
        return Outcome.CLEAN if is_whole else Outcome.INCOMPLETE


def judge(plan: AuditPlan, found: Found, still: Collection[Copy]) -> Verdict:
    """What it means; `still` are the replicas that the cluster had when all had been read."""
    leaders = {one.place: one.node for one in plan.replicas if one.is_leader}
    findings = {
        *_damage(found.bad),
        *map(_missing, found.gaps),
        *map(_disorder, found.disorders),
        *(one for dispute in found.disputes for one in _different(dispute, leaders)),
        *map(_lost, found.lost),
    }
    return Verdict(
        findings=tuple(sorted(one for one in findings if one.copy in still)),
        unread=tuple(sorted({*_unplanned(plan.replicas, still), *_unreached(found.bad, still)})),
        seen={(one.topic, one.partition, one.replica): one for one in found.seen},
    )


def _damage(bad: Iterable[Bad]) -> Iterator[Finding]:
    for one in bad:
        if one.kind == Kind.UNREACHABLE:
            continue
        fault = Fault.CORRUPT if one.kind == Kind.BAD else Fault.UNREADABLE
        since = "; good when asked for again: the node has mended it" if one.is_mended else ""
        yield Finding(
            topic=one.topic,
            partition=one.partition,
            node=one.replica,
            first=one.first,
            last=one.last,
            fault=fault,
            detail=f"{one.problem}{since}",
            total=one.total,
        )


def _missing(gap: Gap) -> Finding:
    if gap.held_by:
        detail = f"{_nodes(gap.held_by)} {_has(gap.held_by)} {gap.held_first}..{gap.held_last}"
    else:
        detail = "no replica holds them; a topic that once was compacted may lack some"
    return Finding(
        topic=gap.topic,
        partition=gap.partition,
        node=gap.replica,
        first=gap.first,
        last=gap.last,
        fault=Fault.MISSING,
        detail=detail,
        total=gap.total,
    )


def _disorder(one: Disorder) -> Finding:
    if one.first <= one.last_before:
        detail = f"the batch before it ends at {one.last_before}"
    else:
        detail = f"its epoch is {one.epoch}, that of the batch before it {one.epoch_before}"
    return Finding(
        topic=one.topic,
        partition=one.partition,
        node=one.replica,
        first=one.first,
        last=one.last,
        fault=Fault.DISORDER,
        detail=detail,
        total=one.total,
    )


def _different(dispute: Dispute, leaders: Mapping[TopicPartition, NodeId]) -> Iterator[Finding]:
    """A finding for each replica that is wrong, as far as one can tell who is."""
    leader = leaders.get(TopicPartition(dispute.topic, dispute.partition), NO_NODE)
    right = right_of(dispute.held, leader)
    agreeing = [node for node, said in sorted(dispute.held.items()) if said == right]
    for node, said in sorted(dispute.held.items()):
        if said == right:
            continue
        others = {other: what for other, what in dispute.held.items() if what != said}
        detail = (
            f"{said}; {_nodes(agreeing)} {_has(agreeing)} {right}"
            if right is not None
            else f"{said}; " + ", ".join(f"node {n}: {what}" for n, what in sorted(others.items()))
        )
        yield Finding(
            topic=dispute.topic,
            partition=dispute.partition,
            node=node,
            first=dispute.first,
            last=dispute.last,
            fault=Fault.DIFFERENT,
            detail=detail,
            total=dispute.total,
        )


def right_of(held: Mapping[NodeId, str], leader: NodeId) -> str | None:
    """What most replicas hold, or else the leader; None if nobody can tell."""
    ((said, count),) = Counter(held.values()).most_common(1)
    return said if 2 * count > len(held) else held.get(leader)


def _lost(one: Lost) -> Finding:
    return Finding(
        topic=one.topic,
        partition=one.partition,
        node=one.replica,
        first=one.offset,
        last=one.offset,
        fault=Fault.LOST,
        total=one.total,
        detail=f"the newest record of its key; {_nodes(one.held_by)} {_has(one.held_by)} it",
    )


def _unplanned(replicas: Iterable[Replica], still: Collection[Copy]) -> Iterator[Unread]:
    for one in replicas:
        if one.problem:
            yield Unread(
                topic=one.topic,
                partition=one.partition,
                node=one.node,
                why=one.problem,
                is_gone=(one.topic, one.partition, one.node) not in still,
            )


def _unreached(bad: Iterable[Bad], still: Collection[Copy]) -> Iterator[Unread]:
    for one in bad:
        if one.kind == Kind.UNREACHABLE:
            yield Unread(
                topic=one.topic,
                partition=one.partition,
                node=one.replica,
                why=f"from {one.first} on: {one.problem}",
                is_gone=(one.topic, one.partition, one.replica) not in still,
            )


def _nodes(nodes: Collection[NodeId]) -> str:
    return f"node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, sorted(nodes)))}"


def _has(nodes: Collection[NodeId]) -> str:
    return "hold" if len(nodes) > 1 else "holds"
