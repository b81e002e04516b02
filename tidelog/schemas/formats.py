"""How the keys or the values of records are written, as users say it."""

from dataclasses import dataclass, field, replace

from tidelog.errors import ConfigError
from tidelog.schemas.codec import Codec
from tidelog.schemas.problems import DoesNotFit
from tidelog.schemas.registry import Registered, Registry, Schema, registry
from tidelog.schemas.subjects import SubjectStrategy, subject_of
from tidelog.schemas.table import FORMATS, Reading, SchemaFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFormat:
    """How the keys or the values of records are written."""

    part: str
    name: str = "binary"
    url: str = field(default="", repr=False)
    user_info: str | None = field(default=None, repr=False)
    strategy: SubjectStrategy = SubjectStrategy.TOPIC
    subject: str | None = None
    schema_id: int | None = None
    version: int | None = None
    auto_register: bool = False
    message: str | None = None
    """Which message of a Protobuf schema is written, and read as columns; else its first one."""
    validates: bool = True
    """Whether JSON is checked by the schema that it was written with; writers always check it."""

    @property
    def is_registered(self) -> bool:
        return self.name in FORMATS

    @property
    def row(self) -> SchemaFormat:
        return FORMATS[self.name]

    def registry(self) -> Registry:
        return registry(self.url, self.user_info)

    def subject_for(self, topic: str | None, record: str | None = None) -> str:
        if self.subject is not None:
            return self.subject
        if topic is None:
            raise ConfigError(
                f"of which topic is the schema of each {self.part}? Name one topic, or set "
                f"{self.part}.subject"
            )
        return subject_of(self.strategy, topic, self.part, record)

    def codec(self, schema: Schema) -> Codec:
        """What reads and writes by a schema that was chosen for this part."""
        if schema.kind != self.row.kind:
            raise ConfigError(f"{self.part}Format={self.name}, but the registry has {schema.kind}")
        return self.row.codec(schema, self.registry(), Reading(message=self.message))

    def writer_of(self, schema_id: int) -> Codec:
        """What reads records that name this schema; DoesNotFit if it is of another format."""
        schema = self.registry().schema(schema_id)
        if schema.kind != self.row.kind:
            named = next((one.name for one in FORMATS.values() if one.kind == schema.kind), None)
            hint = f"; set {self.part}Format={named}" if named else ""
            raise DoesNotFit(f"schema {schema_id} is {schema.kind}, not {self.row.kind}{hint}")
        return self.row.codec(schema, self.registry(), Reading(validates=self.validates))

    def chosen(self, topic: str | None) -> Registered:
        """The schema that is named, or the latest of the subject."""
        if self.schema_id is not None:
            return Registered(self.schema_id, 0, self.registry().schema(self.schema_id))
        return self.registry().version(self.subject_for(topic), self.version or "latest")

    def by_id(self, schema_id: int | None, message: str | None) -> "PartFormat":
        return replace(self, schema_id=schema_id, message=message)
