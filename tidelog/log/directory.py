"""A node's data directory: whose it is, how it was left, and which logs it holds.

Rule 1: one process at a time (`.lock`), one node and one cluster for ever (`meta.properties`).
Rule 2: the clean-stop marker is removed, durably, before anything else is touched, and written
        last; so a marker means that nothing happened since. If the sync of its removal failed, at
        a start that came to nothing, no later one would bring it about, and a power loss would
        bring the marker back. So a start that finds none writes one that says nothing, first.
Rule 3: a partition's directory is served only if its topic id is the one the cluster knows.
Rule 4: a checkpoint that has rotted is not believed; of what nothing else tells there are two.

Names and formats are Kafka's, so that its tools read the directory.
"""

# meta.properties    := "version=1\n", "cluster.id=", id, "\nnode.id=", n, "\ndirectory.id=", id
# partition.metadata := "version: 0\ntopic_id: ", id, "\n"
# *-checkpoint       := see `checkpoints`
# id                 := 16 bytes in URL-safe base64 without padding

import asyncio
import base64
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final
from uuid import UUID

from tidelog.errors import InvalidTopic, TidelogError
from tidelog.host import Disk, Host, Path, finish_relinks, read_file, relink, replace_file
from tidelog.log import checkpoints
from tidelog.log.checkpoints import COPY_SUFFIX, CheckpointDamaged
from tidelog.log.cut_notes import CUT_BYTES, CUT_TAILS, CutNotes
from tidelog.log.reserve import Reserve
from tidelog.log.steps import is_short
from tidelog.model import Offset, TopicPartition

_log = logging.getLogger(__name__)

META: Final = "meta.properties"
LOCK: Final = ".lock"
CLEAN_MARKER: Final = ".kafka_cleanshutdown"
DURABLE_MARKS: Final = "recovery-point-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
WATERMARKS: Final = "replication-offset-checkpoint"
PURGED: Final = "purged-offset-checkpoint"
PROMISED_STARTS: Final = "promised-start-checkpoint"
FIRST_DIRTY: Final = "cleaner-offset-checkpoint"
_KEPT_TWICE: Final = frozenset((LOG_STARTS, PURGED, PROMISED_STARTS, CUT_TAILS, CUT_BYTES))
"""What no log tells. Of the others a start can do without: they narrow what is scanned or cleaned,
and what counts as damage."""
PARTITION_METADATA: Final = "partition.metadata"
DELETED_SUFFIX: Final = "-delete"
STRAY_SUFFIX: Final = "-stray"

_SYNC_EACH_MAX: Final = 4
_LOOK_EACH_MAX: Final = 16
"""Above this many partitions one look at the whole directory is cheaper than one for each."""
FILE_NAME_MAX: Final = 255


class DirectoryRefused(TidelogError):
    """The data directory cannot be used by this node; the message says why and what to do."""


def encode_id(value: UUID) -> str:
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def decode_id(text: str) -> UUID:
    return UUID(bytes=base64.urlsafe_b64decode(text + "=="))


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whose directory this is."""

    cluster_id: str
    node_id: int
    directory_id: UUID


class DataDirectory:
    """The files of a node that belong to no single partition, and the partitions' directories."""

    def __init__(self, host: Host, root: Path, *, reserve_bytes: int = 0) -> None:
        self._disk: Disk = host.disk
        self._host = host
        self._checkpoints = threading.Lock()  # one writer at a time: two would share one file
        self.root = root
        self.reserve = Reserve(host.disk, root, reserve_bytes)
        """Room for checkpoints, promises and metadata on a full disk."""
        self.noting = asyncio.Lock()
        """Held from when offsets are looked up until a checkpoint of them is written."""
        self.was_clean = False
        self.durable_marks: dict[TopicPartition, Offset] = {}
        self.log_starts: dict[TopicPartition, Offset] = {}
        self.promised_starts: dict[TopicPartition, Offset] = {}
        """Where followers have promised to begin; none up to where their logs begin already."""
        self.purged: dict[TopicPartition, Offset] = {}
        """Below which offsets compacted logs may lack tombstones."""
        self.watermarks: dict[TopicPartition, Offset] = {}
        self.cuts = CutNotes(self._write_checkpoint)
        self._aside: dict[Path, None] = {}
        """Directories that are out of sight, and not all removed yet."""

    def open(self, node_id: int) -> Identity:
        """Lock the directory, make it if it is new, and read how it was left."""
        self._disk.make_directory(self.root)
        try:
            self._lock = self._disk.lock(self.root / LOCK)
        except BlockingIOError:
            raise DirectoryRefused(
                f"{self.root} is in use by another node; stop that one or choose another --data"
            ) from None
        identity = self._identify(node_id)
        marker = self.root / CLEAN_MARKER
        self.was_clean = self._is_clean(marker)
        self.durable_marks = self.read_checkpoint(DURABLE_MARKS)
        self.log_starts = self.read_checkpoint(LOG_STARTS)
        self.promised_starts = self.read_checkpoint(PROMISED_STARTS)
        self.purged = self.read_checkpoint(PURGED)
        self.watermarks = self.read_checkpoint(WATERMARKS)
        self.cuts.places = self.read_checkpoint(CUT_TAILS)
        self.cuts.sizes = self.read_checkpoint(CUT_BYTES)
        if not self.was_clean:
            self._spoil(marker)
        self._disk.remove(marker)
        self._disk.sync_directory(self.root)
        self.reserve.fill()
        if not self.was_clean:
            # Names and bytes that a killed process left in memory alone, and this directory's own.
            self.reserve.spend(self._relink_new)
        # After a clean stop, too: from now on this needs no descriptor (`Rounds`).
        self._disk.sync_everything(self.root)
        self._remove_leftovers()
        return identity

    def find_room(self) -> int:
        """How many bytes are free. OSError while no file can be opened, whatever is free."""
        self._disk.list(self.root)
        return self._disk.free_bytes(self.root)

    def _is_clean(self, marker: Path) -> bool:
        try:
            return bool(read_file(self._disk, marker))
        except FileNotFoundError:
            return False

    def _spoil(self, marker: Path) -> None:
        """Let no marker of an earlier stop be found again."""
        try:
            replace_file(self._disk, marker, b"")
        except OSError as error:
            if not is_short(error):
                raise

    def _relink_new(self) -> None:
        """Name partitions anew that were made shortly before: the sync of it may have failed."""
        finish_relinks(self._disk, self.root)
        for name in self._disk.list(self.root):
            topic, _, number = name.rpartition("-")
            path = self.root / name
            if not number.isdecimal() or not self._disk.is_directory(path):
                continue
            if TopicPartition(topic, int(number)) not in self.durable_marks:
                finish_relinks(self._disk, path)
                for file in self._disk.list(path):
                    relink(self._disk, path / file)
                relink(self._disk, path)

    def close(self, *, clean: bool) -> None:
        """Leave the directory; with `clean`, everything in it is whole and synced."""
        if clean:
            replace_file(self._disk, self.root / CLEAN_MARKER, b'{"version":0}')
        self._lock.close()

    def _identify(self, node_id: int) -> Identity:
        path = self.root / META
        try:
            content = read_file(self._disk, path)
        except FileNotFoundError:
            identity = Identity(
                cluster_id=encode_id(self._host.new_id()), node_id=node_id, directory_id=self._host.new_id()
            )
            self._write_identity(identity)
            return identity
        try:
            lines = content.decode().splitlines()
            values = dict(line.split("=", 1) for line in lines if "=" in line)
            identity = Identity(
                cluster_id=values["cluster.id"],
                node_id=int(values["node.id"]),
                directory_id=decode_id(values["directory.id"]),
            )
        except (KeyError, ValueError) as error:
            raise DirectoryRefused(
                f"{path} is damaged ({error}); restore it from a backup of this directory"
            ) from None
        if identity.node_id != node_id:
            raise DirectoryRefused(
                f"{self.root} belongs to node {identity.node_id}, this is node {node_id}; "
                f"start with --node-id {identity.node_id}, or choose another --data"
            )
        return identity

    def _write_identity(self, identity: Identity) -> None:
        text = (
            f"version=1\ncluster.id={identity.cluster_id}\nnode.id={identity.node_id}\n"
            f"directory.id={encode_id(identity.directory_id)}\n"
        )
        replace_file(self._disk, self.root / META, text.encode())

    def adopt_cluster(self, identity: Identity, cluster_id: str) -> Identity:
        """Belong to another cluster from now on: a directory that is new joins one."""
        adopted = replace(identity, cluster_id=cluster_id)
        if adopted != identity:
            self._write_identity(adopted)
        return adopted

    def _remove_leftovers(self) -> None:
        for name in self._disk.list(self.root):
            if name.endswith(DELETED_SUFFIX):
                self._disk.remove_tree(self.root / name)
            elif name.endswith(".tmp"):
                self._disk.remove(self.root / name)

    # Checkpoints.

    def read_checkpoint(self, name: str) -> dict[TopicPartition, Offset]:
        """The offsets in a checkpoint file; none if there is no such file, or it is unusable.

        Of one that is kept twice the copy is taken then, and both are written again.
        """
        found = self._read_checkpoint(name)
        if name not in _KEPT_TWICE:
            return found or {}
        copy = self._read_checkpoint(name + COPY_SUFFIX)
        known = copy if found is None else found
        if known is not None and found != copy:
            with self._checkpoints:
                try:
                    self._write_checkpoint(name, known)
                except OSError as error:
                    if not is_short(error):
                        raise
        return known or {}

    def _read_checkpoint(self, name: str) -> dict[TopicPartition, Offset] | None:
        try:
            return checkpoints.decode(read_file(self._disk, self.root / name))
        except FileNotFoundError:
            return None
        except CheckpointDamaged as error:
            _log.warning("%s is damaged and ignored (%s)", self.root / name, error)
            return None

    def write_checkpoint(self, name: str, offsets: Mapping[TopicPartition, Offset]) -> None:
        with self._checkpoints:
            self._write_checkpoint(name, offsets)

    def _write_checkpoint(self, name: str, offsets: Mapping[TopicPartition, Offset]) -> None:
        content = checkpoints.encode(offsets)
        names = (name, name + COPY_SUFFIX) if name in _KEPT_TWICE else (name,)
        for each in names:
            self.reserve.spend(partial(replace_file, self._disk, self.root / each, content))

    def lower_mark(self, partition: TopicPartition, most: Offset, least: Offset = 0) -> None:
        """Note, durably, that what lies past `most` is no longer promised: it will be cut.

        And that what lies below `least` is. Only while `noting` is held: otherwise a checkpoint on
        its way could undo it.
        """
        with self._checkpoints:
            known = self.durable_marks.get(partition, 0)
            if (mark := min(max(known, least), most)) != known:
                self._write_checkpoint(DURABLE_MARKS, {**self.durable_marks, partition: mark})
                self.durable_marks[partition] = mark

    def lower_watermark(self, partition: TopicPartition, end: Offset) -> None:
        """Note, durably, that the log will lack what is past `end`, though it was committed.

        So it is where somebody leads by force, or where this log was damaged. Only while `noting`
        is held.
        """
        with self._checkpoints:
            if self.watermarks.get(partition, 0) > end:
                lowered = {**self.watermarks, partition: end}
                self._write_checkpoint(WATERMARKS, lowered)
                self.watermarks = lowered

    def note_cut(self, partition: TopicPartition, end: Offset, size: int) -> None:
        """Note, durably, that a log is about to be cut at `end`, and to lose `size` bytes."""
        with self._checkpoints:
            self.cuts.note(partition, end, size)

    def forget_cuts(self, partitions: Iterable[TopicPartition]) -> None:
        with self._checkpoints:
            self.cuts.forget(partitions)

    def raise_start(self, partition: TopicPartition, start: Offset) -> None:
        """Note, durably, that the log begins at `start`. Only while `noting` is held."""
        with self._checkpoints:
            if self.log_starts.get(partition, 0) != start:
                raised = {**self.log_starts, partition: start}
                self._write_checkpoint(LOG_STARTS, raised)
                self.log_starts[partition] = start

    def note_purge(self, partition: TopicPartition, end: Offset) -> None:
        """Note, durably, that tombstones below `end` may be gone. Only while `noting` is held."""
        with self._checkpoints:
            if self.purged.get(partition, 0) < end:
                purged = {**self.purged, partition: end}
                self._write_checkpoint(PURGED, purged)
                self.purged = purged

    def note_promises(self, changes: Mapping[TopicPartition, Offset]) -> None:
        """Note, durably, where logs will begin; 0 takes a promise back."""
        with self._checkpoints:
            promises = {
                partition: start
                for partition, start in {**self.promised_starts, **changes}.items()
                if start > self.log_starts.get(partition, 0)
            }
            if promises != self.promised_starts:
                self._write_checkpoint(PROMISED_STARTS, promises)
                self.promised_starts = promises

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget, durably, what was noted of an earlier topic's partitions of the same names."""
        with self._checkpoints:
            for name, offsets in (
                (DURABLE_MARKS, self.durable_marks),
                (LOG_STARTS, self.log_starts),
                (PROMISED_STARTS, self.promised_starts),
                (PURGED, self.purged),
                (WATERMARKS, self.watermarks),
                (CUT_BYTES, self.cuts.sizes),
                (CUT_TAILS, self.cuts.places),
                (FIRST_DIRTY, self.read_checkpoint(FIRST_DIRTY)),
            ):
                before = len(offsets)
                for partition in partitions:
                    offsets.pop(partition, None)  # in place: a checkpoint may be on its way
                if len(offsets) != before:
                    self._write_checkpoint(name, offsets)

    # Partitions.

    def path(self, partition: TopicPartition) -> Path:
        """A partition's directory; InvalidTopic for a name that would lead anywhere else."""
        name = str(partition)
        if "/" in name or "\0" in name:
            raise InvalidTopic(f"{name!r} cannot name a directory")
        return self.root / name

    def make_partitions(
        self, partitions: Iterable[TopicPartition], topic_id: UUID
    ) -> frozenset[TopicPartition]:
        """Make the directories of new partitions, durably; those that are there stay.

        A directory of that name that belongs to another topic is set aside. Returns those of whose
        names nothing was there: no file can be in their directories but the one that says whose
        they are.
        """
        partitions = list(partitions)
        fresh = self._absent(partitions)
        new = [p for p in partitions if p in fresh or not self._is_there(p, topic_id)]
        self._forget([p for p in new if p in fresh or not self._disk.list(self.path(p))])
        content = f"version: 0\ntopic_id: {encode_id(topic_id)}\n".encode()
        is_each_synced = len(new) <= _SYNC_EACH_MAX
        for partition in new:
            path = self.path(partition)
            self._disk.make_directory(path)
            file = self._disk.open(path / PARTITION_METADATA, create=True)
            try:
                if partition not in fresh:
                    file.truncate(0)
                file.write(0, [content])
                if is_each_synced:
                    file.datasync()
            finally:
                file.close()
            if is_each_synced:
                self._disk.sync_directory(path)
        if new and is_each_synced:
            self._disk.sync_directory(self.root)
        elif new:
            self._disk.sync_everything(self.root)
        return fresh

    def _absent(self, partitions: Sequence[TopicPartition]) -> frozenset[TopicPartition]:
        if len(partitions) <= _LOOK_EACH_MAX:
            return frozenset(p for p in partitions if not self._disk.exists(self.path(p)))
        there = frozenset(self._disk.list(self.root))
        return frozenset(p for p in partitions if str(p) not in there)

    def _is_there(self, partition: TopicPartition, topic_id: UUID) -> bool:
        found = self.topic_id_of(partition)
        if found is not None and found != topic_id:
            path = self.path(partition)
            aside = self.root / _aside_name(partition, found, STRAY_SUFFIX)
            _log.error("%s belongs to another topic; set aside as %s", path, aside.name)
            self._disk.rename(path, aside)
            self._disk.sync_directory(self.root)
        return found == topic_id

    def topic_id_of(self, partition: TopicPartition) -> UUID | None:
        """The topic id that the partition's directory was made for; None if it does not say."""
        try:
            text = read_file(self._disk, self.path(partition) / PARTITION_METADATA).decode()
            values = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
            return decode_id(values["topic_id"])
        except (FileNotFoundError, KeyError, ValueError):
            return None

    def claim(self, partition: TopicPartition, topic_id: UUID) -> None:
        """Make the partition's directory, unless it is there; set a stranger's aside."""
        self.make_partitions([partition], topic_id)

    def set_aside_for_deletion(self, partition: TopicPartition) -> Path | None:
        """Take a partition out of sight at once; the caller removes the returned directory."""
        path = self.path(partition)
        if not self._disk.exists(path):
            return None
        aside = self.root / _aside_name(partition, self._host.new_id(), DELETED_SUFFIX)
        self._disk.rename(path, aside)
        return aside

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Delete partitions: out of sight all at once and durably, then for good.

        A disk that is too full for another name loses their files where they are.
        """
        partitions = list(partitions)
        try:
            self._set_aside(partitions)
        except OSError as error:
            if not is_short(error):
                raise
            for partition in partitions:
                self._empty(self.path(partition))
            self._set_aside(partitions)
        for path in list(self._aside):
            self._disk.remove_tree(path)
            self._aside.pop(path, None)

    def remove_half_made(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Remove the directories that can hold no record; return those that have other files."""
        others = {p: set(self._disk.list(self.path(p))) - {PARTITION_METADATA} for p in partitions}
        self.remove(p for p, names in others.items() if not names)
        return [p for p, names in others.items() if names]

    def _set_aside(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            if (path := self.set_aside_for_deletion(partition)) is not None:
                self._aside[path] = None
        self._disk.sync_directory(self.root)

    def _empty(self, path: Path) -> None:
        """Remove a partition's files durably, but for the one that says whose they were.

        Without that one, another topic of the same name would take what is left for its own.
        """
        for name in self._disk.list(path):
            if name != PARTITION_METADATA:
                self._disk.remove(path / name)
        if self._disk.exists(path):
            self._disk.sync_directory(path)

    def leftovers(self, known: Mapping[TopicPartition, UUID]) -> dict[TopicPartition, UUID]:
        """Partition directories of topics other than those in `known`, each with its topic id."""
        found = {}
        for name in self._disk.list(self.root):
            topic, _, number = name.rpartition("-")
            if not number.isdecimal() or not self._disk.is_directory(self.root / name):
                continue
            partition = TopicPartition(topic, int(number))
            topic_id = self.topic_id_of(partition)
            if topic_id is not None and topic_id != known.get(partition):
                found[partition] = topic_id
        return found

    def strangers(self, known: Iterable[TopicPartition]) -> list[str]:
        """Partition directories that the cluster does not know: kept, reported, not served."""
        names = {str(partition) for partition in known}
        return [
            name
            for name in self._disk.list(self.root)
            if name not in names
            and name.rpartition("-")[2].isdecimal()
            and self._disk.is_directory(self.root / name)
        ]


def _aside_name(partition: TopicPartition, unique: UUID, suffix: str) -> str:
    """Kafka's form; a long topic name is cut, so that the whole fits a file name."""
    ending = f"-{partition.partition}.{unique.hex}{suffix}"
    return partition.topic[: FILE_NAME_MAX - len(ending)] + ending
