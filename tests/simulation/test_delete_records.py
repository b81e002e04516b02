"""DeleteRecords holds on every replica that may lead, and is done by a leader alone."""

import errno
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.simulation.test_catchup import TOPIC, Story
from tidelog.client.admin import AdminClient, Election
from tidelog.client.cluster import Refused
from tidelog.client.kafka import KafkaClient
from tidelog.cluster.messages import ReplicaPart, ReplicaPosition
from tidelog.config import TopicConfig
from tidelog.controller.image import PartitionImage
from tidelog.errors import OffsetOutOfRange
from tidelog.log.log import Log
from tidelog.model import NO_EPOCH, TopicPartition
from tidelog.records import Record, encode_batch, stamp
from tidelog.replication.follower_sessions import _Session
from tidelog.simulation.nodes import bootstrap

NODES = (1, 2, 3)


def starts(story: Story) -> set[int]:
    return {story.replica(n).log.start for n in NODES if story.world.is_up(n)}


def ask(story: Story, node: int, offset: int) -> Callable[[], object]:
    """Ask one node; whether it has answered, or refused, by now."""
    answers: list[object] = []

    async def delete() -> None:
        where, network = bootstrap(node), story.world.client("deleter").network
        async with AdminClient(where, network=network, timeout_seconds=60) as client:
            try:
                answers.append(await client.delete_records(TOPIC, {0: offset}))
            except (Refused, OSError) as error:
                answers.append(error)

    story.world.client("deleter").spawn(delete())
    return lambda: answers[0] if answers else None


def test_what_was_deleted_stays_deleted_when_another_leads():
    with Story(7) as story:
        story.fill(100)

        story.delete_before(80)
        story.world.lose_power(story.first)

        story.until(lambda: story.leader() != story.first)
        story.until(lambda: starts(story) == {80})
        story.world.restart(story.first)
        story.until(lambda: story.is_whole(*NODES))
        assert starts(story) == {80}


def test_nothing_is_deleted_before_every_replica_in_sync_has_promised_it():
    with Story(7) as story:
        story.fill(100)
        story.world.run(seconds=2)
        for node in (story.other, story.away):
            story.world.cut(story.first, node)

        has_answered = ask(story, story.first, 80)
        story.world.run(seconds=1)

        assert not has_answered()
        assert starts(story) == {0}


def test_a_follower_that_cannot_open_files_deletes_nothing_instead_of_promising_it():
    with Story(7) as story:
        story.fill(100)
        story.world.run(seconds=2)

        def refuse(changes: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        directory = story.world.node(story.other).broker._directory
        note, directory.note_promises = directory.note_promises, refuse
        has_answered = ask(story, story.first, 80)
        story.world.run(seconds=1)

        assert not has_answered()
        assert starts(story) == {0}
        directory.note_promises = note
        story.until(lambda: starts(story) == {80})


def test_a_deposed_leader_without_a_lease_deletes_nothing():
    with Story(7) as story:
        story.fill(100)
        others = (story.other, story.away)
        for node in others:
            story.world.cut(story.first, node)
            story.world.cut(node, story.first)
            story.world.cut("deleter", node)  # else it would find who leads
        story.until(lambda: any(story.replica(n).leader for n in others))
        story.world.run(seconds=3)

        with pytest.raises(Refused):
            story.world.do(_delete_at(story, story.first))
        story.world.heal()

        story.until(lambda: story.is_whole(*NODES))
        assert starts(story) == {0}


async def _delete_at(story: Story, node: int) -> None:
    network = story.world.client("deleter").network
    async with AdminClient(bootstrap(node), network=network) as client:
        await client.delete_records(TOPIC, {0: -1})


def send(story: Story, sequence: int, count: int) -> int:
    """Let producer 7 send `count` records; the offset of the first that it is told."""
    records = [Record(value=b"v%d" % (sequence + i), timestamp_ms=1) for i in range(count)]
    batch = encode_batch(records, producer_id=7, producer_epoch=0, base_sequence=sequence)

    async def work(client: KafkaClient) -> int | None:
        return await client.produce(TOPIC, 0, batch)

    return int(story.do(work))


def let_lead(story: Story, node: int) -> None:
    """Let a node lead that is in sync."""
    place = TopicPartition(TOPIC, 0)
    order = [node, *(n for n in NODES if n != node)]
    story.do(lambda client: client.alter_reassignments({place: order}))
    story.do(lambda client: client.elect_leaders(Election.PREFERRED, [place]))
    story.until(lambda: story.leader() == node and story.replica(node).leader is not None)


@pytest.mark.parametrize("loses_power", [False, True])
@pytest.mark.parametrize("deleted", [14, 20])
def test_a_batch_whose_records_are_deleted_is_not_taken_twice_by_a_replica_that_never_held_it(
    loses_power, deleted
):
    """At 14 the log begins inside of a batch, at 20 it is empty."""
    with Story(7) as story:
        story.leave()
        first, second = send(story, 0, 3), send(story, 3, 7)
        story.fill(10)
        story.delete_before(deleted)
        story.come_back()
        story.until(lambda: story.is_whole(*NODES))
        assert starts(story) == {deleted}
        if loses_power:
            story.world.lose_power(story.away)
            story.world.restart(story.away)
            story.until(lambda: story.is_whole(*NODES))

        let_lead(story, story.away)

        assert (send(story, 3, 7), send(story, 0, 3)) == (second, first)
        assert story.replica(story.away).log.end == 20
        assert send(story, 10, 2) == 20


def test_a_replica_whose_snapshot_of_producers_is_lost_asks_for_it_again():
    with Story(7) as story:
        story.leave()
        first = send(story, 0, 3)
        story.delete_before(3)
        story.come_back()
        story.until(lambda: story.is_whole(*NODES))
        path = story.replica(story.away).path
        story.world.lose_power(story.away)
        disk = story.world.machines[story.away].disk
        snapshots = [name for name in disk.list(path) if name.endswith(".snapshot")]
        for name in snapshots:
            disk.remove(path / name)
        disk.sync_directory(path)

        story.world.restart(story.away)
        story.until(lambda: story.is_whole(*NODES))
        let_lead(story, story.away)

        assert snapshots
        assert send(story, 0, 3) == first


def take_uncommitted(story: Story, node: int, count: int) -> None:
    """Let a follower hold records of the epoch before, which its leader never got."""
    replica, process = story.replica(node), story.world.machines[node].process
    batch = encode_batch([Record(value=b"lost", timestamp_ms=1)] * count)
    stamp(batch, replica.log.end, replica.log.epochs.latest)
    assert process is not None
    story.world.loop.call_soon(
        partial(replica.append_fetched, memoryview(batch), len(batch), has_gaps=False),
        context=process.context,
    )


def plant_an_older_leader(patch: pytest.MonkeyPatch) -> None:
    """It lets whoever has nothing in common with it begin anew, and says no more in that answer."""
    compare = _Session._compare

    def compare_as_before(
        self: _Session, interest: Any, at: ReplicaPosition, now: float
    ) -> ReplicaPart | None:
        part = compare(self, interest, at, now)
        if part is None or part.error != OffsetOutOfRange.code or at.lacks_producers:
            return part
        return ReplicaPart(at.cluster_id, start=part.start, differs=True, epoch=NO_EPOCH, end=part.start)

    patch.setattr(_Session, "_compare", compare_as_before)
    patch.setattr(_Session, "_counts_on", lambda *_: False)


@pytest.mark.parametrize("is_older", [False, True])
@pytest.mark.parametrize("uncommitted", [0, 2])
def test_an_eligible_replica_remembers_producers_whose_records_are_all_deleted(
    uncommitted, is_older, monkeypatch
):
    """Its leader has records of a later epoch alone, and dies as soon as the replica hears so.

    The replica may hold records that its leader does not have, too, behind what is deleted.
    A leader of an earlier release tells it to discard everything.
    """
    if is_older:
        plant_an_older_leader(monkeypatch)
    place, (away, leader, eligible) = TopicPartition(TOPIC, 0), (4, 5, 6)
    with Story(7, nodes=6) as story:
        world = story.world

        def state() -> PartitionImage:
            found: PartitionImage = world.node(1).broker.image.topics[TOPIC].partitions[0]
            return found

        def stay(*nodes: int) -> bool:
            return state().in_sync == set(nodes)

        def has_heard(log: Log) -> bool:
            return log.lacks_producers or log.epochs.latest == state().epoch

        story.do(lambda client: client.alter_reassignments({place: (away, leader, eligible)}))
        story.until(lambda: state().replicas == (away, leader, eligible))
        story.until(lambda: stay(away, leader, eligible) and state().leader == away)
        sent = send(story, 0, 3)
        story.delete_before(3)
        story.until(lambda: {story.replica(n).log.start for n in (leader, eligible)} == {3})
        world.stop(away)
        story.until(lambda: not world.is_up(away) and stay(leader, eligible))
        assert state().leader == leader
        if uncommitted:
            take_uncommitted(story, eligible, uncommitted)
            story.until(lambda: story.replica(eligible).log.synced_end == 3 + uncommitted)
        world.lose_power(eligible)
        story.until(lambda: stay(leader) and state().eligible == {eligible})
        batch = encode_batch([Record(value=b"new", timestamp_ms=1)])
        story.do(lambda client: client.produce(TOPIC, 0, batch, acks=1))

        world.cut(eligible, leader)
        world.restart(eligible)
        story.until(lambda: world.is_up(eligible))
        world.heal()
        until = world.now + 3  # by an older leader it is not fed
        story.until(lambda: has_heard(story.replica(eligible).log) or world.now > until)
        assert (world.now > until) == is_older
        world.lose_power(leader)
        world.restart(away)
        story.until(lambda: state().leader == eligible and stay(away, eligible))

        assert send(story, 0, 3) == sent


def test_a_replica_with_a_rotten_snapshot_leads_only_when_it_knows_producers_again():
    """Its batches are sound; who wrote those that are deleted stood in the snapshot alone."""
    with Story(7, topic_defaults=TopicConfig(segment_bytes=2000)) as story:
        first = send(story, 0, 3)
        story.fill(100)
        story.delete_before(100)
        story.until(lambda: all(story.replica(n).log.segments[0].base for n in NODES))
        story.until(lambda: story.is_whole(*NODES))
        path, machine = story.replica(story.first).path, story.world.machines[story.first]
        story.world.lose_power_everywhere()
        rotten = [p for p in machine.files(path) if p.name.endswith(".snapshot")]
        for snapshot in rotten:
            machine.disk.flip_bit(snapshot, 20, 0)

        for node in NODES:
            story.world.restart(node)
        story.until(lambda: story.is_whole(*NODES))
        let_lead(story, story.first)

        assert rotten
        assert send(story, 0, 3) == first
        assert not story.replica(story.first).log.is_ignorant
