"""What a node notes of its logs every few seconds: durable ends, watermarks, starts, whole tails.

Rule 1: it is gathered while the directory's `noting` is held, some logs in each turn of the loop.
        Whoever cuts a log or opens one holds it, too: so what was gathered first is as true as what
        was gathered last.
Rule 2: a mark never falls here: a damaged log ends before it, and must be found damaged for ever.
"""

from collections.abc import Iterable
from typing import Final

from tidelog.cluster.quorum_log import QuorumLog
from tidelog.log import directory
from tidelog.log.directory import DataDirectory
from tidelog.model import Offset, TopicPartition
from tidelog.partition.driver import Partition

GATHERED_AT_ONCE: Final = 200


class Checkpoint:
    """What is to be noted, as it stands when each log is added."""

    def __init__(self, noted: DataDirectory) -> None:
        self._noted = noted
        self._marks: dict[TopicPartition, Offset] = {}
        self._starts: dict[TopicPartition, Offset] = {}
        self._watermarks: dict[TopicPartition, Offset] = {}
        self._whole: list[TopicPartition] = []

    def add(self, one: Partition | QuorumLog) -> None:
        name, log = one.name, one.log
        self._marks[name] = max(log.promised_end, self._noted.durable_marks.get(name, 0))
        if log.start > 0:
            self._starts[name] = log.start
        self._watermarks[name] = min(one.high_watermark, log.synced_end)
        if isinstance(one, Partition) and not one.is_cut:
            self._whole.append(name)

    def add_all(self, logs: Iterable[Partition | QuorumLog]) -> "Checkpoint":
        for one in logs:
            self.add(one)
        return self

    def write(self) -> None:
        """Blocks on the disk. Each counts as noted once it is: what it refused is tried again."""
        noted = self._noted
        if self._marks != noted.durable_marks:
            noted.write_checkpoint(directory.DURABLE_MARKS, self._marks)
            noted.durable_marks = self._marks
        if self._starts != noted.log_starts:
            noted.write_checkpoint(directory.LOG_STARTS, self._starts)
            noted.log_starts = self._starts
        if self._watermarks != noted.watermarks:
            noted.write_checkpoint(directory.WATERMARKS, self._watermarks)
            noted.watermarks = self._watermarks
        noted.forget_cuts(self._whole)
