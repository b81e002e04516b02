"""Key-value at one node: decisions, versions, expiry, and views that are folds of the log."""

import asyncio
from typing import Any

import pytest

from tests.unit.broker.node import Machine, Node, on_a_node
from tests.unit.kafka.test_configs import alter
from tidelog.broker.joint_writes import AT_ONCE_MAX, BYTES_MAX
from tidelog.broker.writing import once_of
from tidelog.copies.views.kv import Change, record_of
from tidelog.errors import (
    InvalidTopic,
    MessageTooLarge,
    NotEnoughReplicas,
    OutcomeUnknown,
    OutOfOrderSequence,
    UnknownTopicOrPartition,
)
from tidelog.model import TopicPartition
from tidelog.partition.appending import Appender
from tidelog.records import TRANSACTIONAL, Marker, Record, encode_batch, iterate_batches
from tidelog.services.services import Services

SECONDS = 5.0
PLACE = TopicPartition("b", 0)


class Bucket:
    """One bucket of one partition."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.kv = Services(node.broker).kv

    async def make(self, **config: Any) -> "Bucket":
        if "b" not in self.node.broker.image.topics:
            await self.node.create("b", cleanup_policy="compact", kv_view="true", **config)
        return self

    async def put(self, key, value, **wanted):
        once = wanted.pop("once", None)
        return await self.kv.write(PLACE, [Change(key, value, **wanted)], once=once_of(once), seconds=SECONDS)

    async def get(self, key, *, strong=True, after=0):
        found = await self.kv.get(PLACE, key, is_strong=strong, after=after, seconds=SECONDS)
        return None if found.entry is None else (found.entry.value, found.entry.version)


def in_a_bucket(story, **settings):
    async def on(node):
        await story(await Bucket(node).make())

    on_a_node(on, **settings)


def test_what_was_put_is_got_with_the_offset_as_its_version():
    async def story(bucket):
        first = await bucket.put(b"k", b"1")
        second = await bucket.put(b"k", b"2")

        assert (first.offset, second.offset) == (0, 1)
        assert await bucket.get(b"k") == (b"2", 1)
        assert await bucket.get(b"other") is None

    in_a_bucket(story)


def test_a_change_that_expects_another_version_is_refused_with_the_one_there_is():
    async def story(bucket):
        await bucket.put(b"k", b"1")

        stale = await bucket.put(b"k", b"2", if_version=7)
        present = await bucket.put(b"k", b"2", if_version=-1)
        missing = await bucket.put(b"new", b"2", if_version=0)
        met = await bucket.put(b"k", b"2", if_version=0)

        assert stale.refused == ((0, 0),)
        assert present.refused == ((0, 0),)
        assert missing.refused == ((0, None),)
        assert met.offset == 1
        assert bucket.node.broker.partition("b", 0).log.end == 2

    in_a_bucket(story)


def test_of_two_changes_that_expect_the_same_version_one_is_done():
    async def story(bucket):
        await bucket.put(b"k", b"0")

        both = await asyncio.gather(*(bucket.put(b"k", b"%d" % n, if_version=0) for n in range(2)))

        assert sorted(bool(one.refused) for one in both) == [False, True]

    in_a_bucket(story)


def test_a_change_sees_what_is_not_committed_yet():
    async def story(bucket):
        first = asyncio.ensure_future(bucket.put(b"k", b"0"))
        await asyncio.sleep(0)
        second = await bucket.put(b"k", b"1", if_version=-1)

        assert (await first).offset == 0
        assert second.refused == ((0, 0),)

    in_a_bucket(story)


def batches_of(node):
    partition = node.broker.partition("b", 0)
    found = partition.read(0, 2**20, partition.log.end)
    return [header.record_count for data in found.buffers for header, _ in iterate_batches(data)]


def test_what_comes_in_one_turn_is_one_batch():
    async def story(bucket):
        puts = await asyncio.gather(*(bucket.put(b"%d" % n, b"v") for n in range(10)))

        assert [one.offset for one in puts] == list(range(10))
        assert batches_of(bucket.node) == [10]
        assert await bucket.get(b"7") == (b"v", 7)

    in_a_bucket(story)


def test_more_than_a_turn_takes_goes_in_the_next_ones_in_its_order():
    async def story(bucket):
        puts = await asyncio.gather(*(bucket.put(b"%d" % n, b"v") for n in range(AT_ONCE_MAX + 10)))

        assert [one.offset for one in puts] == list(range(AT_ONCE_MAX + 10))
        assert batches_of(bucket.node) == [AT_ONCE_MAX, 10]

    in_a_bucket(story)


def test_large_values_of_one_turn_share_no_batch():
    async def story(bucket):
        await asyncio.gather(*(bucket.put(b"%d" % n, b"v" * (BYTES_MAX // 2)) for n in range(3)))

        assert batches_of(bucket.node) == [1, 1, 1]

    in_a_bucket(story)


def test_a_change_that_is_refused_takes_no_other_of_its_turn_with_it():
    async def story(bucket):
        await bucket.put(b"k", b"0")

        results: Any = await asyncio.gather(
            bucket.put(b"a", b"1"),
            bucket.put(b"a", b"2", if_version=-1),
            bucket.put(b"b", b"v" * 1_100_000),
            bucket.kv.write(PLACE, [Change(b"c", b"3")], seconds=0.0),
            bucket.put(b"k", b"4", if_version=0),
            return_exceptions=True,
        )

        before, stale, too_large, late, after = results
        assert before.offset == 1 and stale.refused == ((0, 1),)
        assert isinstance(too_large, MessageTooLarge)
        assert isinstance(late, OutcomeUnknown) and late.known["offset"] == 2
        assert after.offset == 3

    in_a_bucket(story)


def test_a_refusal_is_decided_anew_if_what_it_was_decided_on_was_not_written(monkeypatch):
    async def story(bucket):
        partition = bucket.node.broker.partition("b", 0)
        append, refusals = Appender.append, [NotEnoughReplicas(in_sync=1, needed=2)]

        def refuse_once(self, *args, **wanted):
            if refusals and self is partition.appender:
                raise refusals.pop()
            return append(self, *args, **wanted)

        monkeypatch.setattr(Appender, "append", refuse_once)
        results: Any = await asyncio.gather(
            bucket.put(b"k", b"1"), bucket.put(b"k", b"2", if_version=-1), return_exceptions=True
        )
        first, second = results

        assert isinstance(first, NotEnoughReplicas)
        assert second.offset == 0 and await bucket.get(b"k") == (b"2", 0)

    in_a_bucket(story)


def test_who_leaves_before_the_turn_ends_has_written_nothing():
    async def story(bucket):
        await bucket.put(b"k", b"0")
        leaving = asyncio.ensure_future(bucket.put(b"a", b"1"))
        staying = asyncio.ensure_future(bucket.put(b"b", b"2"))
        await asyncio.sleep(0)
        leaving.cancel()

        assert (await staying).offset == 1
        assert await bucket.get(b"a") is None

    in_a_bucket(story)


def test_a_repeated_request_gets_its_first_answer_and_writes_nothing():
    async def story(bucket):
        first = await bucket.put(b"k", b"1", if_version=-1, once="a")
        await bucket.put(b"k", b"2")
        again = await bucket.put(b"k", b"1", if_version=-1, once="a")

        assert (first.offset, again.offset, again.refused) == (0, 0, ())
        assert await bucket.get(b"k") == (b"2", 1)

    in_a_bucket(story)


def test_a_deleted_key_is_gone_and_deleting_it_again_writes_nothing():
    async def story(bucket):
        await bucket.put(b"k", b"1")

        deleted = await bucket.put(b"k", None)
        again = await bucket.put(b"k", None)

        assert (deleted.offset, deleted.existed) == (1, (True,))
        assert (again.offset, again.existed) == (-1, (False,))
        assert await bucket.get(b"k") is None
        assert (await bucket.put(b"k", b"2", if_version=-1)).offset == 2

    in_a_bucket(story)


def test_a_request_that_found_nothing_to_delete_deletes_nothing_when_it_comes_again():
    machine = Machine()

    async def delete(node):
        bucket = await Bucket(node).make()
        deleted = await bucket.put(b"k", None, once="a")
        await bucket.put(b"k", b"precious")
        again = await bucket.put(b"k", None, once="a")

        assert (deleted.offset, deleted.existed) == (again.offset, again.existed) == (-1, (False,))
        assert await bucket.get(b"k") == (b"precious", 1)
        assert (await bucket.put(b"k", None, once="b")).existed == (True,)
        await bucket.put(b"k", b"precious")

    async def delete_again(node):
        bucket = await Bucket(node).make()
        assert (await bucket.put(b"k", None, once="a")).existed == (False,)
        assert await bucket.get(b"k") == (b"precious", 3)

    machine.live(delete)
    machine.live(delete_again, killed=True)
    machine.live(delete_again)


def test_a_request_that_was_refused_is_refused_when_it_comes_again():
    async def story(bucket):
        await bucket.put(b"k", b"1")
        refused = await bucket.put(b"k", b"2", if_version=-1, once="a")
        await bucket.put(b"k", None)
        again = await bucket.put(b"k", b"2", if_version=-1, once="a")

        assert (refused.offset, refused.refused) == (-1, ((0, 0),))
        assert (again.offset, again.refused) == (-1, ((0, None),))
        assert await bucket.get(b"k") is None
        assert (await bucket.put(b"k", b"2", if_version=-1, once="b")).offset == 3

    in_a_bucket(story)


def test_of_changes_that_were_refused_together_none_is_done_when_they_come_again():
    async def story(bucket):
        changes = [Change(b"a", b"1"), Change(b"b", b"1", if_version=-1)]
        await bucket.put(b"b", b"0")

        async def change():
            return await bucket.kv.write(PLACE, changes, once=once_of("a"), seconds=SECONDS)

        assert (await change()).refused == ((1, 0),)
        await bucket.put(b"b", None)
        assert (await change()).refused == ((1, None),)
        assert await bucket.get(b"a") is None

    in_a_bucket(story)


def test_a_version_that_is_past_is_refused_for_ever_and_needs_no_memory():
    async def story(bucket):
        await bucket.put(b"k", b"1")
        await bucket.put(b"k", b"2")
        log = bucket.node.broker.partition("b", 0).log

        for _ in range(2):
            assert (await bucket.put(b"k", b"3", if_version=0, once="a")).refused == ((0, 1),)
        assert log.end == 2
        # One that is to come may be the key's yet.
        assert (await bucket.put(b"k", b"3", if_version=3, once="b")).refused == ((0, 1),)
        assert (await bucket.put(b"k", b"4")).offset == 3
        assert (await bucket.put(b"k", b"3", if_version=3, once="b")).refused == ((0, 3),)

    in_a_bucket(story)


def test_another_request_with_the_key_of_one_that_changed_nothing_is_refused():
    async def story(bucket):
        await bucket.put(b"k", None, once="a")

        with pytest.raises(OutOfOrderSequence, match="another request"):
            await bucket.put(b"k", b"1", once="a")

    in_a_bucket(story)


def test_what_is_remembered_of_requests_that_changed_nothing_leaves_no_gap_in_a_view():
    async def story(bucket):
        await bucket.put(b"k", b"1")
        view = bucket.kv.views.of(bucket.node.broker.partition("b", 0))
        await view.reached(1, 5.0)
        doubts = view.doubts
        for number in range(3):
            await bucket.put(b"other", None, once=f"{number}")
        await bucket.put(b"k", b"2")

        assert await bucket.get(b"k", strong=False, after=5) == (b"2", 4)
        assert view.doubts == doubts

    in_a_bucket(story)


def test_changes_of_one_request_are_done_together_or_not_at_all():
    async def story(bucket):
        await bucket.put(b"k", b"1")
        changes = [Change(b"a", b"1"), Change(b"k", b"2", None, 5)]

        refused = await bucket.kv.write(PLACE, changes, seconds=SECONDS)
        done = await bucket.kv.write(PLACE, [changes[0], Change(b"k", b"2")], seconds=SECONDS)

        assert refused.refused == ((1, 0),)
        assert (done.offset, await bucket.get(b"a")) == (1, (b"1", 1))

    in_a_bucket(story)


def test_a_key_is_there_until_its_leader_deletes_it():
    async def story(bucket):
        now = bucket.node.clock.wall_ms()
        await bucket.put(b"k", b"1", expires_at_ms=now + 1000)
        await bucket.put(b"stays", b"1", expires_at_ms=now + 60_000)
        assert await bucket.get(b"k") == (b"1", 0)

        await asyncio.sleep(1.5)

        assert await bucket.get(b"k") is None
        assert await bucket.get(b"stays") == (b"1", 1)
        assert bucket.node.broker.partition("b", 0).log.end == 3

    in_a_bucket(story)


def test_nothing_expires_in_a_topic_that_is_not_compacted():
    async def story(node):
        bucket = Bucket(node)
        await node.create("b", cleanup_policy="delete", kv_view="true")
        old = record_of(Change(b"k", b"1", expires_at_ms=node.clock.wall_ms() - 1), 1)
        await node.produce("b", encode_batch([old]))
        partition = node.broker.partition("b", 0)
        await asyncio.sleep(60)
        assert partition.log.end == 1

        await alter(node, "b", ("cleanup.policy", "compact"))
        await asyncio.sleep(2)
        assert partition.log.end == 2
        assert await bucket.get(b"k") is None

    on_a_node(story)


def test_a_key_that_was_put_again_does_not_expire_by_its_old_time():
    async def story(bucket):
        await bucket.put(b"k", b"1", expires_at_ms=bucket.node.clock.wall_ms() + 1000)
        await bucket.put(b"k", b"2")

        await asyncio.sleep(2)

        assert await bucket.get(b"k") == (b"2", 1)

    in_a_bucket(story)


def test_keys_that_expire_are_not_held_up_by_those_that_a_transaction_has_written():
    async def story(bucket):
        now = bucket.node.clock.wall_ms()
        held = [b"held-%04d" % number for number in range(2500)]
        changes = [Change(key, b"1", expires_at_ms=now + 1000) for key in held]
        await bucket.kv.write(PLACE, changes, seconds=SECONDS)
        await bucket.put(b"k", b"1", expires_at_ms=now + 1001)
        transaction = Undecided(bucket, held[0], b"2", *held[1:])

        await asyncio.sleep(3)

        assert await bucket.get(b"k") is None
        log = bucket.node.broker.partition("b", 0).log
        assert log.end == 2 * len(held) + 2
        transaction.commit()
        assert await bucket.get(held[0]) == (b"2", len(held) + 1)

    in_a_bucket(story)


def test_few_large_values_are_looked_at_in_a_turn_when_many_keys_expire():
    async def story(bucket):
        now = bucket.node.clock.wall_ms()
        for number in range(8):
            await bucket.put(b"k%d" % number, b"x" * 600_000, expires_at_ms=now + 5000)

        await asyncio.sleep(6)

        log = bucket.node.broker.partition("b", 0).log
        buffers = log.read(8, 1_000_000, log.end).buffers
        batches = [header for data in buffers for header, _ in iterate_batches(data)]
        assert [header.record_count for header in batches] == [2, 2, 2, 2]

    in_a_bucket(story)


def test_what_kafka_clients_write_is_in_the_bucket():
    async def story(bucket):
        batch = encode_batch([Record(key=b"k", value=b"1"), Record(key=b"l", value=b"2")])
        await bucket.node.produce("b", batch)

        assert await bucket.get(b"l") == (b"2", 1)
        assert (await bucket.put(b"k", b"3", if_version=0)).offset == 2

    in_a_bucket(story)


def test_keys_are_listed_by_prefix_page_by_page():
    async def story(bucket):
        for key in (b"a/1", b"a/2", b"a/3", b"b/1", b"\xff\xff"):
            await bucket.put(key, b"1")

        async def page(prefix, beyond, limit):
            found = await bucket.kv.scan(
                PLACE, prefix=prefix, beyond=beyond, limit=limit, is_strong=True, after=0, seconds=SECONDS
            )
            return [entry.key for entry in found.entries], found.is_cut

        assert await page(b"a/", None, 2) == ([b"a/1", b"a/2"], True)
        assert await page(b"a/", b"a/2", 2) == ([b"a/3"], False)
        assert await page(b"\xff", None, 2) == ([b"\xff\xff"], False)
        assert await page(b"", b"b", 9) == ([b"b/1", b"\xff\xff"], False)

    in_a_bucket(story)


def test_a_view_goes_on_where_it_was_after_a_restart_and_after_a_crash():
    machine = Machine()

    async def write(node):
        bucket = await Bucket(node).make()
        for n in range(10):
            await bucket.put(b"k%d" % (n % 3), b"%d" % n)

    async def check(node):
        bucket = await Bucket(node).make()
        assert await bucket.get(b"k0") == (b"9", 9)
        assert await bucket.get(b"k1") == (b"7", 7)
        assert (await bucket.put(b"k2", b"x", if_version=8)).offset >= 10
        await bucket.put(b"k2", b"8")
        await bucket.put(b"k2", None)
        await bucket.put(b"k2", b"8")

    machine.live(write)
    machine.live(check, killed=True)

    async def look(node):
        bucket = await Bucket(node).make()
        assert await bucket.get(b"k2") == (b"8", 13)

    machine.live(look)


def test_what_is_no_bucket_is_refused_with_what_to_do():
    async def story(node):
        kv = Services(node.broker).kv
        await node.create("plain")

        with pytest.raises(InvalidTopic, match="not compacted"):
            await kv.places("plain")
        with pytest.raises(UnknownTopicOrPartition):
            await kv.places("nothing")

    on_a_node(story)


class Undecided:
    """A transaction that has written keys, and has not ended."""

    def __init__(self, bucket: Bucket, key: bytes, value: bytes, *others: bytes) -> None:
        self._partition = bucket.node.broker.partition("b", 0)
        batch = encode_batch(
            [Record(key=one, value=value) for one in (key, *others)],
            producer_id=7,
            producer_epoch=0,
            base_sequence=0,
            attributes=TRANSACTIONAL,
        )
        self._partition.appender.append(
            batch, acks=-1, waiter=_Nobody(), pins_bytes=len(batch), is_transactional=True
        )

    def commit(self) -> None:
        self._partition.appender.append_marker(
            Marker(commits=True, coordinator_epoch=0),
            producer_id=7,
            producer_epoch=0,
            is_bumped=False,
            waiter=_Nobody(),
        )


class _Nobody:
    deadline = 60.0

    def settled(self, error):
        pass


def test_an_open_transaction_holds_up_strong_reads_of_its_own_keys_alone():
    async def story(bucket):
        await bucket.put(b"k", b"1")
        await bucket.put(b"other", b"1")
        transaction = Undecided(bucket, b"k", b"2")
        await bucket.put(b"other", b"2")

        assert await bucket.get(b"other") == (b"2", 3)
        asked = asyncio.ensure_future(bucket.get(b"k"))
        await asyncio.sleep(1)
        assert not asked.done()
        transaction.commit()
        assert await asked == (b"2", 2)

    in_a_bucket(story)


def test_a_strong_read_passes_over_what_is_not_committed_yet():
    async def story(bucket):
        await bucket.put(b"k", b"1")
        log = bucket.node.broker.partition("b", 0).log
        writing = asyncio.ensure_future(bucket.put(b"k", b"2"))
        while log.end < 2:
            await asyncio.sleep(0)

        assert await bucket.get(b"k") == (b"1", 0)
        await writing
        assert await bucket.get(b"k") == (b"2", 1)

    in_a_bucket(story)


def test_whoever_has_seen_a_write_finds_it_in_the_view_without_a_pause():
    async def story(bucket):
        clock = bucket.node.clock
        for n in range(5):
            written = await bucket.put(b"k", b"%d" % n)
            asked_at = clock.monotonic()

            found = await bucket.get(b"k", strong=False, after=written.offset + 1)

            assert found == (b"%d" % n, n)
            assert clock.monotonic() - asked_at < 0.001

    in_a_bucket(story)


def test_what_is_written_together_is_folded_together():
    async def story(bucket):
        await bucket.put(b"k", b"0")
        await asyncio.sleep(1)
        view = bucket.kv.views.of(bucket.node.broker.partition("b", 0))
        folds = []
        apply = view._store.apply

        def noted(records, to):
            folds.append(to.applied)
            apply(records, to)

        view._store.apply = noted

        for n in range(20):
            await bucket.put(b"k", b"%d" % n)
        await asyncio.sleep(0.1)

        assert view.applied == 21
        assert len(folds) < 10

    in_a_bucket(story)


def test_a_leader_whose_view_is_made_again_decides_nothing_before_it_is_whole():
    async def story(bucket):
        await bucket.put(b"k", b"1")
        await asyncio.sleep(1)
        view = bucket.kv.views.of(bucket.node.broker.partition("b", 0))
        resets = []
        reset = view._store.reset

        def noted():
            resets.append(reset())
            return resets[0]

        view._store.reset = noted
        view._is_wrong = True
        view.poke()
        while not resets:
            await asyncio.sleep(0)

        assert (await bucket.put(b"k", b"2", if_version=0)).offset == 1
        assert await bucket.get(b"k") == (b"2", 1)

    in_a_bucket(story)


def test_what_this_node_has_encoded_is_not_unpacked_to_see_its_keys(monkeypatch):
    """A keyless record of somebody else is still refused: see `test_produce`."""
    unpacked = []

    def require_keys(header, batch):
        unpacked.append(header.record_count)

    async def story(bucket):
        monkeypatch.setattr("tidelog.partition.appending.require_keys", require_keys)
        await bucket.put(b"k", b"1")
        assert unpacked == []
        await bucket.node.produce("b", encode_batch([Record(key=b"k", value=b"2")]))
        assert unpacked == [1]

    in_a_bucket(story)
