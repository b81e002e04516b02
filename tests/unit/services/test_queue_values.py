"""What messages say: batches are gone through once, old ones are read ahead, damage is not kept."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.errors import OutcomeUnknown, StorageError
from tidelog.log.reading import ColdRead, Read
from tidelog.records import Record, encode_batch, iterate_batches, stamp
from tidelog.services import queue_values
from tidelog.services.queue_values import Values


def batch_of(base, *values):
    batch = encode_batch([Record(key=b"k", value=value) for value in values])
    stamp(batch, base, 0)
    return bytes(batch)


ROTTEN = batch_of(10, b"a", b"b")
"""What the disk does not give back as it was written."""


@dataclass(frozen=True)
class FromFile(ColdRead):
    batches: list[bytes] = field(default_factory=list)

    def perform_checked(self, disk, *, has_gaps):
        assert self.bytes_max == queue_values.READ_BYTES
        if self.batches[0] is ROTTEN:
            raise StorageError("the checksum differs")
        return b"".join(self.batches)


class Log:
    """Some batches, in memory or in a file."""

    def __init__(self, *batches, is_cold=False):
        self.batches = list(batches)
        self.is_cold = is_cold
        self.reads = 0
        self.end = 1000

    def read(self, offset, bytes_max, limit):
        self.reads += 1
        found = [
            one for one in self.batches for header, _ in iterate_batches(one) if header.next_offset > offset
        ]
        if self.is_cold:
            return Read((), 0, limit, FromFile((), offset, bytes_max, limit, True, found))
        return Read(found[:1], len(found[0]), limit)


class Offload:
    async def run(self, work):
        return work()


def read(values, log, *offsets):
    found = asyncio.run(values.at(partition_of(log), offsets))
    return {offset: record.value for offset, record in found.items()}


def partition_of(log, *, is_copy=True) -> Any:
    return SimpleNamespace(name="__queues-0", log=log, read=log.read, is_copy=is_copy, has_gaps=True)


class Feeding:
    def __init__(self):
        self.suspected = []

    def on_suspect(self, partition, offset):
        self.suspected.append(offset)


@pytest.fixture
def feeding():
    return Feeding()


@pytest.fixture
def values(feeding):
    host = SimpleNamespace(offload=Offload(), disk=None)
    broker: Any = SimpleNamespace(host=host, replication=SimpleNamespace(feeding=feeding))
    return Values(broker)


def test_who_receives_messages_one_by_one_goes_through_their_batch_once(values):
    log = Log(batch_of(10, b"a", b"b", b"c"), batch_of(13, b"d"))

    found = [read(values, log, offset) for offset in (10, 12, 11, 13)]

    assert found == [{10: b"a"}, {12: b"c"}, {11: b"b"}, {13: b"d"}]
    assert log.reads == 2  # of each batch


def test_what_is_old_is_read_ahead(values):
    log = Log(*(batch_of(base, b"%d" % base) for base in range(20)), is_cold=True)

    found = [read(values, log, offset) for offset in range(20)]

    assert found == [{offset: b"%d" % offset} for offset in range(20)]
    assert log.reads == 1


def test_what_is_damaged_is_read_again_by_who_asks_again(values):
    whole = batch_of(10, b"a", b"b")
    log = Log(whole[:-1] + b"?")

    with pytest.raises(OutcomeUnknown, match="cannot be read now"):
        read(values, log, 10)
    log.batches = [whole]

    assert read(values, log, 10, 11) == {10: b"a", 11: b"b"}


def test_what_is_damaged_is_told_to_whoever_heals_it(values, feeding):
    whole = batch_of(10, b"a", b"b")

    for log in (Log(whole[:-1] + b"?"), Log(ROTTEN, is_cold=True)):
        with pytest.raises(OutcomeUnknown, match="cannot be read now"):
            read(values, log, 11)

    assert feeding.suspected == [11, 11]


def test_a_sole_replica_is_suspected_by_nobody(values, feeding):
    partition = partition_of(Log(ROTTEN, is_cold=True), is_copy=False)

    with pytest.raises(OutcomeUnknown):
        asyncio.run(values.at(partition, [11]))

    assert feeding.suspected == []


def test_what_compaction_took_is_left_out(values):
    log = Log(batch_of(10, b"a"))
    log.batches.append(batch_of(12, b"c"))

    assert read(values, log, 10, 12) == {10: b"a", 12: b"c"}
    assert read(values, Log(batch_of(12, b"c"), is_cold=True), 11, 12) == {12: b"c"}


def test_no_more_stays_open_than_fits(values, monkeypatch):
    monkeypatch.setattr(queue_values, "KEPT_BYTES_MAX", 1)
    log = Log(batch_of(10, b"a", b"b"), batch_of(12, b"c", b"d"))

    assert read(values, log, 10, 12, 11) == {10: b"a", 12: b"c", 11: b"b"}
    assert log.reads == 3
