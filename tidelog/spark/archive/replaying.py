"""From a topic into another: what is there now, or for good, changed on the way.

Rule 1: a replay is a stream of Spark, whose checkpoint says how far it is. The same command with
        the same checkpoint goes on there, exactly once.
Rule 2: a row stays in its partition and keeps its time and headers, unless a change says otherwise.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.errors import ConfigError
from tidelog.spark.archive.changing import NO_CHANGE, Change
from tidelog.spark.archive.logs import look_at, look_at_or_make
from tidelog.spark.archive.tasks import blaming_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What is replayed, and how."""

    source: str
    target: str
    checkpoint: str
    from_ms: int | None = None
    warehouse: str | None = None
    """Of an archive that has the older records."""
    catalog: str | None = None
    change: Change = NO_CHANGE
    by_key: bool = False
    """Let keys choose the partitions anew."""
    batch_rows_max: int = 2_000_000
    codec: str = "none"

    def __post_init__(self) -> None:
        if self.source == self.target:
            raise ConfigError(f"{self.source!r} cannot be replayed into itself; name another topic")

    def read_options(self, bootstrap: str) -> dict[str, str]:
        options = {
            "kafka.bootstrap.servers": bootstrap,
            "subscribe": self.source,
            "includeHeaders": "true",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(self.batch_rows_max),
        }
        if self.from_ms is not None:
            options["startingTimestamp"] = str(self.from_ms)
            options["startingOffsetsByTimestampStrategy"] = "latest"
        if self.warehouse is not None:
            options |= {"history": "archive", "archive.warehouse": self.warehouse}
        if self.catalog is not None:
            options["archive.catalog"] = self.catalog
        return options


def start(spark: "SparkSession", bootstrap: str, replay: Replay, *, for_good: bool) -> "StreamingQuery":
    """Begin, or go on; the query ends by itself unless it runs for good."""
    prepare(bootstrap, replay)
    with blaming_spark(f"replaying {replay.source}"):
        rows = spark.readStream.format("tidelog").options(**replay.read_options(bootstrap)).load()
        changed = replay.change.apply(rows)
        if replay.by_key and "partition" in changed.columns:
            changed = changed.drop("partition")
        writer = changed.writeStream.format("tidelog").options(
            **{
                "kafka.bootstrap.servers": bootstrap,
                "topic": replay.target,
                "includeTimestamp": "true",
                "checkpointLocation": replay.checkpoint,
                "kafka.compression.type": replay.codec,
            }
        )
        writer = writer.queryName(f"replay {replay.source}")
        if for_good:
            return writer.trigger(processingTime="0 seconds").start()
        return writer.trigger(availableNow=True).start()


def prepare(bootstrap: str, replay: Replay) -> None:
    """Have a target with enough partitions."""
    partitions = len(look_at(bootstrap, replay.source).spans)
    there = len(look_at_or_make(bootstrap, replay.target, partitions).spans)
    if there < partitions and not (replay.by_key or replay.change):
        raise ConfigError(
            f"{replay.target!r} has {there} partitions and {replay.source!r} has {partitions}; add "
            f"--by-key to let keys choose, or `tidelog topics alter {replay.target} --partitions "
            f"{partitions}`"
        )
