import asyncio

import pytest

from tests.unit.broker.node import Machine, Refused, batch_of
from tests.unit.coordinators.transacting import BUMPS, SETTINGS, Gate, Producer, on_a_coordinator, seen
from tests.unit.kafka.test_groups import committed
from tidelog.cluster.messages import AddToTransactions, FindOpenTransaction, Place, PlacesToAdd, WriteMarkers
from tidelog.records import TRANSACTIONAL
from tidelog.wire.apis import Api

OK, UNKNOWN_TOPIC_OR_PARTITION, NOT_AVAILABLE, INVALID_REQUEST = 0, 3, 15, 42
OUT_OF_ORDER, INVALID_EPOCH, INVALID_STATE, INVALID_MAPPING, INVALID_TIMEOUT = 45, 47, 48, 49, 50
CONCURRENT, COORDINATOR_FENCED, NOT_ATTEMPTED, FENCED = 51, 52, 55, 90


async def end(node, name, producer_id, epoch, *, version=3) -> int:
    answer = await node.ask(
        Api.END_TXN,
        version,
        transactional_id=name,
        producer_id=producer_id,
        producer_epoch=epoch,
        committed=True,
    )
    return int(answer.error_code)


async def add_offsets(node, name, producer_id, epoch, *, version=3) -> int:
    answer = await node.ask(
        Api.ADD_OFFSETS_TO_TXN,
        version,
        transactional_id=name,
        producer_id=producer_id,
        producer_epoch=epoch,
        group_id="g",
    )
    return int(answer.error_code)


# What producers do.


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("bumps", [True, False])
def test_a_transaction_over_two_partitions_is_seen_whole_or_not_at_all(commits, bumps):
    async def story(node):
        producer = Producer(node)
        await producer.init()
        if not bumps:
            assert await producer.add(0, 1) == [OK, OK]
        for partition in (0, 1):
            assert await producer.write(b"a", partition=partition, version=12 if bumps else 9) == 0
        assert (await seen(node), await seen(node, 1)) == ([], [])
        epoch = producer.epoch

        assert await producer.end(commits=commits, version=5 if bumps else 3) == OK
        await producer.completed()

        expected = [b"a"] if commits else []
        assert (await seen(node), await seen(node, 1)) == (expected, expected)
        assert producer.epoch == epoch + bumps

    on_a_coordinator(story)


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (INVALID_REQUEST, {"transactional_id": ""}),
        (INVALID_TIMEOUT, {"transaction_timeout": 0}),
        (INVALID_TIMEOUT, {"transaction_timeout": -1}),
        (INVALID_TIMEOUT, {"transaction_timeout": 86_400_001}),
        (INVALID_REQUEST, {"producer_id": 5}),
        (INVALID_REQUEST, {"producer_epoch": 5}),
        (FENCED, {"producer_id": 999, "producer_epoch": 0}),
        (FENCED, {"producer_id": 0, "producer_epoch": 7}),
        (OK, {"producer_id": 0, "producer_epoch": 0}),
    ],
)
def test_who_asks_for_what_cannot_be_is_not_initialised(code, fields):
    async def story(node):
        producer = Producer(node)
        await producer.init()
        assert (producer.id, producer.epoch) == (0, 0)
        asked = {
            "transactional_id": "tx",
            "transaction_timeout": 60_000,
            "producer_id": -1,
            "producer_epoch": -1,
            **fields,
        }

        answer = await node.ask(Api.INIT_PRODUCER_ID, 4, **asked)

        assert answer.error_code == code
        view = await producer.state()
        assert view.epoch == (1 if code == OK else 0)

    on_a_coordinator(story)


@pytest.mark.parametrize(("version", "code"), [(1, INVALID_EPOCH), (2, FENCED)])
def test_a_zombie_hears_that_it_is_fenced_as_its_version_knows_it(version, code):
    async def story(node):
        zombie, producer = Producer(node), Producer(node)
        await zombie.init()
        await producer.init()
        who = ("tx", zombie.id, zombie.epoch)

        assert await zombie.add(0, version=version) == [code]
        assert await end(node, *who, version=version) == code
        assert await add_offsets(node, *who, version=version) == code
        assert (await producer.state()).state == "Empty"

    on_a_coordinator(story)


@pytest.mark.parametrize(("version", "code"), [(3, INVALID_EPOCH), (4, FENCED)])
def test_a_zombie_that_begins_again_hears_it_as_its_version_knows_it(version, code):
    async def story(node):
        zombie, producer = Producer(node), Producer(node)
        await zombie.init()
        for _ in range(3):
            await producer.init()

        answer = await node.ask(
            Api.INIT_PRODUCER_ID,
            version,
            transactional_id="tx",
            transaction_timeout=1000,
            producer_id=zombie.id,
            producer_epoch=zombie.epoch,
        )

        assert (answer.error_code, answer.producer_id) == (code, -1)

    on_a_coordinator(story)


def test_an_unknown_id_or_producer_is_told_so_and_costs_no_producer_id():
    async def story(node):
        producer = Producer(node)
        await producer.init()

        for version in (3, BUMPS):
            assert await end(node, "nobody", 5, 0, version=version) == INVALID_MAPPING
            assert await end(node, "tx", 999, 0, version=version) == INVALID_MAPPING
        assert await add_offsets(node, "nobody", 5, 0) == INVALID_MAPPING
        stranger = Producer(node, "nobody")
        assert await stranger.add(0) == [INVALID_MAPPING]

        await stranger.init()
        assert stranger.id == producer.id + 1

    on_a_coordinator(story)


def test_no_partition_joins_if_one_of_them_does_not_exist():
    async def story(node):
        producer = Producer(node)
        await producer.init()

        assert await producer.add(0, 2, -1) == [
            NOT_ATTEMPTED,
            UNKNOWN_TOPIC_OR_PARTITION,
            UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert await producer.add(0, topic="nowhere") == [UNKNOWN_TOPIC_OR_PARTITION]
        assert (await producer.state()).state == "Empty"
        assert await producer.add() == []
        assert (await producer.state()).state == "Empty"

    on_a_coordinator(story)


def test_a_commit_after_the_timeout_is_refused_and_nothing_of_it_is_seen():
    async def story(node):
        producer = Producer(node)
        await producer.init(timeout_ms=1000)
        await producer.write(b"a")
        await asyncio.sleep(1.2)
        await producer.completed()

        assert await producer.end(commits=True) == FENCED
        assert await producer.write(b"b") == INVALID_EPOCH
        assert await seen(node) == []

        again = Producer(node)
        assert await again.init() == OK
        assert await again.write(b"c") == OK
        await again.end(commits=True)
        await again.completed()
        assert await seen(node) == [b"c"]

    on_a_coordinator(story)


def test_a_gap_in_the_sequence_is_refused_within_a_transaction_and_after_one():
    async def story(node):
        producer = Producer(node)
        await producer.init()
        assert await producer.write(b"a") == OK
        assert await producer.write(b"b", base_sequence=5) == OUT_OF_ORDER
        await producer.end(commits=True)
        await producer.completed()

        assert await producer.write(b"c", base_sequence=1) == OUT_OF_ORDER
        assert await producer.end(commits=False) == OK, "the partition had joined"
        await producer.completed()
        assert await seen(node) == [b"a"]

    on_a_coordinator(story)


def test_who_begins_while_another_is_in_a_transaction_comes_back_when_that_is_aborted():
    async def story(node):
        first, second = Producer(node), Producer(node)
        await first.init()
        await first.write(b"a")

        assert await second.init() == CONCURRENT
        await first.completed()
        assert await second.init() == OK

        assert await first.end(commits=True) == FENCED
        assert await seen(node) == []

    on_a_coordinator(story)


def test_offsets_count_once_their_transaction_is_committed():
    async def story(node):
        producer = Producer(node)
        await producer.init()
        found = await node.ask(Api.FIND_COORDINATOR, 3, key="g", key_type=0)
        assert found.error_code == OK
        offset = {
            "partition_index": 0,
            "committed_offset": 7,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        for expected in ({}, {("t", 0): 7}):
            answer = await node.ask(
                Api.TXN_OFFSET_COMMIT,
                5,
                transactional_id="tx",
                group_id="g",
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                member_id="",
                generation_id=-1,
                group_instance_id=None,
                topics=[{"name": "t", "partitions": [offset]}],
            )
            assert answer.topics[0].partitions[0].error_code == OK
            assert await committed(node) == {}

            assert await producer.end(commits=bool(expected)) == OK
            await producer.completed()
            assert await committed(node) == expected

    on_a_coordinator(story)


def test_a_topic_that_is_deleted_does_not_keep_its_transaction_open():
    async def story(node):
        producer = Producer(node)
        await producer.init()
        await producer.write(b"a")
        await node.ask(Api.DELETE_TOPICS, 5, topic_names=["t"], timeout=1000)

        assert await producer.end(commits=True) == OK
        await producer.completed()

    on_a_coordinator(story)


# For leaders of partitions.


def test_transactions_that_leaders_ask_about_together_are_looked_at_side_by_side():
    async def story(node):
        producers = [Producer(node, f"tx{number}") for number in range(5)]
        gate = Gate(node)
        for producer in producers:
            await producer.init()
            await producer.write(b"a")
        gate.shut(WriteMarkers)
        for producer in producers:
            await producer.end(commits=True)
        wanted = tuple(PlacesToAdd(p.name, p.id, p.epoch, (Place("t", 1),), True) for p in producers)
        said = []

        class Answer:
            def send(self, message):
                said.append(message.codes)

        began = node.clock.monotonic()
        node.broker.on_places_to_add(1, AddToTransactions(transactions=wanted), Answer())
        while not said:
            await asyncio.sleep(0.1)

        assert said == [((CONCURRENT,),) * 5]
        assert node.clock.monotonic() - began < 1.5, "each waits for its markers for a second"
        gate.open(WriteMarkers)

    on_a_coordinator(story)


# Looking.


async def listed(node, **filters) -> dict[str, str]:
    fields = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1} | filters
    answer = await node.ask(Api.LIST_TRANSACTIONS, 1, **fields)
    assert answer.error_code == OK
    return {one.transactional_id: one.transaction_state for one in answer.transaction_states}


def test_transactions_are_listed_by_state_producer_and_duration():
    async def story(node):
        idle, busy = Producer(node, "idle"), Producer(node, "busy")
        await idle.init()
        await busy.init()
        await busy.write(b"a")
        await asyncio.sleep(5)

        assert await listed(node) == {"idle": "Empty", "busy": "Ongoing"}
        assert await listed(node, state_filters=["Ongoing"]) == {"busy": "Ongoing"}
        assert await listed(node, producer_id_filters=[idle.id]) == {"idle": "Empty"}
        assert await listed(node, duration_filter=4000) == {"busy": "Ongoing"}
        assert await listed(node, duration_filter=60_000) == {}
        answer = await node.ask(
            Api.LIST_TRANSACTIONS, 1, state_filters=["Odd"], producer_id_filters=[], duration_filter=-1
        )
        assert list(answer.unknown_state_filters) == ["Odd"]

    on_a_coordinator(story)


def test_no_pattern_of_a_client_is_ever_matched():
    async def story(node):
        await Producer(node, "a" * 40).init()

        with pytest.raises(Refused, match="version 2"):
            await node.ask(
                Api.LIST_TRANSACTIONS,
                2,
                state_filters=[],
                producer_id_filters=[],
                duration_filter=-1,
                transactional_id_pattern="(a+)+b",
            )

    on_a_coordinator(story)


def test_a_partition_that_the_coordinator_has_not_heard_of_is_not_added_yet():
    """It would think it deleted, and send no marker there."""

    async def story(node):
        producer = Producer(node)
        await producer.init()
        keeper = node.requests._verification._coordinator_of.__self__
        wanted = PlacesToAdd("tx", producer.id, producer.epoch, (Place("unheard-of", 0),), True)

        assert await keeper._codes(wanted) == (NOT_AVAILABLE,)
        assert (await producer.state()).places == ()

    on_a_coordinator(story)


async def abort_markers(node, producer_id, epoch, *, commits=False, coordinator_epoch=0) -> int:
    marker = {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "transaction_result": commits,
        "coordinator_epoch": coordinator_epoch,
        "topics": [{"name": "t", "partition_indexes": [0]}],
    }
    (told,) = (await node.ask(Api.WRITE_TXN_MARKERS, 1, markers=[marker])).markers
    return int(told.topics[0].partitions[0].error_code)


def leave(node, *, sequence=0) -> None:
    """A batch of a transaction that no coordinator knows of."""
    batch = bytearray(
        batch_of(b"left", attributes=TRANSACTIONAL, producer_id=9, producer_epoch=0, base_sequence=sequence)
    )
    node.broker.partition("t", 0).appender.append(
        batch, acks=1, waiter=Nobody(), pins_bytes=len(batch), is_transactional=True
    )


class Nobody:
    """Awaits nothing."""

    deadline = float("inf")

    def settled(self, error: object) -> None:
        pass


def test_nobody_else_ends_what_a_coordinator_has_open():
    async def story(node):
        producer = Producer(node)
        await producer.init()
        await producer.write(b"paid")

        assert await abort_markers(node, producer.id, producer.epoch) == INVALID_STATE
        assert await producer.end(commits=True) == OK
        await producer.completed()
        assert await seen(node) == [b"paid"]

    on_a_coordinator(story)


@pytest.mark.parametrize(
    ("epochs", "code"),
    [
        ({"epoch": 1}, INVALID_EPOCH),
        ({"epoch": -1}, INVALID_EPOCH),
        ({"coordinator_epoch": 1}, COORDINATOR_FENCED),
        ({"coordinator_epoch": 2**31 - 1}, COORDINATOR_FENCED),
    ],
)
def test_a_marker_of_an_epoch_that_nobody_gave_out_is_refused(epochs, code):
    async def story(node):
        leave(node)

        wanted = {"epoch": 0, "coordinator_epoch": 0} | epochs
        assert await abort_markers(node, 9, **wanted) == code
        assert await abort_markers(node, 9, 0) == OK

    on_a_coordinator(story)


def test_nothing_is_ended_while_a_coordinator_cannot_be_asked():
    async def story(node):
        leave(node)
        keeper = node.requests._verification._coordinator_of.__self__
        driver = keeper.driver("tx")
        load, goes_on = driver.load, asyncio.Event()

        async def slow() -> None:
            await goes_on.wait()
            await load()

        driver.load = slow
        driver.reload()

        assert await abort_markers(node, 9, 0) == NOT_AVAILABLE
        goes_on.set()
        while (code := await abort_markers(node, 9, 0)) == NOT_AVAILABLE:
            await asyncio.sleep(0.01)
        assert code == OK

    on_a_coordinator(story)


def test_what_a_producer_goes_on_with_meanwhile_is_not_ended():
    """It has begun another transaction since the coordinators were asked."""

    async def story(node):
        leave(node)
        gate = Gate(node)
        gate.shut(FindOpenTransaction)
        asked = asyncio.ensure_future(abort_markers(node, 9, 0))
        while not gate.asked:
            await asyncio.sleep(0.01)
        leave(node, sequence=1)
        gate.open(FindOpenTransaction)

        assert await asked == INVALID_STATE
        assert node.broker.partition("t", 0).last_stable_offset == 0

    on_a_coordinator(story)


def test_an_operator_ends_what_is_open_though_its_coordinator_has_told_its_end():
    """A power cut takes the marker, which was not synced, and not the records, which were."""
    machine = Machine(**SETTINGS)

    async def before(node):
        await node.create("t", partitions=1, durability="replicated")
        await node.ask(Api.FIND_COORDINATOR, 3, key="tx", key_type=1)
        producer = Producer(node)
        await producer.init()
        await producer.write(b"a")
        partition = node.broker.partition("t", 0)
        partition.log.roll()  # which syncs what was written
        node.broker.rounds.mark(partition)
        await asyncio.sleep(1)
        await producer.end(commits=True)
        await producer.completed()
        machine.disk.crash()

    async def after(node):
        partition = node.broker.partition("t", 0)
        await asyncio.sleep(1)
        ((producer_id, state),) = partition.log.producers.items()
        assert (partition.last_stable_offset, partition.high_watermark) == (0, 1)

        assert await abort_markers(node, producer_id, state.epoch, commits=True) == INVALID_REQUEST
        assert await abort_markers(node, producer_id, state.epoch - 1) == INVALID_EPOCH
        assert partition.last_stable_offset == 0
        assert await abort_markers(node, producer_id, state.epoch) == OK
        assert partition.last_stable_offset == partition.high_watermark == 2
        assert await seen(node) == []
        assert await abort_markers(node, producer_id, state.epoch) == INVALID_STATE

    machine.live(before, killed=True)
    machine.live(after)
