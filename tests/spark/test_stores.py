"""Iceberg tables in an object store: a server with S3's protocol, started here."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from moto.server import ThreadedMotoServer

from tidelog.spark.pipelines.iceberg import Catalog, TableWriter
from tidelog.spark.tables.expiring import Expiry
from tidelog.spark.tables.upkeep import Upkeep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def store() -> Iterator[dict[str, str]]:
    """How a store is reached that has one bucket, `lake`."""
    from pyarrow import fs

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    told = {
        "s3.endpoint": f"http://{host}:{port}", "s3.access-key-id": "key",
        "s3.secret-access-key": "secret", "s3.region": "us-east-1",
    }  # fmt: skip
    try:
        fs.S3FileSystem(
            access_key="key", secret_key="secret", region="us-east-1", scheme="http",
            endpoint_override=f"{host}:{port}", allow_bucket_creation=True,
        ).create_dir("lake")  # fmt: skip
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
