"""Fields of Kafka's records, read by hand: numbers are big-endian."""

import struct
from typing import Final

from tidelog.errors import CorruptMessage

_INT8: Final = struct.Struct(">b")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")


class Reader:
    """A position in some bytes; refuses to leave them."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, size: int) -> bytes:
        start, end = self._at, self._at + size
        if size < 0 or end > len(self._data):
            raise CorruptMessage(f"a field of {size} bytes does not fit into {len(self._data)}")
        self._at = end
        return self._data[start:end]

    def int8(self) -> int:
        value: int = _INT8.unpack(self._take(1))[0]
        return value

    def int16(self) -> int:
        value: int = _INT16.unpack(self._take(2))[0]
        return value

    def int32(self) -> int:
        value: int = _INT32.unpack(self._take(4))[0]
        return value

    def int64(self) -> int:
        value: int = _INT64.unpack(self._take(8))[0]
        return value

    def uvarint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise CorruptMessage("a number of more than 32 bits")

    def tags(self) -> dict[int, bytes]:
        return {self.uvarint(): self._take(self.uvarint()) for _ in range(self.uvarint())}

    def text(self, *, is_compact: bool = False) -> str:
        text = self.nullable_text(is_compact=is_compact)
        if text is None:
            raise CorruptMessage("a text that must be there is null")
        return text

    def nullable_text(self, *, is_compact: bool = False) -> str | None:
        size = self.uvarint() - 1 if is_compact else self.int16()
        if size == -1:
            return None
        try:
            return self._take(size).decode()
        except UnicodeDecodeError as error:
            raise CorruptMessage(f"a text is not UTF-8: {error}") from None

    def blob(self) -> bytes:
        return self._take(self.int32())

    def count(self, *, is_compact: bool = False, may_be_null: bool = False) -> int:
        """How many elements an array has; none where it is null."""
        count = self.uvarint() - 1 if is_compact else self.int32()
        if not (-1 if may_be_null else 0) <= count <= len(self._data) - self._at:
            raise CorruptMessage(f"{count} elements cannot be in {len(self._data)} bytes")
        return max(count, 0)

    def end(self) -> None:
        if self._at != len(self._data):
            raise CorruptMessage(f"{len(self._data) - self._at} bytes follow the last field")
