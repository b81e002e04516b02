"""Judges a history: whether a log that keeps its promises could have answered so."""

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise, zip_longest
from types import MappingProxyType
from typing import Final, TypeAlias

from tidelog.model import NodeId, Offset
from tidelog.simulation.history import (
    NEVER,
    Assign,
    Commit,
    Operation,
    Poll,
    Read,
    Send,
    Txn,
    Write,
    invoked_at,
)

INCONSISTENT_OFFSETS: Final = "inconsistent offsets"
DUPLICATE: Final = "duplicate"
ABORTED_READ: Final = "aborted read"
PHANTOM_READ: Final = "phantom read"
LOST_WRITE: Final = "lost write"
UNSEEN: Final = "unseen"
SKIPPING_POLL: Final = "skipping poll"
NON_MONOTONIC_POLL: Final = "non-monotonic poll"
NON_MONOTONIC_SEND: Final = "non-monotonic send"
STALE_OFFSET: Final = "acknowledged offset is stale"
GROUP_REGRESSED: Final = "group offset regressed"
CYCLE: Final = "write-read cycle"
REPLICAS_DIFFER: Final = "replicas differ"
_ANOMALIES_MAX: Final = 20
"""Of one rule in one partition; the rest is counted."""
_EXAMPLES_MAX: Final = 5
"""Of the values in one anomaly, and of the operations that speak of a value."""
_SHOWN_BYTES_MAX: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """What no correct log would have done."""

    rule: str
    partition: str
    """Of a cycle, that of its first edge."""
    facts: str
    evidence: tuple[str, ...] = ()
    """What was said of the values it is about, and when."""

    def __str__(self) -> str:
        head = f"{self.rule}: {self.partition}: {self.facts}"
        return "".join((head, *(f"\n    {line}" for line in self.evidence)))


Replicas: TypeAlias = Mapping[str, Mapping[NodeId, Sequence[tuple[Offset, bytes]]]]
"""By partition and node: batches with their base offsets, in the order of the log."""

_NO_OFFSETS: Final[Mapping[str, Offset]] = MappingProxyType({})
_NO_REPLICAS: Final[Replicas] = MappingProxyType({})


def check(
    history: Iterable[Operation],
    *,
    final_reads: Collection[str] = (),
    replicas: Replicas = _NO_REPLICAS,
    watermarks: Mapping[str, Offset] = _NO_OFFSETS,
    log_starts: Mapping[str, Offset] = _NO_OFFSETS,
) -> list[Anomaly]:
    """Everything that is wrong with a history; nothing, if the log was correct.

    `final_reads` names the processes whose polls, after healing, read every partition from its
    start. Replicas are compared below the (lowest) watermark of their partition, or wholly if it is
    not given. Records below `log_starts` may have been retired: nobody misses them.
    """
    checker = _Checker(history, log_starts)
    checker.learn_polls()
    checker.learn_sends()
    checker.check_values()
    checker.check_final_reads(final_reads)
    checker.check_polls()
    checker.check_sends()
    checker.check_groups()
    checker.check_cycles()
    checker.check_replicas(replicas, watermarks)
    return checker.report()


@dataclass(slots=True)
class _Known:
    """What is known of one partition."""

    value_at: dict[Offset, bytes] = field(default_factory=dict)
    offset_of: dict[bytes, Offset] = field(default_factory=dict)
    """Before the sends are learned, of what was read; then of all that is committed."""
    values_too_many: dict[Offset, dict[bytes, None]] = field(default_factory=dict)
    offsets_too_many: dict[bytes, dict[Offset, None]] = field(default_factory=dict)
    sent: set[bytes] = field(default_factory=set)
    highest_read: Offset = -1
    aborted: dict[bytes, None] = field(default_factory=dict)
    lost: dict[bytes, Offset] = field(default_factory=dict)
    order: list[Offset] | None = None

    def learn(self, offset: Offset, value: bytes) -> None:
        before = self.value_at.setdefault(offset, value)
        if before != value:
            self.values_too_many.setdefault(offset, {before: None})[value] = None
        place = self.offset_of.setdefault(value, offset)
        if place != offset:
            self.offsets_too_many.setdefault(value, {place: None})[offset] = None

    def between(self, low: Offset, high: Offset) -> list[Offset]:
        """Committed records after `low` and before `high`."""
        if self.order is None:
            offsets = self.value_at.keys() - {self.offset_of[value] for value in self.aborted}
            self.order = sorted(offsets)
        return self.order[bisect_right(self.order, low) : bisect_left(self.order, high)]


@dataclass(frozen=True, slots=True)
class _Finding:
    rule: str
    partition: str
    facts: str
    values: tuple[bytes, ...]


class _Checker:
    """One check; its steps run in the order of `check`."""

    def __init__(self, history: Iterable[Operation], log_starts: Mapping[str, Offset]) -> None:
        self._operations = sorted(history, key=_completed)  # it mostly is
        self._log_starts = log_starts
        self._partitions: dict[str, _Known] = {}
        self._findings: list[_Finding] = []
        self._found: Counter[tuple[str, str]] = Counter()

    def _known(self, partition: str) -> _Known:
        known = self._partitions.get(partition)
        if known is None:
            known = self._partitions[partition] = _Known()
        return known

    def _find(self, rule: str, partition: str, facts: str, values: Iterable[bytes] = ()) -> None:
        self._found[rule, partition] += 1
        if self._found[rule, partition] <= _ANOMALIES_MAX:
            examples = tuple(islice(values, _EXAMPLES_MAX))
            self._findings.append(_Finding(rule, partition, facts, examples))

    # Where everything is.

    def learn_polls(self) -> None:
        for operation in self._operations:
            if operation.type != "ok" or not isinstance(operation, Poll | Txn):
                continue
            for read in operation.reads:
                known = self._known(read.partition)
                value_at, offset_of = known.value_at, known.offset_of
                for offset, value in zip(read.offsets, read.values, strict=True):
                    if value_at.get(offset) != value or offset_of.get(value) != offset:
                        known.learn(offset, value)  # most were read before, by another
        for known in self._partitions.values():
            known.highest_read = max(known.value_at, default=-1)

    def learn_sends(self) -> None:
        """A value belongs to one operation, so what this one adds does not look read to others."""
        for operation in self._operations:
            if not isinstance(operation, Send | Txn):
                continue
            is_committed = self._is_committed(operation)
            for write in _writes(operation):
                known = self._known(write.partition)
                for value in write.values:
                    if value in known.sent:
                        raise ValueError(f"{write.partition}: {_show(value)} was sent twice")
                    known.sent.add(value)
                if is_committed:
                    self._learn_write(known, write)
                elif operation.type == "fail":
                    read = (value for value in write.values if value in known.offset_of)
                    known.aborted.update(dict.fromkeys(read))

    def _learn_write(self, known: _Known, write: Send | Write) -> None:
        offset_of = known.offset_of
        base = write.offset
        if base is None:  # any value that was read gives it away
            for index, value in enumerate(write.values):
                if value in offset_of:
                    base = offset_of[value] - index
                    break
            else:
                return
        start = self._log_starts.get(write.partition, 0)
        for offset, value in enumerate(write.values, base):
            if value not in offset_of and start <= offset <= known.highest_read:
                known.lost[value] = offset
            known.learn(offset, value)

    def _is_committed(self, operation: Send | Txn) -> bool:
        return operation.type == "ok" or (
            operation.type == "info"
            and any(
                value in self._known(write.partition).offset_of
                for write in _writes(operation)
                for value in write.values
            )
        )

    def _place(self, write: Send | Write) -> Offset | None:
        """Where the first value is, as far as anybody knows."""
        if write.offset is not None or not write.values:
            return write.offset
        return self._partitions[write.partition].offset_of.get(write.values[0])

    # Rules 2 to 5: what is where.

    def check_values(self) -> None:
        for partition, known in self._partitions.items():
            for offset, values in known.values_too_many.items():
                shown = " and ".join(_show(value) for value in values)
                self._find(INCONSISTENT_OFFSETS, partition, f"{offset} holds {shown}", values)
            for value, offsets in known.offsets_too_many.items():
                places = " and ".join(map(str, offsets))
                self._find(DUPLICATE, partition, f"{_show(value)} is at {places}", (value,))
            for value in known.aborted:
                facts = f"{_show(value)} failed, and is at {known.offset_of[value]}"
                self._find(ABORTED_READ, partition, facts, (value,))
            if known.lost:
                facts = f"{_examples(known.lost)}, below {known.highest_read}, were read by nobody"
                self._find(LOST_WRITE, partition, facts, known.lost)
            phantoms = known.offset_of.keys() - known.sent
            for value in sorted(phantoms, key=known.offset_of.__getitem__):
                facts = f"{_show(value)} at {known.offset_of[value]} was sent by nobody"
                self._find(PHANTOM_READ, partition, facts, (value,))

    def check_final_reads(self, readers: Collection[str]) -> None:
        for reader in readers:
            seen: dict[str, set[bytes]] = {partition: set() for partition in self._partitions}
            for operation in self._operations:
                if (
                    operation.process == reader
                    and operation.type == "ok"
                    and isinstance(operation, Poll | Txn)
                ):
                    for read in operation.reads:
                        seen[read.partition].update(read.values)
            missed: dict[str, dict[bytes, Offset | None]] = {}
            for operation in self._operations:
                if not isinstance(operation, Send | Txn) or not self._is_committed(operation):
                    continue
                for write in _writes(operation):
                    if not seen[write.partition].issuperset(write.values):
                        unseen = self._unseen(write, seen[write.partition])
                        missed.setdefault(write.partition, {}).update(unseen)
            for partition, values in missed.items():
                if values:
                    facts = f"{_examples(values)} were not read by {reader} after healing"
                    self._find(UNSEEN, partition, facts, values)

    def _unseen(self, write: Send | Write, seen: Collection[bytes]) -> Iterator[tuple[bytes, Offset | None]]:
        known, start = self._known(write.partition), self._log_starts.get(write.partition, 0)
        for value in write.values:
            offset = known.offset_of.get(value)
            if value not in seen and (start == 0 if offset is None else offset >= start):
                yield value, offset

    # Rule 6: the order in which one process reads.

    def check_polls(self) -> None:
        positions: dict[str, dict[str, Offset]] = {}
        for operation in self._operations:
            match operation:
                case Poll(type="ok") | Txn(type="ok"):
                    mine = positions.setdefault(operation.process, {})
                    for read in operation.reads:
                        self._check_read(operation, read, mine.get(read.partition))
                        if read.offsets:
                            mine[read.partition] = read.offsets[-1]
                case Assign(type="ok"):
                    mine = positions.get(operation.process, {})
                    kept = {name: mine[name] for name in operation.partitions if name in mine}
                    positions[operation.process] = kept
                case Assign(type="info") | Txn():  # nobody knows where it goes on
                    positions.pop(operation.process, None)

    def _check_read(self, operation: Poll | Txn, read: Read, position: Offset | None) -> None:
        offsets = read.offsets
        if not offsets:
            return
        pairs: Iterable[tuple[Offset | None, Offset]]
        if isinstance(offsets, range):  # inside it there is nothing to find
            pairs = ((position, offsets[0]),)
        else:
            pairs = zip(chain((position,), offsets), offsets, strict=False)
        for before, offset in pairs:
            if before is None or offset == before + 1:
                continue
            if offset <= before:
                facts = f"{_name(operation)} returned {offset} after {before}"
                known = self._partitions[read.partition]
                values = (known.value_at[offset],)
                self._find(NON_MONOTONIC_POLL, read.partition, facts, values)
            else:
                self._check_gap(operation, read.partition, before, offset)

    def _check_gap(self, operation: Poll | Txn, partition: str, before: Offset, offset: Offset) -> None:
        known = self._partitions[partition]
        retired = self._log_starts.get(partition, 0) - 1
        if missing := known.between(max(before, retired), offset):
            values = {known.value_at[place]: place for place in missing}
            facts = f"{_name(operation)} returned {offset} after {before}: {_examples(values)}"
            self._find(SKIPPING_POLL, partition, f"{facts} missing", values)

    # Rules 6 and 8: the order in which offsets are given out.

    def check_sends(self) -> None:
        """Go through the sends as they began; `highest` is what was acknowledged before that."""
        sends = [operation for operation in self._operations if isinstance(operation, Send | Txn)]
        acknowledged = (operation for operation in sends if operation.type == "ok")
        next_acknowledged = next(acknowledged, None)
        highest: dict[str, Offset] = {}
        last: dict[tuple[str, str], Offset] = {}
        for operation in sorted(sends, key=invoked_at):
            while next_acknowledged is not None and next_acknowledged.completed < operation.invoked:
                for write in _writes(next_acknowledged):
                    if (base := self._place(write)) is not None:
                        end = base + len(write.values) - 1
                        if end > highest.get(write.partition, -1):
                            highest[write.partition] = end
                next_acknowledged = next(acknowledged, None)
            if operation.type == "fail":
                continue
            for write in _writes(operation):
                if (base := self._place(write)) is None:
                    continue
                floor = highest.get(write.partition, -1)
                if base <= floor:
                    facts = f"{_name(operation)} is at {base}; {floor} was acknowledged before"
                    self._find(STALE_OFFSET, write.partition, facts, write.values)
                if operation.type == "ok":
                    lane = (operation.process, write.partition)
                    if base <= (before := last.get(lane, -1)):
                        facts = f"{_name(operation)} is at {base}, what it sent before at {before}"
                        self._find(NON_MONOTONIC_SEND, write.partition, facts, write.values)
                    last[lane] = base + len(write.values) - 1

    def check_groups(self) -> None:
        commits = [
            operation
            for operation in self._operations
            if isinstance(operation, Commit) and operation.type == "ok"
        ]
        earlier = iter(commits)
        commit = next(earlier, None)
        highest: dict[tuple[str, str], tuple[Offset, Commit]] = {}
        for operation in sorted(commits, key=invoked_at):
            while commit is not None and commit.completed < operation.invoked:
                for partition, offset in commit.offsets:
                    key = (commit.group, partition)
                    if key not in highest or offset > highest[key][0]:
                        highest[key] = (offset, commit)
                commit = next(earlier, None)
            for partition, offset in operation.offsets:
                before = highest.get((operation.group, partition))
                if before is not None and offset < before[0]:
                    facts = (
                        f"{operation.group} is at {offset} by {_name(operation)}, "
                        f"and was at {before[0]} by {_name(before[1])}"
                    )
                    self._find(GROUP_REGRESSED, partition, facts)

    # Rule 7: transactions that wait for each other.

    def check_cycles(self) -> None:
        """An edge goes from who wrote a value to who read it; one's own counts, too."""
        txns = [
            operation
            for operation in self._operations
            if isinstance(operation, Txn) and self._is_committed(operation)
        ]
        writer_of = {
            (write.partition, value): number
            for number, txn in enumerate(txns)
            for write in txn.writes
            for value in write.values
        }
        edges: list[dict[int, tuple[str, bytes]]] = [{} for _ in txns]
        for number, txn in enumerate(txns):
            for read in txn.reads:
                for value in read.values:
                    writer = writer_of.get((read.partition, value))
                    if writer is not None:
                        edges[writer].setdefault(number, (read.partition, value))
        for component in _components(edges):
            cycle = _cycle(edges, component)
            labels = [edges[a][b] for a, b in pairwise(cycle)]
            if labels:
                steps = [
                    f"{_name(txns[number])} wrote {_show(value)} to {partition}"
                    for number, (partition, value) in zip(cycle, labels, strict=False)
                ]
                facts = ", read by whom: ".join((*steps, _name(txns[cycle[-1]])))
                self._find(CYCLE, labels[0][0], facts)

    # Rule 8: the copies.

    def check_replicas(self, replicas: Replicas, watermarks: Mapping[str, Offset]) -> None:
        for partition, copies in replicas.items():
            start, end = self._log_starts.get(partition, 0), watermarks.get(partition, NEVER)
            kept = [
                (node, [batch for batch in copies[node] if start <= batch[0] < end])
                for node in sorted(copies)
            ]
            for node, batches in kept[1:]:
                first_node, first = kept[0]
                if batches != first:
                    facts = _difference(first_node, first, node, batches)
                    self._find(REPLICAS_DIFFER, partition, facts)

    # What was found.

    def report(self) -> list[Anomaly]:
        evidence = self._gather_evidence()
        anomalies = [
            Anomaly(
                rule=finding.rule,
                partition=finding.partition,
                facts=finding.facts,
                evidence=tuple(
                    line for value in finding.values for line in evidence[finding.partition][value]
                ),
            )
            for finding in self._findings
        ]
        anomalies += [
            Anomaly(rule=rule, partition=partition, facts=f"and {found - _ANOMALIES_MAX} more")
            for (rule, partition), found in self._found.items()
            if found > _ANOMALIES_MAX
        ]
        return anomalies

    def _gather_evidence(self) -> dict[str, dict[bytes, list[str]]]:
        """One more pass, only if something is wrong: who said what of the values in question."""
        evidence: dict[str, dict[bytes, list[str]]] = {}
        for finding in self._findings:
            lines = evidence.setdefault(finding.partition, {})
            lines.update((value, []) for value in finding.values)
        if not any(evidence.values()):
            return evidence
        for operation in self._operations:
            if isinstance(operation, Send | Txn):
                for write in _writes(operation):
                    lines = evidence.get(write.partition, {})
                    for index, value in enumerate(write.values):
                        if value in lines:
                            offset = None if write.offset is None else write.offset + index
                            place = "nobody said where" if offset is None else f"at {offset}"
                            lines[value].append(f"{_show(value)}, {place}: {_name(operation)}")
            if isinstance(operation, Poll | Txn):
                for read in operation.reads:
                    lines = evidence.get(read.partition, {})
                    if lines.keys().isdisjoint(read.values):
                        continue
                    for offset, value in zip(read.offsets, read.values, strict=True):
                        if value in lines and len(lines[value]) < _EXAMPLES_MAX:
                            name = _name(operation)
                            lines[value].append(f"{_show(value)}, read at {offset}: {name}")
        return evidence


def _completed(operation: Operation) -> int:
    return operation.completed


def _writes(operation: Send | Txn) -> tuple[Send | Write, ...]:
    return (operation,) if isinstance(operation, Send) else operation.writes


def _name(operation: Operation) -> str:
    until = "never" if operation.completed == NEVER else str(operation.completed)
    return f"{operation.f} of {operation.process} ({operation.type}, {operation.invoked}..{until})"


def _show(value: bytes) -> str:
    return repr(value) if len(value) <= _SHOWN_BYTES_MAX else f"{value[:_SHOWN_BYTES_MAX]!r}..."


def _examples(values: Mapping[bytes, Offset | None]) -> str:
    shown = [
        _show(value) + ("" if offset is None else f" at {offset}")
        for value, offset in islice(values.items(), _EXAMPLES_MAX)
    ]
    more = f" and {len(values) - len(shown)} more" if len(values) > len(shown) else ""
    return ", ".join(shown) + more


def _difference(
    node: NodeId,
    batches: Sequence[tuple[Offset, bytes]],
    other: NodeId,
    others: Sequence[tuple[Offset, bytes]],
) -> str:
    """The first place where two different copies part."""
    for mine, theirs in zip_longest(batches, others):
        if mine == theirs:
            continue
        if mine is None or theirs is None or mine[0] != theirs[0]:
            has, lacks = ("nothing" if copy is None else copy[0] for copy in (mine, theirs))
            return f"node {node} goes on with {has}, node {other} with {lacks}"
        pairs = enumerate(zip(mine[1], theirs[1], strict=False))
        same = min(len(mine[1]), len(theirs[1]))
        byte = next((index for index, (a, b) in pairs if a != b), same)
        return (
            f"the batch at {mine[0]} parts at byte {byte}: "
            f"{len(mine[1])} bytes on node {node}, {len(theirs[1])} on node {other}"
        )
    raise AssertionError("the copies are the same")


def _components(edges: Sequence[Mapping[int, object]]) -> Iterator[list[int]]:
    """The strongly connected components, by Tarjan; iterative, for a chain may be very long."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for root in range(len(edges)):
        if root in index:
            continue
        work = [(root, iter(edges[root]))]
        while work:
            node, successors = work[-1]
            if node not in index:
                index[node] = low[node] = len(index)
                stack.append(node)
                on_stack.add(node)
            for successor in successors:
                if successor not in index:
                    work.append((successor, iter(edges[successor])))
                    break
                if successor in on_stack:
                    low[node] = min(low[node], index[successor])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component: list[int] = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                    on_stack.difference_update(component)
                    yield component


def _cycle(edges: Sequence[Mapping[int, object]], component: list[int]) -> list[int]:
    """A shortest way from the first of a component back to it; empty if there is none."""
    first, members = component[0], set(component)
    came_from: dict[int, int] = {}
    waiting = deque([first])
    while waiting:
        node = waiting.popleft()
        for successor in edges[node]:
            if successor == first:
                way = [first]
                while node != first:
                    way.append(node)
                    node = came_from[node]
                return [first, *reversed(way)]
            if successor in members and successor not in came_from:
                came_from[successor] = node
                waiting.append(successor)
    return []
