"""What machines that live on a partition's log say: to those who asked, and to that log.

Rule: everything is a value; nothing here acts.
"""

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from tidelog.model import ProducerId
from tidelog.records import Record

Token: TypeAlias = object
"""Who asked; it means nothing to a machine, which gives it back with the answer."""

_UTF16_UNIT: Final = struct.Struct(">H")


class Moment(NamedTuple):
    """One look at both clocks. Timeouts go by `now`; what is written down goes by `wall_ms`."""

    now: float
    wall_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Tell whoever asked; a `BrokerError` is a refusal."""

    to: Token
    result: object


class Writer(NamedTuple):
    """In whose transaction a batch is written."""

    producer_id: ProducerId
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Append the records as one batch; `stored(write)` or `store_failed(write)` comes back."""

    write: int
    records: tuple[Record, ...]
    writer: Writer | None = None
    """None outside of transactions."""


def partition_for(name: str, count: int) -> int:
    """The partition that holds a group or a transaction, as every Kafka client agrees.

    Java's `String.hashCode`: 31 * hash + unit over the UTF-16 units, in 32 bits; its least value
    has no positive counterpart and counts as 0.
    """
    value = 0
    for (unit,) in _UTF16_UNIT.iter_unpack(name.encode("utf-16-be", "surrogatepass")):
        value = (31 * value + unit) & 0xFFFFFFFF
    signed = value - 2**32 if value >= 2**31 else value
    return (0 if signed == -(2**31) else abs(signed)) % count
