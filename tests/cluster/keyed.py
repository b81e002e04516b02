"""A producer of keyed records, and what a compacted topic must still hold of them."""

from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaError, Message

from tests.cluster.load import Load
from tidelog.client.consumer import Consumer
from tidelog.client.kafka import EARLIEST, LATEST, KafkaClient
from tidelog.records import Record

HOT_KEYS: Final = 20
COLD_KEYS: Final = 600
TOMBSTONE_EVERY: Final = 31

Promises = dict[bytes, tuple[int, int]]
"""By key, where the newest acknowledged record lies and which one it is: (offset, number)."""


class KeyedLoad(Load):
    """Half of the records go to a few keys, and give compaction its work. The others go to many,
    and stay long enough that a lost one is missed before it is written anew.

    A key is always in the same partition. Now and then its value is a tombstone.
    """

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)  # type: ignore[arg-type]
        self._latest: Promises = {}

    def _key_number(self, number: int) -> int:
        half, is_hot = divmod(number, 2)
        return half * 7919 % HOT_KEYS if is_hot else HOT_KEYS + half * 7919 % COLD_KEYS

    def partition(self, number: int) -> int:
        return self._key_number(number) % self._partitions

    def key(self, number: int) -> bytes:
        return b"key-%d" % self._key_number(number)

    def value(self, number: int) -> bytes | None:
        return super().value(number) if number % TOMBSTONE_EVERY else None

    def _delivered(self, number: int, error: KafkaError | None, message: Message) -> None:
        super()._delivered(number, error, message)
        offset = message.offset()
        if error is None and offset is not None:
            with self._changed:
                self._latest[self.key(number)] = (offset, number)

    def promises(self) -> Promises:
        """What is promised now; more may be by the time it is checked."""
        with self._changed:
            return dict(self._latest)


async def read_log(client: KafkaClient, topic: str, partitions: int) -> dict[int, list[Record]]:
    """Every record of every partition, whatever compaction has left."""
    everyone = range(partitions)
    starts = await client.list_offsets(topic, dict.fromkeys(everyone, EARLIEST))
    ends = await client.list_offsets(topic, dict.fromkeys(everyone, LATEST))
    consumer = Consumer(client, topic, {p: start.offset for p, start in starts.items()})
    found: dict[int, list[Record]] = {p: [] for p in everyone}
    while any(consumer.positions[p] < ends[p].offset for p in everyone):
        for partition, records in await consumer.poll():
            found[partition] += records
    return found


def check_promises(load: KeyedLoad, promised: Promises, found: Mapping[int, list[Record]]) -> None:
    """Of every key the newest record that was acknowledged is there, or a newer one."""
    newest: dict[bytes, Record] = {}
    for partition, records in found.items():
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets)), f"partition {partition} is out of order"
        newest |= {record.key: record for record in records if record.key is not None}
    for key, (offset, number) in promised.items():
        record = newest.get(key)
        assert record is not None, f"{key!r} is gone; record {number} was promised at {offset}"
        assert record.offset >= offset, (
            f"{key!r} went back from record {number} at {offset} to what was at {record.offset}"
        )
        if record.offset == offset:
            assert record.value == load.value(number), f"{key!r} has another value at {offset}"


def check_compacted(load: KeyedLoad, found: Mapping[int, list[Record]]) -> int:
    """The load has stopped: what is left is what was acknowledged there, the newest included."""
    check_promises(load, load.promises(), found)
    for partition, records in found.items():
        acknowledged = dict(load.acknowledged[partition])
        for record in records:
            number = acknowledged.get(record.offset)
            assert number is not None, f"{record} at {partition} was never acknowledged"
            assert (record.key, record.value) == (load.key(number), load.value(number))
    return sum(map(len, found.values()))
