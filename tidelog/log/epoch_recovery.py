"""The epoch history that a start finds: which leader wrote which part of the log.

Rule 1: of the active segment its batches tell, not the checkpoint. That is written when a segment
        is sealed, and by a clean stop; so it may lack an epoch, and it may name one whose batches
        were lost.
Rule 2: of sealed segments the checkpoint tells: it was synced when they were sealed. It is rebuilt
        from their batches only if it is lost, or contradicts the first batch behind them.
Rule 3: the checkpoint is never replaced but durably. A power loss must not take it: rot in a
        sealed segment may tell of other epochs, for they are not under the batches' checksums.
Rule 4: a start that contradicts the checkpoint writes it, before anybody appends. After a crash,
        one that only lacks epochs of the active segment stays as it is.
"""

import logging
from collections.abc import Sequence

from tidelog.host import Disk, Path, read_file
from tidelog.log.epochs import FILE_NAME as EPOCHS_FILE_NAME
from tidelog.log.epochs import EpochHistory, EpochsDamaged
from tidelog.log.log import LogState
from tidelog.log.segment import Segment, walk
from tidelog.log.steps import rewrite
from tidelog.model import NO_EPOCH, Epoch

_log = logging.getLogger(__name__)


def load_epochs(disk: Disk, directory: Path, state: LogState) -> None:
    """The epoch history: up to the active segment the file's, from there on its batches'.

    The file is not written for each epoch, and may also name one whose batches were lost. Where it
    is wrong it is written again; on a full disk, by the next segment or stop.
    """
    path, active = directory / EPOCHS_FILE_NAME, state.segments[-1]
    try:
        noted = EpochHistory.decode(read_file(disk, path))
        if noted.epoch_at(state.start) == NO_EPOCH:
            raise EpochsDamaged(f"it begins after offset {state.start}")
        known = _with_active_epochs(disk, state, noted)
    except (FileNotFoundError, EpochsDamaged) as error:
        noted = EpochHistory()
        if len(state.segments) > 1:
            _log.warning("%s: rebuilding the epoch history (%s)", directory.name, error)
        known = _epochs_of(disk, state.segments[:-1])
        scanned = _epochs_of(disk, [active]) if state.clean else state.epochs
        for epoch, start in scanned:
            known.assign(epoch, start)
    content = known.encode()
    for history in (known, noted):
        history.cut_start(state.start)
    # After a crash the epochs of the active segment may be lacking; there may be none beside them.
    may_lack = not state.clean and (len(noted) > 0 or active is state.segments[0])
    expected = list(known)[: len(noted)] if may_lack else list(known)
    if list(noted) != expected and state.damaged_at is None:
        rewrite(disk, path, content)
    state.epochs = known


def _with_active_epochs(disk: Disk, state: LogState, noted: EpochHistory) -> EpochHistory:
    """The history of the file, with what the active segment holds in place of what it says of it.

    After a clean stop the segment is read only if its last batch contradicts the file.
    """
    active, known = state.segments[-1], EpochHistory(noted)
    known.cut_end(state.end)
    scanned = state.epochs
    if state.clean:
        latest = _latest_epoch(disk, active)
        if latest in (NO_EPOCH, known.latest):
            return known
        scanned = _epochs_of(disk, [active])
    unseen = [] if state.damaged_at is None else [e for e in known if e[1] >= state.damaged_at]
    known.cut_end(active.base)
    for at, (epoch, start) in enumerate(scanned):
        if at == 0 and epoch < known.latest:
            raise EpochsDamaged(f"it has epoch {known.latest} before {epoch} at {start}")
        known.assign(epoch, start)
    for epoch, start in unseen:
        known.assign(epoch, start)
    return known


def _epochs_of(disk: Disk, segments: Sequence[Segment]) -> EpochHistory:
    """The epochs of the batches in neighbouring segments.

    An epoch begins before the gap that its first batch follows, as `Log.append` says: compaction
    may have removed its first batches.
    """
    found = EpochHistory()
    end = segments[0].base if segments else 0
    for segment in segments:
        for header, _ in walk(segment.open(disk), 0, segment.size):
            found.assign(header.leader_epoch, end)
            end = header.next_offset
    return found


def _latest_epoch(disk: Disk, active: Segment) -> Epoch:
    """The epoch of the last batch of an active segment that has its index."""
    assert active.offsets is not None, "only a sealed segment has none"
    latest = NO_EPOCH
    for header, _ in walk(active.open(disk), active.offsets.last_position(), active.size):
        latest = header.leader_epoch
    return latest
