"""Under which name a registry keeps the schemas of a topic's keys and values."""

from enum import StrEnum

from tidelog.errors import ConfigError


class SubjectStrategy(StrEnum):
    """As Confluent's TopicName-, RecordName- and TopicRecordNameStrategy."""

    TOPIC = "topic"
    RECORD = "record"
    TOPIC_RECORD = "topic-record"


def subject_of(strategy: SubjectStrategy, topic: str, part: str, record: str | None) -> str:
    """The subject of a part, `key` or `value`; a strategy by record needs the record's name."""
    if strategy is SubjectStrategy.TOPIC:
        return f"{topic}-{part}"
    if record is None:
        raise ConfigError(
            f"schema.subject.strategy={strategy.value} needs a record's name: set {part}.subject"
        )
    return record if strategy is SubjectStrategy.RECORD else f"{topic}-{record}"
