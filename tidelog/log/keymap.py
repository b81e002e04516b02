"""Where the newest record of each key lies, in bounded memory.

A *mark* says so for one record: twice its offset, and one more if it is a tombstone. Marks are in
the order of offsets, and one number costs less than two.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

from tidelog.model import Offset

KEY_BYTES: Final = 208
"""What a mapped key costs at most: its bytes object, its mark, its share of a growing dict."""
WINDOW: Final = 4 * 1024 * 1024
"""Offsets whose fates are kept at a time, in a byte each."""

TOMBSTONE: Final = 1
"""The bit of a mark that says so."""

GONE: Final = 0
STAYS: Final = 1
TOMBSTONE_STAYS: Final = 2

_SHORT_KEY_BYTES: Final = 40
_DIGEST_BYTES: Final = _SHORT_KEY_BYTES + 1
_FORGOTTEN_AT_ONCE: Final = 1000


class KeyMap:
    """The newest mark of each key.

    Short keys stand for themselves. A longer one is represented by a hash which is longer than any
    short key, so that the two never meet, and strong, so that nobody can make one key pass for
    another.
    """

    __slots__ = ("_keys_max", "_marks")

    def __init__(self, bytes_max: int) -> None:
        self._marks: dict[bytes, int] = {}
        self._keys_max = max(1, bytes_max // KEY_BYTES)

    def __len__(self) -> int:
        return len(self._marks)

    def put(self, keys: Sequence[bytes], marks: Sequence[int]) -> int:
        """Note the keys' marks, the later the newer; how many there was memory for."""
        keys, known = _represent(keys), self._marks
        if len(known) + len(keys) <= self._keys_max:
            known.update(zip(keys, marks, strict=True))
            return len(keys)
        for at, key in enumerate(keys):
            if len(known) >= self._keys_max and key not in known:
                return at
            known[key] = marks[at]
        return len(keys)

    def newest(self, keys: Sequence[bytes]) -> list[int | None]:
        """Each key's mark, or None."""
        return list(map(self._marks.get, _represent(keys)))

    def knows_any(self, keys: Sequence[bytes]) -> bool:
        return not self._marks.keys().isdisjoint(_represent(keys))

    def marks(self) -> Iterable[int]:
        return self._marks.values()

    def forget(self) -> None:
        """Give the memory back bit by bit: at once it would hold Python's lock for too long."""
        while self._marks:
            for _ in range(min(len(self._marks), _FORGOTTEN_AT_ONCE)):
                self._marks.popitem()


def _represent(keys: Sequence[bytes]) -> Sequence[bytes]:
    if max(map(len, keys), default=0) <= _SHORT_KEY_BYTES:
        return keys
    return [
        key if len(key) <= _SHORT_KEY_BYTES else blake2b(key, digest_size=_DIGEST_BYTES).digest()
        for key in keys
    ]


class Fates:
    """Which offsets hold the newest record of their key, looked up from offset to offset upwards.

    With a byte per offset a whole batch is judged by C, and a log of any length by a window.
    """

    def __init__(self, keys: KeyMap) -> None:
        self._keys = keys
        self._start: Offset = 0
        self._fates = bytearray()

    def of(self, start: Offset, end: Offset) -> bytes | None:
        """GONE, STAYS or TOMBSTONE_STAYS of each; None if they are too many."""
        if end - start > WINDOW:
            return None
        if not self._start <= start <= end <= self._start + len(self._fates):
            self._move(start)
        at = start - self._start
        return bytes(self._fates[at : at + end - start])

    def _move(self, start: Offset) -> None:
        fates, size = bytearray(WINDOW), WINDOW
        for mark in self._keys.marks():
            if 0 <= (at := (mark >> 1) - start) < size:
                fates[at] = STAYS + (mark & TOMBSTONE)
        self._start, self._fates = start, fates
