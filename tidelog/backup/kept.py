"""The backups in a place: found by their manifests, and removed with the files that no other needs.

Rule: of a manifest that cannot be read nobody knows which files it needs. While there is one, nothing is
removed; who calls sees to that.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from tidelog.backup import chunks, manifest
from tidelog.backup.manifest import Manifest
from tidelog.backup.problems import BackupError, Damaged
from tidelog.backup.storage import Storage

STALE_MS: Final = 24 * 60 * 60 * 1000
"""After so long, what lies around in a shared place is of a run that is gone."""
ID_TIME: Final = "%Y%m%dT%H%M%SZ"


def load_manifests(storage: Storage) -> tuple[list[Manifest], list[Damaged]]:
    """Every backup, the oldest first, and what is wrong with manifests that cannot be read."""
    found, damaged = [], []
    for name in storage.names(manifest.FOLDER):
        if name.endswith(manifest.SUFFIX):
            try:
                found.append(manifest.decode(storage.read(name), name))
            except Damaged as error:
                backup = name.removeprefix(f"{manifest.FOLDER}/").removesuffix(manifest.SUFFIX)
                damaged.append(Damaged(str(error), backup=backup))
    return sorted(found, key=lambda one: (one.taken_ms, one.id)), damaged


def find_manifest(storage: Storage, backup: str | None) -> Manifest:
    """A backup by its id, or the newest one; BackupError if there is none.

    Damaged if its manifest cannot be read: an older backup is not what was asked for.
    """
    found, damaged = load_manifests(storage)
    for one in found:
        if one.id == backup:
            return one
    for error in damaged:
        if error.backup == backup:
            raise error
    if backup is not None:
        raise BackupError(f"{storage.location} has no backup {backup!r}; see `tidelog backup list`")
    if damaged and not found:
        raise damaged[-1]
    if not found:
        raise BackupError(f"{storage.location} has no backup; make one with `tidelog backup create`")
    newest = found[-1].id
    for error in damaged:
        if _moment(error.backup) >= _moment(newest):
            raise Damaged(
                f"{error}. The newest backup that can be read is {newest}; name it by --backup if "
                "an older one will do",
                backup=error.backup,
            )
    return found[-1]


def _moment(backup: str) -> str:
    """When a backup was begun, by its id; such texts are in order."""
    return backup.partition("-")[0]


def write_manifest(storage: Storage, made: Manifest) -> None:
    with storage.create(manifest_name(made.id)) as output:
        output.write(manifest.encode(made))


def manifest_name(backup: str) -> str:
    return f"{manifest.FOLDER}/{backup}{manifest.SUFFIX}"


def remove_orphans(storage: Storage, found: Sequence[Manifest], now_ms: int) -> list[str]:
    """Remove files that no manifest names; their names.

    Where others may be at work, only those of runs that began a day ago.
    """
    needed = {file for one in found for file in one.files}
    gone = [
        name
        for name in (*storage.names(chunks.FOLDER), *storage.unfinished(""))
        if name not in needed and not (storage.is_shared and _may_be_written(name, now_ms))
    ]
    for name in gone:
        storage.remove(name)
    return gone


def _may_be_written(name: str, now_ms: int) -> bool:
    run = chunks.run_of(name) or name.rpartition("/")[2]
    try:
        began = datetime.strptime(run.split("-")[0], ID_TIME).replace(tzinfo=UTC)
    except ValueError:
        return True
    return now_ms - began.timestamp() * 1000 < STALE_MS


def prune(storage: Storage, found: Sequence[Manifest], keep: int) -> tuple[str, ...]:
    """Give up all but the newest backups, and the files that no other needs; their ids."""
    gone, kept = found[:-keep], found[-keep:]
    for one in gone:
        storage.remove(manifest_name(one.id))
    needed = {file for one in kept for file in one.files}
    for name in {file for one in gone for file in one.files} - needed:
        storage.remove(name)
    return tuple(one.id for one in gone)
