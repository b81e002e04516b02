"""Streaming queries in a process of their own, to be killed: one topic into others.

    python -m tests.spark.copying '{"bootstrap": ..., "source": ..., "targets": ..., ...}'

Without `once` they run until somebody ends them, or one of them fails. The records of a batch are
cut into tasks by chance, so that a batch that comes again is cut in another way.
"""

import json
import random
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """What the queries are told."""

    bootstrap: str
    source: str
    targets: dict[str, str]
    """Topics, each with the delivery of the sink that writes to it; a query for each."""
    directory: str
    """Of their checkpoints and their log."""
    master: str
    batch_rows: int = 500
    once: bool = False
    starting: dict[str, str] = field(default_factory=dict)
    """Where the query of a target begins if its checkpoint is new; otherwise at the beginning."""

    @property
    def arguments(self) -> list[str]:
        return [sys.executable, "-m", "tests.spark.copying", json.dumps(asdict(self))]

    def checkpoint(self, target: str) -> Path:
        return Path(self.directory) / f"checkpoint-{target}"

    def run(self) -> None:
        directory = Path(self.directory)
        conf = {
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2",
            "spark.executor.cores": "1",
        }
        with spark_session("copying", master=self.master, conf=conf, log=directory / "spark.log") as spark:
            queries = [self._start(spark, target) for target in self.targets]
            if self.once:
                for query in queries:
                    query.awaitTermination()
            else:
                spark.streams.awaitAnyTermination()

    def _start(self, spark: "SparkSession", target: str) -> "StreamingQuery":
        rows = (
            spark.readStream.format("tidelog")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("subscribe", self.source)
            .option("startingOffsets", self.starting.get(target, "earliest"))
            .option("maxOffsetsPerTrigger", str(self.batch_rows))
            .option("minPartitions", str(random.randint(1, 6)))
            .load()
        )
        writer = (
            rows.select("key", "value")
            .writeStream.format("tidelog")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("topic", target)
            .option("delivery", self.targets[target])
            .option("checkpointLocation", str(self.checkpoint(target)))
        )
        if self.once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime="0 seconds").start()


if __name__ == "__main__":
    Copying(**json.loads(sys.argv[1])).run()
