import pytest

from tests.unit.broker.node import Machine, batch_of, on_a_node
from tidelog.errors import NotLeader
from tidelog.records import Codec, Record, encode_batch
from tidelog.wire.apis import APIS, Api

INVALID_TOPIC, POLICY_VIOLATION = 17, 44
EARLIEST, LATEST, MAX_TIMESTAMP, EARLIEST_LOCAL, TIERED = -2, -1, -3, -4, -5
SURE = -100


async def list_one(node, timestamp, *, version=7, topic="t", partition=0, **asked):
    partitions = [{"partition_index": partition, "timestamp": timestamp, **asked}]
    answer = await node.ask(
        Api.LIST_OFFSETS, version, replica_id=-1, topics=[{"name": topic, "partitions": partitions}]
    )
    return answer.topics[0].partitions[0]


async def delete_before(node, offset, *, version=2, topic="t"):
    topics = [{"name": topic, "partitions": [{"partition_index": 0, "offset": offset}]}]
    answer = await node.ask(Api.DELETE_RECORDS, version, topics=topics, timeout=1000)
    return answer.topics[0].partitions[0]


async def end_of_epoch(node, epoch, *, version=4, topic="t", current=-1):
    asked = {"partition": 0, "leader_epoch": epoch, "current_leader_epoch": current}
    answer = await node.ask(
        Api.OFFSET_FOR_LEADER_EPOCH, version, replica_id=-1, topics=[{"topic": topic, "partitions": [asked]}]
    )
    found = answer.topics[0].partitions[0]
    return found.error_code, found.leader_epoch, found.end_offset


async def with_times(node):
    """Offsets 0 to 5 with the times 10, 30, 20, 50, 40, 50, in batches of two."""
    await node.create("t")
    for codec, times in ((Codec.NONE, (10, 30)), (Codec.ZSTD, (20, 50)), (Codec.GZIP, (40, 50))):
        records = [Record(value=b"x", timestamp_ms=t) for t in times]
        await node.produce("t", encode_batch(records, codec=codec))


@pytest.mark.parametrize("version", range(1, APIS[Api.LIST_OFFSETS].most + 1))
def test_the_ends_of_a_log_are_found_in_every_version(version):
    async def story(node):
        await with_times(node)
        await delete_before(node, 1)

        earliest = await list_one(node, EARLIEST, version=version)
        latest = await list_one(node, LATEST, version=version)

        assert (earliest.error_code, earliest.offset, earliest.timestamp) == (0, 1, -1)
        assert (latest.error_code, latest.offset, latest.timestamp) == (0, 6, -1)
        if version >= 4:
            assert (earliest.leader_epoch, latest.leader_epoch) == (0, 0)
        assert (await list_one(node, EARLIEST_LOCAL)).offset == 1

    on_a_node(story)


@pytest.mark.parametrize(
    ("time_ms", "offset", "found_ms"),
    [(0, 0, 10), (10, 0, 10), (11, 1, 30), (30, 1, 30), (31, 3, 50), (50, 3, 50), (51, -1, -1)],
)
def test_a_time_finds_the_first_record_that_is_not_older(time_ms, offset, found_ms):
    machine = Machine()

    async def hot(node):
        await with_times(node)
        await check(node)

    async def check(node):
        found = await list_one(node, time_ms)
        assert (found.error_code, found.offset, found.timestamp) == (0, offset, found_ms)

    machine.live(hot)
    machine.live(check)


def test_the_newest_record_is_the_first_with_the_greatest_time():
    async def story(node):
        await with_times(node)

        found = await list_one(node, MAX_TIMESTAMP)

        assert (found.offset, found.timestamp) == (3, 50)

    on_a_node(story)


def test_an_empty_log_has_ends_and_no_times():
    async def story(node):
        await node.create("t")

        offsets = [(await list_one(node, t)).offset for t in (EARLIEST, LATEST, MAX_TIMESTAMP, 5, TIERED)]

        assert offsets == [0, 0, -1, -1, -1]

    on_a_node(story)


def test_deleted_records_are_not_found_by_time():
    async def story(node):
        await with_times(node)
        await delete_before(node, 4)

        found = await list_one(node, 0)

        assert (found.offset, found.timestamp) == (4, 40)

    on_a_node(story)


def test_unknown_partitions_and_epochs_are_refused_one_by_one():
    async def story(node):
        await node.create("t")

        assert (await list_one(node, LATEST, topic="u")).error_code == 3
        assert (await list_one(node, LATEST, partition=1)).error_code == 3
        assert (await list_one(node, LATEST, current_leader_epoch=1)).error_code == 75
        assert (await list_one(node, LATEST, current_leader_epoch=0)).error_code == 0
        assert await end_of_epoch(node, 0, topic="u") == (3, -1, -1)
        assert await end_of_epoch(node, 0, current=5) == (75, -1, -1)

    on_a_node(story)


# OffsetForLeaderEpoch.


def test_an_epoch_ends_where_the_next_one_begins():
    machine = Machine()

    async def two_records(node):
        if "t" not in node.broker.image.topics:
            await node.create("t")
        await node.produce("t", batch_of(b"a", b"b"))

    async def idle(node):
        assert node.broker.partition("t", 0).leader.epoch == 2

    async def check(node):
        await two_records(node)  # in epoch 4; the life of epoch 2 wrote nothing
        for version in range(2, 5):
            assert await end_of_epoch(node, 0, version=version) == (0, 0, 2)
            assert await end_of_epoch(node, 2, version=version) == (0, 0, 2)
            assert await end_of_epoch(node, 4, version=version) == (0, 4, 4)
            assert await end_of_epoch(node, 5, version=version) == (0, -1, -1)

    machine.live(two_records)
    machine.live(idle, killed=True)
    machine.live(check)


def test_the_current_epoch_is_known_before_its_first_record():
    async def story(node):
        await node.create("t")

        assert await end_of_epoch(node, 0) == (0, 0, 0)

    on_a_node(story)


# DeleteRecords.


@pytest.mark.parametrize("version", range(3))
def test_deleted_records_are_gone_for_good(version):
    machine = Machine()

    async def first(node):
        await with_times(node)

        answer = await delete_before(node, 3, version=version)

        assert (answer.error_code, answer.low_watermark) == (0, 3)
        assert (await node.fetch_one("t", 2)).error_code == 1
        assert (await node.fetch_one("t", 3)).error_code == 0

    async def second(node):
        assert (await list_one(node, EARLIEST)).offset == 3
        assert (await node.fetch_one("t", 2)).error_code == 1
        assert (await node.produce("t", batch_of(b"next"))).base_offset == 6

    machine.live(first, killed=True)
    machine.live(second)


def test_minus_one_deletes_up_to_the_watermark():
    async def story(node):
        await with_times(node)

        assert (await delete_before(node, -1)).low_watermark == 6
        assert (await node.fetch_one("t", 6)).log_start_offset == 6
        assert (await node.produce("t", batch_of(b"next"))).base_offset == 6

    on_a_node(story)


def test_a_start_that_would_fall_stays_where_it_is():
    async def story(node):
        await with_times(node)
        await delete_before(node, 4)

        assert (await delete_before(node, 2)).low_watermark == 4

    on_a_node(story)


@pytest.mark.parametrize("offset", [-2, 7])
def test_records_that_are_not_there_cannot_be_deleted(offset):
    async def story(node):
        await with_times(node)

        answer = await delete_before(node, offset)

        assert (answer.error_code, answer.low_watermark) == (1, -1)
        assert (await list_one(node, EARLIEST)).offset == 0

    on_a_node(story)


@pytest.mark.parametrize(
    ("topic", "policy", "code"),
    [
        ("__consumer_offsets", "compact", INVALID_TOPIC),
        ("state", "compact", POLICY_VIOLATION),
        ("both", "compact,delete", 0),
    ],
)
def test_what_is_kept_for_its_keys_is_not_deleted_by_offset(topic, policy, code):
    async def story(node):
        if topic == "__consumer_offsets":
            await node.ask(Api.FIND_COORDINATOR, 2, key="g", key_type=0)
        else:
            await node.create(topic, cleanup_policy=policy)
            await node.produce(topic, encode_batch([Record(key=b"k", value=b"1")]))

        assert (await delete_before(node, -1, topic=topic)).error_code == code

    on_a_node(story, offsets_topic_num_partitions=1)


@pytest.mark.parametrize("leads", [True, False])
def test_files_of_deleted_records_go_once_another_segment_has_begun(leads):
    """However young they are, and wherever the leader is."""

    async def story(node):
        await node.create("t", segment_bytes="200", retention_ms="-1")
        await node.produce("t", batch_of(b"v" * 100))
        assert (await delete_before(node, -1)).low_watermark == 1
        partition = node.broker.partition("t", 0)
        path = partition.log.segments[0].path()
        await node.produce("t", batch_of(b"v" * 100))
        assert node.broker.host.disk.exists(path), "it took more records until now"
        if not leads:
            partition.resign(NotLeader(leader=2))
            partition.follow(9, 2)

        await node.broker.housekeeping.delete_old()

        assert not node.broker.host.disk.exists(path)
        assert partition.log.start == 1

    on_a_node(story)


def test_a_leader_is_sure_of_its_logs_end_only_while_it_has_its_lease():
    async def story(node):
        await with_times(node)
        partition = node.broker.partition("t", 0)
        assert (await list_one(node, SURE)).offset == 6

        partition.has_lease = lambda: False
        assert (await list_one(node, SURE)).offset == 6  # nobody else can lead it
        partition.leader.replicas = (1, 2)

        assert (await list_one(node, SURE)).error_code == NotLeader.code
        assert (await list_one(node, LATEST)).offset == 6

    on_a_node(story)
