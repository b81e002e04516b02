"""A log on a simulated disk, driven by hand: what the rounds do, one call at a time."""

import random
from typing import Any

from tidelog.config import TopicConfig
from tidelog.host import Path
from tidelog.log.log import Log, LogState
from tidelog.log.reading import ColdRead, Read
from tidelog.log.recovery import open_log
from tidelog.log.steps import DiskFull, Written
from tidelog.log.tail import TailBudget
from tidelog.model import Offset
from tidelog.records import Record, encode_batch, iterate_batches, read_header, stamp
from tidelog.simulation.disk import SimulatedDisk

DIRECTORY = Path("/data/tide-0")
MIB = 1024 * 1024


def new_disk(seed: int = 0, **options: Any) -> SimulatedDisk:
    disk = SimulatedDisk(random.Random(seed), **options)
    disk.make_directory(DIRECTORY)
    disk.sync_everything(DIRECTORY)
    return disk


def make_batch(count: int = 1, *, size: int = 10, time_ms: int = 1000, **fields: Any) -> bytearray:
    """A batch of `count` records with values of `size` bytes, as a producer sends it."""
    records = [Record(value=b"v" * size, timestamp_ms=time_ms) for _ in range(count)]
    return encode_batch(records, **fields)


class Rig:
    """A log, and the hands that carry its steps to the disk."""

    def __init__(
        self,
        disk: SimulatedDisk | None = None,
        *,
        state: LogState | None = None,
        tail_bytes: int = MIB,
        **config: Any,
    ) -> None:
        self.disk = disk if disk is not None else new_disk()
        self.config = TopicConfig(**config)
        self.budget = TailBudget(tail_bytes)
        self.log = Log(DIRECTORY, self.config, self.budget, state or self.open())

    def open(
        self,
        *,
        clean: bool = False,
        durable_mark: Offset = 0,
        start: Offset = 0,
        watermark: Offset | None = None,
    ) -> LogState:
        return open_log(
            self.disk,
            DIRECTORY,
            clean=clean,
            durable_mark=durable_mark,
            start=start,
            index_interval_bytes=self.config.index_interval_bytes,
            watermark=watermark,
        )

    def reopened(self, **how: Any) -> "Rig":
        """The log as another process finds it."""
        rig = Rig.__new__(Rig)
        rig.disk, rig.config, rig.budget = self.disk, self.config, TailBudget(MIB)
        rig.log = Log(DIRECTORY, self.config, rig.budget, rig.open(**how))
        return rig

    def append(self, count: int = 1, *, epoch: int = 0, **fields: Any) -> bytes:
        """Append one batch in memory; its bytes as they are in the log."""
        batch = make_batch(count, **fields)
        offset = self.log.end
        stamp(batch, offset, epoch)
        self.log.append(bytes(batch), read_header(batch), offset, epoch)
        return bytes(batch)

    def write(self) -> Written | DiskFull | None:
        """Perform the steps so far, as the write lane does."""
        job = self.log.take_writes()
        if job is None:
            return None
        outcome = job.perform(self.disk)
        self.log.wrote(job, outcome.end)
        return outcome

    def sync(self) -> None:
        """Make what was written durable, as the sync lane does."""
        targets, end = self.log.begin_sync()
        for target in targets:
            if isinstance(target, Path):
                self.disk.sync_directory(target)
            else:
                target.datasync()
        self.log.synced(end)

    def store(self, count: int = 1, **fields: Any) -> bytes:
        """Append, write and sync one batch."""
        batch = self.append(count, **fields)
        self.write()
        self.sync()
        return batch

    def read(self, offset: Offset, bytes_max: int = MIB, limit: Offset | None = None) -> bytes:
        return joined(self.disk, self.log.read(offset, bytes_max, limit or self.log.end))

    def read_all(self) -> list[bytes]:
        """Every batch from the start of the log to its end."""
        found: list[bytes] = []
        offset = self.log.start
        while offset < self.log.end:
            batches = list(iterate_batches(self.read(offset)))
            assert batches, f"nothing can be read at {offset}"
            found += [bytes(batch) for _, batch in batches]
            offset = batches[-1][0].next_offset
        return found

    def names(self) -> list[str]:
        return self.disk.list(DIRECTORY)


def joined(disk: SimulatedDisk, read: Read) -> bytes:
    """The bytes of a read, from memory or from the disk."""
    assert sum(map(len, read.buffers)) == read.size
    return bytes(read.load_unchecked(disk))


def cold_of(read: Read) -> ColdRead:
    """What a disk's thread must do for a read that memory cannot answer."""
    assert read.cold is not None
    return read.cold
