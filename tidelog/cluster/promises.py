"""Small files that a node stakes its word on: one line of JSON, and its checksum on the next.

Rule: a rotten promise must not be kept. What does not check out is not read at all.
"""

# file := JSON, "\n", crc32c of the JSON: 8 hex digits, "\n"

from typing import TypeVar

import crc32c
import msgspec

T = TypeVar("T", bound=msgspec.Struct)


def encode_promise(promise: msgspec.Struct) -> bytes:
    line = msgspec.json.encode(promise)
    return b"%s\n%08x\n" % (line, crc32c.crc32c(line))


def decode_promise(content: bytes, kind: type[T]) -> T:
    """ValueError if it is not what was written."""
    line, _, rest = content.partition(b"\n")
    if rest != b"%08x\n" % crc32c.crc32c(line):
        raise ValueError("its checksum does not match")
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
