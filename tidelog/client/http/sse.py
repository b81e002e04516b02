"""Server-sent events: bytes in, events out.

    stream := block*
    block  := line* end            an event, if it has data
    line   := ":" comment end | name [":" [" "] value] end
    end    := CR LF | LF | CR

Rule 1: a line and an event have at most so many bytes; whoever sends more is cut off, and memory
        stays what it was.
Rule 2: an id counts once its block has ended: whoever goes on after it has had all that it names.
"""

import re
from dataclasses import dataclass
from typing import Final

EVENT_BYTES_MAX: Final = 32 * 1024 * 1024
"""A value of a mebibyte may take six times that as JSON; a batch of them has several events."""

_END: Final = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class EventTooLong(Exception):
    """An event passes the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event; `id` is the last that was said, here or before."""

    data: str
    kind: str
    id: str | None


class Parser:
    """Reads one stream. `last_id` is that of the last block that ended, with data or without."""

    def __init__(self, bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._tail = bytearray()
        self._ended_with_cr = False
        self._is_first_line = True
        self._data: list[str] = []
        self._data_bytes = 0
        self._kind = ""
        self._id: str | None = None
        self.last_id: str | None = None

    def feed(self, chunk: bytes) -> list[Event]:
        """Take the next bytes, cut anywhere; return the events that are whole now."""
        if self._ended_with_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]  # the line feed of a CR LF that was cut in two
            self._ended_with_cr = False
        if not chunk:
            return []
        self._ended_with_cr = chunk.endswith(b"\r")
        events = []
        *whole, rest = _END.split(chunk)
        for line in whole:
            if self._tail:
                line = bytes(self._tail) + line
                self._tail.clear()
            self._check(len(line))
            event = self._take(line)
            if event is not None:
                events.append(event)
        self._tail += rest
        self._check(len(self._tail))
        return events

    def _check(self, line_bytes: int) -> None:
        if self._data_bytes + line_bytes > self._bytes_max:
            raise EventTooLong(f"an event has more than {self._bytes_max} bytes")

    def _take(self, line: bytes) -> Event | None:
        if self._is_first_line:
            line = line.removeprefix(_BYTE_ORDER_MARK)
            self._is_first_line = False
        if not line:
            return self._end_block()
        name, _, rest = line.partition(b":")
        value = rest.removeprefix(b" ").decode("utf-8", "replace")
        match name:
            case b"data":
                self._data.append(value)
                self._data_bytes += len(line)
            case b"event":
                self._kind = value
            case b"id" if "\0" not in value:
                self._id = value
            case _:
                pass  # a comment, or a field that says nothing to us
        return None

    def _end_block(self) -> Event | None:
        data, kind = self._data, self._kind or "message"
        self._data, self._data_bytes, self._kind = [], 0, ""
        self.last_id = self._id
        if not data:
            return None
        return Event(data="\n".join(data), kind=kind, id=self.last_id)
