"""What a test writes and reads beside Spark, with a client of its own."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidelog.client.consumer import Consumer
from tidelog.model import Offset, TopicPartition
from tidelog.records import Codec, Record, encode_batch
from tidelog.spark.client_loop import SparkClient, ask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOW_MS: Final = time.time_ns() // 1_000_000
"""When records are from: older ones than a week are taken by retention, sooner or later."""


class Topics:
    """The topics of one cluster."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.options = {"kafka.bootstrap.servers": bootstrap}

    def make(self, topic: str, partitions: int = 1, *, replication: int = -1, **configs: str) -> None:
        """Records that say they are of 1970 stay: a node deletes them else once it has run for a while."""
        settings = {"retention.ms": "-1"} | {name.replace("_", "."): value for name, value in configs.items()}
        ask(
            self.bootstrap,
            lambda client: client.create_topic(
                topic, partitions=partitions, replication=replication, configs=settings
            ),
        )

    def put(
        self, topic: str, records: Sequence[Record], *, partition: int = 0, codec: Codec = Codec.NONE
    ) -> None:
        batch = encode_batch(records, codec=codec)
        ask(self.bootstrap, lambda client: client.produce(topic, partition, batch))

    def records(self, topic: str) -> dict[int, list[Record]]:
        """All committed records, by partition."""

        async def question(client: SparkClient) -> dict[int, list[Record]]:
            client.forget(topic)
            partitions = [one.partition for one in (await client.topic(topic)).partitions]
            starts = await client.list_offsets(topic, dict.fromkeys(partitions, -2))
            ends = await client.list_offsets(topic, dict.fromkeys(partitions, -1), read_committed=True)
            consumer = Consumer(
                client, topic, {at: starts[at].offset for at in partitions}, read_committed=True
            )
            found: dict[int, list[Record]] = {at: [] for at in partitions}
            while any(consumer.positions[at] < ends[at].offset for at in partitions):
                for partition, records in await consumer.poll():
                    found[partition] += records
            return found

        return ask(self.bootstrap, question)

    def values(self, topic: str) -> list[bytes | None]:
        """All committed values, by partition and offset."""
        return [one.value for records in self.records(topic).values() for one in records]

    def group(self, name: str) -> dict[TopicPartition, Offset]:
        offsets = ask(self.bootstrap, lambda client: client.group_offsets(name))
        return {place: committed.offset for place, committed in offsets.items()}

    def read(self, spark: "SparkSession", topic: str, **options: str) -> "DataFrame":
        reader = spark.read.format("tidelog").options(**self.options, subscribe=topic)
        return reader.options(**options).load()

    def stream(self, spark: "SparkSession", topic: str, **options: str) -> "DataFrame":
        reader = spark.readStream.format("tidelog").options(**self.options, subscribe=topic)
        return reader.options(startingOffsets="earliest").options(**options).load()

    def append(self, rows: "DataFrame", topic: str, **options: str) -> None:
        writer = rows.write.format("tidelog").mode("append").options(**self.options, topic=topic)
        writer.options(**options).save()


def values(*texts: str) -> list[Record]:
    """Records, a millisecond after each other."""
    return [Record(value=text.encode(), timestamp_ms=NOW_MS + n) for n, text in enumerate(texts)]
