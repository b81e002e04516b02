"""Topics archived, trimmed, restored and replayed, with a real Spark and a real node."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog

from tests.spark.topics import Topics
from tidelog.faces.cli import archive as archive_command
from tidelog.faces.cli import main
from tidelog.faces.cli import replay as replay_command
from tidelog.records import Record
from tidelog.spark.archive import restoring
from tidelog.spark.archive.archiving import Archiver, Settings
from tidelog.spark.archive.catalog import load_topic, open_catalog
from tidelog.spark.archive.changing import Change
from tidelog.spark.archive.checking import status, verify
from tidelog.spark.archive.files import NAMES, read_archived
from tidelog.spark.archive.logs import epoch_ends, look_at
from tidelog.spark.archive.restoring import Wish, restore
from tidelog.spark.archive.spans import RecordsLost, Span
from tidelog.spark.archive.tables import OtherTopic, TopicTable
from tidelog.spark.archive.trimming import Keep, trim
from tidelog.spark.client_loop import SparkClient, ask
from tidelog.spark.ranges import OffsetRange

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TIME_MS = 1_700_000_000_000


@pytest.fixture
def catalog(tmp_path) -> Iterator[Catalog]:
    with open_catalog(str(tmp_path / "warehouse"), create=True) as opened:
        yield opened


@pytest.fixture
def archiver(spark, topics, topic, catalog) -> Archiver:
    """Of a topic with two partitions and records in both."""
    topics.make(topic, 2)
    topics.put(topic, records(0, 500))
    topics.put(topic, records(0, 80), partition=1)
    return Archiver(spark, catalog, topics.bootstrap, [topic], Settings())


def records(first: int, count: int) -> list[Record]:
    return [
        Record(
            key=None if n % 3 == 0 else b"key %d" % (n % 10),
            value=None if n % 7 == 0 else b"value %d" % n,
            timestamp_ms=TIME_MS + n,
            headers=(("number", b"%d" % n), ("empty", None)) if n % 2 else (),
        )
        for n in range(first, first + count)
    ]


def archived(table: TopicTable, partition: int) -> list[Record]:
    """What the archive has of a partition, as records."""
    span = table.spans[partition]
    wanted = OffsetRange(table.topic, partition, span.start, span.end)
    rows = [
        row
        for part in table.ranges([wanted])
        for batch in read_archived(part, NAMES)
        for row in batch.to_pylist()
    ]
    return [
        Record(
            key=row["key"],
            value=row["value"],
            offset=row["offset"],
            timestamp_ms=round(row["timestamp"].timestamp() * 1000),
            headers=tuple((one["key"], one["value"]) for one in row["headers"] or ()),
        )
        for row in rows
    ]


def plain(some: list[Record]) -> list[Any]:
    return [
        (one.offset, one.key, one.value, one.timestamp_ms, tuple(map(tuple, one.headers))) for one in some
    ]


def transaction(topics: Topics, topic: str, some: list[Record], *, commits: bool) -> None:
    async def question(client: SparkClient) -> None:
        producer = await client.begin(f"{topic}-{commits}")
        await producer.write(topic, 0, some)
        await (producer.commit() if commits else producer.abort())

    ask(topics.bootstrap, question)


def alike(some: dict[int, list[Record]]) -> dict[int, list[Any]]:
    """All but the offsets."""
    return {partition: [one[1:] for one in plain(found)] for partition, found in some.items()}


@contextmanager
def session_of(spark: Any) -> Iterator[Any]:
    yield spark, lambda *_: None


def test_a_topic_is_archived_trimmed_read_as_a_whole_and_restored_as_it_was(
    spark, topics, topic, catalog, archiver, tmp_path
):
    archiver.once()
    transaction(topics, topic, records(500, 20), commits=True)
    transaction(topics, topic, records(900, 20), commits=False)
    topics.put(topic, records(520, 30))
    archiver.once()
    archiver.once()

    table = load_topic(catalog, topic)
    assert archiver.done[topic].commits == 2
    assert table.spans == {0: Span(0, 572), 1: Span(0, 80)}
    logged = topics.records(topic)
    assert [one.value for one in logged[0]] == [one.value for one in records(0, 550)]
    for partition in (0, 1):
        assert plain(archived(table, partition)) == plain(logged[partition])
    assert verify(spark, table, table.files()) == []
    assert [one.lag for one in status(table, look_at(topics.bootstrap, topic))] == [0, 0]
    assert epoch_ends(topics.bootstrap, topic, table.claim.epochs) == {0: 572, 1: 80}

    assert trim(spark, topics.bootstrap, table, Keep(records=10)) == {0: 562, 1: 70}
    assert look_at(topics.bootstrap, topic).spans == {0: Span(562, 572), 1: Span(70, 80)}

    topics.put(topic, records(600, 3))
    history = {"history": "archive", "archive.warehouse": str(tmp_path / "warehouse")}
    whole = topics.read(spark, topic, minPartitions="5", **history).orderBy("partition", "offset")
    live = [one.value for one in records(600, 3)]
    assert [(row.partition, row.offset, row.value) for row in whole.collect()] == [
        *((0, one.offset, one.value) for one in logged[0]),
        *((0, 572 + n, value) for n, value in enumerate(live)),
        *((1, one.offset, one.value) for one in logged[1]),
    ]

    done = restore(spark, topics.bootstrap, table, Wish(target=f"{topic}-again", chunk_rows=200))
    assert (done.chunks, done.skipped) == (3, 0)
    assert alike(topics.records(f"{topic}-again")) == alike(logged)


def test_a_damaged_file_is_found_and_nothing_is_trimmed(spark, topics, topic, catalog, archiver):
    archiver.once()
    table = load_topic(catalog, topic)
    path = Path(table.files()[0].path.removeprefix("file://"))
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)

    (damage,) = verify(spark, table, table.files())
    assert path.name in damage
    with pytest.raises(Exception, match="nothing was trimmed"):
        trim(spark, topics.bootstrap, table, Keep())
    assert look_at(topics.bootstrap, topic).spans[0] == Span(0, 500)


def test_two_who_archive_the_same_archive_it_once(spark, topics, topic, catalog, archiver):
    slow = Archiver(spark, catalog, topics.bootstrap, [topic], Settings())
    archiver.once()
    slow.once()

    table = load_topic(catalog, topic)
    assert table.totals[0] == 580
    assert slow.done[topic].commits == 0
    left = list(Path(table.directory.removeprefix("file://")).rglob("*.parquet"))
    assert len(left) == len(table.files())


def test_new_partitions_are_archived_and_what_is_not_the_same_log_is_refused(
    spark, topics, topic, catalog, archiver
):
    archiver.once()
    ask(topics.bootstrap, lambda client: client.create_partitions(topic, 3))
    topics.put(topic, records(0, 5), partition=2)
    topics.put(topic, records(500, 100))
    ask(topics.bootstrap, lambda client: client.delete_records(topic, {0: 550}))
    with pytest.raises(RecordsLost, match=f"offsets 500 to 549 of {topic}-0"):
        archiver.once()
    patient = Archiver(spark, catalog, topics.bootstrap, [topic], Settings(skip_lost=True))
    patient.once()
    assert load_topic(catalog, topic).spans == {0: Span(0, 600), 1: Span(0, 80), 2: Span(0, 5)}

    ask(topics.bootstrap, lambda client: client.delete_topic(topic))
    topics.make(topic)
    topics.put(topic, records(0, 7))
    with pytest.raises(OtherTopic, match="--new-table"):
        Archiver(spark, catalog, topics.bootstrap, [topic], Settings())
    anew = Archiver(spark, catalog, topics.bootstrap, [topic], Settings(new_table=True))
    anew.once()
    assert load_topic(catalog, topic).spans == {0: Span(0, 7)}
    assert load_topic(catalog, anew.done[topic].set_aside).totals[0] == 635


def test_a_restore_that_was_cut_off_goes_on_and_writes_nothing_twice(
    spark, topics, topic, catalog, archiver, monkeypatch
):
    archiver.once()
    table = load_topic(catalog, topic)
    wish = Wish(target=f"{topic}-again", chunk_rows=200, from_offset=30)
    real, calls = restoring.write_chunk, []

    def cut_off(*args: Any) -> None:
        real(*args)
        calls.append(args)
        if len(calls) == 2:
            raise RuntimeError("killed")

    monkeypatch.setattr(restoring, "write_chunk", cut_off)
    with pytest.raises(RuntimeError):
        restore(spark, topics.bootstrap, table, wish)
    topics.put(topic, records(500, 100))
    archiver.once()

    with pytest.raises(Exception, match="--restart"):
        restore(spark, topics.bootstrap, table.reload(), Wish(target=wish.target))
    done = restore(spark, topics.bootstrap, table.reload(), wish)

    assert (done.skipped, done.chunks, done.resumed) == (2, 1, True)
    assert alike(topics.records(wish.target)) == alike({0: records(30, 470), 1: records(30, 50)})
    with pytest.raises(Exception, match="has records already"):
        restore(spark, topics.bootstrap, table.reload(), wish)


def test_records_of_a_time_are_restored_changed(spark, topics, topic, catalog, archiver):
    archiver.once()
    change = Change(
        sql="SELECT key, concat('new ', value) AS value, 0 AS partition FROM records "
        "WHERE value IS NOT NULL AND offset % 2 = 0"
    )
    wish = Wish(
        target=f"{topic}-changed", from_ms=TIME_MS + 40, to_ms=TIME_MS + 50, change=change, partitions=(1,)
    )

    restore(spark, topics.bootstrap, load_topic(catalog, topic), wish)

    assert topics.values(wish.target) == [b"new value %d" % n for n in (40, 44, 46, 48)]


def test_a_continuous_archive_keeps_up_until_it_is_stopped(topics, topic, catalog, archiver):
    stopping = threading.Event()
    counts: list[int] = []

    def after() -> None:
        counts.append(load_topic(catalog, topic).totals[0])
        if len(counts) == 1:
            topics.put(topic, records(500, 25))
        else:
            stopping.set()

    archiver.keep_on(0.1, stopping, after=after)

    assert counts == [580, 605]


def test_the_commands_archive_and_replay(spark, node, topics, topic, tmp_path, archiver, monkeypatch, capsys):
    for command in (archive_command, replay_command):
        monkeypatch.setattr(command, "spark_job", lambda *_, **__: session_of(spark))
    where = ["--bootstrap", node.bootstrap, "--json"]

    def run(*arguments: str) -> Any:
        assert main([*arguments, *where]) == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    warehouse = ["--warehouse", str(tmp_path / "warehouse")]
    (done,) = run("archive", "run", topic, *warehouse, "--trim", "--keep-records", "5")["topics"]
    assert (done["rows"], done["log_starts"]) == (580, {"0": 495, "1": 75})
    (shown,) = run("archive", "status", *warehouse)["topics"]
    assert [(one["archived"], one["lag"]) for one in shown["partitions"]] == [([0, 500], 0), ([0, 80], 0)]

    copy = [topic, f"{topic}-copy", "--checkpoint", str(tmp_path / "checkpoint"), *warehouse]
    assert run("replay", *copy)["rows"] == 580
    topics.put(topic, records(500, 3))
    assert run("replay", *copy)["rows"] == 3
    assert alike(topics.records(f"{topic}-copy")) == alike({0: records(0, 503), 1: records(0, 80)})
