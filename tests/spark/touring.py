"""A little of everything, on any master.

    python -m tests.spark.touring MASTER BOOTSTRAP DIRECTORY

Prints what was seen, as JSON.
"""

import json
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame

from tidelog.spark.pipelines.iceberg import Catalog, TableWriter
from tidelog.spark.session import spark_session
from tidelog.spark.tables.counting import RowsMissing

ROWS = 1000


def tour(master: str, bootstrap: str, directory: Path) -> dict[str, object]:
    cluster = {"kafka.bootstrap.servers": bootstrap}
    conf = {
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    with spark_session("tour", master=master, conf=conf, log=directory / "spark.log") as spark:
        rows = spark.range(0, ROWS, 1, 4).selectExpr("string(id) key", "string(id) value")
        rows.write.format("tidelog").mode("append").options(**cluster, topic="tour").save()
        read = spark.read.format("tidelog").options(**cluster, subscribe="tour").load()
        stream = (
            spark.readStream.format("tidelog")
            .options(**cluster, subscribe="tour", startingOffsets="earliest", maxOffsetsPerTrigger="400")
            .load()
        )
        query = (
            stream.select("key", "value")
            .writeStream.format("tidelog")
            .options(**cluster, topic="copy", checkpointLocation=str(directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        spark.sql(
            "CREATE TABLE copy USING tidelog "
            f"OPTIONS (`kafka.bootstrap.servers` '{bootstrap}', subscribe 'copy')"
        )
        context = spark.sparkContext
        places = context.parallelize(range(8), 8).map(lambda _: os.getcwd()).distinct().collect()
        return {
            "executors": sorted(places),
            "rows": read.count(),
            "batches": sum(1 for one in query.recentProgress if one.numInputRows),
            "unshared": unshared(rows, directory / "hidden"),
            "copied": spark.sql("SELECT count(DISTINCT key) n FROM copy").collect()[0].n,
        }


def unshared(rows: DataFrame, warehouse: Path) -> str:
    """What is said against a table in a place that each machine has for itself."""
    catalog = Catalog(
        {"type": "sql", "uri": f"sqlite:///{warehouse}/catalog.db", "warehouse": f"file://{warehouse}"}
    )
    catalog.prepare("lost.rows", rows.schema)
    try:
        TableWriter(catalog, "lost.rows").write(rows, "query", 0)
    except RowsMissing as error:
        return str(error)
    return "nothing"


if __name__ == "__main__":
    master, bootstrap, directory = sys.argv[1:]
    print(json.dumps(tour(master, bootstrap, Path(directory))))
