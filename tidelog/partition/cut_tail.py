"""What a start has cut off, as long as the replica may lack some of it.

Rule 1: a start cannot tell a torn tail from synced batches that have rotted. So a replica whose
        start has cut bytes may lack batches that it had acknowledged, and that are committed.
Rule 2: those batches lay behind the cut, one after the other, as the leader had sent them. Every
        later leader has the committed ones with the same bytes. So once a replica has fetched as
        many bytes behind the cut as the start had cut off, and has synced them, it lacks nothing.
Rule 3: compaction changes how many bytes batches have. Bytes of a compacted log are not counted.
"""

from tidelog.model import Offset
from tidelog.records import BatchHeader


class CutTail:
    """One replica's cut, and how much was fetched behind it in this process."""

    __slots__ = ("_fetched", "_offset", "_size", "_whole_at")

    def __init__(self, offset: Offset, size: int | None) -> None:
        """The log was cut at `offset`, by `size` bytes; None if nobody knows how many."""
        self._offset = offset
        self._size = size
        self.log_changed()

    def __repr__(self) -> str:
        return f"<CutTail of {self._size} bytes at {self._offset}, {self._fetched} fetched>"

    def log_changed(self) -> None:
        """The log was cut or begun anew: what was fetched may be gone."""
        self._fetched = 0
        self._whole_at: Offset | None = None

    def fetched(self, header: BatchHeader) -> None:
        """A batch of a log that was not compacted came from the leader."""
        if self._size is None or header.base_offset < self._offset:
            return
        self._fetched += header.size
        if self._whole_at is None and self._fetched >= self._size:
            self._whole_at = header.next_offset

    def is_made_good(self, synced_end: Offset) -> bool:
        """Whether the replica has all that it had before the cut."""
        return self._whole_at is not None and self._whole_at <= synced_end
