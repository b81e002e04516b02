"""What a node asks of the leader of a bucket's partition, and what comes back: values that cross nodes."""

from typing import ClassVar

import msgspec

from tidelog.broker.serving import Work
from tidelog.copies.views.kv import Change, Entry
from tidelog.model import NO_PRODUCER, Epoch, Offset, ProducerId


class KvGet(Work, frozen=True, kw_only=True):
    is_read: ClassVar[bool] = True
    key: bytes
    is_strong: bool
    after: Offset = 0
    """What the reader has seen: the answer must be at least as new."""


class KvGot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    entry: Entry | None
    applied: Offset
    """The answer is of the log up to here, at least."""


class KvScan(Work, frozen=True, kw_only=True):
    is_read: ClassVar[bool] = True
    prefix: bytes
    beyond: bytes | None
    limit: int
    is_strong: bool
    after: Offset = 0


class KvStable(Work, frozen=True, kw_only=True):
    """Asked by a replica that begins: how far is all decided that anybody can have shown?"""

    is_read: ClassVar[bool] = True
    epoch: Epoch
    """In which the replica follows: an older leader may not know of all."""


class KvStableAt(msgspec.Struct, frozen=True, kw_only=True):
    offset: Offset


class KvScanned(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    entries: tuple[Entry, ...]
    applied: Offset
    is_cut: bool
    """There are more."""


class KvWrite(Work, frozen=True, kw_only=True):
    """Changes of one partition: all of them, or none."""

    changes: tuple[Change, ...]
    once: ProducerId = NO_PRODUCER
    copies: int | None = None


class KvWritten(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of the changes of one request."""

    offset: Offset
    """Of the first change; the others follow. NO_OFFSET where nothing was to be written."""
    existed: tuple[bool | None, ...] = ()
    """Whether each key was there before; None where that does not matter. Empty for a repeat."""
    refused: tuple[tuple[int, Offset | None], ...] = ()
    """The changes whose condition does not hold, and their keys' versions. Then none was done."""
    is_repeat: bool = False
    """Refused as it was before: the condition did not hold then, and the versions are of now."""
