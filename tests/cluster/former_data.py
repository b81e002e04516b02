"""A data directory that an earlier version wrote, and what any later version must find in it.

    python -m tests.cluster.former_data CHECKOUT ARCHIVE

runs a node of the code in CHECKOUT, writes a little of everything, kills the node, and packs its directory.
Do that for each version that is released, and keep the archive in `tests/cluster/former/`: it is written
once, and read by every version after it.

Rule: `write` and `check` are clients. They open no file of the node.
"""

import os
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.support.node import NodeProcess
from tidelog.client import Client

PLAIN, PAID, BUCKET, QUEUE, ROOM, GROUP = "visits", "payments", "settings", "mails", "lobby", "counters"
PARTITIONS: Final = 3
CODECS: Final = ("none", "gzip", "lz4", "snappy", "zstd")
RECORDS: Final = 40
"""Of each codec, and of each transaction."""
KEYS: Final = 50
MESSAGES: Final = 10
DONE: Final = 4
"""Messages that were acknowledged."""
EVENTS: Final = 3
WAIT_SECONDS_MAX: Final = 30.0
SETTINGS: Final = {"offsets.topic.num.partitions": 2, "transaction.state.log.num.partitions": 2}


def write(node: NodeProcess) -> None:
    """A little of everything that a version can write."""
    at: dict[str, str | int | float | bool] = {"bootstrap.servers": node.bootstrap}
    admin = AdminClient(at)
    for wanted in (NewTopic(PLAIN, PARTITIONS), NewTopic(PAID, 1)):
        admin.create_topics([wanted])[wanted.topic].result(WAIT_SECONDS_MAX)
    for codec in CODECS:
        producer = Producer({**at, "enable.idempotence": True, "compression.type": codec})
        for number in range(RECORDS):
            producer.produce(
                PLAIN,
                key=b"%d" % number,
                value=b"%s %d" % (codec.encode(), number),
                partition=number % PARTITIONS,
                headers={"codec": codec},
            )
        assert producer.flush(WAIT_SECONDS_MAX) == 0
    pay(node, "former", commit=True)
    pay(node, "taken back", commit=False)
    pay(node, "former", commit=True)
    committed = [TopicPartition(PLAIN, partition, 5 + partition) for partition in range(PARTITIONS)]
    request = ConsumerGroupTopicPartitions(GROUP, committed)
    admin.alter_consumer_group_offsets([request])[GROUP].result(WAIT_SECONDS_MAX)
    with Client(f"http://{node.http}") as client:
        bucket = client.kv(BUCKET)
        bucket.create()
        for version in (1, 2):
            for number in range(KEYS):
                bucket.put(f"key {number}", {"version": version})
        for number in range(0, KEYS, 5):
            bucket.delete(f"key {number}")
        queue = client.queue(QUEUE)
        queue.declare(visibility=600, max_deliveries=3)
        for number in range(MESSAGES):
            queue.publish({"to": number}, attributes={"kind": "welcome"})
        for message in queue.receive(max=DONE):
            message.ack()
        for number in range(EVENTS):
            client.room(ROOM).publish({"who": number}, event="joined")


def pay(node: NodeProcess, who: str, *, commit: bool) -> None:
    """One transaction of `RECORDS` records."""
    producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": who})
    producer.init_transactions(WAIT_SECONDS_MAX)
    producer.begin_transaction()
    for number in range(RECORDS):
        producer.produce(PAID, value=f"{who} {number}".encode())
    producer.flush(WAIT_SECONDS_MAX)
    if commit:
        producer.commit_transaction(WAIT_SECONDS_MAX)
    else:
        producer.abort_transaction(WAIT_SECONDS_MAX)


def check(node: NodeProcess) -> None:
    """All that `write` wrote is there, and nothing else."""
    plain = [
        (b"%d" % number, b"%s %d" % (codec.encode(), number), [("codec", codec.encode())])
        for codec in CODECS
        for number in range(RECORDS)
    ]
    found = read(node, PLAIN, PARTITIONS)
    assert sorted((one.key(), one.value(), one.headers()) for one in found) == sorted(plain)
    paid = [f"former {number}".encode() for number in range(RECORDS)]
    assert [one.value() for one in read(node, PAID, 1)] == paid + paid
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    committed = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP)])
    offsets = committed[GROUP].result(WAIT_SECONDS_MAX).topic_partitions
    assert {one.partition: one.offset for one in offsets} == {0: 5, 1: 6, 2: 7}
    with Client(f"http://{node.http}") as client:
        entries = {entry.key: entry.value for entry in client.kv(BUCKET).scan()}
        assert entries == {f"key {n}": {"version": 2} for n in range(KEYS) if n % 5}
        held = client.queue(QUEUE).describe()
        assert (held["depth"], held["dead"]) == (MESSAGES - DONE, 0)
        events = client.topic(f"room.{ROOM}").read(0, 0)
        assert len(events.records) == EVENTS


def read(node: NodeProcess, topic: str, partitions: int) -> list[Any]:
    """All committed records of a topic, partition by partition."""
    settings = {"group.id": "reader", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": node.bootstrap, **settings})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found: list[Any] = []
    ended = 0
    while ended < partitions:
        message = consumer.poll(WAIT_SECONDS_MAX)
        assert message is not None, f"{topic} was not read to its end in {WAIT_SECONDS_MAX} s"
        error = message.error()
        if error is None:
            found.append(message)
        else:
            assert error.name() == "_PARTITION_EOF", error
            ended += 1
    consumer.close()
    return found


def pack(checkout: Path, archive: Path) -> None:
    """Write with the code of that checkout, and keep the directory as the killed node left it.

    The reserve is left out: 4 MiB of noise, and a start makes it where it is missing.
    """
    os.environ |= {"PYTHONPATH": str(checkout.absolute()), "PYTHONSAFEPATH": "1"}
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "data"
        with NodeProcess(data, dict(SETTINGS)) as node:
            write(node)
            check(node)
            node.kill()
        with tarfile.open(archive, "w:xz") as packed:
            packed.add(data, "data", filter=lambda one: None if one.name.endswith("/.reserve") else one)


if __name__ == "__main__":
    pack(Path(sys.argv[1]), Path(sys.argv[2]))
