"""A streaming query in a process of its own, to be killed: one topic into another.

    python -m tests.spark.copying '{"bootstrap": ..., "source": ..., "target": ..., ...}'

Without `once` it runs until somebody ends it. The records of a batch are cut into tasks by chance,
so that a batch that comes again is cut in another way.
"""

import json
import random
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from tidelog.spark.session import spark_session


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """What the query is told."""

    bootstrap: str
    source: str
    target: str
    directory: str
    """Of its checkpoint and its log."""
    master: str
    delivery: str = "exactly-once"
    batch_rows: int = 500
    once: bool = False

    @property
    def arguments(self) -> list[str]:
        return [sys.executable, "-m", "tests.spark.copying", json.dumps(asdict(self))]

    def run(self) -> None:
        directory = Path(self.directory)
        conf = {
            "spark.driver.memory": "512m", "spark.executor.memory": "512m",
            "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2", "spark.executor.cores": "1",
        }  # fmt: skip
        with spark_session("copying", master=self.master, conf=conf,
                           log=directory / "spark.log") as spark:  # fmt: skip
            rows = (
                spark.readStream.format("tidelog")
                .option("kafka.bootstrap.servers", self.bootstrap)
                .option("subscribe", self.source)
                .option("startingOffsets", "earliest")
                .option("maxOffsetsPerTrigger", str(self.batch_rows))
                .option("minPartitions", str(random.randint(1, 6)))
                .load()
            )
            writer = (
                rows.select("key", "value")
                .writeStream.format("tidelog")
                .option("kafka.bootstrap.servers", self.bootstrap)
                .option("topic", self.target)
                .option("delivery", self.delivery)
                .option("checkpointLocation", str(directory / "checkpoint"))
            )
            trigger = {"availableNow": True} if self.once else {"processingTime": "0 seconds"}
            writer.trigger(**trigger).start().awaitTermination()


if __name__ == "__main__":
    Copying(**json.loads(sys.argv[1])).run()
