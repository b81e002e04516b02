import asyncio

import pytest

from tests.unit.broker.node import Machine, Place, Refused, batch_of, on_a_node, placed
from tests.unit.wire.messages import frame_of, produce_fields, read_response
from tidelog.broker.writing import once_of
from tidelog.errors import NotLeader
from tidelog.records import Record, encode_batch
from tidelog.simulation.host import START_WALL_MS
from tidelog.wire.apis import APIS, Api

HOUR, INVALID_REQUEST = 3600, 42
AS_PRODUCER = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
VERSIONS = range(APIS[Api.PRODUCE].taken_from, APIS[Api.PRODUCE].most + 1)


def test_offsets_follow_each_other_in_every_version():
    async def story(node):
        topic_id = await node.create("t")
        for number, version in enumerate(VERSIONS):
            topic = topic_id if version >= 13 else "t"

            answer = await node.produce(topic, batch_of(b"a", b"b"), version=version)

            assert (answer.error_code, answer.base_offset) == (0, 2 * number)

    on_a_node(story)


def test_no_client_writes_as_a_producer_that_stands_for_an_idempotency_key():
    """Who does has answered a request that was never made."""

    async def story(node):
        await node.create("t")
        batch = batch_of(b"a", **AS_PRODUCER | {"producer_id": once_of("key")})

        for version in VERSIONS[:-1]:
            answer = await node.produce("t", batch, version=version)
            assert answer.error_code == INVALID_REQUEST
        assert node.broker.partition("t", 0).log.end == 0

    on_a_node(story)


@pytest.mark.parametrize("acks", [-1, 1])
def test_an_answer_waits_until_the_batch_is_as_safe_as_acks_asks(acks):
    async def story(node):
        await node.create("t")
        partition = node.broker.partition("t", 0)
        place = node.send(Api.PRODUCE, 9, produce_fields([("t", [(0, batch_of(b"a"))])], acks=acks))
        assert not place.body.done()
        assert partition.log.end == 1

        await place.body

        assert partition.log.written_end == 1
        if acks == -1:
            assert partition.log.synced_end == partition.high_watermark == 1

    on_a_node(story)


def test_acks_0_gets_no_answer_and_its_batch_is_kept():
    async def story(node):
        await node.create("t")

        place = node.send(Api.PRODUCE, 9, produce_fields([("t", [(0, batch_of(b"a"))])], acks=0))

        assert place.body.result() is None
        assert (await node.fetch_one("t", max_wait=1000)).records == placed(batch_of(b"a"), 0)

    on_a_node(story)


def test_acks_0_closes_the_connection_when_a_batch_is_refused():
    async def story(node):
        await node.create("t")
        for topics in ([("t", [(0, b"x" * 80)])], [("t", [(0, None)])], [("u", [(0, b"")])]):
            with pytest.raises(Refused, match="acks=0"):
                await node.send(Api.PRODUCE, 9, produce_fields(topics, acks=0)).body

    on_a_node(story)


def test_one_bad_partition_spoils_only_its_own_answer():
    async def story(node):
        await node.create("t", partitions=2)
        damaged = bytearray(batch_of(b"a"))
        damaged[-1] ^= 1
        topics = [
            ("t", [(0, batch_of(b"a")), (1, bytes(damaged)), (2, batch_of(b"a")), (-1, b"")]),
            ("u", [(0, batch_of(b"a"))]),
        ]

        answer = await node.ask(Api.PRODUCE, 9, **produce_fields(topics))

        codes = [[p.error_code for p in t.partition_responses] for t in answer.responses]
        assert codes == [[0, 2, 3, 3], [3]]
        good, bad = answer.responses[0].partition_responses[:2]
        assert (good.base_offset, bad.base_offset) == (0, -1)
        assert bad.error_message
        assert node.broker.partition("t", 0).high_watermark == 1

    on_a_node(story)


@pytest.mark.parametrize(
    ("code", "batch", "options"),
    [
        (2, b"", {}),
        (2, batch_of(b"a") + b"\0", {}),
        (43, batch_of(b"a")[:16] + b"\x01" + batch_of(b"a")[17:], {}),
        (10, batch_of(b"x" * 300), {}),
        (21, batch_of(b"a"), {"acks": 2}),
        (32, batch_of(b"a", time_ms=START_WALL_MS + 2 * 3600 * 1000), {}),
        (48, batch_of(b"a", attributes=0x10, **AS_PRODUCER), {}),
        (87, batch_of(b"a", attributes=0x20), {}),
    ],
    ids=["empty", "too long", "old", "too large", "acks", "future", "transactional", "control"],
)
def test_a_batch_that_breaks_a_rule_gets_kafkas_error_and_is_not_kept(code, batch, options):
    async def story(node):
        await node.create("t", max_message_bytes="200")

        answer = await node.produce("t", batch, **options)

        assert (answer.error_code, answer.base_offset) == (code, -1)
        assert node.broker.partition("t", 0).log.end == 0

    on_a_node(story)


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete,compact"])
def test_a_compacted_topic_names_the_records_without_a_key(policy):
    records = [Record(key=key, value=b"v", timestamp_ms=1) for key in (b"a", None, b"", None)]

    async def story(node):
        topic_id = await node.create("t", cleanup_policy=policy)
        for version in VERSIONS:
            topic = topic_id if version >= 13 else "t"

            answer = await node.produce(topic, encode_batch(records), version=version)

            assert (answer.error_code, answer.base_offset) == (87, -1)
            if version >= 8:
                errors = [(e.batch_index, e.batch_index_error_message) for e in answer.record_errors]
                assert errors == [(1, "the record has no key"), (3, "the record has no key")]
                assert "without a key" in answer.error_message
        good = await node.produce("t", encode_batch([records[0], records[2]]))
        assert (good.error_code, good.base_offset) == (0, 0)

    on_a_node(story)


def test_acks_all_needs_the_replicas_that_the_topic_asks_for():
    async def story(node):
        await node.create("t", min_insync_replicas="2")

        assert (await node.produce("t", batch_of(b"a"))).error_code == 19
        assert (await node.produce("t", batch_of(b"a"), acks=1)).error_code == 0

    on_a_node(story)


def test_a_batch_of_a_transaction_that_nobody_coordinates_is_to_be_sent_again():
    async def story(node):
        await node.create("t")
        batch = batch_of(b"a", attributes=0x10, **AS_PRODUCER)
        fields = produce_fields([("t", [(0, batch)])], transactional_id="x")

        answer = await node.ask(Api.PRODUCE, 9, **fields)

        assert answer.responses[0].partition_responses[0].error_code == 19
        assert node.broker.partition("t", 0).log.end == 0

    on_a_node(story)


def test_a_repeat_is_appended_as_the_request_was():
    async def story(node):
        await node.create("t")
        first, second = batch_of(b"first"), batch_of(b"second", b"third")
        frames = [frame_of(Api.PRODUCE, 9, produce_fields([("t", [(0, b)])])) for b in (first, second)]
        await node.send_frame(frames[0]).body
        repeated = node.repeated
        batch = repeated.batch_in(frames[1])
        assert batch == second
        place = Place()

        node.requests.handle_repeated(repeated, batch, len(frames[1]), node.client, place)

        answer = read_response(Api.PRODUCE, 9, await place.body)
        assert answer.responses[0].name == "t"
        assert answer.responses[0].partition_responses[0].base_offset == 1
        records = (await node.fetch_one("t")).records
        assert records == placed(first, 0) + placed(second, 1)

    on_a_node(story)


def test_the_log_append_time_is_answered_and_kept():
    async def story(node):
        await node.create("t", message_timestamp_type="LogAppendTime")
        await node.create("u")

        stamped = await node.produce("t", batch_of(b"a"))
        kept = await node.produce("u", batch_of(b"a"))

        assert stamped.log_append_time.timestamp() * 1000 == START_WALL_MS
        assert kept.log_append_time is None
        found = (
            (
                await node.ask(
                    Api.LIST_OFFSETS,
                    7,
                    topics=[{"name": "t", "partitions": [{"timestamp": START_WALL_MS}]}],
                    replica_id=-1,
                )
            )
            .topics[0]
            .partitions[0]
        )
        assert (found.offset, found.timestamp) == (0, START_WALL_MS)

    on_a_node(story)


# Idempotent producers.


def numbered(sequence, *values, epoch=3):
    return batch_of(*values, producer_id=7, producer_epoch=epoch, base_sequence=sequence)


def test_a_batch_sent_again_is_answered_with_its_first_offset_and_kept_once():
    async def story(node):
        await node.create("t")
        await node.produce("t", batch_of(b"other"))
        for sequence in (0, 2, 4):
            await node.produce("t", numbered(sequence, b"a", b"b"))

        again = await node.produce("t", numbered(2, b"a", b"b"))

        assert (again.error_code, again.base_offset) == (0, 3)
        assert node.broker.partition("t", 0).log.end == 7

    on_a_node(story)


@pytest.mark.parametrize("leads", [True, False], ids=["a leader", "a follower"])
def test_a_producer_of_old_records_is_known_while_it_writes_and_forgotten_when_it_is_silent(leads):
    async def story(node):
        await node.create("t")
        partition = node.broker.partition("t", 0)
        await node.broker.housekeeping.delete_old()
        await node.produce("t", batch_of(b"a", time_ms=1000, **AS_PRODUCER))
        if not leads:
            partition.resign(NotLeader(leader=None))

        await node.broker.housekeeping.delete_old()
        await asyncio.sleep(HOUR / 2)
        await node.broker.housekeeping.delete_old()
        assert len(partition.log.producers) == 1
        await asyncio.sleep(HOUR)
        await node.broker.housekeeping.delete_old()
        assert len(partition.log.producers) == 0

    on_a_node(story)


def test_repeats_are_recognised_after_a_stop_and_after_a_kill():
    machine = Machine()

    async def first(node):
        await node.create("t")
        await node.produce("t", numbered(0, b"a", b"b"))
        await node.produce("t", numbered(2, b"c"))

    async def later(node):
        assert (await node.produce("t", numbered(0, b"a", b"b"))).base_offset == 0
        assert (await node.produce("t", numbered(2, b"c"))).base_offset == 2
        assert (await node.produce("t", numbered(5, b"d"))).error_code == 45
        assert node.broker.partition("t", 0).log.end == 3

    machine.live(first)
    machine.live(later, killed=True)
    machine.live(later)


@pytest.mark.parametrize(
    ("code", "batch"),
    [
        (45, numbered(3, b"gap")),
        (45, numbered(1, b"a", b"b")),  # overlaps what is there, and repeats none of it
        (45, numbered(5, b"new epoch not from 0", epoch=4)),
        (47, numbered(2, b"old epoch", epoch=2)),
        (0, numbered(2, b"next")),
        (0, numbered(0, b"new epoch", epoch=4)),
    ],
    ids=["gap", "overlap", "new epoch inside", "old epoch", "next", "new epoch"],
)
def test_a_producers_batches_come_in_order_or_not_at_all(code, batch):
    async def story(node):
        await node.create("t")
        assert (await node.produce("t", numbered(0, b"a", b"b"))).error_code == 0

        answer = await node.produce("t", batch)

        assert answer.error_code == code
        assert node.broker.partition("t", 0).log.end == (3 if code == 0 else 2)

    on_a_node(story)
