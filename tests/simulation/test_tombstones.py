"""Keys that were deleted stay deleted, on replicas that were away while their tombstones went."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulation.test_catchup import TOPIC, Story
from tidelog.client.kafka import KafkaClient
from tidelog.model import TopicPartition
from tidelog.partition.driver import Partition
from tidelog.peers.stream import PeerUnreachable
from tidelog.records import Record, decode_batch, encode_batch
from tidelog.services.promotion import promote
from tidelog.simulation.node_calls import ask_node
from tidelog.simulation.replica_watch import WATERMARK, ReplicaWatch
from tidelog.simulation.world import Violation

NODES = (1, 2, 3)
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "300",
    "delete.retention.ms": "500",
    "min.cleanable.dirty.ratio": "0.01",
}


class CompactedStory(Story):
    """A compacted topic whose tombstones stay for half a second."""

    async def _create(self, client: KafkaClient, *, partitions: int) -> None:
        await client.create_topic(TOPIC, partitions=partitions, replication=3, configs=CONFIGS)

    def put(self, key: str, value: str | None) -> None:
        async def work(client: KafkaClient) -> None:
            data = None if value is None else value.encode()
            record = Record(key=key.encode(), value=data, timestamp_ms=1)
            await client.produce(TOPIC, 0, encode_batch([record]))

        self.do(work)

    def pad(self, count: int = 20) -> None:
        """Write other keys, so that segments are sealed."""
        for number in range(count):
            self.put(f"pad-{number % 3}", "x" * 50)

    def keys(self, node: int) -> set[bytes]:
        """What a replica's records come to."""
        found: dict[bytes, bytes | None] = {}
        for _, batch in self.contents(node):
            for record in decode_batch(batch):
                found[record.key or b""] = record.value
        return {key for key, value in found.items() if value is not None}

    def values(self, node: int, key: str) -> list[bytes | None]:
        """All that a replica has of a key."""
        batches = [decode_batch(batch) for _, batch in self.contents(node)]
        return [r.value for records in batches for r in records if r.key == key.encode()]

    def keep_from_reading(self) -> None:
        """Let the third node read nothing from its leader, though all else is well."""

        async def fail(*_: Any, **__: Any) -> Any:
            raise PeerUnreachable("it is kept from it")

        self.world.node(self.away).broker.member.hub.ask_data = fail
        self.world.run(seconds=1)  # the answer to what it asked for before has come

    def force(self, node: int) -> None:
        """Let a node lead, whatever it lacks."""
        image = self.world.node(self.first).broker.image

        def order(machine: Any) -> Any:
            place = TopicPartition(TOPIC, 0)
            return promote(machine.node.broker, place, node, force=True, dry_run=False)

        self.world.do(ask_node(self.world, image.quorum_leader, order, 5.0))
        self.until(lambda: self.replica(node).leads())

    def has_tombstone(self, node: int, key: bytes) -> bool:
        return any(
            record.key == key and record.value is None
            for _, batch in self.contents(node)
            for record in decode_batch(batch)
        )


@pytest.fixture
def story() -> Iterator[CompactedStory]:
    made = CompactedStory(5, log_cleaner_backoff_ms=200)
    with made:
        yield made


def delete_while_one_is_away(story: CompactedStory) -> None:
    story.put("stays", "1")
    story.put("goes", "1")
    story.pad()
    story.until(lambda: story.is_whole(*NODES))
    story.leave()
    story.put("goes", None)
    for _ in range(8):
        story.pad()
        story.world.run(seconds=2)
    for node in (story.first, story.other):
        assert not story.has_tombstone(node, b"goes"), "it was purged"


def test_a_replica_that_missed_a_tombstone_begins_anew(story):
    delete_while_one_is_away(story)

    story.come_back()
    story.until(lambda: story.is_whole(*NODES))

    assert all(b"stays" in story.keys(node) for node in NODES)
    assert not any(b"goes" in story.keys(node) for node in NODES)


def test_another_leader_knows_what_was_purged(story):
    delete_while_one_is_away(story)
    story.come_back()
    story.world.crash(story.first)
    story.until(lambda: story.is_whole(story.other, story.away))

    assert story.leader() == story.other

    assert b"goes" not in story.keys(story.away)
    assert b"stays" in story.keys(story.away)


def test_a_replica_that_began_anew_passes_on_what_it_lacks(story):
    """It purged nothing itself, and leads next."""
    delete_while_one_is_away(story)
    story.come_back()
    story.until(lambda: story.is_whole(*NODES))

    floors = [story.replica(node).purges.floor for node in NODES]

    assert min(floors) > 1, "the tombstone was at offset 22"
    story.world.crash(story.away)
    story.world.restart(story.away)
    story.until(lambda: story.is_whole(*NODES))
    assert story.replica(story.away).purges.floor >= floors[story.away - 1]


def test_a_replica_that_misses_nothing_goes_on_where_it_was(story):
    story.put("stays", "1")
    story.pad()
    story.until(lambda: story.is_whole(*NODES))
    story.leave()
    for _ in range(3):
        story.pad()
        story.world.run(seconds=1)

    story.come_back()
    story.until(lambda: story.is_whole(*NODES))

    assert story.replica(story.away).purges.floor == 0
    assert not story.replica(story.away).log.is_anew


def test_a_replica_that_begins_anew_while_it_runs_has_not_lost_what_is_committed(story):
    """Its watermark falls to what it holds; it is in no in-sync set until it has all again."""
    watch = ReplicaWatch(story.world)
    watch.compacted = frozenset({TOPIC})
    story.put("goes", "1")
    story.pad()
    story.until(lambda: story.is_whole(*NODES))
    for node in (story.first, story.other):
        story.world.cut(node, story.away)
        story.world.cut(story.away, node)
    story.put("goes", None)
    for _ in range(8):
        story.pad()
        story.world.run(seconds=2)
    replica = story.replica(story.away)
    known = replica.high_watermark

    story.world.heal()
    story.until(lambda: replica.log.is_anew)
    story.world.check_now()

    assert replica.high_watermark < known
    story.until(lambda: story.is_whole(*NODES))
    assert b"goes" not in story.keys(story.away)


def test_a_watermark_that_falls_without_a_reason_is_found(story, monkeypatch):
    ReplicaWatch(story.world)
    story.pad()
    story.until(lambda: story.is_whole(*NODES))
    story.world.check_now()

    monkeypatch.setattr(Partition, "learn_watermark", lambda *_: None)
    story.replica(story.away)._last_watermark -= 1

    with pytest.raises(Violation, match=WATERMARK):
        story.world.run(seconds=5)


def test_a_replica_that_is_copied_slowly_begins_anew_once(story):
    """Its leader keeps it waiting for longer than it takes for tombstones to go."""
    for number in range(6):
        story.put(f"large-{number}", "x" * 4000)
    delete_while_one_is_away(story)
    for node in (story.first, story.other):
        story.set_pace(150, node)
    story.come_back()

    ends = []
    for number in range(7):
        story.put(f"comes-{number % 2}", "1")
        story.put(f"comes-{number % 2}", None)
        story.pad(4)
        story.world.run(seconds=14)
        ends.append(story.away_end())

    assert ends == sorted(ends)
    assert ends[-1] > ends[1] > 0, "it gets on"


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
def test_values_come_back_with_a_leader_that_lacks_what_took_their_place(story, restarts):
    """An operator lets a replica lead that has only the first value of a key. The others have
    compacted that away, for the sake of the second, which is cut off now.
    """
    story.put("key", "first")
    story.pad()
    story.put("stays", "1")
    story.until(lambda: story.is_whole(*NODES))
    story.keep_from_reading()
    story.put("key", "second")
    for _ in range(3):
        story.pad()
        story.world.run(seconds=2)
    for node in (story.first, story.other):
        assert story.values(node, "key") == [b"second"], "the first one was compacted away"
    assert story.values(story.away, "key") == [b"first"]

    if restarts:
        for node in (story.first, story.other):
            story.world.crash(node)
            story.world.restart(node)
            story.until(lambda: story.is_whole(story.first, story.other))
    story.force(story.away)
    story.until(lambda: story.is_whole(*NODES))

    assert [story.values(node, "key") for node in NODES] == [[b"first"]] * 3
