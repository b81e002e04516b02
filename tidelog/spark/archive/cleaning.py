"""What an archive may forget: files that came to nothing, and snapshots of long ago.

Rule: a file is committed onto the snapshot that its name tells, or not at all. So one whose
snapshot is no longer the current one stays unnamed for ever, and may go; one of the current one
may be about to be named by somebody else, and stays.
"""

from typing import Final

from pyiceberg.exceptions import CommitFailedException

from tidelog.spark.archive.files import SUFFIX, tag_of
from tidelog.spark.archive.tables import TopicTable

SNAPSHOTS_MAX: Final = 200
SNAPSHOTS_KEPT: Final = 100
"""Once there are more than can be used, all but these are forgotten; every file is in each."""


def remove_strays(archived: TopicTable) -> list[str]:
    """Remove files that no snapshot names and none ever will; which they were."""
    there = archived.storage.list_files(archived.directory, SUFFIX)
    archived = archived.reload()  # after the look, so that nothing that was seen is yet to come
    named = _named(archived)
    strays = [
        path for path in there if tag_of(path) not in (None, archived.tag) and path not in named
    ]
    archived.storage.remove(strays)
    return strays


def _named(archived: TopicTable) -> set[str]:
    """Every file that any snapshot has, those of times gone by too."""
    table = archived.table
    manifests = {
        manifest.manifest_path: manifest
        for snapshot in table.metadata.snapshots
        for manifest in snapshot.manifests(table.io)
    }
    return {
        entry.data_file.file_path
        for manifest in manifests.values()
        for entry in manifest.fetch_manifest_entry(table.io)
    }


def forget_snapshots(
    archived: TopicTable, *, above: int = SNAPSHOTS_MAX, keep: int = SNAPSHOTS_KEPT
) -> None:
    """Keep the list of snapshots short, for all of it is written again with every commit."""
    table = archived.reload().table  # so `archived` stays what it was, and others' commits count
    snapshots = sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
    if len(snapshots) <= above:
        return
    pinned = {ref.snapshot_id for ref in table.metadata.refs.values()}
    old = [one for one in snapshots[:-keep] if one.snapshot_id not in pinned]
    lists = [one.manifest_list for one in old]
    before = {manifest.manifest_path for one in old for manifest in one.manifests(table.io)}
    try:
        expiry = table.maintenance.expire_snapshots()
        expiry.by_ids([one.snapshot_id for one in old]).commit()
    except CommitFailedException:
        return  # somebody else was faster; the next round will do
    table.refresh()
    kept = {
        manifest.manifest_path
        for one in table.metadata.snapshots
        for manifest in one.manifests(table.io)
    }
    archived.storage.remove([*lists, *(before - kept)])
