"""Settings: one definition each, with type, default, limits and a sentence for people.

Rule 1: a setting's name is its field's name with dots for underscores (`retention_ms` is
        `retention.ms`), as Kafka names it wherever Kafka has it.
Rule 2: values are checked where they enter; an error names the key, the value and the fix.
Rule 3: a default for all topics is the topic's key behind `log.` (`log.retention.ms`).

Sources, the later wins: defaults, the YAML file, the environment (`TIDELOG_LOG_RETENTION_MS`),
the command's flags.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from tidelog.errors import ConfigError
from tidelog.model import Endpoint

MIB: Final = 1024 * 1024
DAY_MS: Final = 24 * 60 * 60 * 1000
ENVIRONMENT_PREFIX: Final = "TIDELOG_"
TOPIC_DEFAULT_PREFIX: Final = "log."

C = TypeVar("C")
V = TypeVar("V", int, bool, str, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What people and programs may know of one key."""

    name: str
    kind: type
    default: Any
    doc: str
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()

    def parse(self, value: object) -> Any:
        """The typed value, or ConfigError with the key and what it may be."""
        try:
            parsed = self._convert(value)
        except (ValueError, TypeError, KeyError):
            raise ConfigError(f"{self.name} is {value!r}; it must be {self.describe()}") from None
        too_small = self.least is not None and parsed < self.least
        too_large = self.most is not None and parsed > self.most
        if too_small or too_large or (self.choices and parsed not in self.choices):
            raise ConfigError(f"{self.name} is {value!r}; it must be {self.describe()}")
        return parsed

    def _convert(self, value: object) -> Any:
        if self.kind is bool:
            if isinstance(value, bool):
                return value
            return {"true": True, "false": False}[str(value).strip().lower()]
        if self.kind is int:
            if isinstance(value, bool | float):
                raise ValueError(value)
            return int(str(value).strip())
        if self.kind is float:
            if isinstance(value, bool) or not math.isfinite(number := float(str(value).strip())):
                raise ValueError(value)
            return number
        if not isinstance(value, str | int | float):
            raise ValueError(value)
        return str(value).strip()

    def describe(self) -> str:
        """What a value may be, for people."""
        if self.kind is bool:
            return "true or false"
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.kind not in (int, float):
            return "text"
        number = "a whole number" if self.kind is int else "a number"
        if self.least is not None and self.most is not None:
            return f"{number} from {self.least} to {self.most}"
        return number + (f" of at least {self.least}" if self.least is not None else "")

    def text(self, value: object) -> str:
        """The value as Kafka shows it."""
        return str(value).lower() if isinstance(value, bool) else str(value)


def setting(
    default: V,
    doc: str,
    *,
    least: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] = (),
) -> V:
    """A field of a config class with its limits and its sentence."""
    value: V = field(
        default=default, metadata={"doc": doc, "least": least, "most": most, "choices": choices}
    )
    return value


def settings_of(config: type) -> dict[str, Setting]:
    """Every setting of a config class, by key."""
    return {
        (name := entry.name.replace("_", ".")): Setting(
            name=name, kind=type(entry.default), default=entry.default, **entry.metadata
        )
        for entry in dataclasses.fields(config)
        if entry.metadata
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """How one topic's logs are kept."""

    cleanup_policy: str = setting(
        "delete",
        "How old records go: 'delete' by retention, 'compact' once a newer one has the same key.",
        choices=("delete", "compact", "compact,delete", "delete,compact"),
    )
    delete_retention_ms: int = setting(
        DAY_MS, "How long a compacted log keeps a tombstone after it was first cleaned.", least=0
    )
    durability: str = setting(
        "fsync",
        "When a write counts: 'fsync' once every in-sync replica has it on disk, 'replicated' "
        "once each has it in memory, as Kafka does.",
        choices=("fsync", "replicated"),
    )
    index_interval_bytes: int = setting(4096, "Bytes of log between two index entries.", least=0)
    max_message_bytes: int = setting(
        MIB + 12, "The largest batch that is accepted, in bytes.", least=0, most=1024 * MIB
    )
    max_compaction_lag_ms: int = setting(
        2**63 - 1, "Compact a record at the latest this long after it was written.", least=1
    )
    message_timestamp_type: str = setting(
        "CreateTime", "Whose clock stamps records.", choices=("CreateTime", "LogAppendTime")
    )
    message_timestamp_before_max_ms: int = setting(
        2**63 - 1, "How far a record's time may lie before the broker's.", least=0
    )
    message_timestamp_after_max_ms: int = setting(
        60 * 60 * 1000, "How far a record's time may lie after the broker's.", least=0
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5, "Compact a log once more than this part of it is dirty.", least=0, most=1
    )
    min_compaction_lag_ms: int = setting(
        0, "Leave a record uncompacted for at least this long.", least=0
    )
    min_insync_replicas: int = setting(
        1, "How many replicas must hold a write before acks=all is answered.", least=1
    )
    retention_bytes: int = setting(
        -1, "Delete old segments once a partition is larger than this; -1 for no limit.", least=-1
    )
    retention_ms: int = setting(
        7 * DAY_MS, "Delete segments older than this; -1 for no limit.", least=-1
    )
    retention_records: int = setting(
        -1, "Delete old segments once a partition holds more records; -1 for no limit.", least=-1
    )
    retention_mode: str = setting(
        "any",
        "'any': a segment goes once one limit is passed; 'hybrid': only when it is past both "
        "retention.ms and retention.records.",
        choices=("any", "hybrid"),
    )
    segment_bytes: int = setting(
        1024 * MIB, "Start a new segment file at this size.", least=14, most=2**31 - 1
    )
    segment_ms: int = setting(
        7 * DAY_MS, "Start a new segment file when the first record is this old.", least=1
    )

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """How one node runs."""

    data: str = setting("data", "The directory that holds everything this node keeps.")
    node_id: int = setting(1, "This node's number in the cluster.", least=0, most=2**31 - 1)
    rack: str = setting("", "Where this node stands, for placement and nearby reads.")
    kafka: str = setting("127.0.0.1:9092", "HOST:PORT that Kafka clients connect to.")
    kafka_advertised: str = setting(
        "", "HOST:PORT that clients are told to use, when it is not the one listened on."
    )
    http: str = setting("127.0.0.1:8080", "HOST:PORT of the HTTP face, which is not served yet.")
    peer: str = setting(
        "127.0.0.1:9192", "HOST:PORT for the other nodes of a cluster; today a node runs alone."
    )
    auto_create_topics_enable: bool = setting(True, "Create a topic when a client first names it.")
    num_partitions: int = setting(
        1, "Partitions of a topic created by itself.", least=1, most=10000
    )
    default_replication_factor: int = setting(
        -1, "Replicas of a new topic; -1 for three, or all nodes if there are fewer.", least=-1
    )
    socket_request_max_bytes: int = setting(
        100 * MIB, "The largest request; a larger one closes its connection.", least=1024,
        most=2**31 - 1,
    )  # fmt: skip
    connections_max: int = setting(10000, "Connections at once; further ones are closed.", least=1)
    connections_max_idle_ms: int = setting(
        600_000, "Close a connection that has been silent this long.", least=1
    )
    connections_pipeline_max: int = setting(
        1000, "Unanswered requests per connection before reading from it pauses.", least=1
    )
    frame_timeout_ms: int = setting(
        30_000, "Close a connection whose started request makes no progress for this long.", least=1
    )
    queued_max_bytes: int = setting(
        256 * MIB, "Bytes of unanswered requests in memory before reading pauses.", least=MIB
    )
    fetch_max_bytes: int = setting(
        55 * MIB, "The most that one fetch returns, beyond a first batch.", least=1024
    )
    fetch_sessions_max: int = setting(1000, "Incremental fetch sessions kept.", least=0)
    tail_max_bytes: int = setting(
        64 * MIB, "Memory for the newest bytes of all logs, read without touching the disk.",
        least=MIB,
    )  # fmt: skip
    checkpoint_ms: int = setting(
        5000, "How often the durable ends and watermarks are noted on disk.", least=10
    )
    retention_check_ms: int = setting(300_000, "How often old segments are looked for.", least=10)
    log_cleaner_backoff_ms: int = setting(
        15_000, "How often logs that are due for compaction are looked for.", least=10
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        128 * MIB,
        "Memory for the keys of the log being compacted, about 200 bytes each; with more keys it "
        "takes more passes.",
        least=MIB,
    )
    log_cleaner_io_max_bytes_per_second: int = setting(
        0, "How many bytes compaction reads and writes per second; 0 for no limit.", least=0
    )
    producer_id_expiration_ms: int = setting(
        DAY_MS, "Forget an idempotent producer that has been silent this long.", least=1
    )
    max_incremental_fetch_partitions: int = setting(
        100_000, "Partitions that one fetch session may hold.", least=1
    )
    group_max_size: int = setting(
        2**31 - 1, "The most members that a consumer group may have.", least=1
    )
    group_min_session_timeout_ms: int = setting(
        6000, "The shortest session timeout that a member may ask for.", least=1
    )
    group_max_session_timeout_ms: int = setting(
        1_800_000, "The longest session timeout that a member may ask for.", least=1
    )
    group_initial_rebalance_delay_ms: int = setting(
        0, "How long a new group waits for further members before its first generation.", least=0
    )
    offset_metadata_max_bytes: int = setting(
        4096, "The longest note that a consumer may leave with a committed offset.", least=0
    )
    offsets_retention_minutes: int = setting(
        7 * 24 * 60, "Forget the offsets of a group this long after its last member left.", least=1
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000, "How often offsets that are too old are looked for.", least=1
    )
    offsets_topic_num_partitions: int = setting(
        50, "Partitions of __consumer_offsets; fixed once it exists.", least=1, most=10000
    )
    topic_defaults: TopicConfig = field(default_factory=TopicConfig)

    @property
    def kafka_endpoint(self) -> Endpoint:
        return Endpoint.parse(self.kafka)


TOPIC_SETTINGS: Final = settings_of(TopicConfig)
NODE_SETTINGS: Final = settings_of(NodeConfig)


DYNAMIC_NODE_SETTINGS: Final = frozenset(
    {
        *(TOPIC_DEFAULT_PREFIX + key for key in TOPIC_SETTINGS),
        "auto.create.topics.enable", "connections.max", "connections.max.idle.ms",
        "default.replication.factor", "fetch.max.bytes", "frame.timeout.ms", "num.partitions",
        "producer.id.expiration.ms", "socket.request.max.bytes",
    }
)  # fmt: skip
"""What may be changed while a node runs; everything else needs a restart."""


def all_node_settings() -> dict[str, Setting]:
    """Every setting that a node takes, the topics' defaults included."""
    for_topics = {
        TOPIC_DEFAULT_PREFIX + name: dataclasses.replace(entry, name=TOPIC_DEFAULT_PREFIX + name)
        for name, entry in TOPIC_SETTINGS.items()
    }
    return NODE_SETTINGS | for_topics


def node_value(config: NodeConfig, key: str) -> object:
    """The value of any of `all_node_settings`."""
    if key in NODE_SETTINGS:
        return getattr(config, key.replace(".", "_"))
    return getattr(config.topic_defaults, key.removeprefix(TOPIC_DEFAULT_PREFIX).replace(".", "_"))


def with_node_changes(config: NodeConfig, changes: Mapping[str, object]) -> NodeConfig:
    """`config` with settings changed while running; ConfigError for one that cannot be."""
    started = {key: node_value(config, key) for key in all_node_settings()}
    return node_config(started | dict(changes))


def _apply(config: C, known: Mapping[str, Setting], values: Mapping[str, object]) -> C:
    changes = {name.replace(".", "_"): known[name].parse(value) for name, value in values.items()}
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def topic_config(values: Mapping[str, object], defaults: TopicConfig) -> TopicConfig:
    """`defaults` with `values` on top; ConfigError for what is unknown or wrong."""
    for name in values:
        if name not in TOPIC_SETTINGS:
            raise ConfigError(f"a topic has no config {name!r}" + _similar(name, TOPIC_SETTINGS))
    return _apply(defaults, TOPIC_SETTINGS, values)


def node_config(*sources: Mapping[str, object]) -> NodeConfig:
    """The node's config from its sources, the later the stronger."""
    merged: dict[str, object] = {}
    for source in sources:
        merged.update(source)
    own: dict[str, object] = {}
    for_topics: dict[str, object] = {}
    for name, value in merged.items():
        topic_key = name.removeprefix(TOPIC_DEFAULT_PREFIX)
        if name in NODE_SETTINGS:
            own[name] = value
        elif topic_key != name and topic_key in TOPIC_SETTINGS:
            for_topics[topic_key] = value
        else:
            everything = [*NODE_SETTINGS, *(TOPIC_DEFAULT_PREFIX + key for key in TOPIC_SETTINGS)]
            raise ConfigError(f"there is no setting {name!r}" + _similar(name, everything))
    config = _apply(NodeConfig(), NODE_SETTINGS, own)
    for name in ("kafka", "http", "peer", "kafka_advertised"):
        if value := getattr(config, name):
            try:
                Endpoint.parse(value)
            except ValueError as error:
                raise ConfigError(f"{name.replace('_', '.')}: {error}") from None
    try:
        defaults = topic_config(for_topics, TopicConfig())
    except ConfigError as error:
        raise ConfigError(f"{TOPIC_DEFAULT_PREFIX}{error}") from None
    return dataclasses.replace(config, topic_defaults=defaults)


def flatten(tree: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested YAML as flat keys; underscores count as dots (`log_retention_mode`)."""
    flat: dict[str, object] = {}
    for name, value in tree.items():
        key = prefix + str(name).replace("_", ".")
        if isinstance(value, Mapping):
            flat.update(flatten(value, key + "."))
        else:
            flat[key] = value
    return flat


def from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    """The settings in `TIDELOG_*`; other variables of that prefix are left to who reads them."""
    known = {*NODE_SETTINGS, *(TOPIC_DEFAULT_PREFIX + key for key in TOPIC_SETTINGS)}
    found: dict[str, object] = {}
    for variable, value in environment.items():
        key = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", ".")
        if variable.startswith(ENVIRONMENT_PREFIX) and key in known:
            found[key] = value
    return found


def _similar(name: str, known: Iterable[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def reference() -> str:
    """Every setting as Markdown: `docs/configuration.md`, which a test holds to this."""
    lines = [
        "# Settings",
        "",
        "Made from the code: `python -m tidelog.config > docs/configuration.md`.",
        "",
        "Sources, the later wins: defaults, the YAML file (`--config`; nested or flat, underscores",
        "count as dots), the environment (`TIDELOG_NUM_PARTITIONS`), `--set` and other options.",
    ]
    for title, intro, known in (
        ("A node", "", NODE_SETTINGS),
        (
            "A topic",
            "Set when a topic is created. Behind `log.` the same keys are the node's defaults for "
            "all topics.",
            TOPIC_SETTINGS,
        ),
    ):
        lines += ["", f"## {title}", "", *([intro, ""] if intro else [])]
        lines += ["| key | default | may be | what it does |", "|---|---|---|---|"]
        for name, entry in known.items():
            default = entry.text(entry.default) or "(none)"
            lines.append(f"| `{name}` | {default} | {entry.describe()} | {entry.doc} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(reference(), end="")
