"""Batches into a Delta table, without a Spark."""

import datetime
import json
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.schema import PrimitiveType
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

from tests.unit.spark.pipelines.test_iceberg import NORTH, SCHEMA, SOUTH, Frame
from tidelog.spark.archive import storage
from tidelog.spark.pipelines import delta, delta_widening, iceberg, upserts
from tidelog.spark.pipelines.delta import DeltaWriter, Place, is_delta_away, written
from tidelog.spark.pipelines.delta_parts import NullPartition
from tidelog.spark.pipelines.spec import SpecError, parse
from tidelog.spark.proofs import OtherContent
from tidelog.spark.tables.counting import RowsMissing
from tidelog.spark.tables.waiting import Patience, StoppedWaiting


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_parquet(frame: Frame, location: str) -> int:
        frame.parquet(location)
        return len(frame.rows)

    monkeypatch.setattr(delta, "write_parquet", write_parquet)
    monkeypatch.setattr(iceberg, "_pass_by", Frame.pass_by)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(str(tmp_path / "orders"))
    made.prepare(SCHEMA)
    return made


def rows(place: Place) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.table(place.table().scan().read_all()).to_pylist()
    return sorted(found, key=str)


def added(place: Place) -> list[dict[str, Any]]:
    log = Path(place.uri, "_delta_log", f"{place.table().version():020}.json")
    return [found["add"] for line in log.read_text().splitlines() if "add" in (found := json.loads(line))]


def add(place: Place, frame: Frame, query: str, batch: int, **told: Any) -> int:
    return DeltaWriter(place, **told).write(frame, query, batch)  # type: ignore[arg-type]


def test_batches_are_added_and_one_that_is_repeated_is_there_once(place: Place) -> None:
    assert add(place, Frame([NORTH]), "q1", 0) == 1
    assert add(place, Frame([SOUTH, SOUTH]), "q1", 1) == 2
    assert add(place, Frame([NORTH]), "q2", 0) == 1
    again = Frame([SOUTH, SOUTH])

    assert add(place, again, "q1", 1) == 0

    assert rows(place) == [NORTH, NORTH, SOUTH, SOUTH]
    assert (again.written, again.passed_by) == (0, 1)


def test_a_batch_that_is_not_the_one_that_was_written_is_refused(place: Place, tmp_path: Path) -> None:
    add(place, Frame([NORTH]), "q1", 3)

    with pytest.raises(OtherContent, match=r"batch 2 of query q1 .* the newest .* is 3"):
        add(place, Frame([NORTH]), "q1", 2)
    with pytest.raises(OtherContent, match=r"batch 3 of query q1 .* 1 rows, and this run's has 2"):
        add(place, Frame([NORTH, SOUTH]), "q1", 3)
    assert add(place, Frame([NORTH, SOUTH]), "q1", 3, verifies=False) == 0
    assert rows(place) == [NORTH]


def test_a_batch_is_known_by_its_sources_ends(place: Place, tmp_path: Path) -> None:
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    (tmp_path / "checkpoint" / "metadata").write_text('{"id":"q1"}')

    def write(frame: Frame, end: int) -> int:
        (tmp_path / "checkpoint" / "offsets" / "0").write_text(f'v1\n{{}}\n{{"t":{{"0":{end}}}}}')
        return add(place, frame, "q1", 0, checkpoint=str(tmp_path / "checkpoint"))

    assert write(Frame([NORTH]), 4) == 1
    assert write(Frame([NORTH, SOUTH]), 4) == 0, "its rows may differ"
    with pytest.raises(OtherContent, match=r"was not written: it was decided with sources' ends"):
        write(Frame([NORTH]), 6)


def test_a_batch_without_rows_leaves_no_files(place: Place, tmp_path: Path) -> None:
    assert add(place, Frame([]), "q1", 0) == 0

    assert place.table().version() == 0
    assert list(tmp_path.rglob("*.parquet")) == list(tmp_path.rglob("_SUCCESS")) == []


def test_a_writer_that_lost_a_race_looks_for_its_batch_first(place: Place, tmp_path: Path) -> None:
    class Overtaken(Frame):
        def __init__(self, query: str) -> None:
            super().__init__([NORTH])
            self.query = query

        def parquet(self, location: str) -> None:
            super().parquet(location)
            if self.written == 1:
                add(place, Frame([NORTH]), self.query, 0)

    assert add(place, Overtaken("q1"), "q1", 0) == 0
    assert rows(place) == [NORTH]
    assert add(place, Overtaken("q3"), "q2", 0) == 1
    assert rows(place) == [NORTH, NORTH, NORTH]
    assert len(list(tmp_path.rglob("*.parquet"))) == 3, "what lost is removed"


def test_rows_that_were_written_elsewhere_are_missed(place: Place) -> None:
    class Elsewhere(Frame):
        def parquet(self, location: str) -> None:
            Path(location.removeprefix("file://")).mkdir(parents=True)

    with pytest.raises(RowsMissing, match=r"wrote 1 rows below .* and 0 are there"):
        add(place, Elsewhere([NORTH]), "q1", 0)
    assert written(place.table(), "q1") == -1


def test_new_columns_are_added_and_narrower_values_fit(place: Place) -> None:
    add(place, Frame([NORTH]), "q1", 0)
    other = StructType().add("region", StringType()).add("total", FloatType())
    other = other.add("count", IntegerType())
    place.prepare(other)
    assert add(place, Frame([NORTH], other), "q1", 0) == 0, "an evolution is no batch"

    add(place, Frame([{"region": "west", "total": 0.5, "count": 3}], other), "q1", 1)

    assert rows(place) == [{**NORTH, "count": None}, {"region": "west", "total": 0.5, "count": 3}]


def test_other_columns_are_refused_with_what_to_do(place: Place, tmp_path: Path) -> None:
    text = StructType().add("region", LongType()).add("total", DoubleType())
    with pytest.raises(SpecError, match=r"region is string in the table, and long in the source"):
        place.prepare(text)
    with pytest.raises(SpecError, match=r"`evolve: false` forbids it: more is new"):
        place.prepare(StructType([*SCHEMA.fields]).add("more", LongType()), evolve=False)


def test_many_batches_leave_few_files(place: Place) -> None:
    for batch in range(45):
        add(place, Frame([NORTH]), "q1", batch)

    assert len(place.table().file_uris()) < 25
    assert rows(place) == [NORTH] * 45


@pytest.mark.parametrize("does", [False, True])
def test_a_store_that_is_away_is_waited_for_and_the_batch_is_there_once(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, does: bool
) -> None:
    commit, times = DeltaTable.create_write_transaction, [1, 2]

    def unanswered(*told: Any, **more: Any) -> None:
        if times:
            times.pop()
            if does:
                times.clear()
                commit(*told, **more)
            raise OSError("Generic S3 error: error sending request")
        commit(*told, **more)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", unanswered)

    add(place, Frame([NORTH]), "q1", 0, patience=Patience(first_seconds=0.001))

    assert rows(place) == [NORTH]
    assert "waiting for the store of" in caplog.text


def test_a_stop_ends_the_wait(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*told: Any, **more: Any) -> None:
        raise OSError("Generic S3 error: error sending request")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", away)
    stop = threading.Event()
    stop.set()

    with pytest.raises(StoppedWaiting):
        add(place, Frame([NORTH]), "q1", 0, patience=Patience(stop=stop, first_seconds=60))


def test_errors_of_the_library_are_told_apart() -> None:
    assert is_delta_away(ValueError("Generic S3 error: Error performing GET: Connection refused"))
    assert not is_delta_away(ValueError("Schema mismatch in /data/500/table"))


def test_settings_of_a_store_are_those_of_iceberg_sinks() -> None:
    told = Place("s3://lake/t", {"s3.endpoint": "http://h:1", "s3.region": "eu"}).store_options

    assert told["aws_endpoint_url"] == "http://h:1"
    assert told["aws_allow_http"] == "true"
    assert told["aws_region"] == "eu"
    assert told["retry_timeout"] == "10s"


def test_a_sink_of_delta_takes_what_makes_sense(tmp_path: Path) -> None:
    def made(**sink: Any) -> None:
        document = {
            "sources": {"a": {"topic": "a"}},
            "sinks": {"out": {"from": "a", "delta": "tables/a", **sink}},
        }
        parse(document, tmp_path)

    made(upsert=["id"], evolve=False, upkeep=False, options={"s3.region": "eu"}, partition_by=["a"])
    with pytest.raises(SpecError, match=r"sinks\.out\.sort_by has no meaning for delta"):
        made(sort_by=["a"])
    with pytest.raises(SpecError, match=r"upkeep: of a Delta table it is true or false"):
        made(upkeep={"snapshots": 3})


@pytest.mark.parametrize("is_done", [True, False])
def test_a_commit_that_is_said_to_have_failed_is_looked_for_before_its_files_are_removed(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    commit = DeltaTable.create_write_transaction

    def refused(*told: Any, **named: Any) -> None:
        monkeypatch.setattr(DeltaTable, "create_write_transaction", commit)
        if is_done:
            commit(*told, **named)
        raise CommitFailedError("version 1 is there already")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", refused)

    add(place, Frame([NORTH]), "q1", 0)

    assert rows(place) == [NORTH]
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


class Latest(Frame):
    """The last of some changes, which deletes nothing."""

    def toArrow(self) -> pa.Table:  # noqa: N802, as Spark calls it
        return self.table.append_column(upserts.DELETE, pa.array([False] * len(self.rows)))


@pytest.fixture
def latest(monkeypatch: pytest.MonkeyPatch) -> None:
    def last(frame: Frame, key: tuple[str, ...]) -> Latest:
        return Latest(frame.rows[-1:], frame.schema)

    monkeypatch.setattr(upserts, "latest_changes", last)


@pytest.mark.usefixtures("latest")
def test_a_changed_row_has_nothing_of_a_column_that_its_source_no_longer_has(place: Place) -> None:
    add(place, Frame([NORTH, SOUTH]), "q1", 0)
    without = StructType().add("region", StringType())

    add(place, Frame([{"region": "north"}], without), "q1", 1, key=("region",))

    assert rows(place) == [{**NORTH, "total": None}, SOUTH]


@pytest.mark.usefixtures("latest")
def test_changes_that_are_repeated_are_known_by_the_rows_that_they_come_to(place: Place) -> None:
    changes = Frame([{**NORTH, "total": 0.5}, NORTH])

    assert add(place, changes, "q1", 0, key=("region",)) == 1
    assert add(place, changes, "q1", 0, key=("region",)) == 0

    assert rows(place) == [NORTH]


@pytest.mark.parametrize(
    ("column", "configuration", "complaint"),
    [
        ({"delta.generationExpression": "1"}, {}, "column total of .* is computed or checked"),
        ({}, {"delta.setTransactionRetentionDuration": "interval 1 day"}, "unset its property"),
    ],
)
def test_a_table_that_would_not_keep_what_it_promises_is_refused(
    tmp_path: Path, column: dict[str, str], configuration: dict[str, str], complaint: str
) -> None:
    total = Field("total", PrimitiveType("double"), metadata=column)
    schema = Schema([Field("region", PrimitiveType("string")), total])
    DeltaTable.create(str(tmp_path / "other"), schema, configuration=configuration)

    with pytest.raises(SpecError, match=complaint):
        Place(str(tmp_path / "other")).prepare(SCHEMA)


@pytest.mark.parametrize("theirs", ["count", "other"])
def test_two_who_add_columns_at_once_both_get_theirs(
    place: Place, monkeypatch: pytest.MonkeyPatch, theirs: str
) -> None:
    follow = delta._follow

    def outpaced(*told: Any, **named: Any) -> None:
        monkeypatch.setattr(delta, "_follow", follow)
        place.prepare(StructType([*SCHEMA.fields]).add(theirs, LongType()))
        follow(*told, **named)

    monkeypatch.setattr(delta, "_follow", outpaced)

    place.prepare(StructType([*SCHEMA.fields]).add("count", LongType()))

    names = [field.name for field in place.table().schema().fields]
    assert sorted(names) == sorted({"region", "total", "count", theirs})


LINES = ArrayType(StructType().add("sku", StringType()))
NARROW = (
    StructType()
    .add("n", IntegerType())
    .add("rate", FloatType())
    .add("sum", DecimalType(4, 2))
    .add("lines", LINES)
    .add("by", MapType(StringType(), IntegerType()))
    .add("part", IntegerType())
)
WIDER = (
    StructType()
    .add("n", LongType())
    .add("rate", DoubleType())
    .add("sum", DecimalType(9, 2))
    .add("lines", ArrayType(StructType().add("sku", StringType()).add("left", LongType())))
    .add("by", MapType(StringType(), LongType()))
    .add("part", LongType())
    .add("more", StringType())
)
SMALL = {
    "n": 1,
    "rate": 0.5,
    "sum": Decimal("1.25"),
    "lines": [{"sku": "a"}, None],
    "by": [("k", 1), ("l", None)],
    "part": 7,
}
LARGE = {
    "n": 2**40,
    "rate": 0.1,
    "sum": Decimal("1234567.89"),
    "lines": [{"sku": "b", "left": 2**40}],
    "by": [("k", 2**40)],
    "part": 2**40,
    "more": "x",
}


@pytest.mark.parametrize("parts", [(), ("part",)])
def test_a_table_whose_columns_become_wider_keeps_its_rows_and_its_batches(
    tmp_path: Path, parts: tuple[str, ...]
) -> None:
    place = Place(str(tmp_path / "t"))
    place.prepare(NARROW, partition_by=parts)
    nothing: dict[str, Any] = dict.fromkeys(NARROW.names)
    add(place, Frame([SMALL, nothing], NARROW), "q1", 0)

    place.prepare(WIDER, partition_by=parts)
    place.prepare(NARROW)  # another query, whose columns are narrower, changes nothing

    widened = {**SMALL, "lines": [{"sku": "a", "left": None}, None], "more": None}
    assert rows(place) == sorted([widened, {**nothing, "more": None}], key=str)
    assert add(place, Frame([SMALL, nothing], NARROW), "q1", 0) == 0, "a batch that comes again is known"
    assert add(place, Frame([LARGE], WIDER), "q1", 1) == 1
    assert rows(place) == sorted([widened, {**nothing, "more": None}, LARGE], key=str)
    assert place.table().metadata().partition_columns == list(parts)


def test_a_row_that_is_written_while_a_table_is_widened_is_there_as_well(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.prepare(StructType([*SCHEMA.fields]).add("count", IntegerType()))
    add(place, Frame([NORTH]), "q1", 0)
    widen = delta_widening.widen

    def outpaced(*told: Any) -> None:
        monkeypatch.setattr(delta, "widen", widen)
        add(place, Frame([SOUTH]), "q2", 0)
        widen(*told)

    monkeypatch.setattr(delta, "widen", outpaced)
    place.prepare(StructType([*SCHEMA.fields]).add("count", LongType()))

    assert rows(place) == [{**NORTH, "count": None}, {**SOUTH, "count": None}]
    assert place.table().schema().fields[-1].type == PrimitiveType("long")
    (left,) = Path(place.uri).glob("widened-*")
    named = {Path(one).parent.name for one in place.table().file_uris()}
    assert named == {left.name} and not (left / "_delta_log").exists()


def test_columns_that_cannot_follow_since_others_write_all_the_time_leave_no_files(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.prepare(StructType([*SCHEMA.fields]).add("count", IntegerType()))
    batches = iter(range(100))
    widen = delta_widening.widen

    def outpaced(*told: Any) -> None:
        add(place, Frame([NORTH]), "q1", next(batches))
        widen(*told)

    monkeypatch.setattr(delta, "widen", outpaced)
    monkeypatch.setattr(delta, "COMMITS_MAX", 2)
    with pytest.raises(SpecError, match=r"others change .* all the time"):
        place.prepare(StructType([*SCHEMA.fields]).add("count", LongType()))

    assert not list(Path(place.uri).glob("widened-*"))
    on_disk = {str(one) for one in Path(place.uri).rglob("*.parquet")}
    assert on_disk == set(place.table().file_uris())


def test_a_table_that_was_written_anew_is_what_it_was_but_for_its_columns(tmp_path: Path) -> None:
    names = pa.array(["a b/c%", "\u00e9", None, "x"])
    schema = pa.schema([pa.field("n", pa.int32(), metadata={"comment": "how many"}), ("p q", pa.string())])
    uri, kept = str(tmp_path / "t"), {"delta.deletedFileRetentionDuration": "interval 30 days"}
    DeltaTable.create(uri, schema, partition_by=["p q"], name="t", description="d", configuration=kept)
    rows_then = pa.table([pa.array([1, 2, 3, None], pa.int32()), names], schema=schema)
    write_deltalake(uri, rows_then, mode="append")
    place = Place(uri)

    place.prepare(StructType().add("n", LongType()).add("p q", StringType()), partition_by=["p q"])

    about, field = place.table().metadata(), place.table().schema().fields[0]
    assert (about.name, about.description, about.configuration) == ("t", "d", kept)
    assert (field.type, field.metadata) == (PrimitiveType("long"), {"comment": "how many"})
    assert rows(place) == sorted(rows_then.to_pylist(), key=str)
    assert all(one["stats"] and Path(uri, unquote(one["path"])).exists() for one in added(place))


@pytest.mark.parametrize(
    ("settings", "bytes_max", "words"),
    [
        ({"delta.appendOnly": "true"}, 2**40, "takes new rows only"),
        ({"delta.enableChangeDataFeed": "true"}, 2**40, "tells its readers of each row"),
        ({"delta.enableDeletionVectors": "true"}, 2**40, "features that its readers must know of"),
        ({}, 100, "has 0.0 GiB"),
    ],
)
def test_a_table_that_may_not_be_written_anew_is_not_widened(
    tmp_path: Path, settings: dict[str, str], bytes_max: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_widening, "BYTES_MAX", bytes_max)
    schema = pa.schema([("n", pa.int32())])
    DeltaTable.create(str(tmp_path / "t"), schema, configuration=settings)
    place = Place(str(tmp_path / "t"))
    add(place, Frame([{"n": 1}], StructType().add("n", IntegerType())), "q1", 0)
    with pytest.raises(SpecError, match=f"{words}.*n becomes long"):
        place.prepare(StructType().add("n", LongType()))
    assert place.table().schema().fields[0].type == PrimitiveType("integer")


DAYS = (
    StructType()
    .add("day", DateType())
    .add("region", StringType())
    .add("paid", BooleanType())
    .add("n", LongType())
)


def day(of: int, **given: Any) -> dict[str, Any]:
    return {"day": datetime.date(2026, 1, of), "region": None, "paid": of == 1, "n": 2, **given}


def test_rows_are_split_by_the_columns_that_a_table_is_partitioned_by(tmp_path: Path) -> None:
    place = Place(str(tmp_path / "days"))
    place.prepare(DAYS, partition_by=("day", "region", "paid"))
    there = [day(1), day(1, n=7), day(2, region="n/o=r t%h")]

    assert add(place, Frame(there, DAYS), "q1", 0) == 3
    assert add(place, Frame(there, DAYS), "q1", 0) == 0
    wider = StructType([*DAYS.fields]).add("more", DoubleType())
    place.prepare(wider)
    assert add(place, Frame([day(3, more=0.5)], wider), "q1", 1) == 1

    assert rows(place) == sorted([*({**one, "more": None} for one in there), day(3, more=0.5)], key=str)
    parts = {tuple(sorted(one.items())) for one in place.table().partitions()}
    assert len(parts) == 3
    written = {tuple(pq.read_schema(file).names) for file in (tmp_path / "days").rglob("*.parquet")}
    assert written == {("n",), ("n", "more")}
    only = place.table().to_pyarrow_dataset().to_table(filter=pc.field("region") == "n/o=r t%h")
    assert only["n"].to_pylist() == [2]


def test_a_table_keeps_its_partitions_and_a_sink_that_names_none_takes_them(tmp_path: Path) -> None:
    place = Place(str(tmp_path / "days"))
    place.prepare(DAYS, partition_by=["day"])

    place.prepare(DAYS)
    with pytest.raises(SpecError, match=r"is partitioned by day, and partition_by says region"):
        place.prepare(DAYS, partition_by=["region"])
    plain = Place(str(tmp_path / "plain"))
    plain.prepare(DAYS)
    with pytest.raises(SpecError, match=r"is not partitioned, and partition_by says day"):
        plain.prepare(DAYS, partition_by=["day"])


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["year(day)"], r"no column year\(day\).* Delta has no transforms"),
        (["total"], r"total is double; .* cast it in a step"),
        (["region", "total"], "total is double"),
        (["region", "count"], "names every column"),
    ],
)
def test_partitions_that_cannot_be_are_refused_before_there_is_a_table(
    tmp_path: Path, names: list[str], why: str
) -> None:
    schema = SCHEMA if "total" in names else StructType().add("region", StringType()).add("count", LongType())
    with pytest.raises(SpecError, match=why):
        Place(str(tmp_path / "t")).prepare(schema, partition_by=names)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("region", ["", "__HIVE_DEFAULT_PARTITION__"])
def test_a_string_that_would_become_null_is_refused_and_leaves_nothing(tmp_path: Path, region: str) -> None:
    place = Place(str(tmp_path / "t"))
    place.prepare(SCHEMA, partition_by=["region"])

    with pytest.raises(NullPartition, match=rf"nullif\(region, '{region}'\)"):
        add(place, Frame([{"region": region, "total": 1.0}]), "q1", 0)
    assert place.table().version() == 0
    assert list(tmp_path.rglob("*.parquet")) == []


def checkpoints(place: Place) -> list[int]:
    found = Path(place.uri, "_delta_log").glob("*.checkpoint.parquet")
    return sorted(int(path.name[:20]) for path in found)


def test_no_checkpoint_forgets_a_merged_file_before_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def vacuum(table: DeltaTable, *, dry_run: bool, **_: Any) -> list[str]:
        told.append(f"vacuum, dry: {dry_run}, checkpoints: {checkpoints(there)}")
        return ["old.parquet"]

    there = Place(str(tmp_path / "orders"))
    schema = Schema([Field("region", PrimitiveType("string")), Field("total", PrimitiveType("double"))])
    often = {"delta.checkpointInterval": "4"}
    DeltaTable.create(there.uri, schema, configuration=often)
    monkeypatch.setattr(DeltaTable, "vacuum", vacuum)
    monkeypatch.setattr(delta, "COMPACT_EVERY", 4)

    for batch in range(4):
        add(there, Frame([NORTH]), "q1", batch)

    assert told == ["vacuum, dry: True, checkpoints: []", "vacuum, dry: False, checkpoints: []"]
    assert checkpoints(there) == [5]
    assert rows(there) == [NORTH] * 4


def test_a_table_without_upkeep_has_checkpoints_as_it_says(tmp_path: Path) -> None:
    schema = Schema([Field("region", PrimitiveType("string")), Field("total", PrimitiveType("double"))])
    told = {"delta.checkpointInterval": "2"}
    DeltaTable.create(str(tmp_path / "orders"), schema, configuration=told)

    add(Place(str(tmp_path / "orders")), Frame([NORTH]), "q1", 0, has_upkeep=False)

    assert checkpoints(Place(str(tmp_path / "orders"))) == [1]


def test_rows_that_would_be_read_as_nulls_are_refused_also_where_the_table_changed_meanwhile(
    place: Place,
) -> None:
    add(place, Frame([NORTH]), "q1", 0)
    log = Path(place.uri) / "_delta_log"
    first = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
    (told,) = (action["metaData"] for action in first if "metaData" in action)
    told["configuration"] |= {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
    columns = json.loads(told["schemaString"])
    for at, column in enumerate(columns["fields"], 1):
        column["metadata"] = {"delta.columnMapping.id": at, "delta.columnMapping.physicalName": f"col-{at}"}
    told["schemaString"] = json.dumps(columns)
    actions = [{"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, {"metaData": told}]
    (log / f"{2:020}.json").write_text("\n".join(map(json.dumps, actions)))

    with pytest.raises(SpecError, match=r"delta\.columnMapping\.mode"):
        add(place, Frame([NORTH]), "q1", 1)
    with pytest.raises(SpecError, match=r"other names for its columns inside of files"):
        place.prepare(SCHEMA)


@pytest.mark.usefixtures("latest")
def test_a_commit_that_the_table_does_not_take_is_tried_few_times(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.table().alter.set_table_properties({"delta.appendOnly": "true"})
    add(place, Frame([NORTH]), "q1", 0)
    tried: list[int] = []
    merge = DeltaTable.merge

    def counted(*told: Any, **named: Any) -> Any:
        tried.append(1)
        return merge(*told, **named)

    monkeypatch.setattr(DeltaTable, "merge", counted)

    with pytest.raises(CommitFailedError, match="append-only"):
        add(place, Frame([NORTH]), "q1", 1, key=("region",))
    assert len(tried) == delta.REFUSALS_MAX


@pytest.mark.parametrize("partition_by", [(), ("region",)])
def test_all_of_a_batch_is_on_its_disk_before_the_table_names_it_and_then_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partition_by: tuple[str, ...]
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(storage, "sync_path", lambda path: synced.append(str(path)))
    place = Place(str(tmp_path / "orders"))
    place.prepare(SCHEMA, partition_by=partition_by)
    assert f"{place.uri}/_delta_log/{0:020}.json" in synced
    commit = DeltaTable.create_write_transaction
    before: set[str] = set()

    def committed(*told: Any, **named: Any) -> None:
        before.update(synced)
        commit(*told, **named)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", committed)
    add(place, Frame([NORTH, SOUTH]), "q1", 0)

    named = {one.removeprefix("file://") for one in place.table().file_uris()}
    assert named and named <= before
    assert f"{place.uri}/_delta_log/{1:020}.json" in synced


@pytest.mark.usefixtures("latest")
def test_what_a_merge_has_written_is_on_its_disk_when_the_batch_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    place = Place(str(tmp_path / "orders"))
    place.prepare(SCHEMA, partition_by=("region",))
    monkeypatch.setattr(storage, "sync_path", lambda path: synced.add(str(path)))

    add(place, Frame([{**NORTH, "region": "a b/c"}]), "q1", 0, key=("total",))

    (path,) = Path(place.uri).rglob("*.parquet")
    assert {str(path), f"{place.uri}/_delta_log/{1:020}.json"} <= synced
