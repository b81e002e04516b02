"""How far this node's copy of the metadata log was acknowledged, noted apart from the log.

Other voters count on what this node has told them is durable here. A disk that loses such bytes may
do so without a trace: a write that landed elsewhere leaves a log that looks as if it ended earlier.
The note tells: a log that ends before it has lost something (`raft.logview`, rule 5).

Rule 1: the note is durable before anybody hears that the bytes are, and after they are. So it never
        speaks of bytes that were not synced, and a power loss does not look like a loss.
        A log that is to be cut is noted to end there before it is cut. A start writes what it has
        read again: the process before it may have ended, or failed, before the sync.
Rule 2: notes are written to two places in turn, so a torn one leaves the one before it. Each place
        holds its note twice. A tear spoils one of the two at most: what a write leaves is new up
        to some byte, and old from there.
Rule 3: a place of which neither copy checks out is rotten. The note before it says less than others
        may have heard, so nobody knows what was acknowledged; that is noted at once.
Rule 4: a note is written beside the quorum's loop, and covers all that was synced meanwhile.
"""

# quorum-acknowledged := slot, slot
# slot := copy, copy; both of one note, unless the slot is torn. An earlier version made one copy
# copy := promise (`promises`), padded with zero bytes to 256 bytes

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from tidelog.cluster.promises import decode_promise, encode_promise
from tidelog.cluster.quorum_log import FULL_DISK_SECONDS
from tidelog.host import Disk, Host, Path, read_file, replace_file
from tidelog.log.reserve import Reserve
from tidelog.log.steps import is_short
from tidelog.model import Epoch, Offset
from tidelog.raft.logview import UNKNOWN_END
from tidelog.raft.messages import NOWHERE, Position

_log = logging.getLogger(__name__)

FILE_NAME: Final = "quorum-acknowledged"
COPY_BYTES: Final = 256
SLOT_BYTES: Final = 2 * COPY_BYTES
"""A sector: whatever tears, it is not more than one place."""


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    """The note with the greater number is the newer one."""
    epoch: Epoch
    end: Offset


class AcknowledgedNote:
    """The file of notes in the metadata log's directory.

    All calls block on the disk; they are made from its threads, one at a time.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._path = directory / FILE_NAME
        self._number = 0

    def read(self) -> Position | None:
        """The newest note; None if there never was one. ValueError if it may be damaged."""
        try:
            content = read_file(self._disk, self._path)
        except FileNotFoundError:
            return None
        slots = [_notes_in(content[at : at + SLOT_BYTES]) for at in (0, SLOT_BYTES)]
        if not all(slots):
            raise ValueError(f"{self._path} is damaged")
        newest = max((note for notes in slots for note in notes), key=lambda note: note.number)
        self._number = newest.number
        return Position(newest.epoch, newest.end)

    def begin(self, position: Position) -> None:
        """Make the file, with `position` in both places, durably."""
        slots = [self._next_slot(position), self._next_slot(position)]
        if self._number % 2 == 0:  # the even one is the first
            slots.reverse()
        replace_file(self._disk, self._path, b"".join(slots))

    def write(self, position: Position) -> None:
        """Note `position` durably. The file was read or begun before."""
        slot = self._next_slot(position)
        file = self._disk.open(self._path)
        try:
            file.write(self._number % 2 * SLOT_BYTES, [slot])
            file.datasync()
        finally:
            file.close()

    def _next_slot(self, position: Position) -> bytes:
        self._number += 1
        note = _Note(number=self._number, epoch=position.epoch, end=position.end)
        return 2 * encode_promise(note).ljust(COPY_BYTES, b"\0")


def _notes_in(slot: bytes) -> list[_Note]:
    """The notes of those copies that check out."""
    notes = []
    for copy in (slot[:COPY_BYTES], slot[COPY_BYTES:]):
        with suppress(ValueError):
            notes.append(decode_promise(copy.rstrip(b"\0"), _Note))
    return notes


class Acknowledgements:
    """What others may have heard of this log, and what they may hear next.

    Invariant: nobody is told of a position above `noted`, but for one that is being lowered.
    Owned by the event loop.
    """

    def __init__(
        self,
        host: Host,
        directory: Path,
        reserve: Reserve,
        *,
        on_noted: Callable[[Offset], None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """`on_noted` is told what may be acknowledged."""
        self._host = host
        self._note = AcknowledgedNote(host.disk, directory)
        self._reserve = reserve
        self._on_noted = on_noted
        self._spawn = spawn
        self._is_begun = False
        self._wanted: Position | None = None
        self._is_noting = False
        self._one_at_a_time = asyncio.Lock()
        self._logs = 0
        """How often the log was cut or replaced: what was synced before that counts no more."""
        self._is_cutting = False
        self.noted = NOWHERE

    # At a start, in a disk's thread.

    def find(self, epoch: Epoch) -> None:
        """Read the note; `epoch` is the last one of which this node knows."""
        self._epoch = epoch
        try:
            found = self._note.read()
        except ValueError as error:
            _log.error("%s: nobody knows what this node has acknowledged", error)
            self.note_loss()
            return
        self._is_begun = found is not None
        self.noted = NOWHERE if found is None else found

    def note_loss(self) -> None:
        """The log is damaged, and about to be cut: note that, unless it is noted how far it went.

        A version that made no notes may have written it, or the note is damaged, too.
        """
        if not self._is_begun:
            self.noted = Position(self._epoch, UNKNOWN_END)
            self._note.begin(self.noted)
            self._is_begun = True

    # On the loop.

    async def begin(self, here: Position) -> None:
        """The log was opened and goes as far as `here`, all of it synced."""
        if self._is_begun:
            await self._write(max(self.noted, here))
            return
        await self._host.offload.run(partial(self._note.begin, here))
        self.noted = here
        self._is_begun = True

    async def replaced(self, here: Position) -> None:
        """Another log has taken the place of this one. It goes as far as `here`, all synced."""
        self._logs += 1
        self._wanted = None
        async with self._one_at_a_time:
            if self.noted < here:
                await self._write(here)

    def synced(self, position: Position) -> None:
        """The log is synced as far as `position`: note it, then say so."""
        if self._is_cutting:
            return  # `cut` says what is left of it
        if position <= self.noted and not self._is_noting:
            self._on_noted(position.end)
        else:
            self._want(position)

    async def lower(self, position: Position) -> None:
        """The log will be cut; what it acknowledged behind `position` was never committed."""
        self._logs += 1
        self._wanted = None
        self._is_cutting = True
        async with self._one_at_a_time:
            if position != self.noted:
                await self._write(position)

    def cut(self) -> None:
        """The log was cut, after its note was lowered."""
        self._is_cutting = False
        self.synced(self.noted)

    def knows(self, acknowledged: Position) -> None:
        """A member that did not know what it had acknowledged may have learned it."""
        if acknowledged.end < self.noted.end == UNKNOWN_END and not self._is_noting:
            self._want(acknowledged)

    def _want(self, position: Position) -> None:
        self._wanted = position
        if not self._is_noting:
            self._is_noting = True
            self._spawn(self._write_wanted())

    async def _write_wanted(self) -> None:
        while (position := self._wanted) is not None:
            self._wanted, logs = None, self._logs
            async with self._one_at_a_time:
                if logs == self._logs:
                    await self._write(position)
            if logs == self._logs:
                self._on_noted(position.end)
        self._is_noting = False

    async def _write(self, position: Position) -> None:
        work = partial(self._reserve.spend, partial(self._note.write, position))
        while True:
            try:
                await self._host.offload.run(work)
            except OSError as error:
                if not is_short(error):
                    raise
                await asyncio.sleep(FULL_DISK_SECONDS)
            else:
                self.noted = position
                return
