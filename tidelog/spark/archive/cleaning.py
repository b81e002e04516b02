"""What an archive may forget: files that came to nothing.

Rule: a file is committed onto the snapshot that its name tells, or not at all. So one whose
snapshot is no longer the current one stays unnamed for ever, and may go; one of the current one
may be about to be named by somebody else, and stays. So does one that only forgotten snapshots had,
until its time has come (`tidelog.spark.tables.expiring`).
"""

from tidelog.spark.archive.files import SUFFIX, tag_of
from tidelog.spark.archive.tables import TopicTable
from tidelog.spark.tables.expiring import buried


def remove_strays(archived: TopicTable) -> list[str]:
    """Remove files that no snapshot names and none ever will; which they were."""
    there = archived.storage.list_files(archived.directory, SUFFIX)
    archived = archived.reload()  # after the look, so that nothing that was seen is yet to come
    named = _named(archived) | buried(archived.table)
    strays = [path for path in there if tag_of(path) not in (None, archived.tag) and path not in named]
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
