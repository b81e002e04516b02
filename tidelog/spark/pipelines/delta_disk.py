"""Delta tables on a local disk, as they are after a power failure.

Rule: `deltalake` syncs nothing. Whatever a commit names is synced by us, and then the commit: what
      another machine's power holds is that machine's, and an object store's is the store's.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from pyarrow import fs

from tidelog.spark.archive.storage import Storage, sync_file, sync_files

LOG: Final = "_delta_log"
LAST_CHECKPOINT: Final = "_last_checkpoint"
WRITES: Final = ("add", "cdc")
"""Actions that name a file which the commit has brought."""


def sync_written(storage: Storage, locations: Iterable[str]) -> None:
    """Have the files of a batch on their disk."""
    found = [storage.find(location) for location in locations]
    sync_files(path for filesystem, path in found if isinstance(filesystem, fs.LocalFileSystem))


def sync_commits(uri: str, since: int, version: int) -> None:
    """Have the commits behind one version, up to another, on their disk, with all that they name."""
    if "://" in uri and not uri.startswith("file://"):
        return
    table = Path(uri.removeprefix("file://"))
    log = table / LOG
    for number in range(since + 1, version + 1):
        for one in sorted(log.glob(f"{number:020}.*")):
            if one.suffix == ".json":
                _sync(table / name for name in _named(one))
            _sync([one])
    _sync([log / LAST_CHECKPOINT])


def _named(commit: Path) -> Iterator[str]:
    for line in commit.read_text().splitlines():
        action = json.loads(line)
        yield from (unquote(action[one]["path"]) for one in WRITES if one in action)


def _sync(files: Iterable[Path]) -> None:
    for file in files:
        with suppress(FileNotFoundError):  # somebody has merged it since, or there is none yet
            sync_file(str(file))
