"""Reads inputs and writes outputs, in transactions: a program of its own, so that it can be killed.

Rule 1: what goes wrong ends it, and so does what takes too long: kafka-python 3.0 and librdkafka
        2.16 forget what they were about to send when a coordinator goes away. Whoever started it
        starts another one with the same id, which goes on where the last transaction that was
        committed has ended.
Rule 2: an output names its input: topic/partition/offset.
Rule 3: where the library says in which generation a member of the group it is, members share a
        topic. Where it does not, the inputs are its own: only its id keeps its predecessors away.
"""

import argparse
import asyncio
import faulthandler
import sys
import time
from typing import Any, Final

BATCH_MAX: Final = 50
POLL_SECONDS: Final = 0.2
DECIDE_SECONDS_MAX: Final = 10.0
STEP_SECONDS_MAX: Final = 15.0
ABANDONED: Final = b"abandoned"


def output(topic: str | None, partition: int | None, offset: int | None) -> bytes:
    return f"{topic}/{partition}/{offset}".encode()


def going_on() -> None:
    """This is said before each step; the program ends if it is not said again in time."""
    faulthandler.dump_traceback_later(STEP_SECONDS_MAX, exit=True)


def run_confluent(options: argparse.Namespace) -> None:
    from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

    common = {"bootstrap.servers": options.bootstrap, "log_level": 0, "retry.backoff.ms": 50}
    producer = Producer(
        {
            **common,
            "transactional.id": options.id,
            "transaction.timeout.ms": options.timeout_ms,
            "linger.ms": 0,
        }
    )
    consumer = Consumer(
        {
            **common,
            "group.id": options.group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "partition.assignment.strategy": "range",
            "session.timeout.ms": options.session_ms,
            "heartbeat.interval.ms": 300,
        }
    )
    messages: list[Message] = []
    producer.init_transactions(DECIDE_SECONDS_MAX)
    # With callbacks of ours it joins no further generation while a batch of this one is worked on.
    consumer.subscribe(
        [options.input], on_assign=lambda *_: messages.clear(), on_revoke=lambda *_: messages.clear()
    )
    while True:
        going_on()
        messages.clear()
        until = time.monotonic() + POLL_SECONDS
        while len(messages) < BATCH_MAX and (left := until - time.monotonic()) > 0:
            message = consumer.poll(left)
            error = None if message is None else message.error()
            if error is not None and error.fatal():
                raise KafkaException(error)
            if message is not None and error is None:
                messages.append(message)
        if not messages:
            continue
        producer.begin_transaction()
        ends: dict[int, int] = {}
        for message in messages:
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            value = output(message.topic(), partition, offset)
            producer.produce(options.output, value, partition=offset % options.partitions)
            ends[partition] = offset + 1
        producer.send_offsets_to_transaction(
            [TopicPartition(options.input, partition, end) for partition, end in ends.items()],
            consumer.consumer_group_metadata(),
            DECIDE_SECONDS_MAX,
        )
        producer.commit_transaction(DECIDE_SECONDS_MAX)


def run_kafka_python(options: argparse.Namespace) -> None:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.structs import OffsetAndMetadata

    common = {"bootstrap_servers": options.bootstrap.split(","), "retry_backoff_ms": 50}
    producer = KafkaProducer(**common, transactional_id=options.id, transaction_timeout_ms=options.timeout_ms)
    consumer = KafkaConsumer(
        **common,
        group_id=options.group,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        partition_assignment_strategy=(RangePartitionAssignor,),
        session_timeout_ms=options.session_ms,
        heartbeat_interval_ms=300,
    )
    producer.init_transactions()
    consumer.subscribe([options.input])
    while True:
        going_on()
        polled = consumer.poll(timeout_ms=int(POLL_SECONDS * 1000), max_records=BATCH_MAX)
        if not polled:
            continue
        membership = consumer.group_metadata()
        producer.begin_transaction()
        ends: dict[Any, Any] = {}
        for place, records in polled.items():
            for record in records:
                value = output(place.topic, place.partition, record.offset)
                number = record.offset % options.partitions
                producer.send(options.output, value=value, partition=number)
            end = records[-1].offset + 1
            ends[TopicPartition(*place)] = OffsetAndMetadata(end, "", -1)
        producer.send_offsets_to_transaction(ends, membership)
        producer.commit_transaction()


async def run_aiokafka(options: argparse.Namespace) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    common = {"bootstrap_servers": options.bootstrap.split(","), "retry_backoff_ms": 50}
    producer = AIOKafkaProducer(
        **common, transactional_id=options.id, transaction_timeout_ms=options.timeout_ms
    )
    consumer = AIOKafkaConsumer(
        **common,
        group_id=options.group,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await producer.start()
    await producer.begin_transaction()  # its predecessor is fenced from here on
    await producer.abort_transaction()
    consumer.assign([TopicPartition(options.input, n) for n in range(options.input_partitions)])
    await consumer.start()
    while True:
        going_on()
        polled = await consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000), max_records=BATCH_MAX)
        if not polled:
            continue
        async with producer.transaction():
            for place, records in polled.items():
                for record in records:
                    value = output(place.topic, place.partition, record.offset)
                    number = record.offset % options.partitions
                    await producer.send(options.output, value, partition=number)
            ends = {place: records[-1].offset + 1 for place, records in polled.items()}
            await producer.send_offsets_to_transaction(ends, options.group)


def run_abandoning(options: argparse.Namespace) -> None:
    """Write what nobody will ever decide, and wait for the end."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": options.bootstrap,
            "transactional.id": options.id,
            "transaction.timeout.ms": options.timeout_ms,
            "log_level": 0,
        }
    )
    producer.init_transactions(DECIDE_SECONDS_MAX)
    producer.begin_transaction()
    for partition in range(options.partitions):
        producer.produce(options.output, ABANDONED, partition=partition)
    while len(producer):
        producer.poll(0.05)
    print("written", flush=True)
    faulthandler.cancel_dump_traceback_later()
    time.sleep(3600)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=["confluent", "kafka-python", "aiokafka", "abandoning"])
    for name in ("--bootstrap", "--id", "--group", "--input", "--output"):
        parser.add_argument(name, required=True)
    for name in ("--partitions", "--input-partitions", "--timeout-ms", "--session-ms"):
        parser.add_argument(name, type=int, required=True)
    options = parser.parse_args()
    going_on()
    match options.library:
        case "confluent":
            run_confluent(options)
        case "kafka-python":
            run_kafka_python(options)
        case "aiokafka":
            asyncio.run(run_aiokafka(options))
        case "abandoning":
            run_abandoning(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
