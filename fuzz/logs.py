"""Whole logs to begin with: a directory's files, as a node leaves them."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from fuzz.batches import random_batch
from tidelog.config import TopicConfig
from tidelog.host import Path, read_file
from tidelog.log.closing import close_logs
from tidelog.log.log import Log, LogState
from tidelog.log.recovery import open_log
from tidelog.log.tail import TailBudget
from tidelog.model import Offset
from tidelog.records import read_header, stamp
from tidelog.simulation.disk import SimulatedDisk

DIRECTORY: Final = Path("/data/orders-0")
CONFIG: Final = TopicConfig(segment_bytes=2500, index_interval_bytes=300)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeLog:
    """The files of a log in which nothing is wrong, and what they say."""

    files: Mapping[str, bytes]
    batches: list[bytes]
    end: Offset

    @property
    def active(self) -> str:
        return max(name for name in self.files if name.endswith(".log"))


def whole_log(random: Random, *, clean: bool) -> WholeLog:
    """Write some batches in a few epochs, as a leader does; with `clean`, stop in order."""
    disk = SimulatedDisk(random)
    disk.make_directory(DIRECTORY)
    log = Log(DIRECTORY, CONFIG, TailBudget(1 << 20), open_directory(disk))
    batches = []
    epoch = 0
    for _ in range(random.randint(1, 25)):
        batch = random_batch(random)
        epoch += random.random() < 0.1
        stamp(batch, log.end, epoch)
        log.append(batch, read_header(batch), log.end, epoch)
        batches.append(bytes(batch))
    job = log.take_writes()
    assert job is not None
    log.wrote(job, job.perform(disk).end)
    if clean:
        close_logs(disk, DIRECTORY, [log])
    disk.sync_everything(DIRECTORY)
    files = {name: read_file(disk, DIRECTORY / name) for name in disk.list(DIRECTORY)}
    return WholeLog(files=files, batches=batches, end=log.end)


def open_directory(
    disk: SimulatedDisk, *, clean: bool = False, durable_mark: Offset = 0, start: Offset = 0
) -> LogState:
    return open_log(
        disk,
        DIRECTORY,
        clean=clean,
        durable_mark=durable_mark,
        start=start,
        index_interval_bytes=CONFIG.index_interval_bytes,
    )
