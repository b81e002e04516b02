"""Where starts have cut logs, noted so that later starts know it.

Rule 1: a cut is noted before it is made. The next start finds nothing to cut, and could not tell.
Rule 2: sizes are written before places. A cut without a size is made good only by a leader that
        takes the replica into the in-sync set, so whatever interrupts this errs on the safe side.
Rule 3: a full disk keeps no node from starting: the note stays in memory, and is written later.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from tidelog.log.steps import is_short
from tidelog.model import Offset, TopicPartition

_log = logging.getLogger(__name__)

CUT_TAILS: Final = "cut-tail-checkpoint"
CUT_BYTES: Final = "cut-bytes-checkpoint"


class CutNotes:
    """The cuts of one node's logs that may not have been torn tails, until what they took is back.

    Only while the directory's checkpoints are locked.
    """

    def __init__(self, write: Callable[[str, Mapping[TopicPartition, int]], None]) -> None:
        self._write_checkpoint = write
        self.places: dict[TopicPartition, Offset] = {}
        self.sizes: dict[TopicPartition, int] = {}
        """How many bytes were cut off, if that is known: earlier releases did not note it."""
        self._is_written = True

    def note(self, partition: TopicPartition, end: Offset, size: int) -> None:
        """A log is about to be cut at `end`, and loses `size` bytes.

        Those that earlier starts have cut off, and that are not back, count as well.
        """
        known = self.sizes.pop(partition, None) if partition in self.places else 0
        if known is not None:
            self.sizes[partition] = known + size
        self.places[partition] = max(self.places.get(partition, 0), end)
        try:
            self._write()
        except OSError as error:
            if not is_short(error):
                raise
            _log.warning("it cannot be noted yet that %s was cut: %s", partition, error)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """What was cut off these is back; or they have been in sync since, or lead."""
        for partition in partitions:
            self.sizes.pop(partition, None)
            if self.places.pop(partition, None) is not None:
                self._is_written = False
        if not self._is_written:
            self._write()

    def _write(self) -> None:
        self._is_written = False
        self._write_checkpoint(CUT_BYTES, self.sizes)
        self._write_checkpoint(CUT_TAILS, self.places)
        self._is_written = True
