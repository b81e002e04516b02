"""What a batch was: kept beside the note that it is written, and compared when it comes again.

A number alone does not tell a replay from other rows. A checkpoint that was restored from a backup,
or repaired, counts again from where it was, and what its batches hold by then is something else.

Rule 1: a batch of a stream is what its sources' ends say, where both sides know them. Spark writes
        them into the checkpoint before it runs the batch, and a replay has the same. Its rows need
        not be the same: a step may have drawn numbers. A source of files only counts there; which
        files it counted, its own log in the checkpoint says.
Rule 2: otherwise it is its rows: how many, and what `content.py` makes of them.
Rule 3: a batch below the newest is none that Spark replays: it is refused whatever it holds.
Rule 4: whoever cannot be told apart, since one side has no proof, is taken for a replay.
"""

import hashlib
import json
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tidelog.errors import TidelogError
from tidelog.txn.records import PROOF_BYTES_MAX

if TYPE_CHECKING:
    from pyarrow import fs

    from tidelog.spark.content import Content

logger = logging.getLogger(__name__)

VERSION: Final = 1
OFFSETS: Final = "offsets"
METADATA: Final = "metadata"
SOURCES: Final = "sources"
LOG_OFFSET: Final = "logOffset"
COMPACT: Final = ".compact"
NO_OFFSET: Final = "-"
"""What Spark writes for a source that the batch takes nothing of."""
SHOWN_MAX: Final = 400
SCHEMES: Final = {"s3a": "s3", "s3n": "s3"}
"""Names of Hadoop for what pyarrow calls otherwise."""

_unreadable: set[str] = set()
"""Checkpoints that this process has failed to read: each is complained of once."""


class OtherContent(TidelogError):
    """A batch has the number of one that is written, and holds something else; nothing of it was
    written."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What is known of a batch."""

    rows: int
    sums: tuple[int, ...] | None = None
    """Of its records; see `content.py`."""
    ends: Any = None
    """Where its sources end, as the checkpoint says; None if that is not known, or too long."""
    digest: str | None = field(default=None)
    """Of the ends, however long they are."""

    @classmethod
    def of(cls, content: "Content", ends: "list[Any] | None" = None) -> "Proof":
        sums = content.key_bytes, content.value_bytes, content.bytes_sum, content.hash_sum
        return cls.of_rows(content.rows, ends, sums)

    @classmethod
    def of_rows(
        cls, rows: int, ends: "list[Any] | None" = None, sums: tuple[int, ...] | None = None
    ) -> "Proof":
        return cls(rows, sums, ends, None if ends is None else _digest(ends))

    def encode(self) -> bytes:
        """As short a text as a decision can keep."""
        said = {"v": VERSION, "rows": self.rows, "sums": self.sums, "digest": self.digest}
        long = _json({**said, "ends": self.ends}).encode()
        return long if len(long) <= PROOF_BYTES_MAX else _json(said).encode()

    @classmethod
    def decode(cls, text: bytes | str | None) -> "Proof | None":
        """What was encoded; None if it is not known, or not of this kind."""
        try:
            said = json.loads(text or "")
            if said["v"] != VERSION:
                return None
            sums = said.get("sums")
            return cls(
                int(said["rows"]),
                None if sums is None else tuple(map(int, sums)),
                said.get("ends"),
                said.get("digest"),
            )
        except (ValueError, TypeError, KeyError):
            return None

    def shown(self) -> str:
        """For people."""
        rows = f"{self.rows} row{'s' * (self.rows != 1)}"
        return rows if self.digest is None else f"{rows}, sources' ends {self.shown_ends()}"

    def shown_ends(self) -> str:
        if self.ends is None:
            return f"with the digest {self.digest}"
        text = ", ".join(_json(one) for one in self.ends)
        return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def difference(decided: Proof | None, now: Proof) -> str | None:
    """In what a batch differs from the one that was decided under its number; None if in nothing
    that can be told."""
    if decided is None:
        return None
    if decided.digest is not None and now.digest is not None:
        if decided.digest == now.digest:
            return None
        return (
            f"it was decided with sources' ends {decided.shown_ends()}, and this run's ends at "
            f"{now.shown_ends()}"
        )
    if decided.rows != now.rows:
        return f"it was decided with {decided.rows} rows, and this run's has {now.rows}"
    if decided.sums is not None and now.sums is not None and decided.sums != now.sums:
        return f"it was decided with {decided.rows} rows, and this run's has as many, but others"
    return None


# Sources' ends.


def source_ends(checkpoint: str | None, batch: int, *, query: str | None = None) -> Any:
    """Where the sources of a batch end: a list, one of each source; None if nobody can tell.

    `query` is the id that the checkpoint must have: a directory of the same name on this machine
    may be another's.
    """
    if checkpoint is None:
        return None
    try:
        files, path = _find(checkpoint)
        if query is not None and json.loads(_read(files, f"{path}/{METADATA}"))["id"] != query:
            return None
        ends = parse_ends(_read(files, f"{path}/{OFFSETS}/{batch}"))
        return [
            _with_files(end, files, f"{path}/{SOURCES}/{at}") if _counts_files(end) else end
            for at, end in enumerate(ends)
        ]
    except Exception as error:  # whatever a filesystem says: rows prove it, too
        if checkpoint not in _unreadable:
            _unreadable.add(checkpoint)
            logger.warning(
                "%s cannot be read here (%s: %s): a batch that comes again is compared by its rows",
                checkpoint,
                type(error).__name__,
                error,
            )
        return None


def parse_ends(text: str) -> list[Any]:
    """The sources' lines of a file of Spark's offset log: behind a version and metadata."""
    _, _, *lines = text.strip().splitlines()
    return [_parsed(line) for line in lines]


def _parsed(line: str) -> Any:
    if line == NO_OFFSET:
        return None
    try:
        return json.loads(line)
    except ValueError:
        return line  # a source says its offsets as it likes


def _counts_files(end: Any) -> bool:
    return isinstance(end, dict) and end.keys() == {LOG_OFFSET} and end[LOG_OFFSET] >= 0


def _with_files(end: Any, files: "fs.FileSystem", log: str) -> Any:
    """The end of a source of files, with a digest of those that came last."""
    number = end[LOG_OFFSET]
    try:
        text = _read(files, f"{log}/{number}")
    except FileNotFoundError:
        text = _read(files, f"{log}/{number}{COMPACT}")
    entries = [json.loads(line) for line in text.strip().splitlines()[1:]]
    came = [_json(one) for one in entries if one["batchId"] == number]
    return {**end, "files": _digest(sorted(came))}


def _find(location: str) -> "tuple[fs.FileSystem, str]":
    import os

    from pyarrow import fs

    scheme, colon, rest = location.partition(":")
    if not colon or "/" in scheme:
        # The processes of a Spark Connect server are in a directory of their session's files.
        places = (os.path.abspath(os.path.join(start, location)) for start in ("", os.environ.get("PWD", "")))
        return fs.LocalFileSystem(), next(filter(os.path.exists, places), os.path.abspath(location))
    if scheme == "file":
        return fs.LocalFileSystem(), "/" + rest.lstrip("/").rstrip("/")
    files, path = fs.FileSystem.from_uri(f"{SCHEMES.get(scheme, scheme)}:{rest}")
    return files, path.rstrip("/")


def _read(files: "fs.FileSystem", path: str) -> str:
    with files.open_input_stream(path) as stream:
        text: bytes = stream.readall()
    return text.decode()


def _digest(ends: list[Any]) -> str:
    return hashlib.sha256(_json(ends).encode()).hexdigest()[:32]


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)
