import asyncio
from copy import deepcopy
from uuid import UUID

import pytest

from tests.unit.broker.node import Machine, batch_of, on_a_node
from tests.unit.wire.messages import produce_fields, read_response
from tidelog.broker.topics import delete_topic
from tidelog.controller.records import BrokerRegistered, TopicCreated, TopicDeleted
from tidelog.errors import NotLeader, RequestTimedOut
from tidelog.host import Lane, Path, read_file
from tidelog.log.directory import FIRST_DIRTY, DataDirectory
from tidelog.log.producers import ProducerStates
from tidelog.model import Endpoint, TopicPartition
from tidelog.partition.follower import BeginAnew, Cut
from tidelog.records import Record, encode_batch
from tidelog.replication.leftovers import deleted_topics
from tidelog.simulation.host import simulated_host
from tidelog.wire.apis import APIS, Api


def versions_of(api):
    return range(APIS[api].taken_from, APIS[api].most + 1)


def new(name, **fields):
    return {"name": name, "num_partitions": -1, "replication_factor": -1, **fields}


async def create(node, *topics, version=7, **fields):
    answer = await node.ask(Api.CREATE_TOPICS, version, topics=topics, timeout=1000, **fields)
    return answer.topics


async def metadata(node, *names, version=12, create=False):
    topics = [{"name": name} for name in names] if names else None
    return await node.ask(Api.METADATA, version, topics=topics, allow_auto_topic_creation=create)


# Creating.


@pytest.mark.parametrize("version", versions_of(Api.CREATE_TOPICS))
def test_a_created_topic_can_be_written_to_at_once(version):
    async def story(node):
        config = {"name": "retention.ms", "value": "5"}
        (answer,) = await create(
            node, new("t", num_partitions=3, replication_factor=1, configs=[config]), version=version
        )

        assert answer.error_code == 0
        if version >= 5:
            configs = {c.name: (c.value, c.config_source) for c in answer.configs}
            assert (answer.num_partitions, answer.replication_factor) == (3, 1)
            assert configs["retention.ms"] == ("5", 1)
            assert configs["retention.mode"] == ("any", 5)
        assert (await node.produce("t", batch_of(b"a"), partition=2)).base_offset == 0
        assert node.broker.partition("t", 0).config.retention_ms == 5

    on_a_node(story)


def test_each_topic_of_a_request_has_its_own_fate():
    async def story(node):
        await node.create("old")

        answers = await create(
            node,
            new("old"),
            new("twice"),
            new("twice"),
            new("a/b"),
            new("good"),
            new("many", replication_factor=2),
            new("none", num_partitions=0),
            new("odd", configs=[{"name": "x", "value": "1"}]),
            new("hand", assignments=[{"partition_index": 0, "broker_ids": [1]}]),
            new("wrong", assignments=[{"partition_index": 0, "broker_ids": [5]}]),
        )

        codes = [answer.error_code for answer in answers]
        assert codes == [36, 42, 42, 17, 0, 38, 37, 40, 0, 39]
        assert set(node.broker.image.topics) == {"old", "good", "hand"}
        assert answers[0].error_message == "the topic 'old' exists already"
        assert answers[4].error_message is None

    on_a_node(story)


def test_a_topic_that_is_only_tried_is_not_made():
    async def story(node):
        (good,) = await create(node, new("t", num_partitions=2), validate_only=True)
        (bad,) = await create(node, new(""), validate_only=True)

        assert (good.error_code, good.num_partitions, good.topic_id) == (0, 2, None)
        assert bad.error_code == 17
        assert node.broker.image.topics == {}

    on_a_node(story)


def test_of_two_who_create_the_same_topic_at_once_one_succeeds():
    async def story(node):
        answers = await asyncio.gather(*(create(node, new("t")) for _ in range(3)))

        assert sorted(answer.error_code for (answer,) in answers) == [0, 36, 36]

    on_a_node(story)


# Metadata.


@pytest.mark.parametrize("version", versions_of(Api.METADATA))
def test_all_topics_are_described_in_every_version(version):
    async def story(node):
        topic_id = await node.create("a", partitions=2)
        await node.create("b")
        answer = await node.ask(Api.METADATA, version, topics=() if version == 0 else None)

        assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [(1, "example", 19092)]
        assert [t.name for t in answer.topics] == ["a", "b"]
        first = answer.topics[0]
        assert [
            (p.error_code, p.partition_index, p.leader_id, p.replica_nodes, p.isr_nodes)
            for p in first.partitions
        ] == [(0, 0, 1, (1,), (1,)), (0, 1, 1, (1,), (1,))]
        if version >= 1:
            assert (answer.controller_id, first.is_internal) == (1, False)
        if version >= 7:
            assert first.partitions[0].leader_epoch == 0
        if version >= 10:
            assert first.topic_id == topic_id

    on_a_node(story, kafka_advertised="example:19092")


def test_no_topics_are_described_if_none_are_asked_for():
    async def story(node):
        await node.create("a")

        answer = await node.ask(Api.METADATA, 12, topics=[])

        assert answer.topics == ()
        assert len(answer.brokers) == 1

    on_a_node(story)


def test_a_topic_is_described_by_its_id():
    async def story(node):
        topic_id = await node.create("a")
        asked = [{"name": None, "topic_id": topic_id}, {"name": None, "topic_id": UUID(int=5)}]

        found, missing = (await node.ask(Api.METADATA, 12, topics=asked)).topics

        assert (found.error_code, found.name) == (0, "a")
        assert (missing.error_code, missing.topic_id) == (100, UUID(int=5))

    on_a_node(story)


def test_a_missing_topic_is_made_only_if_client_and_node_allow_it():
    async def allowed(node):
        assert (await metadata(node, "t")).topics[0].error_code == 3
        assert node.broker.image.topics == {}
        made = (await metadata(node, "t", create=True)).topics[0]
        assert (made.error_code, len(made.partitions)) == (0, 2)
        assert (await node.produce("t", batch_of(b"a"))).error_code == 0

    async def forbidden(node):
        assert (await metadata(node, "t", create=True)).topics[0].error_code == 3
        assert node.broker.image.topics == {}

    on_a_node(allowed, num_partitions=2)
    on_a_node(forbidden, auto_create_topics_enable="false")


def test_a_name_that_cannot_be_a_topics_is_invalid_and_internal_ones_are_not_made():
    async def story(node):
        answer = await metadata(node, "a b", "__consumer_offsets", create=True)

        assert [t.error_code for t in answer.topics] == [17, 3]
        assert node.broker.image.topics == {}

    on_a_node(story)


def test_clients_that_ask_for_a_missing_topic_at_once_all_get_it():
    async def story(node):
        answers = await asyncio.gather(*(metadata(node, "t", create=True) for _ in range(3)))

        assert [a.topics[0].error_code for a in answers] == [0, 0, 0]
        assert len({a.topics[0].topic_id for a in answers}) == 1

    on_a_node(story)


# Growing.


@pytest.mark.parametrize("version", versions_of(Api.CREATE_PARTITIONS))
def test_added_partitions_can_be_written_to_at_once(version):
    async def story(node):
        await node.create("t")
        await node.produce("t", batch_of(b"a"))
        topics = [
            {"name": "t", "count": 3, "assignments": None},
            {"name": "u", "count": 2, "assignments": None},
        ]

        answer = await node.ask(Api.CREATE_PARTITIONS, version, topics=topics, timeout=1000)

        assert [r.error_code for r in answer.results] == [0, 3]
        assert (await node.produce("t", batch_of(b"a"), partition=2)).base_offset == 0
        assert (await node.produce("t", batch_of(b"a"))).base_offset == 1

    on_a_node(story)


def test_partitions_that_are_only_tried_or_too_few_are_not_made():
    async def story(node):
        await node.create("t", partitions=2)
        codes = []
        for count, validate in ((3, True), (2, False), (1, True)):
            topics = [{"name": "t", "count": count, "assignments": None}]
            answer = await node.ask(
                Api.CREATE_PARTITIONS, 3, topics=topics, validate_only=validate, timeout=1000
            )
            codes.append(answer.results[0].error_code)

        assert codes == [0, 37, 37]
        assert len(node.broker.image.topics["t"].partitions) == 2

    on_a_node(story)


# Deleting.


@pytest.mark.parametrize("version", versions_of(Api.DELETE_TOPICS))
def test_a_deleted_topic_is_gone_and_its_name_begins_anew(version):
    machine = Machine()

    async def first(node):
        old_id = await node.create("t")
        await node.produce("t", batch_of(b"a"))
        answer = await node.ask(
            Api.DELETE_TOPICS,
            version,
            topic_names=["t", "u"],
            timeout=1000,
            topics=[{"name": "t"}, {"name": "u"}],
        )

        assert [(r.name, r.error_code) for r in answer.responses] == [("t", 0), ("u", 3)]
        assert (await node.produce("t", batch_of(b"a"))).error_code == 3
        assert await node.create("t") != old_id
        assert (await node.fetch_one(old_id, version=13)).error_code == 100
        assert (await node.produce("t", batch_of(b"new"))).base_offset == 0

    async def second(node):
        assert (await node.fetch_one("t")).high_watermark == 1

    machine.live(first)
    machine.live(second)


def test_a_topic_is_deleted_by_its_id():
    async def story(node):
        topic_id = await node.create("t")
        asked = [{"name": None, "topic_id": topic_id}, {"name": None, "topic_id": UUID(int=5)}]

        gone, missing = (await node.ask(Api.DELETE_TOPICS, 6, topics=asked, timeout=9)).responses

        assert (gone.error_code, gone.name, gone.topic_id) == (0, "t", topic_id)
        assert (missing.error_code, missing.name) == (100, None)
        assert node.broker.image.topics == {}

    on_a_node(story)


def test_a_producer_that_waits_learns_that_its_topic_was_deleted():
    async def story(node):
        await node.create("t")
        place = node.send(Api.PRODUCE, 9, produce_fields([("t", [(0, batch_of(b"a"))])]))

        await node.broker.replicas.drop_topic("t", node.broker.image.topics["t"].id)

        (answer,) = read_response(Api.PRODUCE, 9, await place.body).responses[0].partition_responses
        assert (answer.error_code, answer.base_offset) == (3, -1)
        assert (await node.produce("t", batch_of(b"a"))).error_code == 3

    on_a_node(story)


def directories(machine):
    """The partitions that have a directory, by any name."""
    root = Path(machine.config.data)
    return [name for name in machine.disk.list(root) if machine.disk.is_directory(root / name)]


def test_a_deletion_that_a_crash_interrupted_is_finished_by_the_next_start():
    machine = Machine()

    async def dies_before_it_removes_anything(node):
        await node.create("gone", 2)
        await node.create("new")
        await node.create("kept")
        await node.produce("new", batch_of(b"old"))
        for record in (
            TopicDeleted(name="gone"),
            TopicDeleted(name="new"),
            TopicCreated(name="new", id=UUID(int=7).hex, replicas=[[1]]),
        ):
            await node.broker.metadata.change(lambda _, record=record: record)

    async def after(node):
        assert directories(machine) == ["__cluster_metadata-0", "kept-0", "new-0"]
        assert (await node.fetch_one("new")).high_watermark == 0
        await node.create("gone", 2)

    machine.live(dies_before_it_removes_anything, killed=True)
    machine.live(after)


def test_only_a_deletion_on_record_proves_that_a_topic_was_deleted():
    def created(name, number):
        return TopicCreated(name=name, id=UUID(int=number).hex, replicas=[[1]])

    deleted = deleted_topics(
        [
            TopicDeleted(name="made before what is left of the log"),
            created("kept", 1),
            created("anew", 2),
            TopicDeleted(name="anew"),
            created("anew", 3),
            created("gone", 4),
            TopicDeleted(name="gone"),
        ]
    )

    assert deleted == {UUID(int=2), UUID(int=4)}


def test_a_directory_that_the_metadata_knows_nothing_of_is_kept():
    machine = Machine()

    async def first(node):
        await node.create("t")

    async def second(node):
        assert (await node.fetch_one("t")).high_watermark == 0

    machine.live(first)
    found = DataDirectory(simulated_host(0, machine.disk), Path(machine.config.data))
    found.claim(TopicPartition("lost", 0), UUID(int=9))
    machine.live(second)

    assert directories(machine) == ["__cluster_metadata-0", "lost-0", "t-0"]


@pytest.mark.parametrize("change", [Cut(2), BeginAnew(9, producers=ProducerStates().encode())])
def test_nothing_counts_as_compacted_any_more_when_a_log_is_cut_and_the_power_fails(change):
    """It may grow past what was clean before the next start."""
    machine = Machine()
    name = TopicPartition("t", 0)

    async def first(node):
        await node.create("t", cleanup_policy="compact")
        records = [Record(key=b"k", value=b"v", timestamp_ms=1000)] * 5
        await node.produce("t", encode_batch(records))

    async def second(node):
        broker = node.broker
        assert broker.cleaner.first_dirty(name) == 4
        partition = broker.partition("t", 0)
        partition.resign(NotLeader(leader=2))
        partition.follow(9, 2)
        await broker.replication.log_changes.change(partition, partition.follower, change)
        machine.disk.crash()

    async def third(node):
        assert node.broker.cleaner.first_dirty(name) is None

    machine.live(first)
    found = DataDirectory(simulated_host(0, machine.disk), Path(machine.config.data))
    found.write_checkpoint(FIRST_DIRTY, {name: 4})
    machine.live(second, killed=True)
    machine.live(third)


@pytest.mark.parametrize("end", [4, 5, 6])
@pytest.mark.parametrize("at", [3, 4, 5])
def test_rot_in_a_segment_that_a_cut_makes_the_last_is_no_torn_tail_for_the_next_start(at, end):
    """Segments hold three batches. While it was sealed, a start knew that it was synced."""
    machine = Machine()
    batch = batch_of(b"v")
    files = []

    async def first(node):
        await node.create("t", segment_bytes=str(3 * len(batch)))
        for _ in range(9):
            await node.produce("t", batch)
        broker, partition = node.broker, node.broker.partition("t", 0)
        path = partition.log.segments[1].path()
        machine.disk.flip_bit(path, (at - 3 + 1) * len(batch) - 1, 0)
        partition.resign(NotLeader(leader=2))
        partition.follow(9, 2)
        await broker.replication.log_changes.change(partition, partition.follower, Cut(end))
        files.extend([path, read_file(machine.disk, path)])

    async def second(node):
        log = node.broker.partition("t", 0).log
        path, content = files
        assert (log.end, log.damaged_at) == (end, at if at < end else None)
        assert read_file(machine.disk, path) == content, "nothing more is cut"

    machine.live(first, killed=True)
    machine.live(second)


@pytest.mark.parametrize("dies", [False, True])
def test_nothing_of_a_new_topic_counts_as_compacted_because_its_namesake_was(dies):
    machine = Machine()
    name = TopicPartition("t", 0)

    async def first(node):
        assert node.broker.cleaner.first_dirty(name) is None

    async def second(node):
        assert node.broker.cleaner.first_dirty(name) == 1000, "of a topic deleted before a crash"
        if dies:  # before anything is made
            created = TopicCreated(name="t", id=UUID(int=7).hex, replicas=[[1]])
            await node.broker.metadata.change(lambda _: created)
            return
        await node.create("t", cleanup_policy="compact")
        assert node.broker.cleaner.first_dirty(name) is None

    async def third(node):
        assert node.broker.cleaner.first_dirty(name) is None

    machine.live(first)
    found = DataDirectory(simulated_host(0, machine.disk), Path(machine.config.data))
    found.write_checkpoint(FIRST_DIRTY, {name: 1000})
    machine.live(second, killed=True)
    machine.live(third)


def test_a_checkpoint_on_its_way_tells_a_new_topic_nothing_of_its_namesake():
    machine = Machine()

    async def first(node):
        broker = node.broker
        topic_id = await node.create("t")
        await node.produce("t", batch_of(b"a"))
        await broker.advance_start(broker.partition("t", 0), 1)
        await node.produce("t", batch_of(b"b"))
        release = hold_next_work(broker.host.offload)
        noting = asyncio.create_task(broker.housekeeping.checkpoint())

        async def recreate():
            await broker.metadata.change(lambda _: TopicDeleted(name="t"))
            await broker.replicas.drop_topic("t", topic_id)
            await node.create("t")
            await node.produce("t", batch_of(b"new"))

        recreating = asyncio.create_task(recreate())
        await asyncio.sleep(1)
        release()
        await asyncio.gather(noting, recreating)

    async def second(node):
        fetched = await node.fetch_one("t")
        assert (fetched.error_code, fetched.log_start_offset, fetched.high_watermark) == (0, 0, 1)

    machine.live(first, killed=True)
    machine.live(second)


def test_records_cannot_be_deleted_from_a_topic_that_was():
    async def story(node):
        topic_id = await node.create("t", segment_bytes="14")
        for _ in range(3):
            await node.produce("t", batch_of(b"a"))
        partition = node.broker.partition("t", 0)
        await node.broker.replicas.drop_topic("t", topic_id)

        with pytest.raises(NotLeader):
            await node.broker.advance_start(partition, 2)

    on_a_node(story)


def test_retention_lets_go_of_a_topic_that_is_deleted_meanwhile():
    async def story(node):
        topic_id = await node.create("t", segment_bytes="14")
        await node.create("u", segment_bytes="14")
        for name in ("t", "t", "t", "u", "u", "u"):
            await node.produce(name, batch_of(b"old", time_ms=0))
        release = hold_next_work(node.broker.host.offload)
        deleting = asyncio.create_task(node.broker.housekeeping.delete_old())
        await asyncio.sleep(0)

        await node.broker.replicas.drop_topic("t", topic_id)
        release()
        await deleting

        await node.broker.advance_start(node.broker.partition("u", 0), 3)
        assert node.broker.partition("u", 0).log.start == 3

    on_a_node(story)


def hold_next_work(offload):
    """Let the next work for the disk's threads wait until the returned function is called."""
    run, held = offload.run, []

    def hold(work, lane=Lane.ANY):
        offload.run = run
        future = asyncio.get_running_loop().create_future()
        held.append((work, future))
        return future

    def release():
        ((work, future),) = held
        future.set_result(work())

    offload.run = hold
    return release


def test_the_cluster_is_described():
    async def story(node):
        for version in versions_of(Api.DESCRIBE_CLUSTER):
            answer = await node.ask(Api.DESCRIBE_CLUSTER, version)

            assert (answer.error_code, answer.controller_id) == (0, 1)
            assert [(b.broker_id, b.rack) for b in answer.brokers] == [(1, "r1")]
            assert answer.cluster_id == node.broker.identity.cluster_id

    on_a_node(story, rack="r1")


def test_a_fenced_broker_is_shown_to_those_who_ask_for_it():
    async def story(node):
        registered = BrokerRegistered(
            node=2,
            incarnation="x",
            broker_epoch=9,
            directory="d",
            kafka=Endpoint(host="h2", port=9092),
            peer=Endpoint(host="h2", port=9192),
        )
        node.broker.image.apply(registered)

        async def brokers(version, **fields):
            answer = await node.ask(Api.DESCRIBE_CLUSTER, version, **fields)
            return [(b.broker_id, getattr(b, "is_fenced", None)) for b in answer.brokers]

        assert await brokers(1) == [(1, None)]
        assert await brokers(2) == [(1, False)]
        assert await brokers(2, include_fenced_brokers=True) == [(1, False), (2, True)]

    on_a_node(story)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_deletion_that_was_decided_on_old_metadata_is_not_taken_for_done(is_lost):
    """Another was deleted meanwhile, and made anew: nobody has deleted what has the name now."""

    async def story(node):
        broker = node.broker
        await node.create("t")
        before, change = deepcopy(broker.image), broker.metadata.change
        await delete_topic(broker, "t", None)
        await node.create("t")

        async def change_late(decide):
            decide(before)
            broker.metadata.replies_lost += is_lost
            return await change(decide)

        broker.metadata.change = change_late
        if is_lost:  # it may have been this one that deleted the former
            with pytest.raises(RequestTimedOut, match="created again since"):
                await delete_topic(broker, "t", None)
        else:
            await delete_topic(broker, "t", None)

        assert ("t" in broker.image.topics) == is_lost

    on_a_node(story)
