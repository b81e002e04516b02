"""Batches into an Iceberg table, without a Spark: a frame here is what writes a Parquet file."""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.transforms import BucketTransform
from pyspark.sql.types import (
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)
from sqlalchemy.exc import OperationalError

from tests.unit.spark.tables.lake import COMMIT, sent_twice
from tidelog.spark.archive import storage
from tidelog.spark.archive.storage import Storage
from tidelog.spark.pipelines import iceberg
from tidelog.spark.pipelines.iceberg import Catalog, TableWriter, arrow_schema, upkeep_of
from tidelog.spark.pipelines.spec import Pipeline, Sink, SpecError, Upkeep, load, parse
from tidelog.spark.pipelines.upserts import UpsertWriter
from tidelog.spark.proofs import OtherContent
from tidelog.spark.tables import batches
from tidelog.spark.tables.counting import RowsMissing
from tidelog.spark.tables.layout import Layout
from tidelog.spark.tables.notes import written
from tidelog.spark.tables.projecting import Renamed, check_names
from tidelog.spark.tables.waiting import Patience, StoppedWaiting

SCHEMA = StructType().add("region", StringType(), nullable=False).add("total", DoubleType())


class Frame:
    """Rows that can be written as a frame of Spark is; it counts how often they were."""

    def __init__(self, rows: list[dict[str, Any]], schema: StructType = SCHEMA) -> None:
        self.rows = rows
        self.schema = schema
        self.written = 0
        self.passed_by = 0

    @property
    def write(self) -> "Frame":
        return self

    def pass_by(self) -> int:
        self.passed_by += 1
        return len(self.rows)

    def parquet(self, location: str) -> None:
        self.written += 1
        path = Path(location.removeprefix("file://"))
        path.mkdir(parents=True)
        (path / "_SUCCESS").touch()
        pq.write_table(self.table, path / "part-0.parquet")

    @property
    def table(self) -> pa.Table:
        return pa.Table.from_pylist(self.rows, arrow_schema(self.schema))

    def mapInArrow(self, work: Any, columns: str) -> "Frame":  # noqa: N802, as Spark calls it
        """A task of its own for each row."""
        batches = self.table.to_batches(max_chunksize=1)
        self.reported = [row for one in batches for told in work([one]) for row in told.to_pylist()]
        return self

    def collect(self) -> list[dict[str, Any]]:
        return self.reported

    def to(self, schema: StructType) -> "Frame":
        return Frame(self.rows, schema)


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark counts what its tasks write; here all rows are."""

    def write_parquet(frame: Frame, location: str) -> int:
        frame.parquet(location)
        return len(frame.rows)

    monkeypatch.setattr(batches, "write_parquet", write_parquet)
    monkeypatch.setattr(iceberg, "_pass_by", Frame.pass_by)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    document = {
        "name": "sales",
        "sources": {"orders": {"topic": "orders"}},
        "sinks": {"out": {"from": "orders", "iceberg": "sales.orders"}},
    }
    return parse(document, tmp_path)


@pytest.fixture
def catalog(pipeline: Pipeline) -> Catalog:
    catalog = Catalog.of(pipeline, {})
    catalog.prepare("sales.orders", SCHEMA)
    return catalog


def rows(catalog: Catalog) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = catalog.table("sales.orders").scan().to_arrow().to_pylist()
    return sorted(found, key=str)


def add(catalog: Catalog, frame: Frame, query: str, batch: int) -> int:
    return TableWriter(catalog, "sales.orders").write(frame, query, batch)  # type: ignore[arg-type]


NORTH, SOUTH = {"region": "north", "total": 1.5}, {"region": "south", "total": 2.0}


def test_batches_of_several_queries_are_added_one_after_another(catalog: Catalog) -> None:
    assert add(catalog, Frame([NORTH]), "q1", 0) == 1
    assert add(catalog, Frame([SOUTH]), "q1", 1) == 1
    assert add(catalog, Frame([NORTH]), "q2", 0) == 1

    assert rows(catalog) == [NORTH, NORTH, SOUTH]


def test_a_batch_that_is_repeated_is_there_once(catalog: Catalog) -> None:
    add(catalog, Frame([NORTH]), "q1", 3)
    again = Frame([NORTH])

    assert add(catalog, again, "q1", 3) == 0

    assert rows(catalog) == [NORTH]
    assert (again.written, again.passed_by) == (0, 1), "what Spark keeps of them is kept anew"


def test_a_batch_that_is_not_the_one_that_was_written_is_refused(catalog: Catalog) -> None:
    add(catalog, Frame([NORTH]), "q1", 3)

    with pytest.raises(OtherContent, match=r"batch 2 of query q1 .* the newest .* is 3"):
        add(catalog, Frame([NORTH]), "q1", 2)
    with pytest.raises(OtherContent, match=r"batch 3 of query q1 .* 1 rows, and this run's has 2"):
        add(catalog, Frame([NORTH, SOUTH]), "q1", 3)
    assert rows(catalog) == [NORTH]

    with catalog.table("sales.orders").transaction() as change:  # as docs/pipelines.md says
        change.remove_properties("tidelog.batch-written.q1", "tidelog.batch-proof.q1")
    assert add(catalog, Frame([SOUTH]), "q1", 3) == 1


def test_a_sink_that_verifies_no_replays_passes_over_what_has_a_written_number(catalog: Catalog) -> None:
    add(catalog, Frame([NORTH]), "q1", 3)
    writer = TableWriter(catalog, "sales.orders", verifies=False)

    assert writer.write(Frame([NORTH, SOUTH]), "q1", 3) == 0  # type: ignore[arg-type]

    assert rows(catalog) == [NORTH]


def test_a_batch_is_known_by_its_sources_ends_where_the_checkpoint_tells_them(
    catalog: Catalog, tmp_path: Path
) -> None:
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    (tmp_path / "checkpoint" / "metadata").write_text('{"id":"q1"}')

    def write(frame: Frame, end: int) -> int:
        (tmp_path / "checkpoint" / "offsets" / "0").write_text(f'v1\n{{}}\n{{"t":{{"0":{end}}}}}')
        writer = TableWriter(catalog, "sales.orders", checkpoint=str(tmp_path / "checkpoint"))
        return writer.write(frame, "q1", 0)  # type: ignore[arg-type]

    assert write(Frame([NORTH]), 4) == 1
    assert write(Frame([NORTH, SOUTH]), 4) == 0, "its rows may differ"
    with pytest.raises(OtherContent, match=r'ends \{"t":\{"0":4\}\}, and this run\'s ends at'):
        write(Frame([NORTH]), 6)


def test_a_batch_that_was_noted_without_what_it_was_is_passed_over(catalog: Catalog) -> None:
    with catalog.table("sales.orders").transaction() as change:
        change.set_properties({"tidelog.batch-written.q1": "3"})

    assert add(catalog, Frame([NORTH]), "q1", 3) == 0


def test_the_note_stands_in_the_table_and_in_the_snapshot(catalog: Catalog) -> None:
    add(catalog, Frame([NORTH]), "q1", 3)

    table = catalog.table("sales.orders")
    snapshot = table.current_snapshot()
    assert written(table.properties, "q1") == 3
    assert written(table.properties, "q2") == -1
    assert snapshot is not None and snapshot.summary is not None
    assert snapshot.summary["tidelog.query-id"] == "q1"
    assert snapshot.summary["tidelog.batch-id"] == "3"


def test_a_batch_without_rows_makes_no_snapshot_and_leaves_no_files(catalog: Catalog, tmp_path: Path) -> None:
    assert add(catalog, Frame([]), "q1", 0) == 0

    assert catalog.table("sales.orders").snapshots() == []
    assert list(tmp_path.rglob("*.parquet")) == list(tmp_path.rglob("_SUCCESS")) == []


def test_rows_that_were_written_elsewhere_are_missed_and_nothing_is_committed(catalog: Catalog) -> None:
    class Elsewhere(Frame):
        def parquet(self, location: str) -> None:
            Path(location.removeprefix("file://")).mkdir(parents=True)

    with pytest.raises(RowsMissing, match=r"wrote 2 rows below .* and 0 are there: the executors"):
        add(catalog, Elsewhere([NORTH, SOUTH]), "q1", 0)

    assert written(catalog.table("sales.orders").properties, "q1") == -1


def test_many_batches_do_not_keep_every_version_of_what_is_written_about_the_table(
    catalog: Catalog, tmp_path: Path
) -> None:
    for batch in range(30):
        add(catalog, Frame([NORTH]), "q1", batch)

    assert len(list(tmp_path.rglob("*.metadata.json"))) <= 25


def test_hundreds_of_batches_leave_few_files_and_snapshots_and_each_row_once(catalog: Catalog) -> None:
    sink = Sink(table="orders", iceberg="sales.orders", upkeep=Upkeep(snapshots=5))
    writer = TableWriter(catalog, "sales.orders", upkeep_of(sink))
    for batch in range(100):
        frame: Any = Frame([{"region": f"r{batch}", "total": float(batch)}])
        assert writer.write(frame, "q1", batch) == 1
        assert writer.write(frame, "q1", batch) == 0

    table = catalog.table("sales.orders")
    assert len(table.snapshots()) <= 10
    assert len(list(table.scan().plan_files())) <= 24
    assert sorted(one["total"] for one in rows(catalog)) == [float(n) for n in range(100)]


def test_a_sink_can_leave_the_upkeep_to_others() -> None:
    assert upkeep_of(Sink(table="orders", iceberg="a.b", upkeep=False)) is None
    told = upkeep_of(Sink(table="orders", iceberg="a.b", upkeep=Upkeep(keep_files="2 hours")))
    assert told is not None and told.expiry.keep_seconds == 7200


class Away:
    """A catalog whose commits are not answered for a while, though some are done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, times: int, does: bool) -> None:
        commit = SqlCatalog.commit_table

        def unanswered(*told: Any) -> Any:
            if self.times == 0:
                return commit(*told)
            self.times -= 1
            if does:
                commit(*told)
            raise OperationalError("commit", {}, ConnectionRefusedError("the database is down"))

        self.times = times
        monkeypatch.setattr(SqlCatalog, "commit_table", unanswered)


@pytest.mark.parametrize("does", [False, True])
def test_a_catalog_that_is_away_is_waited_for_and_the_batch_is_there_once(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, does: bool
) -> None:
    Away(monkeypatch, times=1 if does else 3, does=does)
    patience = Patience(first_seconds=0.001)
    writer = TableWriter(catalog, "sales.orders", patience=patience)

    writer.write(Frame([NORTH]), "q1", 0)  # type: ignore[arg-type]

    assert rows(catalog) == [NORTH]
    assert "waiting for the catalog or the store of table sales.orders" in caplog.text


def test_a_lock_that_somebody_left_is_waited_for_and_no_files_stay(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    waits, commit = [0, 0, 0], SqlCatalog.commit_table

    def locked(*told: Any) -> Any:
        if waits:
            waits.pop()
            raise CommitFailedException("Failed to acquire lock for ('sales', 'orders'), state: 2")
        return commit(*told)

    monkeypatch.setattr(SqlCatalog, "commit_table", locked)
    writer = TableWriter(catalog, "sales.orders", patience=Patience(first_seconds=0.001))

    writer.write(Frame([NORTH]), "q1", 0)  # type: ignore[arg-type]

    assert rows(catalog) == [NORTH]
    assert caplog.text.count("table sales.orders is locked in its catalog") == 3
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


def test_a_stop_ends_the_wait_for_a_catalog(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    Away(monkeypatch, times=1000, does=False)
    patience = Patience(first_seconds=60)
    patience.stop.set()

    with pytest.raises(StoppedWaiting, match="stopped while the catalog or the store of table"):
        TableWriter(catalog, "sales.orders", patience=patience).write(Frame([NORTH]), "q1", 0)  # type: ignore[arg-type]


def test_a_store_that_spark_cannot_write_to_is_waited_for_if_it_is_away(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unwritten(Frame):
        def parquet(self, location: str) -> None:
            self.written += 1
            if self.written < 3:
                raise ValueError("Job aborted due to stage failure")
            super().parquet(location)

    frame, files = Unwritten([NORTH]), Storage.list_files

    def listed(*told: Any) -> Any:
        if frame.written < 3:
            raise TimeoutError("the store does not answer")
        return files(*told)

    monkeypatch.setattr(Storage, "list_files", listed)
    patience = Patience(first_seconds=0.001)

    TableWriter(catalog, "sales.orders", patience=patience).write(frame, "q1", 0)  # type: ignore[arg-type]

    assert rows(catalog) == [NORTH]


def test_a_writer_that_lost_the_race_for_its_own_batch_adds_nothing(catalog: Catalog, tmp_path: Path) -> None:
    class Overtaken(Frame):
        def parquet(self, location: str) -> None:
            super().parquet(location)
            add(catalog, Frame(self.rows), "q1", 0)

    assert add(catalog, Overtaken([NORTH]), "q1", 0) == 0

    assert rows(catalog) == [NORTH]
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


def test_a_batch_whose_commit_was_done_though_it_is_said_to_have_failed_stays(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", sent_twice)
        assert add(catalog, Frame([NORTH]), "q1", 0) == 1

    assert rows(catalog) == [NORTH]
    assert add(catalog, Frame([SOUTH]), "q1", 1) == 1


def test_a_writer_that_lost_the_race_to_another_query_tries_again(catalog: Catalog) -> None:
    class Overtaken(Frame):
        def parquet(self, location: str) -> None:
            super().parquet(location)
            add(catalog, Frame([SOUTH]), "q2", 0)

    add(catalog, Overtaken([NORTH]), "q1", 0)

    assert rows(catalog) == [NORTH, SOUTH]


def partitioned(pipeline: Pipeline, *partition_by: str, sort_by: tuple[str, ...] = ()) -> Catalog:
    catalog = Catalog.of(pipeline, {})
    catalog.prepare("sales.orders", SCHEMA, Layout.parse(partition_by, sort_by))
    return catalog


def partitions(catalog: Catalog) -> dict[Any, int]:
    """The rows of each partition, and that each file has those of its own only."""
    table, found = catalog.table("sales.orders"), dict[Any, int]()
    for task in table.scan().plan_files():
        (value,) = (task.file.partition[at] for at in range(len(task.file.partition)))
        found[value] = found.get(value, 0) + task.file.record_count
    return found


def test_each_file_has_rows_of_one_partition_and_a_repeated_batch_is_there_once(pipeline: Pipeline) -> None:
    catalog = partitioned(pipeline, "region")
    frame = Frame([NORTH, SOUTH, NORTH, {"region": None, "total": 3.0}])

    assert add(catalog, frame, "q1", 0) == 4
    assert add(catalog, frame, "q1", 0) == 0

    assert partitions(catalog) == {"north": 2, "south": 1, None: 1}
    found = catalog.table("sales.orders").scan("region = 'north'").to_arrow().to_pylist()
    assert found == [NORTH, NORTH]


def test_small_files_are_merged_with_others_of_their_partition_only(pipeline: Pipeline) -> None:
    catalog = partitioned(pipeline, "region", sort_by=("total desc",))
    sink = Sink(table="orders", iceberg="sales.orders", upkeep=Upkeep(snapshots=5))
    writer = TableWriter(catalog, "sales.orders", upkeep_of(sink))
    for batch in range(20):
        frame: Any = Frame([{**NORTH, "total": float(batch)}, SOUTH])
        assert writer.write(frame, "q1", batch) == 2

    tasks = list(catalog.table("sales.orders").scan().plan_files())
    assert partitions(catalog) == {"north": 20, "south": 20}
    assert len(tasks) <= 24 < 40, "some were merged"
    (largest,) = sorted(
        (one for one in tasks if one.file.partition[0] == "north"), key=lambda one: one.file.record_count
    )[-1:]
    totals = pq.read_table(largest.file.file_path.removeprefix("file://"))["total"].to_pylist()
    assert len(totals) >= 8
    assert totals == sorted(totals, reverse=True), "and stay sorted"


def test_rows_of_a_partitioned_table_that_were_written_elsewhere_are_missed(pipeline: Pipeline) -> None:
    catalog = partitioned(pipeline, "bucket(4, region)")

    class Elsewhere(Frame):
        def mapInArrow(self, work: Any, columns: str) -> "Frame":  # noqa: N802
            super().mapInArrow(work, columns)
            for told in self.reported:
                Path(told["path"].removeprefix("file://")).unlink()
            return self

    with pytest.raises(RowsMissing, match=r"wrote 2 rows below .* and 0 are there: the executors"):
        add(catalog, Elsewhere([NORTH, SOUTH]), "q1", 0)
    assert written(catalog.table("sales.orders").properties, "q1") == -1


def test_a_table_keeps_the_partitions_it_was_made_with(pipeline: Pipeline) -> None:
    catalog = partitioned(pipeline, "region")

    catalog.prepare("sales.orders", SCHEMA)  # a sink that says nothing takes what is there
    with pytest.raises(SpecError, match=r"is partitioned by identity\(region\), and the sink says"):
        partitioned(pipeline, "bucket(4, region)")
    with pytest.raises(SpecError, match=r"is sorted by .*, and the sink says sort_by: \[total\]"):
        partitioned(pipeline, "region", sort_by=("total",))


def test_a_batch_after_an_evolution_is_written_once_and_old_rows_stay(catalog: Catalog) -> None:
    add(catalog, Frame([NORTH]), "q1", 0)
    wider = StructType([*SCHEMA.fields]).add("count", IntegerType())
    catalog.prepare("sales.orders", wider)
    assert add(catalog, Frame([{**NORTH, "count": 1}], wider), "q1", 0) == 0, "it is no batch"

    add(catalog, Frame([{**SOUTH, "count": 2}], wider), "q1", 1)
    longer = StructType([*SCHEMA.fields]).add("count", LongType())
    catalog.prepare("sales.orders", longer)
    add(catalog, Frame([{**SOUTH, "count": 2**40}], longer), "q1", 2)
    add(catalog, Frame([{**SOUTH, "count": 3}], wider), "q2", 0)
    without = StructType().add("region", StringType())
    catalog.prepare("sales.orders", without)
    add(catalog, Frame([{"region": "west"}], without), "q1", 3)

    assert [(one["region"], one["count"]) for one in rows(catalog)] == [
        ("north", None),
        ("south", 2**40),
        ("south", 2),
        ("south", 3),
        ("west", None),
    ]
    tasks = catalog.table("sales.orders").scan().plan_files()
    (narrow,) = (task.file.file_path for task in tasks if "/q2-0-" in task.file.file_path)
    types = pq.read_schema(narrow.removeprefix("file://"))
    assert types.field("count").type == pa.int64(), "written as the table has it by now"


def test_a_partitioned_table_follows_its_source_too(pipeline: Pipeline) -> None:
    catalog = partitioned(pipeline, "region")
    add(catalog, Frame([NORTH]), "q1", 0)
    other = StructType().add("total", FloatType()).add("at", TimestampType())
    catalog.prepare("sales.orders", other)

    add(catalog, Frame([{"total": 0.5}], other), "q1", 1)

    assert partitions(catalog) == {"north": 1, None: 1}
    assert [one["total"] for one in rows(catalog)] == [1.5, 0.5]


def test_a_table_that_must_not_evolve_stays_as_it_is(catalog: Catalog) -> None:
    wider = StructType([*SCHEMA.fields]).add("at", TimestampType())

    with pytest.raises(SpecError, match=r"`evolve: false` forbids it: at is new"):
        catalog.prepare("sales.orders", wider, evolve=False)

    assert catalog.table("sales.orders").schema().column_names == ["region", "total"]


def test_a_step_may_add_columns(catalog: Catalog) -> None:
    wider = StructType([*SCHEMA.fields]).add("at", TimestampType())

    catalog.prepare("sales.orders", wider)

    assert catalog.table("sales.orders").schema().column_names == ["region", "total", "at"]


def test_a_column_of_another_type_is_refused(catalog: Catalog) -> None:
    other = StructType().add("region", LongType()).add("total", DoubleType())

    with pytest.raises(SpecError, match=r"table sales.orders has other columns"):
        catalog.prepare("sales.orders", other)


def test_a_table_has_a_namespace(catalog: Catalog) -> None:
    with pytest.raises(SpecError, match=r"a table.s name is NAMESPACE.TABLE, not 'orders'"):
        catalog.prepare("orders", SCHEMA)


def test_a_table_that_is_not_there_is_named(catalog: Catalog) -> None:
    with pytest.raises(SpecError, match=r"there is no table sales.none"):
        catalog.table("sales.none")


def test_a_catalog_elsewhere_is_taken_as_it_is_told(pipeline: Pipeline) -> None:
    told = {"type": "rest", "uri": "http://catalog:8181"}

    assert Catalog.of(pipeline, dict(told)).properties == told


def test_a_warehouse_in_a_store_needs_a_catalog(pipeline: Pipeline) -> None:
    with pytest.raises(SpecError, match=r"say where the catalog is, too: catalog\.uri"):
        Catalog.of(pipeline, {"warehouse": "s3://bucket/tables"})


def test_the_documented_line_reads_the_table_of_a_pipeline(tmp_path):
    (tmp_path / "revenue").mkdir()
    (tmp_path / "revenue" / "pipeline.yaml").write_text(
        "{sources: {a: {topic: a}}, sinks: {out: {from: a, iceberg: sales.revenue}}}"
    )
    catalog = Catalog.of(load(tmp_path / "revenue"), {})
    catalog.prepare("sales.revenue", StructType().add("region", StringType()))
    catalog.table("sales.revenue").append(pa.table({"region": pa.array(["north"], pa.string())}))
    text = (Path(__file__).parents[4] / "docs" / "pipelines.md").read_text()
    (line,) = re.findall(r'python -c "(from pyiceberg[^"]*)"', text)

    ran = subprocess.run([sys.executable, "-c", line], cwd=tmp_path, capture_output=True, text=True)

    assert ran.returncode == 0, ran.stderr
    assert "north" in ran.stdout


def test_who_adds_a_column_while_the_first_batch_is_written_leaves_the_table_readable(
    catalog: Catalog,
) -> None:
    wider = StructType([*SCHEMA.fields]).add("count", LongType())

    class Evolved(Frame):
        def parquet(self, location: str) -> None:
            super().parquet(location)
            catalog.prepare("sales.orders", wider)

    add(catalog, Evolved([NORTH]), "q1", 0)
    add(catalog, Frame([{**SOUTH, "count": 2}], wider), "q2", 0)

    assert rows(catalog) == [{**NORTH, "count": None}, {**SOUTH, "count": 2}]


def test_a_table_is_of_the_layout_that_it_has_whatever_its_partitions_are_called(catalog: Catalog) -> None:
    with catalog.table("sales.orders").update_spec() as update:
        update.add_field("region", BucketTransform(4))  # region_bucket_4
    layout = Layout.parse(["bucket(4, region)"], [])

    catalog.prepare("sales.orders", SCHEMA, layout)

    with pytest.raises(SpecError, match=r"is partitioned by bucket\[4\]\(region\), and the sink"):
        catalog.prepare("sales.orders", SCHEMA, Layout.parse(["bucket(8, region)"], []))


def test_a_sink_of_another_layout_does_not_change_the_table(catalog: Catalog) -> None:
    wider = StructType([*SCHEMA.fields]).add("count", LongType())

    with pytest.raises(SpecError, match="is not partitioned, and the sink says"):
        catalog.prepare("sales.orders", wider, Layout.parse(["region"], []))

    assert catalog.table("sales.orders").schema().column_names == ["region", "total"]


def test_a_batch_that_cannot_be_written_or_committed_leaves_no_files(
    catalog: Catalog, tmp_path: Path
) -> None:
    class Broken(Frame):
        def parquet(self, location: str) -> None:
            super().parquet(location)
            raise ValueError("a task has failed")

    class PartitionedAnew(Frame):
        def parquet(self, location: str) -> None:
            super().parquet(location)
            with catalog.table("sales.orders").update_spec() as update:
                update.add_identity("region")
            add(catalog, Frame([SOUTH]), "q2", 0)

    with pytest.raises(ValueError, match="a task has failed"):
        add(catalog, Broken([NORTH]), "q1", 0)
    with pytest.raises(SpecError, match=r"was partitioned anew .* start the pipeline"):
        add(catalog, PartitionedAnew([NORTH]), "q1", 0)

    assert not list(tmp_path.rglob("q1-0-*"))
    assert add(catalog, Frame([NORTH]), "q1", 0) == 1
    assert rows(catalog) == [NORTH, SOUTH]


def test_a_column_that_was_renamed_is_not_taken_for_one_that_is_empty(catalog: Catalog) -> None:
    add(catalog, Frame([NORTH]), "q1", 0)
    session: Any = None
    with catalog.table("sales.orders").update_schema() as update:
        update.rename_column("region", "place")

    told = r"calls place what file://.*\.parquet calls region, and Spark reads files by the names"
    with pytest.raises(Renamed, match=told):
        catalog.read(session, "sales.orders")
    upserts = UpsertWriter(catalog, "sales.orders", ("place",))
    with pytest.raises(Renamed, match=told):
        upserts._touched(catalog.table("sales.orders"), session)

    with catalog.table("sales.orders").update_schema() as update:
        update.rename_column("place", "region")
    table = catalog.table("sales.orders")
    check_names(table, table.scan().plan_files())


@pytest.mark.parametrize("partition_by", [(), ("region",)])
def test_all_of_a_batch_is_on_its_disk_before_the_catalog_names_it(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, partition_by: tuple[str, ...]
) -> None:
    catalog = partitioned(pipeline, *partition_by)
    synced: set[str] = set()
    before: list[set[str]] = []

    def sync_files(paths: Iterable[str]) -> None:
        synced.update(Path(path).name for path in paths)

    def commit(*told: Any) -> Any:
        before.append({*synced})
        return COMMIT(*told)

    for module in (batches, storage):
        monkeypatch.setattr(module, "sync_files", sync_files)
    monkeypatch.setattr(SqlCatalog, "commit_table", commit)
    add(catalog, Frame([NORTH, SOUTH]), "q1", 0)

    table = catalog.table("sales.orders")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = snapshot.manifests(table.io)
    named = [snapshot.manifest_list, *(one.manifest_path for one in manifests)]
    named += [task.file.file_path for task in table.scan().plan_files()]
    assert {Path(one).name for one in named} <= before[0]
    assert Path(table.metadata_location).name in synced


def test_a_column_that_is_never_null_fits_one_that_must_not_be(catalog: Catalog) -> None:
    with catalog.table("sales.orders").update_schema(allow_incompatible_changes=True) as update:
        update.update_column("region", required=True)

    catalog.prepare("sales.orders", SCHEMA, evolve=False)

    with pytest.raises(SpecError, match="`evolve: false` forbids it: region may be null"):
        catalog.prepare("sales.orders", StructType().add("region", StringType()), evolve=False)
