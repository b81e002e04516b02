"""Three nodes, clients that write down what they are told, and somebody who breaks things.

Rule 1: whatever is broken is mended again, one round after the other; after each round everything
        must go on within `LIVE_SECONDS_MAX`.
Rule 2: a seed decides what is broken, in which order and for how long. What the processes make of
        it is theirs: the same seed is the same plan, not the same history.
Rule 3: at the end everything is read twice, the second time after all nodes were killed at once;
        the history is checked, the files are verified, and the copies are compared byte by byte.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.cluster.clients import create_topic
from tests.cluster.witnesses import (
    MemberWitness,
    Partitions,
    ProducerWitness,
    Witness,
    all_places,
    place_name,
    read_everything,
)
from tests.support.nodes import Nodes
from tidelog.faces.cli.segments import Verifier, partition_directories
from tidelog.model import NodeId, Offset
from tidelog.simulation.history import History, dump
from tidelog.simulation.history_check import Anomaly, Replicas, check
from tidelog.wire.apis import Api

NODES: Final = (1, 2, 3)
TOPICS: Final[Partitions] = {"orders": 2, "payments": 3}
OFFSETS: Final = "__consumer_offsets"
OFFSETS_PARTITIONS: Final = 2
GROUP: Final = "readers"
FINAL: Final = "final-"
"""How the names of those begin who read everything at the end."""

SETTINGS: Final = {
    "checkpoint.ms": 500,
    "log.index.interval.bytes": 1024,
    "log.segment.bytes": 256 * 1024,
    "offsets.topic.num.partitions": OFFSETS_PARTITIONS,
    "replica.lag.time.max.ms": 2000,
}
LIVE_SECONDS_MAX: Final = 45.0
IN_FLIGHT_MAX: Final = 5
"""A node that refuses a batch, begins to lead, and calls the next one out of order makes librdkafka
write duplicates: it sends all again under another epoch (its issue 4953). With 1 it cannot."""
ABANDON_SECONDS_MAX: Final = 10.0
PREFERRED: Final = 0


@dataclass(slots=True)
class Outcome:
    """What came of it."""

    seed: int
    directory: Path
    acknowledged: int = 0
    read: int = 0
    commits: int = 0
    operations: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    """Batches that every replica holds alike."""
    failures: list[str] = field(default_factory=list)
    anomalies: list[Anomaly] = field(default_factory=list)
    history: Path | None = None
    """Where the history is, if something is wrong with it."""

    @property
    def is_good(self) -> bool:
        return not self.failures and not self.anomalies

    def __str__(self) -> str:
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        lines = [
            f"seed {self.seed}: {self.acknowledged} records acknowledged, {self.read} read by the "
            f"group in {self.commits} commits, {self.operations} operations in the history",
            f"{sum(self.faults.values())} faults: {faults}",
            f"{self.compared} batches the same on every replica",
            *self.failures,
            *map(str, self.anomalies[:20]),
            f"verdict: {'nothing is wrong' if self.is_good else 'NOT CORRECT'}",
        ]
        if self.history is not None:
            lines += [
                f"the history: {self.history} (nodes' files and logs beside it)",
                f"check it again: python -m tests.cluster.soak --check {self.history}",
            ]
        return "\n".join(lines)


class Chaos:
    """One run."""

    def __init__(
        self,
        directory: Path,
        seed: int,
        *,
        per_second_max: float = 300.0,
        in_flight_max: int = IN_FLIGHT_MAX,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.outcome = Outcome(seed=seed, directory=directory)
        self.history = History()
        self._per_second_max = per_second_max
        self._in_flight_max = in_flight_max
        self._report = report
        self._random = random.Random(seed)
        self._nodes = Nodes(directory, NODES, SETTINGS)
        self._producers: list[ProducerWitness] = []
        self._members: list[MemberWitness] = []
        self._left: list[MemberWitness] = []
        self._held = threading.Event()  # never set: a fault lasts as long as it is waited for

    def run(self, seconds: float, kinds: Collection[str] = ()) -> Outcome:
        """Break things for so long, mend them, and look at what is left.

        With `kinds`, each of these once is enough.
        """
        outcome = self.outcome
        with self._nodes:
            try:
                self._begin()
                self._break_things(seconds, kinds)
                self._finish()
            except AssertionError as error:
                outcome.failures.append(f"{error}")
                for witness in self._witnesses():
                    witness.abandon()
                for witness in self._witnesses():
                    witness.join(ABANDON_SECONDS_MAX)
                # What clients were told until then may be wrong already.
                outcome.anomalies = check_history(self.history)
        self._count()
        for witness in self._witnesses():
            outcome.failures += witness.failures
        outcome.failures += self._complaints()
        if not outcome.is_good:
            outcome.history = outcome.directory / "history.jsonl"
            with outcome.history.open("w") as file:
                file.writelines(dump(self.history))
        return outcome

    def _witnesses(self) -> list[Witness]:
        return [*self._producers, *self._members, *self._left]

    def _count(self) -> None:
        outcome = self.outcome
        outcome.acknowledged = sum(sum(p.acknowledged.values()) for p in self._producers)
        outcome.read = self._read()
        outcome.commits = sum(member.commits for member in (*self._members, *self._left))
        outcome.operations = len(self.history)

    def _read(self) -> int:
        return sum(member.read for member in (*self._members, *self._left))

    # The beginning.

    def _begin(self) -> None:
        nodes, seed = self._nodes, self._random
        nodes.until_active(*NODES)
        for topic, count in TOPICS.items():
            replicas = [seed.sample(NODES, len(NODES)) for _ in range(count)]
            create_topic(nodes.bootstrap, topic, replicas)
        for number, codec in enumerate(("none", "lz4")):
            name = f"producer-{number}"
            producer = ProducerWitness(
                name,
                self.history,
                nodes.bootstrap,
                TOPICS,
                log=self._log_of(name),
                in_flight_max=self._in_flight_max,
                per_second_max=self._per_second_max / 2,
                linger_ms=5 * number,
                codec=codec,
            )
            self._producers.append(producer)
            producer.start()
        self._join()
        self._join()
        self._until_live()

    def _log_of(self, name: str) -> Path:
        return self.outcome.directory / f"{name}.log"

    def _join(self) -> None:
        name = f"member-{len(self._members) + len(self._left)}"
        member = MemberWitness(
            name, self.history, self._nodes.bootstrap, TOPICS, GROUP, log=self._log_of(name)
        )
        self._members.append(member)
        member.start()

    # Rounds.

    def _break_things(self, seconds: float, kinds: Collection[str]) -> None:
        reported_at = began_at = time.monotonic()
        for kind, fault in self._plan(kinds):
            if time.monotonic() >= began_at + seconds:
                break
            self.outcome.faults[kind] += 1
            fault()
            self._mend()
            self._until_live()
            if time.monotonic() >= reported_at + 10:
                reported_at = time.monotonic()
                self._count()
                faults = sum(self.outcome.faults.values())
                self._report(
                    f"{reported_at - began_at:6.0f} s: {self.outcome.acknowledged} acknowledged, "
                    f"{self.outcome.read} read, {self.outcome.commits} commits, {faults} faults"
                )

    def _plan(self, only: Collection[str]) -> Iterator[tuple[str, Callable[[], None]]]:
        """Every kind once, in any order; and again, unless it is `only` some."""
        kinds: dict[str, Callable[[], None]] = {
            "kill": self._kill_one,
            "kill two": self._kill_two,
            "kill all": self._kill_all,
            "pause": self._pause,
            "restart": self._restart,
            "elect": self._elect,
            "isolate": self._isolate,
            "cut": self._cut,
            "one-way cut": self._cut_one_way,
            "kill while cut": self._kill_while_cut,
            "rebalance": self._rebalance,
        }
        while True:
            names = list(only or kinds)
            self._random.shuffle(names)
            for name in names:
                yield name, kinds[name]
            if only:
                return

    def _mend(self) -> None:
        self._nodes.network.mend(lose=self._random.random() < 0.5)
        self._nodes.mend()

    def _until_live(self) -> None:
        """Wait until every producer has got something acknowledged in every topic; maybe more."""
        before = [(p, topic, p.acknowledged[topic]) for p in self._producers for topic in TOPICS]
        self._await(
            lambda: all(producer.acknowledged[topic] > count for producer, topic, count in before),
            "nothing is acknowledged any more",
        )
        # Otherwise the next fault meets what is not whole yet. A group that lost a member needs a
        # session's time, and hardly ever gets it from two faults in a row.
        if self._random.random() < 0.5:
            self._until_whole()
        if self._random.random() < 0.25:
            read = self._read()
            self._await(lambda: self._read() > read, "the group reads nothing any more")

    def _until_whole(self) -> None:
        for topic in TOPICS:
            self._nodes.until_all_in_sync(topic)

    def _check_witnesses(self) -> None:
        for witness in self._witnesses():
            if witness.failures:
                raise _WitnessFailed(f"{witness.name} fails")

    def _await(self, is_so: Callable[[], bool], problem: str) -> None:
        deadline = time.monotonic() + LIVE_SECONDS_MAX
        while not is_so():
            self._check_witnesses()
            assert time.monotonic() < deadline, f"after healing: {problem}"
            self._held.wait(0.02)

    def _hold(self, least: float, most: float) -> None:
        self._held.wait(self._random.uniform(least, most))

    def _victim(self) -> NodeId:
        """Any node; often one that leads something, for that is where it hurts."""
        topic = self._random.choice(list(TOPICS))
        victim = self._random.choice(NODES)
        if self._random.random() < 0.6:
            leaders = [p.leader for p in self._nodes.partitions(topic) if p.leader in NODES]
            victim = self._random.choice(leaders or NODES)
        return victim

    # What breaks.

    def _kill_one(self) -> None:
        self._nodes.kill(self._victim())
        self._hold(0, 1.5)

    def _kill_two(self) -> None:
        first, second = self._random.sample(NODES, 2)
        self._nodes.kill(first)
        self._hold(0, 1.0)
        self._nodes.kill(second)
        self._hold(0, 0.5)
        if self._random.random() < 0.5:
            self._nodes.start(second)  # the other order, and some time apart
            self._hold(0, 0.5)

    def _kill_all(self) -> None:
        self._nodes.kill(*self._random.sample(NODES, len(NODES)))

    def _pause(self) -> None:
        victim = self._victim()
        self._nodes.freeze(victim)
        self._hold(0.1, 3.5)  # a lease is 2 s
        self._nodes.thaw(victim)

    def _restart(self) -> None:
        victim = self._victim()
        self._nodes.stop(victim)
        self._hold(0, 0.5)
        self._nodes.start(victim)

    def _elect(self) -> None:
        """Leaders go elsewhere with a node that stops, and are asked back when it is in sync."""
        victim = self._victim()
        self._nodes.stop(victim)
        self._nodes.start(victim)
        self._until_whole()
        self._nodes.ask(
            Api.ELECT_LEADERS, 1, {"election_type": PREFERRED, "topic_partitions": None, "timeout": 10_000}
        )

    def _isolate(self) -> None:
        self._nodes.network.isolate(self._victim())
        self._hold(0.5, 4.0)

    def _cut(self) -> None:
        self._nodes.network.cut(*self._random.sample(NODES, 2))
        self._hold(0.5, 4.0)

    def _cut_one_way(self) -> None:
        self._nodes.network.cut(*self._random.sample(NODES, 2), both_ways=False)
        self._hold(0.5, 4.0)

    def _kill_while_cut(self) -> None:
        self._nodes.network.isolate(self._victim())
        self._hold(0.1, 2.5)
        self._nodes.kill(self._random.choice(NODES))
        self._hold(0, 1.0)

    def _rebalance(self) -> None:
        leaver = self._members.pop(0)
        self._left.append(leaver)
        if self._random.random() < 0.5:
            leaver.stop()
            self._join()
        else:
            self._join()
            leaver.stop()

    # The end.

    def _finish(self) -> None:
        outcome, nodes = self.outcome, self._nodes
        self._report("mending, and reading everything")
        self._mend()
        for producer in self._producers:
            producer.stop()
        self._check_witnesses()
        nodes.until_active(*NODES)
        self._until_whole()
        ends = self._watermarks()
        self._await(lambda: self._committed() == ends, "the group does not come to the end")
        for member in self._members:
            member.stop()
        outcome.failures += read_everything(f"{FINAL}1", self.history, nodes.bootstrap, TOPICS, ends)
        nodes.kill(*NODES)
        nodes.start(*NODES)
        nodes.until_active(*NODES)
        self._until_whole()
        self._look_up()
        nodes.until_all_in_sync(OFFSETS)
        after = self._watermarks()
        if after != ends:
            outcome.failures.append(f"the watermarks were {ends}, and are {after} after the kill")
        outcome.failures += read_everything(f"{FINAL}2", self.history, nodes.bootstrap, TOPICS, after)
        watermarks = after | self._watermarks({OFFSETS: OFFSETS_PARTITIONS})
        for node in NODES:
            nodes.stop(node)
        self._report("checking")
        self._verify_files()
        replicas = self._replicas(watermarks)
        outcome.compared = sum(len(copies[NODES[0]]) for copies in replicas.values())
        outcome.anomalies = check_history(self.history, replicas, watermarks)

    def _watermarks(self, topics: Partitions = TOPICS) -> dict[str, Offset]:
        found: dict[str, Offset] = {}
        for place in all_places(topics):
            topic, number = place.topic, place.partition

            def is_known(topic: str = topic, number: int = number) -> bool:
                end = self._nodes.watermark(topic, number)
                if end is not None:
                    found[place_name(topic, number)] = end
                return end is not None

            self._nodes.until(is_known, f"the end of {topic}-{number} is not known")
        return found

    def _committed(self) -> dict[str, Offset]:
        """What the group was told is committed, by whoever was told the most."""
        ends: dict[str, Offset] = {}
        for member in (*self._left, *self._members):
            for place, end in list(member.committed.items()):
                ends[place] = max(ends.get(place, 0), end)
        return ends

    def _look_up(self) -> None:
        """What the group's offsets are, after all nodes were killed."""
        numbers = {topic: list(range(count)) for topic, count in TOPICS.items()}
        asked = [{"name": t, "partition_indexes": n} for t, n in numbers.items()]
        looking = self.history.begin_commit("looking", GROUP)
        found: dict[str, Offset] = {}

        def is_found() -> bool:
            fields = {"key": GROUP, "key_type": 0}
            coordinator = int(self._nodes.ask(Api.FIND_COORDINATOR, 3, fields).node_id)
            fields = {"group_id": GROUP, "topics": asked, "require_stable": False}
            answer = self._nodes.ask(Api.OFFSET_FETCH, 7, fields, coordinator)
            for topic in answer.topics:
                for part in topic.partitions:
                    if part.error_code == 0:
                        found[place_name(topic.name, part.partition_index)] = part.committed_offset
            return answer.error_code == 0 and len(found) == sum(TOPICS.values())

        self._nodes.until(is_found, "the group's offsets cannot be looked up")
        looking.ok(found)

    def _replicas(self, watermarks: dict[str, Offset]) -> Replicas:
        stored = {node: self._nodes.stored(node) for node in NODES}
        return {place: {node: stored[node][place] for node in NODES} for place in watermarks}

    def _verify_files(self) -> None:
        for node in NODES:
            verifier = Verifier(self._nodes[node].data)
            for path in partition_directories(self._nodes[node].data):
                self.outcome.failures += [
                    f"node {node}: {path.name}: {problem}" for problem in verifier.verify(path).problems
                ]

    def _complaints(self) -> Iterator[str]:
        """What nodes say of themselves and should not have to."""
        for node in NODES:
            log = self._nodes[node].log
            text = log.read_text() if log.exists() else ""
            if (at := text.find("Traceback")) >= 0:
                yield f"node {node}: {log}: {text[max(at - 300, 0) : at + 1500]}"


class _WitnessFailed(AssertionError):
    """Its own words are in its `failures`."""


def check_history(
    history: History, replicas: Replicas | None = None, watermarks: dict[str, Offset] | None = None
) -> list[Anomaly]:
    """Everything that is wrong; of a dumped history without the copies, which are not in it."""
    finals = {op.process for op in history if op.process.startswith(FINAL)}
    return check(history, final_reads=finals, replicas=replicas or {}, watermarks=watermarks or {})
