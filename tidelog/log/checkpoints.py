"""Small text files that a start believes: offsets of partitions, and epochs of one log.

Rule 1: a file bears a checksum, in its last line. A flipped bit would still be a number, and a log
        that is said to begin behind its end is removed.
Rule 2: files of version 0 have none; they are of an earlier release, or of Kafka.
"""

# file    := version, "\n", count, "\n", (line, "\n"){count}, sum?
# version := "0" without a sum | "1" with one
# sum     := "crc32c ", eight hexadecimal digits, "\n"      of all that stands before it
# line    := topic, " ", partition, " ", offset              of a checkpoint of offsets
#          | epoch, " ", start offset                        of an epoch history

from collections.abc import Iterable, Mapping
from typing import Final

from crc32c import crc32c

from tidelog.errors import TidelogError
from tidelog.model import Offset, TopicPartition

COPY_SUFFIX: Final = ".copy"
"""Of a second file, of what nothing but the checkpoint tells."""
_SUM: Final = b"crc32c "
_SUM_BYTES: Final = len(_SUM) + 9


class CheckpointDamaged(TidelogError):
    """A checkpoint is not what was written."""


def encode_lines(lines: Iterable[str]) -> bytes:
    lines = list(lines)
    content = "\n".join(["1", str(len(lines)), *lines, ""]).encode()
    return content + _sum_of(content)


def decode_lines(data: bytes) -> list[str]:
    """The lines of a file; CheckpointDamaged if it is not what was written."""
    content = data
    if data.startswith(b"1\n"):
        content, told = data[:-_SUM_BYTES], data[-_SUM_BYTES:]
        if told != _sum_of(content):
            raise CheckpointDamaged("its checksum is wrong")
    try:
        # Without its last newline an offset may lack digits.
        version, count, *lines, last = content.decode("ascii").split("\n")
        is_whole = version in ("0", "1") and int(count) == len(lines) and last == ""
    except (ValueError, UnicodeDecodeError) as error:
        raise CheckpointDamaged(str(error)) from error
    if not is_whole:
        raise CheckpointDamaged(f"{count} lines of version {version} were to be there")
    return lines


def _sum_of(content: bytes) -> bytes:
    return b"%s%08x\n" % (_SUM, crc32c(content))


def encode(offsets: Mapping[TopicPartition, Offset]) -> bytes:
    return encode_lines(f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items())


def decode(data: bytes) -> dict[TopicPartition, Offset]:
    try:
        entries = [line.rsplit(" ", 2) for line in decode_lines(data)]
        found = {TopicPartition(t, int(p)): int(offset) for t, p, offset in entries}
    except ValueError as error:
        raise CheckpointDamaged(str(error)) from error
    if not all(0 <= offset < 2**63 for offset in found.values()):
        raise CheckpointDamaged("an offset that cannot be")
    return found
