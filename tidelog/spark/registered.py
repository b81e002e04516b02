"""Keys and values whose schemas a registry knows, as columns.

Rule 1: what a query reads with is settled on the driver, once: the reader's schema travels with the
        tasks. Schemas of writers are asked for by the tasks, each once in a process.
Rule 2: a record that cannot be read never becomes a null in silence: it fails the task, or says why
        in `_corrupt_record`. A failure of the registry always fails the task.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema, to_arrow_type

from tidelog.errors import ConfigError
from tidelog.schemas import framing
from tidelog.schemas.codec import relaxed
from tidelog.schemas.formats import PartFormat
from tidelog.schemas.problems import DoesNotFit, NotFramed, RegistryDown, RegistryRefused, SchemaProblem
from tidelog.schemas.registry import Schema
from tidelog.spark.columns import SPARK
from tidelog.spark.json_reading import CORRUPT
from tidelog.spark.options import WriteOptions
from tidelog.spark.rows import TOMBSTONE, json_columns

NOT_FOUND: Final = 404


@dataclass(frozen=True, slots=True)
class PartReader:
    """Reads keys or values; it travels to the tasks."""

    form: PartFormat
    schema: Schema

    @property
    def arrow(self) -> pa.DataType:
        """The type of the values as they are read; casts make it Spark's."""
        return relaxed(self.form.codec(self.schema).arrow_type())

    @property
    def spark_type(self) -> spark.DataType:
        return from_arrow_type(to_arrow_type(from_arrow_type(self.arrow), timezone="UTC"))

    def read(self, values: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """The values, and by row why one could not be read."""
        reasons: dict[int, str] = {}
        parts: dict[int, list[int]] = {}
        payloads: dict[int, list[bytes]] = {}
        for row, data in enumerate(values.to_pylist()):
            if data is None:
                continue
            try:
                number, payload = framing.unframe(data)
            except NotFramed as problem:
                reasons[row] = str(problem)
                continue
            parts.setdefault(number, []).append(row)
            payloads.setdefault(number, []).append(payload)
        pieces: list[pa.Array] = []
        order: list[int] = []
        for number, rows in parts.items():
            try:
                found, broken = self._read_part(number, payloads[number])
            except DoesNotFit as problem:
                reasons.update(dict.fromkeys(rows, str(problem)))
                continue
            pieces += found
            order += rows
            reasons |= {rows[at]: why for at, why in broken.items()}
        return self._column(pieces, order, len(values), reasons), reasons

    def _read_part(self, number: int, payloads: list[bytes]) -> tuple[list[pa.Array], dict[int, str]]:
        """What was written with one schema."""
        reader = self.form.codec(self.schema)
        try:
            writer = self.form.writer_of(number)
        except RegistryDown:
            raise
        except RegistryRefused as error:
            if error.status != NOT_FOUND:
                raise
            raise DoesNotFit(str(error)) from error
        except SchemaProblem as problem:  # any record may name any schema, also a broken one
            raise DoesNotFit(f"{problem} (schema {number})") from problem
        pieces, broken = reader.read(payloads, writer)
        return pieces, {at: f"{why} (schema {number})" for at, why in broken.items()}

    def _column(
        self, pieces: list[pa.Array], order: list[int], count: int, reasons: dict[int, str]
    ) -> pa.Array:
        """The pieces as one column in the order of the rows, in Spark's type.

        A value that Spark's type does not have gets a reason instead.
        """
        arrow, wanted = self.arrow, to_arrow_type(self.spark_type, timezone="UTC")
        made = pa.concat_arrays(pieces) if pieces else pa.array([], arrow)
        try:
            made = made.cast(wanted)
        except pa.ArrowInvalid:
            made = pa.concat_arrays(
                [_cast_one(made[at : at + 1], wanted, row, reasons) for at, row in enumerate(order)]
            )
        if order == list(range(count)):
            return made
        places = np.full(count, -1)
        places[order] = range(len(order))
        return made.take(pa.array(places, mask=places < 0))


def _cast_one(value: pa.Array, wanted: pa.DataType, row: int, reasons: dict[int, str]) -> pa.Array:
    try:
        return value.cast(wanted)
    except pa.ArrowInvalid as error:
        reasons[row] = f"Spark has no such value: {error}"
        return pa.nulls(1, wanted)


def part_reader(form: PartFormat, topic: str | None) -> PartReader:
    """Settle what is read with: the schema that is named, or the latest of the subject."""
    schema = form.chosen(topic).schema
    form.codec(schema)  # a schema that cannot be read with is told before any task starts
    return PartReader(form, schema)


@dataclass(frozen=True, slots=True)
class PartWriter:
    """Writes keys or values; it travels to the tasks."""

    form: PartFormat
    schema_id: int
    schema: Schema

    def write(self, column: pa.Array) -> pa.Array:
        head = framing.frame(self.schema_id, b"")
        payloads = self.form.codec(self.schema).write(column)
        return pa.array([None if one is None else head + one for one in payloads], pa.binary())


def part_writer(form: PartFormat, topic: str | None, kind: spark.DataType) -> PartWriter:
    """Settle what is written with: the schema that is named, or the latest, or one made here."""
    known = form.registry()
    if form.schema_id is not None:
        return PartWriter(form, form.schema_id, known.schema(form.schema_id))
    name = f"{topic or 'record'}_{form.part}"
    name = "".join(one if one.isalnum() and one.isascii() else "_" for one in name)
    name = name if not name[0].isdigit() else f"_{name}"
    subject = form.subject_for(topic, name)
    if form.auto_register:
        text = form.row.schema_text(to_arrow_type(kind, timezone="UTC"), name)
        schema = Schema(form.row.kind, text)
        form.codec(schema)
        return PartWriter(form, known.register(subject, schema), schema)
    try:
        found = known.version(subject, form.version or "latest")
    except RegistryRefused as error:
        if error.status != NOT_FOUND:
            raise
        raise ConfigError(
            f"{error}. Subject {subject} has no schema: register one, or set schema.auto.register=true"
        ) from error
    form.codec(found.schema)
    return PartWriter(form, found.id, found.schema)


# A whole row.

PLACE: Final = ("topic", "partition", "offset")
RAW: Final = {"_raw_key": "key", "_raw_value": "value"}
"""Columns with the bytes that keys and values are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredProjection:
    """Which columns are read from the log, and the rows that they become."""

    columns: tuple[str, ...]
    schema: pa.Schema
    parts: tuple[tuple[str, PartReader], ...]
    fields: frozenset[str]
    """Columns that are fields of the value."""

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        made: dict[str, pa.Array] = {}
        reasons: dict[int, str] = {}
        for part, reader in self.parts:
            made[part], found = reader.read(batch.column(part))
            reasons = {row: f"{part}: {why}" for row, why in found.items()} | reasons
        if reasons and CORRUPT not in self.schema.names:
            row, why = next(iter(reasons.items()))
            topic, partition, offset = (batch.column(name)[row].as_py() for name in PLACE)
            raise SchemaProblem(
                f"{topic}-{partition} has at offset {offset} a record that cannot be read: {why}. "
                f"Name a column {CORRUPT} to go on past such records"
            )
        arrays = []
        for field in self.schema:
            if field.name == CORRUPT:
                texts = [reasons.get(row) for row in range(batch.num_rows)]
                arrays.append(pa.array(texts, field.type))
            elif field.name in RAW:
                arrays.append(batch.column(RAW[field.name]).cast(field.type))
            elif field.name in self.fields:
                value = made["value"]
                arrays.append(pc.struct_field(value, field.name).cast(field.type))
            elif field.name in made:
                arrays.append(made[field.name].cast(field.type))
            else:
                arrays.append(batch.column(field.name))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def registered_schema(plain: spark.StructType, readers: dict[str, PartReader]) -> spark.StructType:
    """The columns of a topic, with keys and values as their schemas say."""
    return spark.StructType(
        [
            spark.StructField(
                field.name, readers[field.name].spark_type if field.name in readers else field.dataType
            )
            for field in plain.fields
        ]
    )


def registered_projection(schema: spark.StructType, readers: dict[str, PartReader]) -> RegisteredProjection:
    """How a schema is met; ConfigError names the column that cannot be."""
    fields: set[str] = set()
    for field in schema.fields:
        if field.name in readers or field.name == CORRUPT:
            continue
        if field.name in RAW and isinstance(field.dataType, spark.BinaryType):
            continue
        wanted = field.dataType.simpleString()
        if field.name in SPARK:
            if wanted != SPARK[field.name]:
                raise ConfigError(f"column {field.name} is {SPARK[field.name]}, not {wanted}")
            continue
        value = readers["value"].spark_type if "value" in readers else None
        known = value.names if isinstance(value, spark.StructType) else []
        if field.name not in known:
            raise ConfigError(
                f"there is no column {field.name}: the value's schema has {', '.join(known) or 'no fields'}"
            )
        fields.add(field.name)
    parts = tuple(
        (part, reader)
        for part, reader in readers.items()
        if part in schema.names or (part == "value" and (fields or CORRUPT in schema.names))
    )
    own = [field.name for field in schema.fields if field.name in SPARK]
    raw = [RAW[field.name] for field in schema.fields if field.name in RAW]
    columns = dict.fromkeys([*own, *raw, *(part for part, _ in parts), *PLACE])
    return RegisteredProjection(
        columns=tuple(columns),
        schema=to_arrow_schema(schema, timezone="UTC"),
        parts=parts,
        fields=frozenset(fields),
    )


# Writing.


Parts: TypeAlias = Mapping[str, PartWriter]
"""Who writes keys and values that a registry knows, by part."""


def part_writers(schema: spark.StructType, options: WriteOptions) -> Parts:
    """Who writes keys and values that a registry knows."""
    writers = {}
    if options.value_format.is_registered:
        kind = schema["value"].dataType if "value" in schema.names else json_columns(schema)
        writers["value"] = part_writer(options.value_format, options.topic, kind)
    if options.key_format.is_registered and "key" in schema.names:
        kind = schema["key"].dataType
        writers["key"] = part_writer(options.key_format, options.topic, kind)
    return writers


def written_value(batch: pa.RecordBatch, fields: spark.StructType) -> pa.Array:
    """What becomes the value: the column `value`, or all columns that are not a record's own."""
    if "value" in batch.schema.names:
        return batch.column("value")
    arrays = [batch.column(name) for name in fields.names]
    made = pa.StructArray.from_arrays(arrays, names=fields.names)
    if TOMBSTONE not in batch.schema.names:
        return made
    deletes = batch.column(TOMBSTONE).fill_null(False)
    return pc.if_else(deletes, pa.scalar(None, made.type), made)
