"""Single keys and values of a schema registry, as JSON that people read and type.

Rule: what `text_of` writes, `bytes_of` reads back as the same value.
"""

from typing import Any

from tidelog.schemas import framing
from tidelog.schemas.codec import Codec
from tidelog.schemas.formats import PartFormat
from tidelog.schemas.problems import DoesNotFit
from tidelog.schemas.registry import Schema


class ValueReader:
    """Reads keys or values by the schemas that they were written with."""

    def __init__(self, form: PartFormat) -> None:
        self._form = form

    def document(self, data: bytes | None) -> Any:
        """A value as `documents.text` would write it."""
        return None if data is None else self._read(data, "document")

    def text_of(self, data: bytes | None) -> bytes | None:
        """A value as JSON."""
        return None if data is None else self._read(data, "text")

    def _read(self, data: bytes, how: str) -> Any:
        number, payload = framing.unframe(data)
        codec = self._form.writer_of(number)
        try:
            return getattr(codec, how)(payload)
        except DoesNotFit as problem:
            raise DoesNotFit(f"{problem} (schema {number})") from problem


class ValueWriter:
    """Writes keys or values by one schema: a given one, which is registered, or one of there."""

    def __init__(self, form: PartFormat, topic: str | None, given: str | None) -> None:
        if given is None:
            found = form.chosen(topic)
            self.schema_id = found.id
            self._codec: Codec = form.codec(found.schema)
        else:
            subject = form.subject_for(topic)
            schema = Schema(form.row.kind, given)
            self._codec = form.codec(schema)  # nothing is registered that cannot be written
            self.schema_id = form.registry().register(subject, schema)

    def bytes_of(self, data: bytes | None, *, is_typed: bool = True) -> bytes | None:
        """The record of a value in JSON, which a person may have typed."""
        if data is None:
            return None
        return framing.frame(self.schema_id, self._codec.payload(data, is_typed=is_typed))
