"""Snapshots that are forgotten, and the files that only they had.

Rule 1: all of a table's snapshots are written again with each commit, so only the last few stay in
        the list, and those that a branch or tag names.
Rule 2: a file is removed no sooner than `keep_seconds` after its last snapshot left the list: who
        reads such a snapshot is given that long.
Rule 3: what will be removed is noted in a grave beside the table before the snapshots leave the
        list. Whoever dies in between leaves a grave whose snapshots are still listed: it is void.
Rule 4: data files go by the word of the snapshots that deleted them, and only of the line that led
        to the current one. A table with other branches or tags keeps all of its data files.
Rule 5: what a listed snapshot has is never removed, whatever a grave says: a file may have been
        added again. A table that others share files with (`gc.enabled=false`) loses none.
Rule 6: snapshots leave the list only while no branch or tag has come to name them.
"""

import json
import time
import uuid
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyarrow import fs
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, ancestors_of
from pyiceberg.table.update import AssertRefSnapshotId

from tidelog.spark.archive.storage import Storage

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

# grave := GRAVES/MILLISECONDS-ID.json
#       := {"snapshots": [id, ...], "files": [location, ...]}
GRAVES: Final = "metadata/tidelog-expired"
SNAPSHOTS_KEPT: Final = 20
KEEP_SECONDS: Final = 3600.0
GC_ENABLED: Final = "gc.enabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """How many snapshots stay, and how long the files of those that left."""

    snapshots: int = SNAPSHOTS_KEPT
    keep_seconds: float = KEEP_SECONDS

    def is_due(self, table: "Table") -> bool:
        """Whether there are twice as many snapshots as stay: so the work is shared by many
        commits."""
        return _may_remove(table) and len(table.metadata.snapshots) >= 2 * self.snapshots


def expire(table: "Table", expiry: Expiry, *, now: float | None = None) -> int:
    """Forget all but the last snapshots; how many. `table` is left as it was."""
    now_ms = int((time.time() if now is None else now) * 1000)
    metadata = table.metadata
    listed = sorted(metadata.snapshots, key=lambda one: one.sequence_number or 0)
    pinned = {ref.snapshot_id for ref in metadata.refs.values()}
    old = [one for one in listed[: -expiry.snapshots] if one.snapshot_id not in pinned]
    if not old or not _may_remove(table):
        return 0
    ids = {one.snapshot_id for one in old}
    kept = [one for one in listed if one.snapshot_id not in ids]
    grave = _Grave(table, now_ms)
    grave.write(ids, _doomed(table, old, kept))
    try:
        _forget(table.catalog.load_table(table.name()), ids, metadata.refs.keys())
    except CommitFailedException:
        grave.remove()
        return 0  # somebody else was faster; there is a next time
    grave.remove_void(ids)
    return len(old)


def _forget(table: "Table", ids: set[int], refs: Collection[str]) -> None:
    """Take snapshots from the list of a table as it is now; CommitFailedException, if one of them
    is gone or has a name by now. pyiceberg would take them from whatever the table has become."""
    metadata = table.metadata
    is_current = {"ref": MAIN_BRANCH, "snapshot-id": metadata.current_snapshot_id}
    if (
        metadata.refs.keys() - refs
        or ids.intersection(ref.snapshot_id for ref in metadata.refs.values())
        or not ids.issubset(one.snapshot_id for one in metadata.snapshots)
    ):
        raise CommitFailedException("branches, tags or snapshots have changed")
    update = table.maintenance.expire_snapshots().by_ids(sorted(ids))
    update._requirements += (AssertRefSnapshotId.model_validate(is_current),)
    update.commit()


def remove_expired(table: "Table", expiry: Expiry, *, now: float | None = None) -> int:
    """Remove the files whose time has come; how many."""
    now_ms = int((time.time() if now is None else now) * 1000)
    storage, removed = Storage.of(table.io.properties), 0
    if not _may_remove(table):
        return 0
    listed = {one.snapshot_id for one in table.metadata.snapshots}
    named: set[str] | None = None
    for location in storage.list_files(_graves(table), ".json"):
        since = location.rpartition("/")[2].partition("-")[0]
        if not since.isdigit() or int(since) + expiry.keep_seconds * 1000 > now_ms:
            continue
        told = _read(table, location)
        if not listed.intersection(told["snapshots"]):
            named = _named(table) if named is None else named
            files = [file for file in told["files"] if file not in named]
            storage.remove(files)
            removed += len(files)
        storage.remove([location])
    return removed


def _may_remove(table: "Table") -> bool:
    return table.properties.get(GC_ENABLED, "true").lower() != "false"


def _named(table: "Table") -> set[str]:
    """All files that the listed snapshots have."""
    snapshots = table.metadata.snapshots
    manifests = {
        manifest.manifest_path: manifest
        for snapshot in snapshots
        for manifest in snapshot.manifests(table.io)
    }
    return {
        *(snapshot.manifest_list for snapshot in snapshots),
        *manifests,
        *(
            entry.data_file.file_path
            for manifest in manifests.values()
            for entry in manifest.fetch_manifest_entry(table.io)
        ),
    }


def buried(table: "Table") -> set[str]:
    """The files that wait for their time: no snapshot has them, and readers may."""
    storage = Storage.of(table.io.properties)
    return {
        file
        for location in storage.list_files(_graves(table), ".json")
        for file in _read(table, location)["files"]
    }


def _read(table: "Table", location: str) -> dict[str, Any]:
    with table.io.new_input(location).open() as stream:
        told: dict[str, Any] = json.loads(stream.read())
    return told


def _doomed(table: "Table", old: "list[Snapshot]", kept: "list[Snapshot]") -> list[str]:
    """The files that no snapshot has once the old ones are forgotten."""

    def manifests(snapshots: "Iterable[Snapshot]") -> set[str]:
        return {one.manifest_path for some in snapshots for one in some.manifests(table.io)}

    doomed = [one.manifest_list for one in old]
    doomed += sorted(manifests(old) - manifests(kept))
    return [*doomed, *_deleted(table, old)]


def _deleted(table: "Table", old: "list[Snapshot]") -> list[str]:
    """The data files that are in old snapshots, and in none that stays."""
    metadata = table.metadata
    if metadata.refs.keys() - {MAIN_BRANCH}:
        return []
    ids = {one.snapshot_id for one in old}
    line = list(ancestors_of(table.current_snapshot(), metadata))
    forgotten = [one for one in line if one.snapshot_id in ids]
    first_kept = [one for one in line if one.snapshot_id not in ids][-1:]
    # What a snapshot deleted was in those before it, which all are forgotten.
    return sorted(
        entry.data_file.file_path
        for snapshot in (*forgotten, *first_kept)
        if snapshot.summary is None or snapshot.summary.operation != Operation.APPEND
        for manifest in snapshot.manifests(table.io)
        if manifest.added_snapshot_id == snapshot.snapshot_id
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        if entry.status == ManifestEntryStatus.DELETED and entry.snapshot_id == snapshot.snapshot_id
    )


def _graves(table: "Table") -> str:
    return f"{table.location().rstrip('/')}/{GRAVES}"


class _Grave:
    """The note of what is removed, and from when on."""

    def __init__(self, table: "Table", now_ms: int) -> None:
        self._table = table
        self._location = f"{_graves(table)}/{now_ms}-{uuid.uuid4().hex}.json"

    def write(self, snapshots: Iterable[int], files: list[str]) -> None:
        filesystem, path = Storage.of(self._table.io.properties).find(self._location)
        if isinstance(filesystem, fs.LocalFileSystem):
            filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        with self._table.io.new_output(self._location).create() as stream:
            stream.write(json.dumps({"snapshots": sorted(snapshots), "files": files}).encode())

    def remove(self) -> None:
        with suppress(OSError):
            Storage.of(self._table.io.properties).remove([self._location])

    def remove_void(self, snapshots: set[int]) -> None:
        """Remove what others have noted of these snapshots, and died before they left the list:
        the files' time begins now."""
        storage = Storage.of(self._table.io.properties)
        for location in storage.list_files(_graves(self._table), ".json"):
            if location == self._location:
                continue
            if snapshots.intersection(_read(self._table, location)["snapshots"]):
                storage.remove([location])
