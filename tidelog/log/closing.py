"""What an orderly stop leaves beside the segments, for a start that scans nothing.

Rule 1: files of the active segment are believed only after an orderly stop, and are written where
        they lie.
Rule 2: what an unclean start believes, too, is written aside, and takes the place of what is there
        once it is durable: a power loss in the middle of a stop must not take what was durable.
Rule 3: many logs are made durable together: a stop costs two syncs, not some for each log.
"""

from collections.abc import Iterable, Sequence

from tidelog.host import Disk, Path, aside_of
from tidelog.log.epochs import FILE_NAME as EPOCHS_FILE_NAME
from tidelog.log.log import Log
from tidelog.log.segment import INDEX_SUFFIX, LOG_SUFFIX, SNAPSHOT_SUFFIX, TIME_INDEX_SUFFIX, file_stem


def close_logs(disk: Disk, root: Path, logs: Iterable[Log]) -> None:
    """Write, durably, what a clean start reads instead of scanning; the logs lie below `root`."""
    aside = [path for log in logs for path in _close_log(disk, log)]
    disk.sync_everything(root)
    if aside:
        for path in aside:
            disk.rename(aside_of(path), path)
        disk.sync_everything(root)


def _close_log(disk: Disk, log: Log) -> Sequence[Path]:
    """Write the files of one log; those that were written aside."""
    active = log.active
    if log.closed_at == log.end or active.offsets is None:
        return ()  # nothing has changed since those files were written
    if not disk.exists(active.path(LOG_SUFFIX)):
        return ()
    offsets, times = active.index_contents()
    of_the_active = (
        (active.path(INDEX_SUFFIX), offsets),
        (active.path(TIME_INDEX_SUFFIX), times),
        *log.aborted_file(),
    )
    of_the_log = (
        (log.directory / (file_stem(log.end) + SNAPSHOT_SUFFIX), log.producers.encode()),
        (log.directory / EPOCHS_FILE_NAME, log.epochs.encode()),
    )
    for path, content in of_the_active:
        _overwrite(disk, path, content)
    for path, content in of_the_log:
        _overwrite(disk, aside_of(path), content)
    return [path for path, _ in of_the_log]


def _overwrite(disk: Disk, path: Path, content: bytes) -> None:
    file = disk.open(path, create=True)
    try:
        file.truncate(0)
        file.write(0, [content])
    finally:
        file.close()
