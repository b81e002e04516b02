"""What users may ask of the data source: the options of Spark's Kafka source and sink, and ours.

Rule 1: an option that is not known is an error, with the nearest one that is; a mistyped one that
        is passed over in silence costs a day. `kafka.*` of clients that has no meaning here is let
        pass, as Spark does, but never one that asks for more safety than there is.
Rule 2: what cannot be is said before anything is read: the message names the option and the fix.
Rule 3: names are compared without case, as Spark compares them.
"""

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from tidelog.client.cluster import parse_bootstrap
from tidelog.client.security import servers_of
from tidelog.errors import ConfigError
from tidelog.model import TopicPartition
from tidelog.records import Codec
from tidelog.schemas.formats import PartFormat
from tidelog.schemas.subjects import SubjectStrategy
from tidelog.schemas.table import FORMATS
from tidelog.spark.json_times import Misread, zone
from tidelog.spark.ranges import EARLIEST, LATEST, Offsets, from_json

T = TypeVar("T")

FORMAT_OPTIONS: Final = frozenset(
    {
        "valueFormat",
        "keyFormat",
        "timeZone",
        "schema.registry.url",
        "schema.registry.basic.auth.user.info",
        "schema.subject.strategy",
        "value.subject",
        "key.subject",
        "value.schema.id",
        "key.schema.id",
        "value.schema.version",
        "key.schema.version",
        "value.message",
        "key.message",
    }
)
READ: Final = FORMAT_OPTIONS | frozenset(
    {
        "assign",
        "subscribe",
        "subscribePattern",
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "startingOffsets",
        "startingOffsetsByTimestampStrategy",
        "failOnDataLoss",
        "minPartitions",
        "maxRecordsPerPartition",
        "includeHeaders",
        "groupIdPrefix",
        "commitOffsets",
        "kafkaConsumer.pollTimeoutMs",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "partition.metadata.cache.ttl.ms",
        "history",
        "schema.validate",
        "archive.warehouse",
        "archive.catalog",
    }
)
READ_BATCH: Final = READ | {"endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets"}
READ_STREAM: Final = READ | {
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
}
WRITE: Final = FORMAT_OPTIONS | frozenset(
    {
        "topic",
        "includeHeaders",
        "includeTimestamp",
        "delivery",
        "txnAppId",
        "txnVersion",
        "verifyReplays",
        "schema.auto.register",
    }
)
OF_SPARK: Final = frozenset({"path", "checkpointLocation", "queryName", "outputMode", "mergeSchema"})
"""What Spark itself puts among the options, or takes from them."""

KAFKA_REFUSED: Final = {
    "kafka.auto.offset.reset": "say where to begin with startingOffsets",
    "kafka.key.deserializer": "keys are binary; cast them",
    "kafka.value.deserializer": "values are binary; cast them, or set valueFormat=json",
    "kafka.key.serializer": "keys are binary or strings",
    "kafka.value.serializer": "values are binary or strings",
    "kafka.enable.auto.commit": "Spark keeps the offsets in its checkpoint",
    "kafka.interceptor.classes": "there are no interceptors here",
    "kafka.transactional.id": "the sink has its own ids; see txnAppId",
}
MIB: Final = 1024 * 1024

DURATION: Final = re.compile(r"\s*(\d+)\s*(ms|s|m|min|h|d|)\s*")
DURATION_MS: Final = {
    "ms": 1,
    "s": 1000,
    "": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


@dataclass(frozen=True, slots=True)
class Assigned:
    places: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Subscribed:
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Matching:
    pattern: str


Subscription: TypeAlias = Assigned | Subscribed | Matching


@dataclass(frozen=True, slots=True)
class AtEdge:
    """The first offset of each partition, or the one after the last."""

    edge: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Named offsets, which may be EARLIEST or LATEST."""

    offsets: tuple[tuple[TopicPartition, int], ...]


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record of that time or later: one time for all, or one for each partition."""

    timestamp_ms: int | None
    timestamps_ms: tuple[tuple[TopicPartition, int], ...] = ()


Bound: TypeAlias = AtEdge | AtOffsets | AtTime


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How a topic is read, by a batch or by a stream."""

    bootstrap: str
    subscription: Subscription
    starting: Bound
    ending: Bound
    unmatched_time_is_latest: bool
    fail_on_data_loss: bool
    rows_max: int | None
    bytes_max: int | None
    rows_min: int | None
    trigger_delay_ms_max: int
    tasks_min: int | None
    task_rows_max: int | None
    include_headers: bool
    group: str
    """Empty if each query has one of its own, by `group_prefix`."""
    group_prefix: str
    commit_offsets: bool
    rack: str
    read_committed: bool
    fetch_bytes: int
    idle_seconds_max: float
    timeout_seconds: float
    value_is_json: bool
    value_format: PartFormat
    key_format: PartFormat
    time_zone: str
    archive: "Archive | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """Where the older records of the topics are, too."""

    warehouse: str
    catalog: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How rows are written."""

    bootstrap: str
    topic: str | None
    is_exactly_once: bool
    application: str | None
    """With `version`: a batch that was written before is not written again."""
    version: int
    codec: Codec
    batch_bytes: int
    acks: int
    transaction_timeout_ms: int | None
    """None: as long as is sensible and the cluster allows."""
    checkpoint: str | None
    """Where Spark notes what a batch reads."""
    verifies_replays: bool
    """Whether a batch that comes again must be what it was."""
    timeout_seconds: float
    keeps_timestamps: bool
    value_is_json: bool
    value_format: PartFormat
    key_format: PartFormat
    time_zone: str


class _Given:
    """Options as they were given, taken out one by one."""

    def __init__(self, options: Mapping[str, str], known: frozenset[str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        names = {name.lower(): name for name in known}
        for name in self._options:
            if name in KAFKA_REFUSED:
                raise ConfigError(f"option {name} cannot be set: {KAFKA_REFUSED[name]}")
            if name.startswith("kafka.") or name in names or name in _OF_SPARK:
                continue
            everywhere = {one.lower() for one in READ_BATCH | READ_STREAM | WRITE}
            if name in everywhere:
                raise ConfigError(f"option {name} has no meaning here; it is {_used_by(name)}")
            near = difflib.get_close_matches(name, [*names, "kafka.bootstrap.servers"], n=1)
            hint = f"did you mean {names.get(near[0], near[0])}?" if near else "see docs/spark.md"
            raise ConfigError(f"option {name} is not known; {hint}")

    def get(self, name: str) -> str | None:
        return self._options.get(name.lower())

    def text(self, name: str, default: str) -> str:
        return self._options.get(name.lower(), default)

    def choice(self, name: str, choices: Mapping[str, T], default: str) -> T:
        text = self.text(name, default).lower()
        if text not in choices:
            raise ConfigError(f"option {name} must be one of {', '.join(choices)}, not {text!r}")
        return choices[text]

    def flag(self, name: str, default: bool) -> bool:
        return self.choice(name, {"true": True, "false": False}, str(default).lower())

    def number(self, name: str, default: int | None = None, *, least: int = 0) -> int | None:
        text = self.get(name)
        if text is None:
            return default
        try:
            number = int(text)
        except ValueError:
            raise ConfigError(f"option {name} must be a whole number, not {text!r}") from None
        if number < least:
            raise ConfigError(f"option {name} must be at least {least}, not {number}")
        return number

    def count(self, name: str, default: int, *, least: int = 0) -> int:
        number = self.number(name, default, least=least)
        assert number is not None
        return number

    def bootstrap(self) -> str:
        text = self.get("kafka.bootstrap.servers")
        if text is None:
            raise ConfigError(
                'say where the cluster is: .option("kafka.bootstrap.servers", "127.0.0.1:9092"). A '
                "table knows its options only if it was made without a list of columns"
            )
        parse_bootstrap(text)
        return servers_of(text, self._options)

    def part_format(self, part: str, names: tuple[str, ...]) -> PartFormat:
        """How keys or values are written; what a registry knows needs its address."""
        name = self.choice(f"{part}Format", {one: one for one in names}, "binary")
        url = self.get("schema.registry.url")
        if name in FORMATS and url is None:
            raise ConfigError(f"{part}Format={name} needs schema.registry.url")
        return PartFormat(
            part=part,
            name=name,
            url=url or "",
            user_info=self.get("schema.registry.basic.auth.user.info"),
            strategy=self.choice(
                "schema.subject.strategy", {one.value: one for one in SubjectStrategy}, "topic"
            ),
            subject=self.get(f"{part}.subject"),
            schema_id=self.number(f"{part}.schema.id"),
            version=self.number(f"{part}.schema.version", least=1),
            auto_register=self.flag("schema.auto.register", False),
            message=self.get(f"{part}.message"),
            validates=self.flag("schema.validate", True),
        )

    def time_zone(self) -> str:
        text = self.text("timeZone", "UTC")
        try:
            zone(text)
        except Misread as error:
            raise ConfigError(f"option timeZone: {error}") from None
        return text

    def timeout_seconds(self) -> float:
        return self.count("kafka.default.api.timeout.ms", 60_000, least=1) / 1000


_OF_SPARK: Final = {name.lower() for name in OF_SPARK}


def _used_by(name: str) -> str:
    users = {"batch reads": READ_BATCH, "streaming reads": READ_STREAM, "writes": WRITE}
    found = [user for user, names in users.items() if name in {one.lower() for one in names}]
    return "for " + " and ".join(found)


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Check and read the options of a reader."""
    given = _Given(options, READ_STREAM if streaming else READ_BATCH)
    rows_max = given.number("maxOffsetsPerTrigger", least=1)
    rows_min = given.number("minOffsetsPerTrigger", least=1)
    if rows_min is not None and rows_max is not None and rows_min > rows_max:
        raise ConfigError(f"minOffsetsPerTrigger={rows_min} is more than maxOffsetsPerTrigger={rows_max}")
    return ReadOptions(
        bootstrap=given.bootstrap(),
        subscription=_subscription(given),
        starting=_bound(given, "starting", "latest" if streaming else "earliest"),
        ending=_bound(given, "ending", "latest"),
        unmatched_time_is_latest=given.choice(
            "startingOffsetsByTimestampStrategy", {"error": False, "latest": True}, "error"
        ),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        rows_max=rows_max,
        bytes_max=given.number("maxBytesPerTrigger", least=1),
        rows_min=rows_min,
        trigger_delay_ms_max=_duration_ms("maxTriggerDelay", given.text("maxTriggerDelay", "15m")),
        tasks_min=given.number("minPartitions", least=1),
        task_rows_max=given.number("maxRecordsPerPartition", least=1),
        include_headers=given.flag("includeHeaders", False),
        group=given.text("kafka.group.id", ""),
        group_prefix=given.text("groupIdPrefix", "spark-kafka-source"),
        # A group that the user names may be another application's.
        commit_offsets=given.flag("commitOffsets", streaming and not given.get("kafka.group.id")),
        rack=given.text("kafka.client.rack", ""),
        read_committed=given.choice(
            "kafka.isolation.level", {"read_committed": True, "read_uncommitted": False}, "read_committed"
        ),
        fetch_bytes=given.count("kafka.max.partition.fetch.bytes", 8 * MIB, least=1),
        idle_seconds_max=given.count("kafkaConsumer.pollTimeoutMs", 120_000, least=1) / 1000,
        timeout_seconds=given.timeout_seconds(),
        value_is_json=given.text("valueFormat", "binary").lower() == "json",
        value_format=given.part_format("value", ("binary", "json", *FORMATS)),
        key_format=given.part_format("key", ("binary", *FORMATS)),
        time_zone=given.time_zone(),
        archive=_archive(given),
    )


def write_options(options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Check and read the options of a writer."""
    given = _Given(options, WRITE)
    application, version = given.get("txnAppId"), given.number("txnVersion")
    if (application is None) != (version is None):
        raise ConfigError("txnAppId and txnVersion belong together: set both, or neither")
    if application is not None and streaming:
        raise ConfigError("txnAppId is for batch writes; a stream has its query's id and batch")
    if application is not None and not _TXN_APPLICATION.fullmatch(application):
        raise ConfigError(
            f"txnAppId must be 1 to 200 letters, digits, dots, dashes or underscores, not {application!r}"
        )
    is_exactly_once = given.choice("delivery", {"exactly-once": True, "at-least-once": False}, "exactly-once")
    if application is not None and not is_exactly_once:
        raise ConfigError("txnAppId asks for exactly once; leave out delivery=at-least-once")
    acks = given.choice("kafka.acks", {"all": -1, "-1": -1, "1": 1}, "all")
    if acks != -1 and is_exactly_once:
        raise ConfigError("kafka.acks=1 can lose records: set delivery=at-least-once as well")
    return WriteOptions(
        bootstrap=given.bootstrap(),
        topic=given.get("topic"),
        is_exactly_once=is_exactly_once,
        application=application,
        version=0 if version is None else version,
        codec=given.choice("kafka.compression.type", {codec.name.lower(): codec for codec in Codec}, "none"),
        batch_bytes=given.count("kafka.max.request.size", 1_000_000, least=1024),
        acks=acks,
        transaction_timeout_ms=given.number("kafka.transaction.timeout.ms", least=1),
        checkpoint=given.get("checkpointLocation"),
        verifies_replays=given.flag("verifyReplays", True),
        timeout_seconds=given.timeout_seconds(),
        keeps_timestamps=given.flag("includeTimestamp", False),
        value_is_json=given.text("valueFormat", "binary").lower() == "json",
        value_format=given.part_format("value", ("binary", "json", *FORMATS)),
        key_format=given.part_format("key", ("binary", *FORMATS)),
        time_zone=given.time_zone(),
    )


_TXN_APPLICATION: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")


def _subscription(given: _Given) -> Subscription:
    found = {
        name: text
        for name in ("assign", "subscribe", "subscribePattern")
        if (text := given.get(name)) is not None
    }
    if len(found) != 1:
        what = f"{' and '.join(found)} were given" if found else "none was given"
        raise ConfigError(f"set exactly one of assign, subscribe and subscribePattern; {what}")
    ((name, text),) = found.items()
    match name:
        case "assign":
            return Assigned(_places(text))
        case "subscribe":
            topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
            if not topics:
                raise ConfigError("subscribe is empty; name topics, with commas between them")
            return Subscribed(topics)
        case _:
            try:
                re.compile(text)
            except re.error as error:
                raise ConfigError(f"subscribePattern {text!r} is no pattern: {error}") from None
            return Matching(text)


def _places(text: str) -> tuple[TopicPartition, ...]:
    form = 'assign must be JSON like {"topic": [0, 1]}'
    try:
        document: Any = json.loads(text)
        places = {
            TopicPartition(topic, int(partition))
            for topic, partitions in document.items()
            for partition in partitions
        }
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(f"{form}, not {text!r}") from None
    if not places or any(place.partition < 0 for place in places):
        raise ConfigError(f"{form}, not {text!r}")
    return tuple(sorted(places))


def _bound(given: _Given, side: str, default: str) -> Bound:
    """Where one side of the range is; a time for all wins over times, and these over offsets."""
    if (time := given.number(f"{side}Timestamp")) is not None:
        return AtTime(time)
    times = f"{side}OffsetsByTimestamp"
    if (text := given.get(times)) is not None:
        stamps = from_json(text, times)
        if any(stamp < 0 for stamp in stamps.values()):
            raise ConfigError(f"{times} takes milliseconds since 1970, none below 0")
        return AtTime(None, tuple(sorted(stamps.items())))
    name = f"{side}Offsets"
    text = given.text(name, default)
    edges = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in edges:
        edge = edges[text.lower()]
        if edge == (LATEST if side == "starting" else EARLIEST) and default != text.lower():
            raise ConfigError(f"{name}={text} leaves nothing to read; a batch is a range")
        return AtEdge(edge)
    offsets = from_json(text, name)
    _check_numbers(name, offsets, forbidden=_forbidden(side, default))
    return AtOffsets(tuple(sorted(offsets.items())))


def _forbidden(side: str, default: str) -> int | None:
    """The edge at which this side of a batch cannot be; a stream may begin at either."""
    if side == "ending":
        return EARLIEST
    return None if default == "latest" else LATEST


def _check_numbers(name: str, offsets: Offsets, *, forbidden: int | None) -> None:
    for place, offset in offsets.items():
        if offset < EARLIEST:
            raise ConfigError(f"{name}: {place} has {offset}; -2 is earliest, -1 is latest")
        if offset == forbidden:
            edge = "latest (-1)" if offset == LATEST else "earliest (-2)"
            raise ConfigError(f"{name}: {place} cannot be {edge} in a batch")


def _duration_ms(name: str, text: str) -> int:
    match = DURATION.fullmatch(text.lower())
    if match is None:
        raise ConfigError(f"option {name} must be a time such as 30s or 15m, not {text!r}")
    return int(match[1]) * DURATION_MS[match[2]]


def _archive(given: _Given) -> Archive | None:
    is_asked = given.choice("history", {"log": False, "archive": True}, "log")
    warehouse = given.get("archive.warehouse")
    if not is_asked:
        return None
    if warehouse is None:
        raise ConfigError("history=archive needs archive.warehouse: the directory of the archive")
    return Archive(warehouse=warehouse, catalog=given.get("archive.catalog"))
