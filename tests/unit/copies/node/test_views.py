"""Views under troubles: transactions, compaction, damage, full disks, replicas that go and come."""

import asyncio
import sqlite3

import pytest
from crc32c import crc32c

from tests.unit.broker.node import Machine, on_a_node
from tests.unit.services.test_kv import PLACE, SECONDS, Bucket, Undecided, in_a_bucket
from tidelog.copies.views.kv import Change, get_entry
from tidelog.copies.views.store import Position, applied_in
from tidelog.errors import NotLeader, OffsetNotAvailable, OutcomeUnknown, RequestTimedOut
from tidelog.host import read_file
from tidelog.log.segment import walk
from tidelog.records import CRC_AT, CRC_FROM, MAGIC_AT, Record, encode_batch

SMALL = {"segment_bytes": "300", "min_cleanable_dirty_ratio": "0.01", "delete_retention_ms": "0"}


def partition_of(bucket):
    return bucket.node.broker.partition("b", 0)


def view_of(bucket):
    return bucket.kv.views.of(partition_of(bucket))


def entries_of(view):
    return view.ask(lambda db: db.execute("SELECT key, version FROM entries ORDER BY key").fetchall())


def unreadable(offset=0):
    """A batch whose bytes are as they were written, and make no record."""
    record = Record(key=b"bad", value=b"1", headers=(("h", b"v"),))
    batch = encode_batch([record], base_offset=offset)
    batch[-4] = 0x7E  # the header's name is longer than all that is left
    batch[CRC_AT : CRC_AT + 4] = crc32c(memoryview(batch)[CRC_FROM:]).to_bytes(4, "big")
    return bytes(batch)


# What the view shows, and how far it says that it is.


def test_a_token_covers_a_deletion_that_the_file_has_and_the_loop_has_not_heard_of():
    async def story(bucket):
        await bucket.put(b"k", b"1")
        view, seen = view_of(bucket), []
        await view.reached(1, SECONDS)
        apply = view._store.apply

        def apply_and_look(records, to):
            apply(records, to)
            assert view.applied == 1
            asked = bucket.kv.get(PLACE, b"k", is_strong=False, after=0, seconds=SECONDS)
            seen.append(asyncio.ensure_future(asked))

        view._store.apply = apply_and_look
        await bucket.put(b"k", None)
        await view.reached(2, SECONDS)
        found = await seen[0]

        assert (found.entry, found.applied) == (None, 2)

    in_a_bucket(story)


def test_who_gives_up_waiting_leaves_nothing_behind():
    async def story(bucket):
        await bucket.put(b"k", b"1")
        view = view_of(bucket)

        with pytest.raises(RequestTimedOut):
            await view.reached(99, bucket.node.clock.monotonic() + 0.1)

        assert len(view._waits) == 0

    in_a_bucket(story)


def test_a_record_that_nobody_can_read_is_passed_over():
    async def story(bucket):
        answer = await bucket.node.produce("b", unreadable())
        assert answer.error_code == 0
        await bucket.put(b"k", b"1")

        await asyncio.sleep(3)

        assert await bucket.get(b"k") == (b"1", 1)
        assert await bucket.get(b"bad") is None
        assert await bucket.get(b"k", strong=False, after=2) == (b"1", 1)

    in_a_bucket(story)


# Transactions.


def test_a_key_that_a_transaction_writes_anew_does_not_expire_by_its_old_time():
    async def story(bucket):
        await bucket.put(b"k", b"1", expires_at_ms=bucket.node.clock.wall_ms() + 1000)
        transaction = Undecided(bucket, b"k", b"2")
        await asyncio.sleep(2)

        transaction.commit()

        assert await bucket.get(b"k") == (b"2", 1)

    in_a_bucket(story)


def test_a_new_leader_writes_though_a_transaction_is_open():
    machine = Machine()

    async def begin(node):
        bucket = await Bucket(node).make()
        await bucket.put(b"k", b"1")
        Undecided(bucket, b"other", b"1")
        await bucket.put(b"k", b"2")

    async def go_on(node):
        bucket = await Bucket(node).make()
        assert (await bucket.put(b"k", b"3", if_version=2)).refused == ()
        assert await bucket.get(b"k") == (b"3", 3)

    machine.live(begin, killed=True)
    machine.live(go_on)


def test_what_a_transaction_wrote_is_told_once_its_marker_is_committed():
    """Before that another leader may not have the marker."""

    async def story(bucket):
        await bucket.put(b"k", b"1")
        transaction = Undecided(bucket, b"k", b"2")
        partition = partition_of(bucket)
        while partition.high_watermark < 2:
            await asyncio.sleep(0)
        transaction.commit()
        assert (partition.high_watermark, partition.log.end) == (2, 3)

        asked = [bucket.get(b"k"), bucket.put(b"k", b"3", if_version=0)]
        tasks = [asyncio.ensure_future(one) for one in asked]
        while partition.high_watermark < 3:
            assert not any(task.done() for task in tasks)
            await asyncio.sleep(0)

        found, written = await asyncio.gather(*tasks)
        assert found == (b"2", 1)
        assert written.refused == ((0, 1),)

    in_a_bucket(story)


# Expiry.


def test_long_keys_expire_though_they_do_not_fit_into_one_batch():
    async def story(bucket):
        expires = bucket.node.clock.wall_ms() + 1000
        changes = [Change(b"%d" % n + b"k" * 4000, b"1", expires) for n in range(100)]
        for at in range(0, 100, 20):
            await bucket.kv.write(PLACE, changes[at : at + 20], seconds=SECONDS)

        await asyncio.sleep(5)

        assert entries_of(view_of(bucket)) == []

    async def on(node):
        await story(await Bucket(node).make(max_message_bytes="100000"))

    on_a_node(on)


# Compaction.


async def compact(bucket):
    """Two passes: the first gives tombstones a horizon, which is over in the second."""
    broker = bucket.node.broker
    for _ in range(2):
        partition = partition_of(bucket)
        for filler in range(12):
            await bucket.put(b"filler-%d" % (filler % 3), b"." * 60)
        await asyncio.sleep(0.1)
        swaps = partition.log.swaps
        await broker.cleaner.clean_due([partition])
        assert partition.log.swaps > swaps


async def refill(bucket):
    await bucket.put(b"k", b"1")
    await bucket.put(b"stays", b"1")


def stop_folding(view):
    """The disk's threads are slow."""
    view._is_busy = True


def go_on_folding(view):
    view._is_busy = False
    view.poke()


def test_a_deletion_that_was_compacted_before_it_was_folded_is_not_missed():
    async def on(node):
        bucket = await Bucket(node).make(**SMALL)
        await refill(bucket)
        view = view_of(bucket)
        await view.reached(2, SECONDS)
        assert dict(entries_of(view)).keys() == {b"k", b"stays"}
        stop_folding(view)
        await bucket.put(b"k", None)
        await compact(bucket)

        go_on_folding(view)
        await view.reached(partition_of(bucket).log.end, SECONDS)

        assert b"k" not in dict(entries_of(view))
        assert dict(entries_of(view))[b"stays"] == 1

    on_a_node(on)


def test_a_view_that_lost_its_last_moments_does_not_miss_what_was_compacted_meanwhile():
    machine = Machine(log_cleaner_backoff_ms=10**9)

    async def write(node):
        bucket = await Bucket(node).make(**SMALL)
        await refill(bucket)
        await view_of(bucket).reached(2, SECONDS)
        await asyncio.sleep(6)  # it is saved
        await bucket.put(b"k", None)
        await compact(bucket)
        node.broker.cleaner._first_dirty.clear()  # and how far it got is not noted
        await node.broker.cleaner._note([])

    async def look(node):
        bucket = await Bucket(node).make()
        assert await bucket.get(b"k") is None
        view = view_of(bucket)
        await view.reached(partition_of(bucket).log.end, SECONDS)
        assert b"k" not in dict(entries_of(view))

    machine.live(write, killed=True)
    machine.live(look)


def test_what_is_folded_of_a_compacted_log_is_shown_when_it_is_whole(monkeypatch):
    """Before that, a key whose older value was compacted would seem never to have been there."""
    monkeypatch.setattr("tidelog.copies.node.views._CHUNK_BYTES", 200)

    async def on(node):
        bucket = await Bucket(node).make(**SMALL)
        view = view_of(bucket)
        await refill(bucket)
        await compact(bucket)
        last = (await bucket.put(b"k", b"2")).offset
        await compact(bucket)
        await view.reached(partition_of(bucket).log.end, SECONDS)
        positions = set()
        view._is_wrong = True
        view.poke()
        while not view.is_whole:
            positions.add(view.applied)
            with pytest.raises(OffsetNotAvailable):
                view.ask(applied_in)
            await asyncio.sleep(0)

        assert len(positions) > 3
        assert view.ask(lambda db: get_entry(db, b"k")).version == last
        assert await bucket.get(b"k", strong=False) == (b"2", last)

    on_a_node(on)


# Damage, and logs that change.


def test_a_damaged_view_is_made_again_while_clients_ask_and_write():
    async def story(bucket):
        for n in range(20):
            await bucket.put(b"k%d" % n, b"1", expires_at_ms=bucket.node.clock.wall_ms() + 100)
        view = view_of(bucket)
        view._store._database.writer.execute("DROP TABLE entries")
        view._is_wrong = True
        view.poke()

        asked = [bucket.put(b"k%d" % n, b"2", if_version=n) for n in range(20)]
        written = await asyncio.gather(*asked)

        assert [one.refused for one in written] == [()] * 20
        assert await bucket.get(b"k7", strong=False, after=40) == (b"2", written[7].offset)

    in_a_bucket(story)


@pytest.mark.parametrize("bit", [0, 6, 31])
def test_a_view_is_made_of_a_log_in_which_a_batch_has_a_rotten_epoch(bit):
    """No checksum covers it. It tells nothing of the log's history, which is noted elsewhere."""
    machine = Machine()

    async def write(node):
        bucket = await Bucket(node).make(segment_bytes="300")
        for n in range(9):
            await bucket.put(b"k%d" % n, b"1")
        sealed = partition_of(bucket).log.segments[0]
        *_, (_, last_at) = walk(sealed.open(machine.disk), 0, sealed.size)
        machine.disk.flip_bit(sealed.path(), last_at + MAGIC_AT - 1 - bit // 8, bit % 8)

    async def look(node):
        bucket = await Bucket(node).make()
        view = view_of(bucket)
        view._is_wrong = True
        while view.applied < 9:
            view.poke()
            assert view.doubts <= 1, "it is made again once"
            await asyncio.sleep(0)
        assert len(entries_of(view)) == 9

    async def look_again(node):
        view = view_of(await Bucket(node).make())
        while not view.is_whole:
            await asyncio.sleep(0)
        assert (view.applied, view.doubts) == (9, 0), "it was kept"

    for story in (write, look, look_again):
        machine.live(story)


def test_a_view_that_cannot_be_read_is_found_to_be_damaged_by_who_asks():
    async def story(bucket):
        await bucket.put(b"k", b"1")
        view = view_of(bucket)
        await view.reached(1, SECONDS)

        def read(database):
            raise sqlite3.DatabaseError("database disk image is malformed")

        with pytest.raises(OffsetNotAvailable):
            view.ask(read)

        assert await bucket.get(b"k", strong=False, after=1) == (b"1", 0)
        assert view.doubts == 1

    in_a_bucket(story)


class Reluctant:
    """Databases of which the next ones cannot be opened."""

    def __init__(self, databases, errors):
        self._databases = databases
        self.errors = errors
        self.remove = databases.remove

    def open(self, path):
        if self.errors:
            raise self.errors.pop()
        return self._databases.open(path)


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        sqlite3.OperationalError("database or disk is full"),
        sqlite3.DatabaseError("file is not a database"),
    ],
)
def test_a_view_is_made_again_though_the_first_try_fails(error):
    async def story(bucket):
        await bucket.put(b"k", b"1")
        view = view_of(bucket)
        await view.reached(1, SECONDS)
        databases = Reluctant(view._store._databases, [error, error])
        view._store._databases = databases
        view._is_wrong = True
        view.poke()
        while len(databases.errors) > 1:
            await asyncio.sleep(0.1)
        assert not view.is_whole
        with pytest.raises(OffsetNotAvailable):
            view.ask(applied_in)
        with pytest.raises(OffsetNotAvailable):
            await view.backup(view._store._path.with_suffix(".copy"))

        await view.save()
        await view.reached(1, bucket.node.clock.monotonic() + 10)

        assert databases.errors == []
        assert await bucket.get(b"k", strong=False, after=1) == (b"1", 0)

    in_a_bucket(story)


def test_what_a_full_disk_has_kept_from_the_log_counts_for_no_condition():
    async def story(bucket):
        disk = bucket.node.broker.host.disk
        await bucket.put(b"k", b"1")
        disk.capacity_bytes = disk.used_bytes
        lost = asyncio.ensure_future(bucket.put(b"k", b"2", if_version=0))
        while partition_of(bucket).log.end == 1:
            await asyncio.sleep(0)
        refused = asyncio.ensure_future(bucket.put(b"k", b"2", if_version=0))
        with pytest.raises(OutcomeUnknown):
            await lost
        disk.capacity_bytes = None
        with pytest.raises(RequestTimedOut):
            await refused
        while partition_of(bucket).disk_full:
            await asyncio.sleep(1)

        again = await bucket.put(b"k", b"3", if_version=0)

        assert (again.offset, again.refused) == (1, ())
        assert await bucket.get(b"k") == (b"3", 1)

    in_a_bucket(story, checkpoint_ms=100)


def test_a_full_disk_keeps_a_view_from_being_saved_and_nothing_else():
    async def story(bucket):
        disk = bucket.node.broker.host.disk
        await bucket.put(b"k", b"1")
        view = view_of(bucket)
        save = view._store.save
        view._store.save = lambda: (_ for _ in ()).throw(OSError(28, "No space left on device"))
        await asyncio.sleep(11)
        view._store.save = save

        await asyncio.sleep(6)

        assert disk.exists(view._store._path)

    in_a_bucket(story)


@pytest.mark.parametrize("outcome", [Position(applied=1), OSError(28, "No space left on device")])
def test_nothing_is_folded_into_a_view_while_it_is_copied_though_who_asked_has_left(outcome):
    async def story(bucket):
        await bucket.put(b"k", b"1")
        view, copied = view_of(bucket), asyncio.Event()
        await view.reached(1, SECONDS)
        await asyncio.sleep(1)

        def back_up(path):
            copied.set()
            if isinstance(outcome, OSError):
                raise outcome
            return outcome

        view._store.back_up = back_up
        bucket.node.broker.host.offload._idle = 0.99  # the disk is slow
        asked = asyncio.ensure_future(view.backup(view._store._path.with_suffix(".copy")))
        await asyncio.sleep(0)

        asked.cancel()
        await asyncio.sleep(0)

        assert asked.cancelled() and not copied.is_set()
        while not copied.is_set():
            assert view._is_busy
            await asyncio.sleep(0)
        bucket.node.broker.host.offload._idle = 0.2
        await bucket.put(b"k", b"2")
        await view.reached(2, SECONDS)

    in_a_bucket(story)


# Replicas that go.


def test_the_files_of_a_view_are_removed_before_the_next_one_of_that_name_is_opened():
    async def story(bucket):
        await bucket.put(b"k", b"1")
        views, view = bucket.kv.views, view_of(bucket)
        await view.reached(1, SECONDS)
        disk, log = bucket.node.broker.host.disk, []
        remove, exists = disk.remove, disk.exists

        def noted_remove(path):
            log.append("remove")
            remove(path)

        def noted_exists(path):
            if "views" in path.parts:
                log.append("open")
            return exists(path)

        disk.remove, disk.exists = noted_remove, noted_exists

        views._drop(view)
        again = views.of(view.partition)
        await again.reached(1, SECONDS)

        assert log[:2] == ["remove", "open"]
        assert again.ask(applied_in) == 1

    in_a_bucket(story)


def test_what_was_deleted_from_the_logs_start_is_gone_from_the_view_though_nobody_writes():
    async def story(bucket):
        for n in range(5):
            await bucket.put(b"k%d" % n, b"1")
        view = view_of(bucket)
        await view.reached(5, SECONDS)

        await bucket.node.broker.advance_start(partition_of(bucket), 3)
        await asyncio.sleep(6)

        assert entries_of(view) == [(b"k3", 3), (b"k4", 4)]

    in_a_bucket(story)


def test_a_view_goes_on_with_a_log_that_was_opened_again_though_nobody_asks_or_writes():
    async def story(bucket):
        await bucket.put(b"k", b"1")
        view, partition = view_of(bucket), partition_of(bucket)
        await view.reached(1, SECONDS)
        before = partition.log
        partition.resign(NotLeader(leader=2))
        partition.follow(partition.log.epochs.latest + 1, 2)
        await asyncio.sleep(10)
        assert view._is_saved, "who saves a view looks at its log as well"

        partition.mending.reopen(pytest.fail)
        await partition.mending.quiet()
        assert partition.log is not before
        await asyncio.sleep(10)

        assert view.is_whole

    in_a_bucket(story)


def test_a_view_that_is_no_more_refuses_to_be_asked():
    async def story(bucket):
        await bucket.put(b"k", b"1")
        view = view_of(bucket)
        await view.reached(1, SECONDS)
        waiting = asyncio.ensure_future(view.reached(99, SECONDS))
        await asyncio.sleep(0)

        bucket.kv.views._drop(view)
        await asyncio.sleep(1)

        assert waiting.exception() is not None
        with pytest.raises(type(waiting.exception())):
            view.ask(applied_in)

    in_a_bucket(story)


def test_views_of_replicas_that_are_no_more_are_swept_away():
    machine = Machine()

    async def leave(node):
        bucket = await Bucket(node).make()
        await bucket.put(b"k", b"1")
        path = view_of(bucket)._store._path
        for name in (path.name, "kv-00-0.db", "other.db"):
            machine.disk.open(path.parent / name, create=True)

    async def look(node):
        await Bucket(node).make()
        await asyncio.sleep(6)
        directory = node.broker.root / "views"
        assert [n for n in machine.disk.list(directory) if "-00-" in n or n == "other.db"] == ["other.db"]
        assert len(machine.disk.list(directory)) == 2

    machine.live(leave)
    machine.live(look)


def test_no_bit_that_rots_in_the_file_of_a_view_is_shown():
    machine, path = Machine(), []

    async def begin(node):
        bucket = await Bucket(node).make()
        for number in range(50):
            await bucket.put(b"k%d" % number, b"1000000")
        view = view_of(bucket)
        await view.reached(50, SECONDS)
        path.append(view._store._path)

    async def go_on(node):
        bucket = await Bucket(node).make()
        assert await bucket.get(b"k7") == (b"1000000", 7)
        assert await bucket.get(b"k7", strong=False, after=50) == (b"1000000", 7)
        assert await bucket.get(b"j7") is None

    machine.live(begin)
    content = read_file(machine.disk, path[0])
    for wanted in (b"1000000", b"k7"):
        position = content.index(wanted)
        while position >= 0:
            machine.disk.flip_bit(path[0], position, 3)
            position = content.find(wanted, position + 1)
    machine.live(go_on)
