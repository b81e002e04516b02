"""What a format does with one schema: values as JSON, values as columns, and both back.

Rule 1: a codec belongs to one schema, is never changed, and may be used by several threads.
Rule 2: a payload that its schema does not describe is DoesNotFit, never another kind of exception.
Rule 3: no value is changed to fit a schema: it is read and written as it is, or refused.
Rule 4: pyarrow is imported by the methods about columns only: a node has none.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tidelog.schemas.documents import check_size, text
from tidelog.schemas.problems import DoesNotFit

if TYPE_CHECKING:
    import pyarrow as pa

LOOKED_AT: Final = 16 * 1024
"""Payloads that are no longer have too few values, and these too short names, for a long text."""


class Codec(ABC):
    """One schema, ready to read and to write with."""

    label: ClassVar[str]
    """The name of the format in messages: Avro, Protobuf, JSON."""

    # Single values, as JSON that people read and type.

    @abstractmethod
    def document(self, payload: bytes) -> Any:
        """A payload of this schema as the values that `documents.text` writes."""

    @abstractmethod
    def payload(self, line: bytes, *, is_typed: bool = True) -> bytes:
        """The payload of a value in JSON.

        In a line that a person typed, a string needs no quotes if the schema has strings alone.
        """

    def text(self, payload: bytes) -> bytes:
        """A payload of this schema as JSON."""
        document = self.document(payload)
        if len(payload) > LOOKED_AT:
            check_size(document)
        return text(document)

    def message_of(self, payload: bytes) -> str | None:
        """Which of several types of the schema a payload is, for who would write it again."""
        return None

    # Columns.

    @abstractmethod
    def arrow_type(self) -> "pa.DataType":
        """The type of a column of these values; ConfigError names the field that has none.

        A field that is not nullable is one that the schema cannot leave out.
        """

    @abstractmethod
    def read_all(self, payloads: Sequence[bytes], writer: "Codec") -> "pa.Array":
        """Payloads of a writer's schema as a column of this one; DoesNotFit if one is broken."""

    @abstractmethod
    def encode(self, values: Sequence[Any]) -> list[bytes | None]:
        """The payloads of values as `fitting.fitted` leaves them."""

    def read(self, payloads: Sequence[bytes], writer: "Codec") -> "tuple[list[pa.Array], dict[int, str]]":
        """A column in pieces, and why a payload could not be read, by its place.

        Broken payloads are found by halving, so that a few of them cost little.
        """
        import pyarrow as pa

        try:
            return [self.read_all(payloads, writer)], {}
        except DoesNotFit as problem:
            if len(payloads) == 1:
                return [pa.nulls(1, relaxed(self.arrow_type()))], {0: str(problem)}
        half = len(payloads) // 2
        pieces, reasons = self.read(payloads[:half], writer)
        more, later = self.read(payloads[half:], writer)
        return pieces + more, reasons | {half + row: why for row, why in later.items()}

    def write(self, column: "pa.Array") -> list[bytes | None]:
        """The payloads of a column; null stays null."""
        from tidelog.schemas.fitting import fitted

        fits = fitted(column, self.arrow_type(), self.label)
        try:
            values = fits.to_pylist(maps_as_pydicts="strict")
        except (KeyError, ValueError) as error:
            raise DoesNotFit(f"a map has a key twice: {error}") from error
        return self.encode(values)


def array_of(values: Sequence[Any], kind: "pa.DataType") -> "pa.Array":
    """Python's values as a column; DoesNotFit if the type does not have one of them."""
    import pyarrow as pa

    try:
        return pa.array(values, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise DoesNotFit(f"Spark has no such value: {error}") from error


def relaxed(kind: "pa.DataType") -> "pa.DataType":
    """A type whose fields may all be null, as those of Spark's columns."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, relaxed(one.type)) for one in kind])
    if pa.types.is_map(kind):
        return pa.map_(relaxed(kind.key_type), relaxed(kind.item_type))
    return pa.list_(relaxed(kind.value_type)) if pa.types.is_list(kind) else kind
