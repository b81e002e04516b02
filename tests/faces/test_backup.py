"""Backups of a real node, by the commands and from within."""

import asyncio
import json
import os
import re
import shlex
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.cluster import wait_until
from tidelog.backup import chunks, creating, restoring
from tidelog.backup.cluster_requests import BackupClient
from tidelog.backup.creating import create
from tidelog.backup.kept import find_manifest, load_manifests, write_manifest
from tidelog.backup.problems import BackupError, Damaged, Differs
from tidelog.backup.restoring import restore
from tidelog.backup.storage import LocalStorage, open_storage
from tidelog.client import Client
from tidelog.client.admin import AdminClient, ConfigChange, Resource, Source
from tidelog.client.kafka import EARLIEST, KafkaClient
from tidelog.client.transactional import TransactionalClient
from tidelog.client.wire import ConnectionFailed
from tidelog.copies.views.kv import Change, record_of
from tidelog.faces.cli import main
from tidelog.model import TopicPartition
from tidelog.records import Record, decode_batch, encode_batch, iterate_batches
from tidelog.testing import Cluster
from tidelog.wire.apis import Api

HOUR_MS = 3600 * 1000


class Ended(Exception):
    """Somebody has had enough."""


@pytest.fixture(scope="module")
def cluster():
    with Cluster(nodes=1) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster):
    return cluster.new_topic("orders", partitions=2)


@pytest.fixture
def place(tmp_path):
    return tmp_path / "backups"


def batch(*values, key=None):
    return encode_batch([Record(key=key, value=value, timestamp_ms=1000) for value in values])


def produce(cluster, topic, *values, partition=0, key=None):
    async def work():
        async with KafkaClient(cluster.bootstrap) as client:
            await client.produce(topic, partition, batch(*values, key=key))

    asyncio.run(work())


def records(cluster, topic, partition=0, start=0):
    async def work():
        async with KafkaClient(cluster.bootstrap) as client:
            (found,) = await client.fetch(topic, {partition: start}, wait_ms_max=1)
        return [
            (record.offset, record.value)
            for _, one in iterate_batches(found.records)
            for record in decode_batch(one)
        ]

    return asyncio.run(work())


def back_up(cluster, place, *topics, now_ms=None, **options):
    storage, wish = open_storage(str(place)), creating.Wish(topics=topics, **options)
    if now_ms is None:
        return asyncio.run(create(cluster.bootstrap, storage, wish))
    return asyncio.run(create(cluster.bootstrap, storage, wish, now_ms=lambda: now_ms))


def bring_back(cluster, place, manifest=None, **wish):
    storage = open_storage(str(place))
    manifest = manifest or find_manifest(storage, None)
    return asyncio.run(restore(cluster.bootstrap, storage, manifest, restoring.Wish(**wish)))


def files(place):
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())


# Making.


def test_a_later_backup_adds_what_is_new_and_stands_alone(cluster, topic, place):
    produce(cluster, topic, b"1", b"2")
    first = back_up(cluster, place, topic)
    produce(cluster, topic, b"3")

    second = back_up(cluster, place, topic)

    assert (first.new_records, second.new_records) == (2, 1)
    assert second.manifest.parent == first.manifest.id
    assert second.manifest.records == 3
    assert first.manifest.files < second.manifest.files
    (place / "manifests" / f"{first.manifest.id}.json").unlink()
    bring_back(cluster, place, prefix="alone.")
    assert records(cluster, f"alone.{topic}") == [(0, b"1"), (1, b"2"), (2, b"3")]


def test_where_nothing_is_new_no_file_is_written(cluster, topic, place):
    produce(cluster, topic, b"1")
    back_up(cluster, place, topic)
    before = files(place)

    back_up(cluster, place, topic)

    assert [name for name in files(place) if name not in before] == [
        name for name in files(place) if name.startswith("manifests/") and name not in before
    ]


def test_full_reads_everything_again(cluster, topic, place):
    produce(cluster, topic, b"1")
    back_up(cluster, place, topic)

    assert back_up(cluster, place, topic, full=True).new_records == 1


def test_a_topic_that_was_made_anew_begins_anew_and_says_so(cluster, topic, place):
    produce(cluster, topic, b"old")
    back_up(cluster, place, topic)
    cluster.delete_topic(topic)
    cluster.create_topic(topic, partitions=2)
    produce(cluster, topic, b"new")

    made = back_up(cluster, place, topic)

    assert made.new_records == made.manifest.records == 1
    assert "created again" in made.manifest.notes[0]


def test_offsets_of_a_topic_are_not_taken_for_those_of_another_of_its_name(cluster, place, monkeypatch):
    name, other = cluster.new_topic("remade"), cluster.new_topic("same")
    group = f"readers-{name}"
    for one in (name, other):
        produce(cluster, one, b"1", b"2", b"3")
    original = BackupClient.all_group_offsets

    async def commit():
        async with AdminClient(cluster.bootstrap) as client:
            places = {TopicPartition(one, 0): 3 for one in (name, other)}
            await client.commit_offsets(group, places)

    async def remade_after(self):
        found = await original(self)
        await self.delete_topic(name)
        await self.create_topic(name, partitions=1)
        await self.produce(name, 0, batch(b"a", b"b", b"c", b"d"))
        return found

    asyncio.run(commit())
    monkeypatch.setattr(BackupClient, "all_group_offsets", remade_after)

    made = back_up(cluster, place, name, other).manifest

    (kept,) = [one for one in made.groups if one.group == group]
    assert [(one.topic, one.offset) for one in kept.offsets] == [(other, 3)]
    assert any(name in note and "offsets" in note for note in made.notes)


def test_records_deleted_before_they_were_backed_up_are_said(cluster, topic, place):
    async def delete(before):
        async with KafkaClient(cluster.bootstrap) as client:
            await client.delete_records(topic, {0: before})

    produce(cluster, topic, b"0")
    back_up(cluster, place, topic)
    for value in (b"1", b"2", b"3"):
        produce(cluster, topic, value)
    asyncio.run(delete(3))

    made = back_up(cluster, place, topic)

    assert f"{topic}-0 starts over: offsets 1 to 2 were deleted" in made.manifest.notes[0]
    bring_back(cluster, place, prefix="late.")
    assert records(cluster, f"late.{topic}", start=3) == [(3, b"3")]


def test_a_compacted_topic_is_read_again_once_its_tombstones_may_be_gone(cluster, place):
    name = cluster.new_topic(
        "state", config={"cleanup.policy": "compact", "delete.retention.ms": str(HOUR_MS)}
    )
    produce(cluster, name, b"1", key=b"k")
    first = back_up(cluster, place, name)
    taken = first.manifest.taken_ms

    soon = back_up(cluster, place, name, now_ms=taken + HOUR_MS - 1)
    late = back_up(cluster, place, name, now_ms=taken + 2 * HOUR_MS)

    assert (soon.new_records, late.new_records) == (0, 1)
    assert "delete.retention.ms" in late.manifest.notes[0]


def test_only_what_is_committed_is_backed_up(cluster, topic, place):
    async def work():
        async with TransactionalClient(cluster.bootstrap) as client:
            producer = await client.begin(f"{topic}-writer")
            await producer.write(topic, 0, [Record(value=b"taken back")])
            await producer.abort()
            await producer.write(topic, 0, [Record(value=b"committed")])
            await producer.commit()
            await producer.write(topic, 0, [Record(value=b"still open")])
            made = await create(cluster.bootstrap, open_storage(str(place)), creating.Wish(topics=(topic,)))
            await producer.abort()
            return made

    made = asyncio.run(work())

    assert made.manifest.records == 1
    assert made.manifest.topics[0].partitions[0].end == 4
    bring_back(cluster, place, prefix="committed.")
    assert records(cluster, f"committed.{topic}") == [(2, b"committed")]
    produce(cluster, f"committed.{topic}", b"next")
    assert records(cluster, f"committed.{topic}", start=4) == [(4, b"next")]


def test_a_topic_that_goes_before_it_is_read_is_left_out_of_a_backup_of_all(
    cluster, topic, place, monkeypatch
):
    produce(cluster, topic, b"1")

    async def listed(self):
        return ["gone-by-now", topic]

    monkeypatch.setattr(BackupClient, "backed_up_topics", listed)
    monkeypatch.setattr(BackupClient, "retry", lambda self, attempt: attempt())

    made = back_up(cluster, place).manifest

    assert [one.name for one in made.topics] == [topic]
    assert made.notes == ("gone-by-now was deleted before it was read; it is left out",)


def test_a_topic_that_goes_after_it_was_looked_at_is_left_out(cluster, place, monkeypatch):
    name = cluster.new_topic("fleeting")
    produce(cluster, name, b"1")
    back_up(cluster, place, name)
    ends = BackupClient.epoch_ends

    async def ends_of_none(self, topic, epochs):
        await self.delete_topic(name)
        return await ends(self, topic, epochs)

    monkeypatch.setattr(BackupClient, "epoch_ends", ends_of_none)
    monkeypatch.setattr(BackupClient, "retry", lambda self, attempt: attempt())

    made = back_up(cluster, place, name).manifest

    assert made.topics == ()
    assert made.notes == (f"{name} was deleted while it was read; it is left out",)


@pytest.mark.parametrize("is_written", [False, True])
def test_a_run_that_is_ended_leaves_nothing(cluster, topic, place, monkeypatch, is_written):
    produce(cluster, topic, b"1")
    back_up(cluster, place, topic)
    before = files(place)
    produce(cluster, topic, b"2")
    write = write_manifest

    def stop_here(storage, made):
        if is_written:  # somebody ends it while the manifest is written, and hears of that later
            write(storage, made)
        raise Ended

    monkeypatch.setattr(creating, "write_manifest", stop_here)
    with pytest.raises(Ended):
        back_up(cluster, place, topic)

    assert files(place) == before


def test_cancelling_waits_for_the_thread_that_writes_and_then_cleans_up(cluster, topic, place):
    for _ in range(5):
        produce(cluster, topic, b"x" * 1000)
    storage = open_storage(str(place))

    async def work():
        begun = asyncio.Event()
        task = asyncio.create_task(
            create(
                cluster.bootstrap,
                storage,
                creating.Wish(topics=(topic,), chunk_bytes=1),
                on_progress=lambda progress: begun.set() if progress.bytes else None,
            )
        )
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(work())

    assert files(place) == ["lock"]


def test_what_a_killed_run_left_is_removed_by_the_next(cluster, topic, place):
    produce(cluster, topic, b"1")
    back_up(cluster, place, topic)
    before = files(place)
    left = LocalStorage(place)
    with left.create(chunks.chunk_name("id", 0, 0, "20260101T000000Z-aaaaaa")) as output:
        output.write(b"whole, and nobody names it")
    half = left.create(chunks.chunk_name("id", 0, 9, "20260101T000000Z-aaaaaa"))
    half.write(b"half")

    made = back_up(cluster, place, topic)

    assert files(place) == sorted([*before, f"manifests/{made.manifest.id}.json"])
    half.abandon()


def test_while_a_manifest_cannot_be_read_nothing_is_removed(cluster, topic, place):
    produce(cluster, topic, b"1")
    first = back_up(cluster, place, topic)
    (place / "manifests" / f"{first.manifest.id}.json").write_bytes(b"{")

    second = back_up(cluster, place, topic, keep=1)

    assert "nothing is removed" in second.manifest.notes[0]
    assert first.manifest.files <= set(files(place))
    assert len(load_manifests(LocalStorage(place))[1]) == 1


def test_keep_gives_up_older_backups_and_what_only_they_needed(cluster, topic, place):
    produce(cluster, topic, b"1")
    first = back_up(cluster, place, topic)
    produce(cluster, topic, b"2")
    second = back_up(cluster, place, topic, full=True)
    produce(cluster, topic, b"3")

    third = back_up(cluster, place, topic, keep=2)

    assert third.removed == (first.manifest.id,)
    assert not first.manifest.files & set(files(place))
    assert second.manifest.files | third.manifest.files <= set(files(place))


def test_two_runs_do_not_share_a_directory(cluster, topic, place):
    with LocalStorage(place).claim(), pytest.raises(BackupError, match="another run"):
        back_up(cluster, place, topic)


def test_a_backup_may_be_wherever_fsspec_reaches(cluster, topic):
    fsspec = pytest.importorskip("fsspec")
    place = "memory://backups/shop"
    produce(cluster, topic, b"1")
    back_up(cluster, place, topic)
    produce(cluster, topic, b"2")

    second = back_up(cluster, place, topic, keep=1)
    done = bring_back(cluster, place, prefix="remote.")

    assert (second.new_records, done.verified_records) == (1, 2)
    assert records(cluster, f"remote.{topic}") == [(0, b"1"), (1, b"2")]
    fsspec.filesystem("memory").store.clear()


# Restoring.


def test_a_topic_that_exists_is_not_touched(cluster, topic, place):
    produce(cluster, topic, b"1")
    back_up(cluster, place, topic)

    with pytest.raises(BackupError, match=f"{topic!r} exists"):
        bring_back(cluster, place)

    assert records(cluster, topic) == [(0, b"1")]


def test_settings_and_groups_come_back_as_they_were(cluster, place):
    name = cluster.new_topic("settings", config={"retention.ms": "5000", "cleanup.policy": "compact,delete"})
    produce(cluster, name, b"1", key=b"k")
    at = TopicPartition(name, 0)

    async def commit():
        async with AdminClient(cluster.bootstrap) as client:
            await client.commit_offsets(f"readers-{name}", {at: 1}, metadata={at: "by hand"})

    async def look():
        async with AdminClient(cluster.bootstrap) as client:
            configs = await client.describe_configs(Resource.TOPIC, f"copy.{name}")
            offsets = await client.group_offsets(f"copy.readers-{name}")
        own = {one.name: one.value for one in configs if one.source == Source.TOPIC}
        return own, {str(place): (one.offset, one.metadata) for place, one in offsets.items()}

    asyncio.run(commit())
    back_up(cluster, place, name)

    done = bring_back(cluster, place, prefix="copy.")

    assert done.verified_records == 1
    assert asyncio.run(look()) == (
        {"retention.ms": "5000", "cleanup.policy": "compact,delete"},
        {f"copy.{name}-0": (1, "by hand")},
    )


def test_keys_whose_time_is_over_expire_once_the_bucket_is_whole(cluster, place, monkeypatch):
    name = cluster.new_topic("sessions", config={"cleanup.policy": "compact"})
    late = Change(b"late", b"1", expires_at_ms=1000)

    async def fill():
        async with KafkaClient(cluster.bootstrap) as client:
            for one in (late, Change(b"a", b"1"), Change(b"b", b"1")):
                await client.produce(name, 0, encode_batch([record_of(one, 1000)]))

    asyncio.run(fill())
    made = back_up(cluster, place, name).manifest
    bucket = replace(made.topics[0], configs={**made.topics[0].configs, "kv.view": "true"})
    monkeypatch.setattr(restoring, "REQUEST_BYTES", 1)
    original = BackupClient.restore

    async def slow(self, *args):
        await original(self, *args)
        await asyncio.sleep(0.5)  # several turns of what makes keys expire

    monkeypatch.setattr(BackupClient, "restore", slow)

    done = bring_back(cluster, place, replace(made, topics=(bucket,)), prefix="old.")

    assert done.verified_records == 3
    with Client(cluster.http) as client:
        old = client.kv(f"old.{name}")
        wait_until(lambda: old.get("late") is None, "it does not expire")
        assert old.get("a") is not None


def test_a_compacted_topic_begins_where_it_began(cluster, place):
    name = cluster.new_topic("late-start")
    for n in range(5):
        produce(cluster, name, b"%d" % n, key=b"k%d" % n)

    async def trim():
        async with AdminClient(cluster.bootstrap) as client:
            await client.delete_records(name, {0: 3})
            policy = ConfigChange(name="cleanup.policy", value="compact")
            await client.alter_configs(Resource.TOPIC, name, [policy])

    async def look():
        async with AdminClient(cluster.bootstrap) as client:
            configs = await client.describe_configs(Resource.TOPIC, f"same.{name}")
            start = (await client.list_offsets(f"same.{name}", {0: EARLIEST}))[0].offset
        return start, {one.name: one.value for one in configs if one.source == Source.TOPIC}

    asyncio.run(trim())
    back_up(cluster, place, name)

    done = bring_back(cluster, place, prefix="same.")

    assert done.verified_records == 2
    assert asyncio.run(look()) == (3, {"cleanup.policy": "compact"})
    assert records(cluster, f"same.{name}", start=3) == [(3, b"3"), (4, b"4")]


def test_a_restore_that_was_cut_off_is_gone_on_with(cluster, topic, place, monkeypatch):
    for n in range(6):
        produce(cluster, topic, b"%d" % n)
    back_up(cluster, place, topic)
    monkeypatch.setattr(restoring, "REQUEST_BYTES", 1)
    monkeypatch.setattr(restoring, "LANES", 1)

    with cut_off(monkeypatch, after=3), pytest.raises(Ended):
        bring_back(cluster, place, prefix="cut.")
    assert len(records(cluster, f"cut.{topic}")) == 3

    done = bring_back(cluster, place, prefix="cut.", resume=True)

    assert done.verified_records == 6
    assert records(cluster, f"cut.{topic}") == [(n, b"%d" % n) for n in range(6)]


def own_settings(cluster, name):
    async def work():
        async with AdminClient(cluster.bootstrap) as client:
            configs = await client.describe_configs(Resource.TOPIC, name)
        return {one.name: one.value for one in configs if one.source == Source.TOPIC}

    return asyncio.run(work())


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_topic_that_was_let_go_is_left_as_it_is(cluster, place, monkeypatch, policy):
    config = {"retention.ms": str(10**15), "cleanup.policy": policy}
    names = [cluster.new_topic(name, config=config) for name in ("first", "second")]
    group = f"readers-{names[0]}"
    for name in names:
        for n in range(5):
            produce(cluster, name, b"%d" % n, key=b"k%d" % n)

    async def commit(group, topics, offset):
        async with AdminClient(cluster.bootstrap) as client:
            await client.commit_offsets(group, {TopicPartition(one, 0): offset for one in topics})

    async def committed(group):
        async with AdminClient(cluster.bootstrap) as client:
            found = await client.group_offsets(group)
        return {place.topic: one.offset for place, one in found.items()}

    async def trim(name):
        async with AdminClient(cluster.bootstrap) as client:
            for value in ("compact,delete", policy):
                change = ConfigChange(name="cleanup.policy", value=value)
                await client.alter_configs(Resource.TOPIC, name, [change])
                if value != policy:
                    await client.delete_records(name, {0: 3})

    asyncio.run(commit(group, names, 2))
    made = back_up(cluster, place, *names).manifest
    into = f"{policy}d."
    first, second = (into + one.name for one in made.topics)
    let_go = restoring._let_go

    async def cut(client, target):
        if target.name == second:
            raise Ended
        await let_go(client, target)

    with monkeypatch.context() as patch:
        patch.setattr(restoring, "_let_go", cut)
        with pytest.raises(Ended):
            bring_back(cluster, place, prefix=into)
    assert own_settings(cluster, first) == config
    assert own_settings(cluster, second) != config
    asyncio.run(trim(first))  # as retention does
    produce(cluster, first, b"new", key=b"k4")
    asyncio.run(commit(into + group, [first], 6))

    done = bring_back(cluster, place, prefix=into, resume=True)

    assert done.verified_records == 2 + 5
    assert any(first in note for note in done.plan.notes)
    assert own_settings(cluster, first) == own_settings(cluster, second) == config
    assert records(cluster, first, start=3) == [(3, b"3"), (4, b"4"), (5, b"new")]
    assert asyncio.run(committed(into + group)) == {first: 6, second: 2}


def test_a_topic_with_other_records_is_not_taken_for_one_that_was_let_go(cluster, topic, place):
    produce(cluster, topic, b"1")
    back_up(cluster, place, topic)
    cluster.create_topic(f"else.{topic}", partitions=2)
    produce(cluster, f"else.{topic}", b"mine")
    produce(cluster, f"else.{topic}", b"and mine")

    with pytest.raises(Differs):
        bring_back(cluster, place, prefix="else.", resume=True)

    assert own_settings(cluster, f"else.{topic}") == {}
    assert records(cluster, f"else.{topic}") == [(0, b"mine"), (1, b"and mine")]


def test_what_was_never_restored_is_not_gone_on_with(cluster, topic, place):
    for value in (b"1", b"2"):
        produce(cluster, topic, value)
    back_up(cluster, place, topic)
    name = f"mine.{topic}"

    async def settings():
        async with AdminClient(cluster.bootstrap) as client:
            configs = await client.describe_configs(Resource.TOPIC, name)
        return {one.name: one.value for one in configs}

    async def make():
        async with AdminClient(cluster.bootstrap) as client:
            await client.create_topic(name, partitions=2)

    asyncio.run(make())
    produce(cluster, name, b"mine")
    before = asyncio.run(settings())

    with pytest.raises(BackupError, match="no restore that was cut off"):
        bring_back(cluster, place, prefix="mine.", resume=True)

    assert records(cluster, name) == [(0, b"mine")]
    assert asyncio.run(settings()) == before


def test_queues_of_a_cluster_are_not_taken_for_a_restore_that_was_cut_off(cluster, place):
    def publish(http, *values):
        with Client(http) as client:
            queue = client.queue("jobs")
            queue.declare()
            for value in values:
                queue.publish(value)

    publish(cluster.http, "a", "b", "c", "d")
    back_up(cluster, place, "__queues")
    with Cluster(nodes=1) as other:
        publish(other.http, "mine")

        with pytest.raises(Differs):
            bring_back(other, place, resume=True)

        with Client(other.http) as client:
            assert client.queue("jobs").describe()["depth"] == 1
    assert bring_back(cluster, place, resume=True).verified_records is not None


def test_queues_are_restored_from_a_slow_store(place, monkeypatch):
    read, names = LocalStorage.read, []

    def slow(self, name):
        if name.startswith(chunks.FOLDER):
            names.append(name)
            if len(names) == 2:
                time.sleep(3)  # by then whoever had the message has it no more, and it is dead
        return read(self, name)

    with Cluster(nodes=1) as source, Client(source.http) as client:
        queue = client.queue("jobs")
        queue.declare(visibility=1, max_deliveries=1)
        queue.publish("a")
        assert [one.value for one in queue.receive()] == ["a"]
        queue.publish("b")
        back_up(source, place, "__queues")
        queue.publish("c")
        back_up(source, place, "__queues")
    with Cluster(nodes=1) as target, Client(target.http) as client:
        with monkeypatch.context() as patch:
            patch.setattr(restoring, "REQUEST_BYTES", 1)
            patch.setattr(LocalStorage, "read", slow)
            done = bring_back(target, place)

        assert done.verified_records
        assert [one.value for one in client.queue("jobs").receive(max=2)] == ["b", "c"]
        assert [one.value for one in client.queue("jobs.dead").receive(wait=10)] == ["a"]


def test_a_restore_that_is_complete_can_be_gone_on_with_and_is_compared(cluster, topic, place):
    produce(cluster, topic, b"1", b"2")
    back_up(cluster, place, topic)
    bring_back(cluster, place, prefix="whole.")

    done = bring_back(cluster, place, prefix="whole.", resume=True)

    assert done.verified_records == 2
    assert records(cluster, f"whole.{topic}") == [(0, b"1"), (1, b"2")]


@contextmanager
def cut_off(monkeypatch, *, after):
    """Inside, a restore is interrupted after so many requests."""
    original = BackupClient.restore
    count = 0

    async def counted(self, *args):
        nonlocal count
        count += 1
        if count > after:
            raise Ended
        await original(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(BackupClient, "restore", counted)
        yield


def test_who_writes_meanwhile_ends_the_restore_and_is_not_mixed_with_it(cluster, topic, place, monkeypatch):
    for n in range(4):
        produce(cluster, topic, b"%d" % n)
    back_up(cluster, place, topic)
    monkeypatch.setattr(restoring, "REQUEST_BYTES", 1)
    original = BackupClient.restore

    async def joined(self, name, *args):
        await original(self, name, *args)
        await self.produce(name, 0, batch(b"somebody else"))

    monkeypatch.setattr(BackupClient, "restore", joined)

    with pytest.raises(BackupError, match="somebody else writes"):
        bring_back(cluster, place, prefix="mixed.")


@pytest.mark.parametrize("taken", ["all", "a part", "nothing"])
def test_whatever_was_taken_of_a_request_whose_answer_was_lost_nothing_comes_twice(
    cluster, topic, place, monkeypatch, taken
):
    for n in range(4):
        produce(cluster, topic, b"%d" % n)
    back_up(cluster, place, topic)
    sizes = []
    original = BackupClient.leader

    async def losing(self, name, partition):
        connection = await original(self, name, partition)
        call = connection.call

        async def lose(api, **fields):
            if api != Api.RESTORE_BATCHES:
                return await call(api, **fields)
            sizes.append(len(fields["records"]))
            if len(sizes) > 1:
                return await call(api, **fields)
            shares = {"all": sizes[0], "a part": sizes[0] // 2, "nothing": 0}
            if share := fields["records"][: shares[taken]]:
                await call(api, **{**fields, "records": share})
            connection.close()
            raise ConnectionFailed(connection.endpoint, "the wire is cut")

        monkeypatch.setattr(connection, "call", lose)
        return connection

    monkeypatch.setattr(BackupClient, "leader", losing)
    prefix = f"{taken.replace(' ', '-')}."
    done = bring_back(cluster, place, prefix=prefix)

    assert len(sizes) == (3 if taken == "a part" else 2)
    assert done.verified_records == 4
    assert records(cluster, f"{prefix}{topic}") == [(n, b"%d" % n) for n in range(4)]


def test_what_is_not_as_it_was_is_found_and_stays_held(cluster, topic, place, monkeypatch):
    produce(cluster, topic, b"1")
    back_up(cluster, place, topic)
    original = BackupClient.restore

    async def changed(self, name, topic_id, partition, data):
        forged = encode_batch([Record(value=b"x", timestamp_ms=1000)])
        await original(self, name, topic_id, partition, bytes(forged))

    monkeypatch.setattr(BackupClient, "restore", changed)

    with pytest.raises(Differs, match="offset 0 has another value"):
        bring_back(cluster, place, prefix="forged.")

    async def look():
        async with AdminClient(cluster.bootstrap) as client:
            configs = await client.describe_configs(Resource.TOPIC, f"forged.{topic}")
        return {one.name: one.value for one in configs}["retention.ms"]

    assert asyncio.run(look()) == "-1"


def test_a_damaged_file_is_not_restored(cluster, topic, place):
    produce(cluster, topic, b"1")
    made = back_up(cluster, place, topic)
    (name,) = made.manifest.files
    damaged = bytearray((place / name).read_bytes())
    damaged[-1] ^= 1
    (place / name).write_bytes(damaged)

    with pytest.raises(Damaged, match="checksum"):
        bring_back(cluster, place, prefix="damaged.")

    assert records(cluster, f"damaged.{topic}") == []


# Commands.


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_the_commands_from_a_backup_to_what_it_brings_back(cluster, topic, place, capsys):
    where = ["--bootstrap", cluster.bootstrap]
    produce(cluster, topic, b"1", b"2")

    code, out, _ = run(capsys, "backup", "create", place, "--topic", topic, "--json", *where)
    made = json.loads(out)
    assert (code, made["records"], made["new_records"]) == (0, 2, 2)

    code, out, _ = run(capsys, "backup", "list", place, "--json")
    assert [one["backup"] for one in json.loads(out)["backups"]] == [made["backup"]]

    code, out, _ = run(capsys, "backup", "verify", place, "--deep", "--json")
    assert (code, json.loads(out)["backups"][0]["damage"]) == (0, [])

    into = ["--into", "cli."]
    code, out, _ = run(capsys, "backup", "restore", place, *into, "--dry-run", "--json", *where)
    plan = json.loads(out)
    assert (code, plan["dry_run"], plan["topics"][0]["target"]) == (0, True, f"cli.{topic}")
    assert cluster.partitions(f"cli.{topic}") == []

    code, out, _ = run(capsys, "backup", "restore", place, *into, "--json", *where)
    assert (code, json.loads(out)["verified_records"]) == (0, 2)
    assert records(cluster, f"cli.{topic}") == [(0, b"1"), (1, b"2")]

    code, out, err = run(capsys, "backup", "restore", place, *into, *where)
    assert (code, out) == (1, "")
    assert "exists" in err


def test_damage_is_an_exit_code(cluster, topic, place, capsys):
    produce(cluster, topic, b"1")
    (name,) = back_up(cluster, place, topic).manifest.files
    (place / name).write_bytes(b"")

    code, out, _ = run(capsys, "backup", "verify", place)

    assert code == 1
    assert name in out


def test_a_flipped_bit_is_found_in_whichever_file_it_is(cluster, topic, place, capsys):
    produce(cluster, topic, b"1")
    back_up(cluster, place, topic, now_ms=HOUR_MS)
    produce(cluster, topic, b"2", partition=1)
    newest = back_up(cluster, place, topic, now_ms=2 * HOUR_MS).manifest
    needed = [f"manifests/{newest.id}.json", *newest.files]
    assert len(needed) == 3

    for name in needed:
        whole = (place / name).read_bytes()
        for at in range(0, len(whole), max(len(whole) // 20, 1)):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << at % 8
            (place / name).write_bytes(damaged)

            code, out, err = run(capsys, "backup", "verify", place)

            assert (code, name in out + err) == (1, True), (name, at)
        (place / name).write_bytes(whole)
    assert run(capsys, "backup", "verify", place)[0] == 0


def test_an_older_backup_is_not_restored_in_place_of_one_that_cannot_be_read(cluster, topic, place):
    produce(cluster, topic, b"1")
    older = back_up(cluster, place, topic, now_ms=HOUR_MS).manifest
    newer = back_up(cluster, place, topic, now_ms=2 * HOUR_MS).manifest
    (place / "manifests" / f"{newer.id}.json").write_bytes(b"{}")
    storage = open_storage(str(place))

    for asked in (None, newer.id):
        with pytest.raises(Damaged, match=newer.id):
            find_manifest(storage, asked)

    assert find_manifest(storage, older.id) == older
    back_up(cluster, place, topic, now_ms=3 * HOUR_MS)
    assert find_manifest(storage, None).taken_ms == 3 * HOUR_MS


def test_commands_say_what_is_wrong(cluster, place, capsys):
    assert "no backup" in run(capsys, "backup", "verify", place)[2]
    code, _, err = run(
        capsys, "backup", "create", place, "--topic", "nosuch", "--bootstrap", cluster.bootstrap
    )
    assert (code, "nosuch" in err) == (1, True)
    assert "90s" in run(capsys, "backup", "create", place, "--every", "often")[2]
    assert files(place) in ([], ["lock"])


# What the documents say.

DOCUMENT = Path(__file__).parents[2] / "docs" / "backup.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_runbook_is_what_it_says(place, monkeypatch, capsys):
    lines = [line for block in BLOCK.findall(DOCUMENT.read_text()) for line in block.splitlines()]
    with Cluster(nodes=1) as old, Cluster(nodes=1) as new:
        old.create_topic("orders")
        produce(old, "orders", b"1", b"2")
        for name, value in {"BACKUPS": place, "FROM": old.bootstrap, "TO": new.bootstrap}.items():
            monkeypatch.setenv(name, str(value))

        for line in lines:
            program, *arguments = shlex.split(os.path.expandvars(line))
            assert program == "tidelog"
            assert run(capsys, *arguments)[0] == 0, line

        assert len(lines) == 10
        assert records(old, "before.orders") == records(new, "orders") == [(0, b"1"), (1, b"2")]
