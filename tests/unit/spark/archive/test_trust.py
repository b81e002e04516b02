"""A log is trimmed on the archive's word; when that word does not hold, nothing is deleted."""

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.catalog import Catalog

from tests.unit.spark.archive.loop import LoopSpark
from tests.unit.spark.archive.rows import archive, batch_of, put
from tidelog.spark.archive import claims, logs, trimming
from tidelog.spark.archive.catalog import NAMESPACE, create_topic, load_topic, open_catalog
from tidelog.spark.archive.checking import verify
from tidelog.spark.archive.files import (
    ArchivedFile,
    Destination,
    FileDamaged,
    read_archived,
    verify_file,
    write_range,
)
from tidelog.spark.archive.logs import Log
from tidelog.spark.archive.spans import ArchiveAhead, Span, check_kept, trimmable
from tidelog.spark.archive.storage import Storage
from tidelog.spark.archive.tables import ArchiveError, OtherTopic, TopicTable
from tidelog.spark.archive.trimming import Keep, trim
from tidelog.spark.ranges import OffsetRange

TOPIC = uuid.UUID(int=6)
OTHER = uuid.UUID(int=7)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with open_catalog(str(tmp_path / "warehouse"), create=True) as opened:
        yield opened


@pytest.fixture
def table(catalog: Catalog) -> TopicTable:
    return create_topic(catalog, "orders", TOPIC)


class Broker:
    """What trimming asks: a log, the configs of a topic, and to delete its records."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.id = TOPIC
        self.span = Span(0, 100)
        self.policy: str | None = "delete"
        self.epoch_ends: dict[int, int] = {}
        self.deleted: dict[int, int] = {}
        monkeypatch.setattr(trimming, "look_at", self.look_at)
        monkeypatch.setattr(trimming, "ask", lambda bootstrap, question: question(self))
        monkeypatch.setattr(logs, "epoch_ends", self.ends_of)

    def look_at(self, bootstrap: str, topic: str) -> Log:
        return Log(topic=topic, id=self.id, spans={0: self.span})

    def ends_of(self, bootstrap: str, topic: str, epochs: Mapping[int, int]) -> dict[int, int]:
        return {partition: self.epoch_ends[epoch] for partition, epoch in epochs.items()}

    def describe_configs(self, kind: Any, topic: str) -> list[Any]:
        return [SimpleNamespace(name="cleanup.policy", value=self.policy)]

    def delete_records(self, topic: str, starts: dict[int, int]) -> dict[int, int]:
        self.deleted = dict(starts)
        return self.deleted


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker(monkeypatch)


def trimmed(table: TopicTable, between: Callable[[], None] = lambda: None) -> dict[int, int]:
    """Trim all; `between` happens while files are verified."""
    spark: Any = LoopSpark()
    spark.between = between
    return trim(spark, "nowhere:1", table, Keep())


def test_what_is_archived_is_trimmed(table: TopicTable, broker: Broker) -> None:
    table = archive(archive(table, 0, 0, 60), 0, 60, 90)

    assert trimmed(table) == broker.deleted == {0: 90}


@pytest.mark.parametrize("deleted", ["offset < 50", "offset < 20"])
def test_rows_that_another_engine_has_deleted_are_missed(
    table: TopicTable, catalog: Catalog, broker: Broker, deleted: str
) -> None:
    """Whole files, or rows of one that is rewritten; no delete file tells of either."""
    archive(archive(table, 0, 0, 50), 0, 50, 100)
    catalog.load_table((NAMESPACE, "orders")).delete(deleted)
    archive(load_topic(catalog, "orders"), 1, 0, 10)
    found, spark = load_topic(catalog, "orders"), LoopSpark()

    with pytest.raises(ArchiveError, match=r"nothing was trimmed.*rows, but 100 were archived"):
        trimmed(found)
    assert broker.deleted == {}
    damage = verify(spark, found, found.files())  # type: ignore[arg-type]
    assert "partition 0 has" in damage[0]


def test_a_table_that_does_not_count_its_rows_is_not_trusted(
    table: TopicTable, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(claims, "ROWS", "tidelog.other")
        archive(table, 0, 0, 50)
    found = archive(table.reload(), 0, 50, 100)

    assert found.claim.rows is None
    with pytest.raises(ArchiveError, match=r"nothing was trimmed.*another warehouse"):
        trimmed(found)
    assert broker.deleted == {}


def test_a_log_that_is_shorter_than_its_archive_is_not_trimmed() -> None:
    with pytest.raises(ArchiveAhead, match="orders-0 is archived up to offset 100"):
        trimmable("orders", {0: Span(0, 50)}, {0: Span(0, 100)}, {0: 50})


def test_a_log_that_was_cut_and_has_grown_again_is_not_trimmed(table: TopicTable, broker: Broker) -> None:
    moved = OffsetRange("orders", 0, 0, 90)
    table = table.commit(put(table, moved, range(90)), [moved], {0: 4})
    broker.epoch_ends = {4: 80}

    with pytest.raises(ArchiveAhead, match="cut at 80"):
        trimmed(table)
    assert broker.deleted == {}
    broker.epoch_ends = {4: 90}
    assert trimmed(table) == {0: 90}


def test_an_epoch_that_has_written_nothing_has_cut_nothing() -> None:
    check_kept("orders", {0: Span(0, 100)}, {})


def test_a_topic_made_anew_while_files_are_verified_keeps_its_records(
    table: TopicTable, broker: Broker
) -> None:
    table = archive(table, 0, 0, 100)

    with pytest.raises(OtherTopic):
        trimmed(table, lambda: setattr(broker, "id", OTHER))
    assert broker.deleted == {}


def test_a_log_that_is_cut_while_files_are_verified_keeps_its_records(
    table: TopicTable, broker: Broker
) -> None:
    table = archive(table, 0, 0, 100)

    with pytest.raises(ArchiveAhead):
        trimmed(table, lambda: setattr(broker, "span", Span(0, 99)))
    assert broker.deleted == {}


def test_a_topic_that_becomes_compacted_while_files_are_verified_keeps_its_records(
    table: TopicTable, broker: Broker
) -> None:
    table = archive(table, 0, 0, 100)

    with pytest.raises(ArchiveError, match="is compacted"):
        trimmed(table, lambda: setattr(broker, "policy", "compact"))
    assert broker.deleted == {}


def test_an_archive_that_lost_files_while_others_were_verified_trims_nothing(
    table: TopicTable, catalog: Catalog, broker: Broker
) -> None:
    table = archive(table, 0, 0, 100)

    with pytest.raises(ArchiveError, match="rewritten meanwhile"):
        trimmed(table, lambda: catalog.load_table((NAMESPACE, "orders")).delete("offset >= 0"))
    assert broker.deleted == {}


def test_a_topic_whose_policy_is_not_told_is_not_trimmed(table: TopicTable, broker: Broker) -> None:
    table = archive(table, 0, 0, 100)
    broker.policy = None

    with pytest.raises(ArchiveError, match=r"do not tell cleanup\.policy"):
        trimmed(table)
    assert broker.deleted == {}


def test_every_directory_above_an_archived_file_is_on_the_disk(
    table: TopicTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    opened = os.open

    def note(path: Any, *arguments: Any, **options: Any) -> int:
        synced.add(str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", note)
    (file,) = archive(table, 0, 0, 100).files()

    above = [one for one in Path(file.path.removeprefix("file://")).parents if one.is_relative_to(tmp_path)]
    assert len(above) == 7
    assert [str(one) for one in above if str(one) not in synced] == []


# A footer has no checksum, and readers pass over row groups on its word.


@pytest.fixture
def file(tmp_path: Path) -> ArchivedFile:
    """Offsets 100 to 159."""
    wanted = OffsetRange("orders", 0, 100, 160)
    to = Destination(storage=Storage(), directory=tmp_path.as_uri(), tag="1")
    (written,) = write_range([batch_of(range(100, 160))], wanted, to)
    return ArchivedFile(
        path=written.path,
        partition=0,
        first=100,
        last=159,
        first_us=0,
        last_us=0,
        rows=60,
        bytes=written.bytes,
    )


def change(file: ArchivedFile, was: bytes, becomes: bytes) -> None:
    path = Path(file.path.removeprefix("file://"))
    content = path.read_bytes()
    assert was in content
    path.write_bytes(content.replace(was, becomes))


FAR_AWAY = (100).to_bytes(8, "little"), (2**40).to_bytes(8, "little")


@pytest.mark.parametrize(("was", "becomes"), [FAR_AWAY, (b"timestampType", b"timestampTypf")])
def test_a_footer_that_changed_is_found(file: ArchivedFile, was: bytes, becomes: bytes) -> None:
    verify_file(file, Storage())
    change(file, was, becomes)

    with pytest.raises(FileDamaged):
        verify_file(file, Storage())


def test_a_reader_misses_rows_that_a_footer_hides(table: TopicTable) -> None:
    table = archive(table, 0, 100, 160)
    part, *_ = table.ranges([OffsetRange("orders", 0, 100, 160)])
    change(table.files()[0], *FAR_AWAY)

    with pytest.raises(FileDamaged, match="0 rows, not 60"):
        list(read_archived(part, ("value",)))
