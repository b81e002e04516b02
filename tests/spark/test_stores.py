"""Iceberg tables in an object store: a server with S3's protocol, started here."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from moto.server import ThreadedMotoServer

from tidelog.spark.pipelines.iceberg import Catalog, TableWriter
from tidelog.spark.pipelines.spec import Sink
from tidelog.spark.pipelines.upserts import UpsertWriter, as_changes, row_schema
from tidelog.spark.tables.expiring import Expiry
from tidelog.spark.tables.projecting import read_file
from tidelog.spark.tables.upkeep import Upkeep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def store() -> Iterator[dict[str, str]]:
    """How a store is reached that has one bucket, `lake`."""
    from pyarrow import fs

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    told = {
        "s3.endpoint": f"http://{host}:{port}",
        "s3.access-key-id": "key",
        "s3.secret-access-key": "secret",
        "s3.region": "us-east-1",
    }
    try:
        fs.S3FileSystem(
            access_key="key",
            secret_key="secret",
            region="us-east-1",
            scheme="http",
            endpoint_override=f"{host}:{port}",
            allow_bucket_creation=True,
        ).create_dir("lake")
        yield told
    finally:
        server.stop()


def test_batches_are_written_to_a_store_without_a_jar_and_kept_in_order(
    spark: "SparkSession", store: dict[str, str], tmp_path: Path
) -> None:
    catalog = Catalog(
        {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": "s3://lake/w", **store}
    )
    frame = spark.range(0, 100, 1, 2).selectExpr("id", "string(id) text", "now() at")
    catalog.prepare("shop.rows", frame.schema)
    keeping = Upkeep(expiry=Expiry(snapshots=2, keep_seconds=0))
    writer = TableWriter(catalog, "shop.rows", keeping)
    for batch in range(5):
        assert writer.write(frame, "query", batch) == 100
        assert writer.write(frame, "query", batch) == 0

    table = catalog.table("shop.rows")
    rows = table.scan().to_arrow()
    assert sorted(rows["id"].to_pylist()) == sorted(list(range(100)) * 5)
    assert len(list(table.scan().plan_files())) < 10, "small files were merged"
    assert len(table.snapshots()) < 5


def test_changes_of_keys_are_applied_once_to_a_table_in_a_store(
    spark: "SparkSession", store: dict[str, str], tmp_path: Path
) -> None:
    catalog = Catalog(
        {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": "s3://lake/w", **store}
    )
    sink = Sink(table="people", iceberg="shop.people", upsert=("id",), delete="name IS NULL")

    def changes(columns: str, *rows: tuple[Any, ...]) -> "DataFrame":
        return as_changes(sink, spark.createDataFrame(rows, columns))

    first = changes("id int, name string, _offset long", (1, "ann", 0), (2, "bob", 1), (3, "e%/v é", 2))
    more = changes(
        "id long, name string, _offset long, at timestamp, tags array<struct<t: string>>",
        (1, "anna", 3, datetime(2026, 1, 1, tzinfo=UTC), [("x",)]),
        (2, None, 4, None, None),
        (None, "no key", 5, None, None),
        (2**40, "dan", 6, None, []),
    )
    writer = UpsertWriter(catalog, "shop.people", ("id",))
    for batch, frame in enumerate((first, more)):
        catalog.prepare("shop.people", row_schema(frame))
        assert writer.write(frame, "query", batch) > 0
        assert writer.write(frame, "query", batch) == 0
    last = changes("id long, name string, _offset long", (None, "a null key", 7), (3, None, 8))
    writer.write(last, "query", 2)

    table = catalog.table("shop.people")  # pyiceberg itself would read null lists as empty ones
    rows = [
        row for task in table.scan().plan_files() for one in read_file(table, task) for row in one.to_pylist()
    ]
    assert sorted((one["name"], one["id"], one["tags"]) for one in rows) == [
        ("a null key", None, None),
        ("anna", 1, [{"t": "x"}]),
        ("dan", 2**40, []),
    ]
