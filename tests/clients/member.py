"""A member of a consumer group in a process of its own, so that it can be killed.

Prints a JSON line for every assignment, with its generation where the library tells it, and for
every batch of values, after their offsets were committed; stops cleanly on SIGTERM.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterable
from typing import Any

SESSION_TIMEOUT_MS = 6000
RESTART_TIMEOUT_MS = 30_000
"""Of static members, whose next process may be slow to start."""


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


class Stop:
    """Set by SIGTERM."""

    def __init__(self) -> None:
        self.is_set = False
        signal.signal(signal.SIGTERM, self._set)

    def _set(self, *_: object) -> None:
        self.is_set = True


def session_timeout_ms(options: argparse.Namespace) -> int:
    return RESTART_TIMEOUT_MS if options.instance else SESSION_TIMEOUT_MS


def say_values(values: Iterable[bytes | None]) -> None:
    say(values=[(value or b"").decode() for value in values])


def run_confluent(options: argparse.Namespace, stop: Stop) -> None:
    from confluent_kafka import Consumer, KafkaException

    config: dict[str, Any] = {
        "bootstrap.servers": options.bootstrap,
        "group.id": options.group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": session_timeout_ms(options),
        "heartbeat.interval.ms": 300,
        "partition.assignment.strategy": "cooperative-sticky",
        "log_level": 0,
    }
    if options.instance:
        config["group.instance.id"] = options.instance
    consumer = Consumer(config)

    def say_assigned() -> None:
        # metadata := "CGMDv2:", generation: int32 (of this machine), ...
        metadata = bytes(consumer.consumer_group_metadata())
        generation = int.from_bytes(metadata[7:11], sys.byteorder, signed=True)
        say(assigned=sorted(p.partition for p in consumer.assignment()), generation=generation)

    def assigned(_: Any, partitions: list[Any]) -> None:
        consumer.incremental_assign(partitions)
        say_assigned()

    def revoked(_: Any, partitions: list[Any]) -> None:
        consumer.incremental_unassign(partitions)
        say_assigned()

    consumer.subscribe([options.topic], on_assign=assigned, on_revoke=revoked)
    values: list[bytes | None] = []
    while not stop.is_set:
        values += [m.value() for m in consumer.consume(100, 0.1) if m.error() is None]
        if values:
            with contextlib.suppress(KafkaException):  # committed and said with the next
                consumer.commit(asynchronous=False)
                say_values(values)
                values = []
    consumer.close()


def run_kafka_python(options: argparse.Namespace, stop: Stop) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.errors import KafkaError

    extra = {"group_instance_id": options.instance} if options.instance else {}
    consumer = KafkaConsumer(
        bootstrap_servers=options.bootstrap,
        group_id=options.group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=session_timeout_ms(options),
        heartbeat_interval_ms=300,
        **extra,
    )

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        def on_partitions_assigned(self, assigned: Any) -> None:
            generation = consumer.group_metadata().generation_id
            say(assigned=sorted(p.partition for p in assigned), generation=generation)

    consumer.subscribe([options.topic], listener=Listener())
    # A leader that hears of the partitions only after it has joined joins again; if a poll ends in
    # the middle of that, kafka-python 3.0 forgets it, and has nothing and is silent for ever.
    while not consumer.partitions_for_topic(options.topic):
        pass
    values: list[bytes | None] = []
    while not stop.is_set:
        found = consumer.poll(timeout_ms=100, max_records=100)
        values += [record.value for records in found.values() for record in records]
        if values:
            with contextlib.suppress(KafkaError):
                consumer.commit()
                say_values(values)
                values = []
    consumer.close()


def run_aiokafka(options: argparse.Namespace, stop: Stop) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.errors import KafkaError

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        async def on_partitions_assigned(self, assigned: Any) -> None:
            say(assigned=sorted(p.partition for p in assigned))

    async def main() -> None:
        extra = {"group_instance_id": options.instance} if options.instance else {}
        consumer = AIOKafkaConsumer(
            bootstrap_servers=options.bootstrap,
            group_id=options.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=session_timeout_ms(options),
            heartbeat_interval_ms=300,
            **extra,
        )
        consumer.subscribe([options.topic], listener=Listener())
        await consumer.start()
        values: list[bytes | None] = []
        while not stop.is_set:
            found = await consumer.getmany(timeout_ms=100, max_records=100)
            values += [record.value for records in found.values() for record in records]
            if values:
                with contextlib.suppress(KafkaError):
                    await consumer.commit()
                    say_values(values)
                    values = []
        await consumer.stop()

    asyncio.run(main())


LIBRARIES: dict[str, Callable[[argparse.Namespace, Stop], None]] = {
    "confluent": run_confluent,
    "kafka-python": run_kafka_python,
    "aiokafka": run_aiokafka,
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("bootstrap")
    parser.add_argument("group")
    parser.add_argument("topic")
    parser.add_argument("--instance")
    options = parser.parse_args()
    LIBRARIES[options.library](options, Stop())
    return 0


if __name__ == "__main__":
    sys.exit(main())
