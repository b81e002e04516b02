"""What one backup consists of: topics, ranges of offsets, files with their checksums, groups.

Rule 1: a manifest is written last, in one piece. Without it there is no backup.
Rule 2: it names every file that it needs, those of earlier backups too; so it stands alone.
Rule 3: the chunks of a partition follow each other without a gap, from at or before its first
        offset to its last. A span in which nothing is committed for good (markers, what was
        aborted, what was compacted away) is a chunk without a file.
Rule 4: the files that it names lie below the directory of backups. One that names others was not
        written by us, and is not read: what it names would be read, and once it is old, deleted.
"""

# file     := {"sha256": of the bytes of manifest, "manifest": Manifest}             (JSON)
# times are milliseconds since 1970, offsets [start, end)

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from tidelog.backup.problems import Damaged
from tidelog.model import NO_EPOCH, Epoch, Offset

VERSION: Final = 1
FOLDER: Final = "manifests"
SUFFIX: Final = ".json"


class Chunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Some batches of one partition, in a file; or a span in which there are none."""

    start: Offset
    end: Offset
    file: str | None = None
    bytes: int = 0
    sha256: str = ""
    batches: int = 0
    records: int = 0


class PartitionBackup(msgspec.Struct, frozen=True, kw_only=True):
    partition: int
    start: Offset
    """Where the log began; the first batch may begin before it."""
    end: Offset
    """The last stable offset: below it, nothing can change any more."""
    epoch: Epoch = NO_EPOCH
    """Of the leader that told the end; NO_EPOCH if it is too old to tell."""
    chunks: tuple[Chunk, ...] = ()


class TopicBackup(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    id: str
    replication: int
    is_internal: bool = False
    configs: dict[str, str] = {}
    """What was set for this topic alone."""
    partitions: tuple[PartitionBackup, ...] = ()

    @property
    def chunks(self) -> Iterator[Chunk]:
        return (chunk for one in self.partitions for chunk in one.chunks)


class GroupOffset(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    offset: Offset
    metadata: str = ""


class GroupBackup(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    offsets: tuple[GroupOffset, ...]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One backup, whole."""

    version: int = VERSION
    id: str
    made_by: str
    cluster_id: str | None
    parent: str | None
    """The backup that was the newest when this one began."""
    taken_ms: int
    """Everything that was committed by then is in it."""
    finished_ms: int
    topics: tuple[TopicBackup, ...]
    groups: tuple[GroupBackup, ...]
    notes: tuple[str, ...] = ()
    """What people should know."""

    @property
    def chunks(self) -> Iterator[Chunk]:
        return (chunk for topic in self.topics for chunk in topic.chunks)

    @property
    def files(self) -> set[str]:
        return {chunk.file for chunk in self.chunks if chunk.file is not None}

    @property
    def records(self) -> int:
        return sum(chunk.records for chunk in self.chunks)

    @property
    def bytes(self) -> int:
        return sum(chunk.bytes for chunk in self.chunks)

    def topic(self, name: str) -> TopicBackup | None:
        return next((topic for topic in self.topics if topic.name == name), None)


class _File(msgspec.Struct):
    sha256: str
    manifest: msgspec.Raw


class _Version(msgspec.Struct):
    version: int


def encode(manifest: Manifest) -> bytes:
    body = msgspec.json.encode(manifest)
    return msgspec.json.encode(_File(sha256=hashlib.sha256(body).hexdigest(), manifest=msgspec.Raw(body)))


def decode(data: bytes, what: str) -> Manifest:
    """The manifest in a file; Damaged if it is not as it was written."""
    try:
        file = msgspec.json.decode(data, type=_File)
        if hashlib.sha256(file.manifest).hexdigest() != file.sha256:
            raise Damaged(f"{what}: its checksum does not match; it was changed or is damaged")
        version = msgspec.json.decode(file.manifest, type=_Version).version
        if version != VERSION:
            raise Damaged(f"{what} has version {version}, this program reads {VERSION}; use a newer one")
        manifest = msgspec.json.decode(file.manifest, type=Manifest)
        for name in (manifest.id, *sorted(manifest.files)):
            if not is_inside(name) or name.startswith(f"{FOLDER}/"):
                raise Damaged(f"{what} names {name!r}, which is no file of a backup")
        return manifest
    except msgspec.MsgspecError as error:
        raise Damaged(f"{what} is no manifest of a backup: {error}") from None


def is_inside(name: str) -> bool:
    """Whether a name leads to a file below the directory that it is looked up in, everywhere."""
    return not any(part in ("", ".", "..") or any(c in part for c in "\\:\0") for part in name.split("/"))


def gaps(manifest: Manifest) -> list[str]:
    """What its ranges leave open; nothing, if it is whole."""
    found = []
    for topic in manifest.topics:
        numbers = [one.partition for one in topic.partitions]
        if numbers != [*range(len(numbers))]:
            found.append(f"{topic.name}: partitions {numbers} are not all there are")
        for one in topic.partitions:
            found += [f"{topic.name}-{one.partition}: {text}" for text in _open_ends(one)]
    return found


def _open_ends(one: PartitionBackup) -> Iterable[str]:
    if not 0 <= one.start <= one.end:
        yield f"offsets {one.start} to {one.end} are no range"
    if not one.chunks:
        if one.start != one.end:
            yield f"nothing is there of offsets {one.start} to {one.end - 1}"
        return
    at = one.chunks[0].start
    if at > one.start:
        yield f"offsets {one.start} to {at - 1} are missing"
    for chunk in one.chunks:
        if chunk.start != at or chunk.end <= chunk.start:
            yield f"a chunk of {chunk.start} to {chunk.end - 1} comes where {at} should"
        at = chunk.end
    if at != one.end:
        yield f"the chunks end at {at}, not at {one.end}"
