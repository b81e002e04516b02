"""Of batches that were read from a log, those whose records count: neither markers nor aborted."""

from collections import deque
from collections.abc import Iterator, Sequence

from tidelog.host import Bytes
from tidelog.model import Offset, ProducerId
from tidelog.records import BatchHeader, iterate_batches


def committed_batches(
    data: Bytes, aborted: Sequence[tuple[ProducerId, Offset]]
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The batches in `data`, below the last stable offset, that no transaction has taken back.

    `aborted` are producer and first offset of aborted transactions that touch them (`Log.aborted`).
    """
    coming = deque(sorted(aborted, key=lambda one: one[1]))
    active: set[ProducerId] = set()
    for header, batch in iterate_batches(data):
        while coming and coming[0][1] <= header.last_offset:
            active.add(coming.popleft()[0])
        if header.is_control:
            active.discard(header.producer_id)  # a transaction of this producer ends here
        elif not (header.is_transactional and header.producer_id in active):
            yield header, batch
