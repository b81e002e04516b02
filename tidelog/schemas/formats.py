"""How the keys or the values of records are written, as users say it."""

from dataclasses import dataclass, field
from typing import Final

from tidelog.errors import ConfigError
from tidelog.schemas.registry import AVRO, Registry, registry
from tidelog.schemas.subjects import SubjectStrategy, subject_of

KINDS: Final = {"avro": AVRO}
"""Formats by the name that options have for them, and the registry's."""


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

    @property
    def is_registered(self) -> bool:
        return self.name in KINDS

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
