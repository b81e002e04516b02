"""The settings of a topic.

Rule 1: a key that Kafka 4 has is known here, so that tools which set it work.
Rule 2: what is taken has effect, or its sentence says that it has none. What would promise
        something that is not done here is refused, with what to do instead.
Rule 3: settings that contradict each other are refused when they are set. Where two that were each
        fine come to meet, by a node's new default, the topic goes on.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidelog.config.setting import DAY_MS, MIB, setting, settings_of, similar
from tidelog.errors import ConfigError

NEVER: Final = 2**63 - 1
"""Kafka's default where a number of messages or milliseconds shall never be reached."""

BY_REPLICAS: Final = -1
"""For `min.insync.replicas`: what the number of replicas makes of it."""

_REPLICAS: Final = r"\*|none|[0-9]+:[0-9]+"
_REPLICAS_FORM: Final = "a list of PARTITION:BROKER, or * for all, or none"
_NO_REMOTE: Final = "there is no remote storage here; leave it out"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """How one topic's logs are kept."""

    cleanup_policy: str = setting(
        "delete",
        "How old records are removed: 'delete' by retention, 'compact' once a newer record has the same key.",
        choices=("delete", "compact"),
        is_list=True,
    )
    compression_type: str = setting(
        "producer",
        "Only 'producer': batches are stored as producers compressed them.",
        choices=("producer",),
        why="batches are kept as they come; set compression.type of the producers instead",
    )
    compression_gzip_level: int = setting(
        -1, "Accepted for compatibility, without effect: brokers do not compress here.", least=-1, most=9
    )
    compression_lz4_level: int = setting(
        9, "Accepted for compatibility, without effect: brokers do not compress here.", least=1, most=17
    )
    compression_zstd_level: int = setting(
        3, "Accepted for compatibility, without effect: brokers do not compress here.", least=-131072, most=22
    )
    delete_retention_ms: int = setting(
        DAY_MS, "How long a compacted log keeps a tombstone after it was first compacted.", least=0
    )
    durability: str = setting(
        "fsync",
        "When a write is acknowledged: 'fsync' once every in-sync replica has it on disk, 'replicated' "
        "once each has it in memory, as in Kafka.",
        choices=("fsync", "replicated"),
    )
    failover_mode: str = setting(
        "auto",
        "Who chooses another leader: with 'auto' the controller does, at once. With 'manual' a "
        "partition whose leader fails, restarts or stops has no leader until an operator promotes a "
        "replica, even if the former leader is back; before a planned stop, promote another replica. "
        "Leadership does not return to the first replica by itself, either. A partition with one "
        "replica does not wait.",
        choices=("auto", "manual"),
    )
    file_delete_delay_ms: int = setting(
        60_000, "Accepted for compatibility, without effect: files that nobody needs go at once.", least=0
    )
    flush_messages: int = setting(
        NEVER,
        "Sync after this many records. With durability 'fsync' every write is synced anyway; with "
        "'replicated' other values than the default are refused.",
        least=1,
    )
    flush_ms: int = setting(
        NEVER,
        "Sync after this long. With durability 'fsync' every write is synced anyway; with 'replicated' "
        "other values than the default are refused.",
        least=0,
    )
    follower_replication_throttled_replicas: str = setting(
        "",
        "Accepted for compatibility, without effect: replicas are not throttled by name here.",
        is_list=True,
        pattern=_REPLICAS,
        form=_REPLICAS_FORM,
    )
    index_interval_bytes: int = setting(4096, "Bytes of log between two index entries.", least=0)
    kv_view: bool = setting(
        False,
        "Whether every replica keeps a view of the newest value of each key, for key-value reads. Only "
        "for compacted topics; if false, a view is built at the first read.",
    )
    leader_replication_throttled_replicas: str = setting(
        "",
        "Accepted for compatibility, without effect: replicas are not throttled by name here.",
        is_list=True,
        pattern=_REPLICAS,
        form=_REPLICAS_FORM,
    )
    local_retention_bytes: int = setting(
        -2,
        "Accepted for compatibility, without effect: all storage is local, so retention.bytes counts.",
        least=-2,
    )
    local_retention_ms: int = setting(
        -2,
        "Accepted for compatibility, without effect: all storage is local, so retention.ms counts.",
        least=-2,
    )
    max_compaction_lag_ms: int = setting(
        NEVER, "Compact a record at the latest this long after it was written.", least=1
    )
    max_message_bytes: int = setting(
        MIB + 12, "The largest batch that is accepted, in bytes.", least=0, most=1024 * MIB
    )
    message_downconversion_enable: bool = setting(
        True, "Accepted for compatibility, without effect, as in Kafka 4: only format 2 is served."
    )
    message_timestamp_after_max_ms: int = setting(
        60 * 60 * 1000, "How far a record's timestamp may be ahead of the broker's clock.", least=0
    )
    message_timestamp_before_max_ms: int = setting(
        NEVER, "How far a record's timestamp may be behind the broker's clock.", least=0
    )
    message_timestamp_type: str = setting(
        "CreateTime",
        "Whose clock sets timestamps: the producer's or the broker's.",
        choices=("CreateTime", "LogAppendTime"),
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5, "Compact a log once more than this fraction of it is dirty.", least=0, most=1
    )
    min_compaction_lag_ms: int = setting(0, "Leave a record uncompacted for at least this long.", least=0)
    min_insync_replicas: int = setting(
        BY_REPLICAS,
        "In-sync replicas that acks=all needs; never more than there are replicas. -1: 2 from three "
        "replicas up, else 1.",
        least=BY_REPLICAS,
    )
    preallocate: bool = setting(
        False, "Accepted for compatibility, without effect: files grow as they are written."
    )
    remote_log_copy_disable: bool = setting(
        False, "Only false: there is no remote storage.", choices=(False,), why=_NO_REMOTE
    )
    remote_log_delete_on_disable: bool = setting(
        False, "Only false: there is no remote storage.", choices=(False,), why=_NO_REMOTE
    )
    remote_storage_enable: bool = setting(
        False, "Only false: there is no remote storage.", choices=(False,), why=_NO_REMOTE
    )
    retention_bytes: int = setting(
        -1, "Delete old segments once a partition is larger than this; -1 for no limit.", least=-1
    )
    retention_ms: int = setting(7 * DAY_MS, "Delete segments older than this; -1 for no limit.", least=-1)
    retention_records: int = setting(
        -1, "Delete old segments once a partition holds more records; -1 for no limit.", least=-1
    )
    retention_mode: str = setting(
        "any",
        "'any': delete a segment once it is past one limit; 'hybrid': only once it is past both "
        "retention.ms and retention.records, which must be set.",
        choices=("any", "hybrid"),
    )
    segment_bytes: int = setting(
        1024 * MIB,
        "Start a new segment at this size. Each segment has three files; sizes below 1 MiB, the least "
        "in Kafka 4, are for tests only.",
        least=14,
        most=2**31 - 1,
    )
    segment_index_bytes: int = setting(
        10 * MIB,
        "Accepted for compatibility, without effect: an index grows as its segment does.",
        least=4,
        most=2**31 - 1,
    )
    segment_jitter_ms: int = setting(
        0, "Accepted for compatibility, without effect: segment.ms is kept to the point.", least=0
    )
    segment_ms: int = setting(7 * DAY_MS, "Start a new segment when its first record is this old.", least=1)
    unclean_leader_election_enable: bool = setting(
        False,
        "Whether a replica that may lack committed records may lead when no other can; the missing "
        "records are lost. If false, the partition waits for a replica that has all of them. With "
        "failover.mode 'manual' it always waits.",
    )

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy


TOPIC_SETTINGS: Final = settings_of(TopicConfig)

_GONE: Final = {
    "message.format.version": "Kafka 4 has it no more; leave it out, all records have format 2",
    "message.timestamp.difference.max.ms": (
        "Kafka 4 has it no more; set message.timestamp.before.max.ms and message.timestamp.after.max.ms"
    ),
}
"""What older tools still set, and what they should do."""


def topic_config(values: Mapping[str, object], defaults: TopicConfig) -> TopicConfig:
    """`defaults` with `values` on top; ConfigError for what is unknown or wrong."""
    for name in values:
        if name not in TOPIC_SETTINGS:
            hint = f": {_GONE[name]}" if name in _GONE else similar(name, TOPIC_SETTINGS)
            raise ConfigError(f"a topic has no config {name!r}{hint}")
    changes = {name.replace(".", "_"): TOPIC_SETTINGS[name].parse(values[name]) for name in values}
    return dataclasses.replace(defaults, **changes)


def min_in_sync_of(config: TopicConfig, replicas: int) -> int:
    """How many of a partition's `replicas` must be in sync for anything to be committed."""
    return enough_in_sync(config.min_insync_replicas, replicas)


def enough_in_sync(wanted: int, replicas: int) -> int:
    """What `min.insync.replicas` comes to; more than there are replicas can never be in sync."""
    if wanted == BY_REPLICAS:
        return 2 if replicas >= 3 else 1
    return min(wanted, replicas)


def shown_min_in_sync(wanted: int, replicas: int) -> int:
    """`min.insync.replicas` for tools: as it was set, or the number that comes of BY_REPLICAS."""
    return enough_in_sync(wanted, replicas) if wanted == BY_REPLICAS else wanted


def check_together(config: TopicConfig, prefix: str = "") -> None:
    """Refuse settings that contradict each other; `prefix` stands before their names."""
    if config.min_insync_replicas == 0:
        raise ConfigError(
            f"{prefix}min.insync.replicas is 0, so a write that nobody holds would count; set 1 "
            "or more, or -1 for what the number of replicas makes of it"
        )
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise ConfigError(
            f"{prefix}min.compaction.lag.ms is {config.min_compaction_lag_ms}, which is above "
            f"{prefix}max.compaction.lag.ms, {config.max_compaction_lag_ms}; lower the first or "
            "raise the second"
        )
    if config.durability == "replicated":
        for key, value in (("messages", config.flush_messages), ("ms", config.flush_ms)):
            if value < NEVER:
                raise ConfigError(
                    f"{prefix}flush.{key} is {value}, which is not kept while {prefix}durability "
                    "is 'replicated'; leave it out, or choose 'fsync', which syncs every write"
                )
    if config.retention_mode == "hybrid":
        for key, value in (("ms", config.retention_ms), ("records", config.retention_records)):
            if value < 0:
                raise ConfigError(
                    f"{prefix}retention.mode is 'hybrid', which needs two limits, but "
                    f"{prefix}retention.{key} is {value}, so the other would never count; set it, "
                    "or choose 'any'"
                )
