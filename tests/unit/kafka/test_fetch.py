import asyncio
from uuid import UUID

import pytest

from tests.unit.broker.node import Machine, batch_of, on_a_node, placed
from tests.unit.coordinators.transacting import Producer, on_a_coordinator, seen
from tests.unit.wire.messages import read_response
from tidelog.wire.apis import APIS, Api

VERSIONS = range(APIS[Api.FETCH].taken_from, APIS[Api.FETCH].most + 1)
BATCHES = [batch_of(b"%d" % n * 50) for n in range(4)]
SIZE = len(BATCHES[0])
LOG = b"".join(placed(batch, n) for n, batch in enumerate(BATCHES))


async def with_log(node, name="t"):
    topic_id = await node.create(name)
    for batch in BATCHES:
        await node.produce(name, batch)
    return topic_id


def read(version, place):
    return read_response(Api.FETCH, version, place.body.result())


def test_what_was_produced_is_fetched_byte_for_byte_in_every_version():
    async def story(node):
        topic_id = await with_log(node)
        for version in VERSIONS:
            topic = topic_id if version >= 13 else "t"

            found = await node.fetch_one(topic, version=version)

            assert (found.error_code, found.high_watermark) == (0, 4)
            assert found.last_stable_offset == 4
            assert found.records == LOG

    on_a_node(story)


def test_what_an_earlier_life_wrote_is_fetched_from_its_files():
    machine = Machine()

    async def first(node):
        await with_log(node)

    async def second(node):
        assert (await node.fetch_one("t")).records == LOG
        assert (await node.fetch_one("t", 2)).records == LOG[2 * SIZE :]
        await node.produce("t", BATCHES[0])
        records = (await node.fetch_one("t", 3)).records
        records += (await node.fetch_one("t", 4)).records
        assert records.startswith(LOG[3 * SIZE :])
        assert records.endswith(placed(BATCHES[0], 4, epoch=2))

    machine.live(first)
    machine.live(second)


def test_an_offset_inside_of_a_batch_returns_the_whole_batch():
    async def story(node):
        await node.create("t")
        batches = [batch_of(b"a", b"b", b"c"), batch_of(b"d", b"e")]
        for batch in batches:
            await node.produce("t", batch)

        assert (await node.fetch_one("t", 4)).records == placed(batches[1], 3)
        assert (await node.fetch_one("t", 2)).records.startswith(placed(batches[0], 0))

    on_a_node(story)


# Limits.


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({"partition_bytes": 2 * SIZE}, 2),
        ({"partition_bytes": 3 * SIZE - 1}, 2),
        ({"max_bytes": 3 * SIZE}, 3),
        ({"max_bytes": 1}, 1),  # a batch of any size, so that no consumer is stuck
        ({"partition_bytes": 0}, 1),
    ],
)
def test_whole_batches_up_to_the_limits_and_at_least_one(limits, count):
    machine = Machine()

    async def hot(node):
        await with_log(node)
        assert (await node.fetch_one("t", **limits)).records == LOG[: count * SIZE]

    async def cold(node):
        assert (await node.fetch_one("t", **limits)).records == LOG[: count * SIZE]

    machine.live(hot)
    machine.live(cold)


def test_the_limit_of_a_request_is_shared_by_its_partitions():
    async def story(node):
        for name in ("a", "b", "c"):
            await with_log(node, name)

        found = await node.fetch(("a", 0, 4), ("b", 0, 0), ("c", 0, 0), max_bytes=SIZE + 10)

        sizes = [len(topic.partitions[0].records) for topic in found.responses]
        assert sizes == [0, SIZE, 0]
        assert [topic.partitions[0].high_watermark for topic in found.responses] == [4, 4, 4]

    on_a_node(story)


def test_the_nodes_own_limit_holds_for_every_request():
    async def story(node):
        await node.create("t")
        for _ in range(3):
            await node.produce("t", batch_of(b"x" * 900))

        assert len((await node.fetch_one("t", max_bytes=2**31 - 1)).records) < 1024

    on_a_node(story, fetch_max_bytes=1024)


@pytest.mark.parametrize("max_bytes", [0, 1])
def test_only_the_first_partition_with_data_may_pass_the_limits_though_it_is_cold(max_bytes):
    machine = Machine()

    async def first(node):
        await with_log(node, "a")
        await with_log(node, "b")

    async def second(node):
        found = await node.fetch(("a", 0, 0), ("b", 0, 0), max_bytes=max_bytes)
        assert [len(t.partitions[0].records) for t in found.responses] == [SIZE, 0]

    machine.live(first)
    machine.live(second)


# Waiting.


def test_a_fetch_that_finds_nothing_waits_for_a_produce():
    async def story(node):
        await node.create("t")
        began = node.clock.monotonic()
        place = node.start_fetch(("t", 0, 0), max_wait=10_000)
        await asyncio.sleep(3)
        assert not place.body.done()

        await node.produce("t", BATCHES[0])
        await asyncio.sleep(0.001)

        assert read(11, place).responses[0].partitions[0].records == placed(BATCHES[0], 0)
        assert node.clock.monotonic() - began < 4

    on_a_node(story)


def test_a_fetch_is_answered_when_its_time_is_up():
    async def story(node):
        await node.create("t")
        place = node.start_fetch(("t", 0, 0), max_wait=2000)
        await asyncio.sleep(1.999)
        assert not place.body.done()

        await asyncio.sleep(0.002)

        answer = read(11, place).responses[0].partitions[0]
        assert (answer.error_code, answer.high_watermark, answer.records) == (0, 0, b"")

    on_a_node(story)


def test_min_bytes_are_waited_for_over_all_partitions():
    async def story(node):
        await node.create("a")
        await node.create("b")
        place = node.start_fetch(("a", 0, 0), ("b", 0, 0), max_wait=10_000, min_bytes=2 * SIZE)

        await node.produce("a", BATCHES[0])
        await asyncio.sleep(1)
        assert not place.body.done()
        await node.produce("b", BATCHES[0])
        await asyncio.sleep(0.001)

        found = read(11, place)
        assert [len(t.partitions[0].records) for t in found.responses] == [SIZE, SIZE]

    on_a_node(story)


def test_what_is_there_is_answered_when_min_bytes_do_not_come_in_time():
    async def story(node):
        await node.create("t")
        await node.produce("t", BATCHES[0])

        found = await node.fetch_one("t", max_wait=500, min_bytes=10_000)

        assert found.records == placed(BATCHES[0], 0)

    on_a_node(story)


def test_min_bytes_above_max_bytes_are_not_waited_for():
    async def story(node):
        await with_log(node)
        place = node.start_fetch(("t", 0, 0), max_wait=10_000, min_bytes=10**6, max_bytes=SIZE)

        assert place.body.done()

    on_a_node(story)


def test_an_error_is_answered_at_once():
    async def story(node):
        await node.create("t")
        place = node.start_fetch(("t", 0, 0), ("missing", 0, 0), max_wait=10_000)

        codes = [t.partitions[0].error_code for t in read(11, place).responses]
        assert codes == [0, 3]

    on_a_node(story)


def test_a_client_that_goes_away_is_not_answered():
    async def story(node):
        await node.create("t")
        place = node.start_fetch(("t", 0, 0), max_wait=1000)
        place.gone()

        await node.produce("t", BATCHES[0])
        await asyncio.sleep(2)

        assert not place.body.done()

    on_a_node(story)


def test_a_waiting_fetch_learns_that_its_topic_was_deleted():
    async def story(node):
        await node.create("t")
        place = node.start_fetch(("t", 0, 0), max_wait=60_000)

        await node.ask(Api.DELETE_TOPICS, 1, topic_names=["t"], timeout=1000)
        await asyncio.sleep(0.001)

        assert read(11, place).responses[0].partitions[0].error_code == 3

    on_a_node(story)


# Sessions.


def test_a_session_answers_only_what_has_changed():
    async def story(node):
        for name in ("a", "b"):
            await node.create(name)
        opened = await node.fetch(("a", 0, 0), ("b", 0, 0), session_id=0, session_epoch=0)
        assert [t.topic for t in opened.responses] == ["a", "b"]
        session = {"session_id": opened.session_id, "max_wait": 0}
        assert opened.session_id > 0

        quiet = await node.fetch(session_epoch=1, **session)
        assert (quiet.session_id, quiet.responses) == (opened.session_id, ())
        await node.produce("b", BATCHES[0])
        news = await node.fetch(session_epoch=2, **session)
        assert [t.topic for t in news.responses] == ["b"]
        assert news.responses[0].partitions[0].records == placed(BATCHES[0], 0)
        read_on = await node.fetch(("b", 0, 1), session_epoch=3, **session)
        assert read_on.responses == ()

    on_a_node(story)


def test_a_session_waits_for_any_of_its_partitions():
    async def story(node):
        await node.create("a")
        await node.create("b")
        opened = await node.fetch(("a", 0, 0), ("b", 0, 0), session_id=0, session_epoch=0)
        place = node.start_fetch(session_id=opened.session_id, session_epoch=1, max_wait=10_000)

        await node.produce("b", BATCHES[0])
        await asyncio.sleep(0.001)

        assert [t.topic for t in read(11, place).responses] == ["b"]

    on_a_node(story)


def test_no_partition_of_a_session_starves_behind_another():
    async def story(node):
        await with_log(node, "a")
        await with_log(node, "b")
        opened = await node.fetch(("a", 0, 0), ("b", 0, 0), session_id=0, session_epoch=0, max_bytes=1)
        assert len(opened.responses[0].partitions[0].records) == SIZE

        second = await node.fetch(session_id=opened.session_id, session_epoch=1, max_bytes=1)

        assert {t.topic: len(t.partitions[0].records) for t in second.responses} == {"b": SIZE}

    on_a_node(story)


@pytest.mark.parametrize(("session_id", "epoch", "code"), [(99, 1, 70), (None, 5, 71)])
def test_a_session_that_is_not_known_or_out_of_step_is_refused_at_the_top(session_id, epoch, code):
    async def story(node):
        await node.create("t")
        opened = await node.fetch(("t", 0, 0), session_id=0, session_epoch=0)

        refused = await node.fetch(session_id=session_id or opened.session_id, session_epoch=epoch)

        assert (refused.error_code, refused.session_id, refused.responses) == (code, 0, ())

    on_a_node(story)


# Errors.


@pytest.mark.parametrize("offset", [-1, 5, 2**62])
def test_an_offset_outside_of_the_log_is_out_of_range(offset):
    async def story(node):
        await with_log(node)

        found = await node.fetch_one("t", offset, max_wait=1000)

        assert (found.error_code, found.records) == (1, b"")

    on_a_node(story)


def test_the_end_of_the_log_is_in_range():
    async def story(node):
        await with_log(node)

        assert (await node.fetch_one("t", 4)).error_code == 0

    on_a_node(story)


def test_topics_that_are_not_there_are_unknown_by_name_and_by_id():
    async def story(node):
        topic_id = await node.create("t")

        assert (await node.fetch_one("u")).error_code == 3
        assert (await node.fetch_one(UUID(int=3), version=13)).error_code == 100
        assert (await node.fetch_one(UUID(int=0), version=13)).error_code == 100
        found = await node.fetch((topic_id, 7, 0), version=13)
        assert found.responses[0].partitions[0].error_code == 3

    on_a_node(story)


@pytest.mark.parametrize(("epoch", "code"), [(-1, 0), (2, 0), (1, 74), (0, 74), (3, 75)])
def test_a_client_of_another_leaders_epoch_is_told(epoch, code):
    machine = Machine()

    async def first(node):
        await node.create("t")

    async def second(node):
        partition = {"current_leader_epoch": epoch, "partition_max_bytes": 1000}
        answer = await node.ask(
            Api.FETCH, 11, topics=[{"topic": "t", "partitions": [partition]}], max_bytes=1000
        )
        assert answer.responses[0].partitions[0].error_code == code

    machine.live(first)
    machine.live(second)


@pytest.mark.parametrize("version", [11, 17])
def test_a_replica_may_not_fetch_as_a_client(version):
    async def story(node):
        await node.create("t")
        as_replica = {"replica_id": 2} if version < 15 else {"replica_state": {"replica_id": 2}}

        answer = await node.ask(Api.FETCH, version, topics=[], **as_replica)

        assert answer.error_code == 42

    on_a_node(story)


# Transactions.


async def aborted_in(node, offset=0, **options) -> list[tuple[int, int]]:
    """What a reader of committed records is told to pass over."""
    answer = await node.fetch_one("t", offset, isolation_level=1, **options)
    return [(one.producer_id, one.first_offset) for one in answer.aborted_transactions]


async def forget_tails(node) -> None:
    """Let everything be read from files."""
    await node.broker.rounds.drained()
    node.broker.budget.bytes_max = 0
    node.broker.budget.evict()


@pytest.mark.parametrize("is_cold", [False, True])
def test_only_transactions_that_touch_what_is_returned_are_named_as_aborted(is_cold):
    async def story(node):
        producer = Producer(node)
        await producer.init()
        for value in (b"a", b"b", b"c"):
            await producer.write(value)
            await producer.end(commits=False)
            await producer.completed()
        if is_cold:
            await forget_tails(node)

        assert await aborted_in(node, partition_bytes=1) == [(producer.id, 0)]
        assert await aborted_in(node, 1, partition_bytes=1) == [(producer.id, 0)], "its marker"
        assert await aborted_in(node, 2, partition_bytes=1) == [(producer.id, 2)]
        assert await aborted_in(node) == [(producer.id, 0), (producer.id, 2), (producer.id, 4)]
        assert await aborted_in(node, 6) == []
        answer = await node.fetch_one("t", 0, isolation_level=0)
        assert answer.aborted_transactions is None

    on_a_coordinator(story)


def test_what_was_aborted_is_named_though_it_is_compacted_while_it_is_read():
    async def story(node):
        producer = Producer(node)
        await producer.init()
        await producer.write(b"a")
        await producer.end(commits=False)
        await producer.completed()
        await forget_tails(node)
        log = node.broker.partition("t", 0).log

        reading = node.start_fetch(("t", 0, 0), isolation_level=1)
        log.transactions.aborted.remove({1})
        log.transactions.aborted.drop_before(2)

        answer = read_response(Api.FETCH, 11, await reading.body).responses[0].partitions[0]
        assert answer.records
        (aborted,) = answer.aborted_transactions
        assert (aborted.producer_id, aborted.first_offset) == (producer.id, 0)

    on_a_coordinator(story)


@pytest.mark.parametrize("commits", [True, False])
def test_a_reader_of_committed_records_waits_until_the_transaction_has_ended(commits):
    async def story(node):
        producer = Producer(node)
        await producer.init()
        await producer.write(b"a")
        await producer.write(b"elsewhere", partition=1)
        answer = await node.fetch_one("t", 0, isolation_level=1)
        assert (answer.high_watermark, answer.last_stable_offset) == (1, 0)
        assert not answer.records
        answer = await node.fetch_one("t", 1, isolation_level=1)
        assert answer.error_code == 0, "past the last stable offset there is nothing, yet"

        waiting = node.start_fetch(("t", 0, 0), isolation_level=1, max_wait=30_000)
        await asyncio.sleep(1)
        assert not waiting.body.done()
        began = node.clock.monotonic()
        await producer.end(commits=commits)

        answer = read_response(Api.FETCH, 11, await waiting.body).responses[0].partitions[0]
        assert node.clock.monotonic() - began < 1
        assert (answer.high_watermark, answer.last_stable_offset) == (2, 2)
        assert len(answer.aborted_transactions) == (0 if commits else 1)
        assert await seen(node) == ([b"a"] if commits else [])

    on_a_coordinator(story)


def test_the_end_for_readers_of_committed_records_is_the_last_stable_offset():
    async def story(node):
        producer = Producer(node)
        await producer.init()
        await producer.write(b"a", b"b")

        async def latest(isolation_level):
            asked = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
            answer = await node.ask(
                Api.LIST_OFFSETS,
                5,
                replica_id=-1,
                isolation_level=isolation_level,
                topics=[{"name": "t", "partitions": [asked]}],
            )
            return answer.topics[0].partitions[0].offset

        assert (await latest(0), await latest(1)) == (2, 0)
        await producer.end(commits=True)
        await producer.completed()
        assert (await latest(0), await latest(1)) == (3, 3)

    on_a_coordinator(story)
