"""What machines that live on a partition's log say: to those who asked, and to that log.

Rule: everything is a value; nothing here acts.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tidelog.model import ProducerId
from tidelog.records import Record

Token: TypeAlias = object
"""Who asked; it means nothing to a machine, which gives it back with the answer."""


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
