"""The formats whose schemas a registry knows: one row each, from which all else is derived.

A row names a module with two functions:
    open_schema(schema, registry, reading) -> Codec      a schema that is there
    schema_text(arrow_type, name) -> str                 a schema that is made of columns

Rule: this module imports no codec until one is used, so that commands start fast.
"""

from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Final

from tidelog.schemas.problems import RegistryDown, RegistryRefused, SchemaProblem

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.schemas.codec import Codec
    from tidelog.schemas.registry import Registry, Schema

SCHEMA_BYTES_MAX: Final = 1024 * 1024
"""How long a schema's text may be; those it refers to may be as long, each."""
CODECS_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Reading:
    """How a schema is used, beyond what it says."""

    message: str | None = None
    """Which message of a Protobuf schema is meant; else its first one."""
    validates: bool = True
    """Whether JSON that is read is checked by the schema that it was written with."""


PLAIN: Final = Reading()


@dataclass(frozen=True, slots=True)
class SchemaFormat:
    name: str
    """As options and commands say it."""
    kind: str
    """As registries say it: `schemaType`."""
    module: str

    def codec(self, schema: "Schema", registry: "Registry | None", reading: Reading = PLAIN) -> "Codec":
        """What reads and writes by a schema; made once for each schema in a process."""
        if len(schema.text) > SCHEMA_BYTES_MAX:
            raise SchemaProblem(
                f"the schema has {len(schema.text)} characters; {SCHEMA_BYTES_MAX} are allowed"
            )
        found = _codec(self, schema, registry, reading)
        if isinstance(found, SchemaProblem):
            raise found
        return found

    def schema_text(self, kind: "pa.DataType", name: str) -> str:
        """A schema that can say every value of a column."""
        found: str = import_module(self.module).schema_text(kind, name)
        return found


@lru_cache(CODECS_MAX)
def _codec(
    form: SchemaFormat, schema: "Schema", registry: "Registry | None", reading: Reading
) -> "Codec | SchemaProblem":
    """A schema that is broken stays broken, and is not compiled again; a registry may come back."""
    try:
        found: Codec = import_module(form.module).open_schema(schema, registry, reading)
    except (RegistryDown, RegistryRefused):
        raise
    except SchemaProblem as problem:
        return problem.with_traceback(None)
    except RecursionError:
        return SchemaProblem("the schema is nested too deeply")
    return found


FORMATS: Final = {
    one.name: one
    for one in (
        SchemaFormat("avro", "AVRO", "tidelog.schemas.avro"),
        SchemaFormat("protobuf", "PROTOBUF", "tidelog.schemas.protobuf"),
        SchemaFormat("json-schema", "JSON", "tidelog.schemas.json_schema"),
    )
}
"""By the name that options have for them."""
