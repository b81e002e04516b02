"""A backup is read to its last byte, and compared with its manifest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidelog.backup.chunks import check_chunk
from tidelog.backup.manifest import Chunk, Manifest, gaps
from tidelog.backup.problems import Damaged
from tidelog.backup.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What was found in one backup."""

    manifest: Manifest
    files: int
    damage: tuple[str, ...]


def bytes_to_verify(manifests: Sequence[Manifest]) -> int:
    chunks = {chunk.file: chunk.bytes for one in manifests for chunk in one.chunks}
    return sum(chunks.values())


def verify(
    storage: Storage,
    manifests: Sequence[Manifest],
    *,
    deep: bool = False,
    on_progress: Callable[[int], None] = lambda size: None,
) -> list[Verified]:
    """Read every file of some backups, each once; `deep` unpacks every record."""
    judged: dict[str, tuple[Chunk, str | None]] = {}
    found = []
    for manifest in manifests:
        damage = [*gaps(manifest)]
        for chunk in manifest.chunks:
            if chunk.file is None:
                continue
            known = judged.get(chunk.file)
            if known is None or known[0] != chunk:
                known = judged[chunk.file] = chunk, _judge(storage, chunk, deep=deep)
                on_progress(chunk.bytes)
            if known[1] is not None:
                damage.append(known[1])
        found.append(Verified(manifest=manifest, files=len(manifest.files), damage=tuple(damage)))
    return found


def _judge(storage: Storage, chunk: Chunk, *, deep: bool) -> str | None:
    try:
        check_chunk(storage, chunk, deep=deep)
    except Damaged as error:
        return str(error)
    return None
