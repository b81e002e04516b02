"""The settings of a node: where they come from, and which may change while it runs."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tidelog.config.master_replica import FORMER_KEYS, translate
from tidelog.config.quorum import parse_quorum
from tidelog.config.security import SecurityConfig
from tidelog.config.setting import DAY_MS, MIB, Setting, setting, settings_of, similar
from tidelog.config.topic import TOPIC_SETTINGS, TopicConfig, check_together, topic_config
from tidelog.errors import ConfigError
from tidelog.model import Endpoint, NodeId, is_loopback

TOPIC_DEFAULT_PREFIX: Final = "log."


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig(SecurityConfig):
    """How one node runs."""

    data: str = setting("data", "The data directory of this node.")
    node_id: int = setting(1, "This node's number in the cluster.", least=0, most=2**31 - 1)
    rack: str = setting(
        "", "The rack of this node, for the placement of replicas and reads from the nearest one."
    )
    peer: str = setting(
        "",
        "HOST:PORT for the other nodes of a cluster; empty for this node's address in `quorum`. "
        "A node without a `quorum` needs none.",
    )
    quorum: str = setting(
        "",
        "ID@HOST:PORT,... of the 1, 3, 5 or 7 nodes that keep the cluster's metadata, by their "
        "`peer` addresses; the same on every node. Empty for a node that is alone.",
    )
    cluster_secret_file: str = setting(
        "",
        "File with the secret that the nodes of a cluster share, the same on each: 32 characters or more. A "
        "node that has it talks to no node without it. Only its owner and group may read the file. Empty: "
        "whoever connects to `peer` is taken for a node; then `peer` must be on loopback.",
    )
    cluster_secret_optional: bool = setting(
        False,
        "Talk to nodes without the secret, too: while the secret comes to a running cluster, and no longer.",
    )
    first_user_file: str = setting(
        "",
        "File with one line, NAME:PASSWORD, of the user that is added to a cluster without users, so that "
        "somebody can log in and add the others; name it in `super.users`, too. Only its owner and group "
        "may read the file.",
    )
    quorum_election_timeout_ms: int = setting(
        1000, "The least election timeout of a voter; the greatest is twice this.", least=50
    )
    quorum_fetch_timeout_ms: int = setting(
        2000, "A voter without an answer from its leader for this long starts an election.", least=100
    )
    broker_heartbeat_interval_ms: int = setting(
        500, "How often a node sends a heartbeat to every voter.", least=10
    )
    broker_session_timeout_ms: int = setting(
        2000, "A node without a heartbeat for this long is fenced: it leads nothing.", least=50
    )
    replica_lag_time_max_ms: int = setting(
        10_000,
        "A follower that has not reached its leader's log end for this long leaves the in-sync set.",
        least=10,
    )
    catchup_threshold_records: int = setting(
        100, "A follower that is further behind than this counts as catching up.", least=0
    )
    catchup_scan_ms: int = setting(5000, "How often a leader checks for followers that are behind.", least=10)
    catchup_check_ms: int = setting(10_000, "How often a follower checks whether it is behind.", least=10)
    catchup_bytes_per_second: int = setting(
        32 * MIB,
        "Bytes per second that this node sends to all catching-up followers together; 0 for no limit. A "
        "limit below 1.5 times the rate of writes is raised to that, so that the catch-up ends.",
        least=0,
    )
    leader_replication_throttled_rate: int = setting(
        0, "Kafka's name for catchup.bytes.per.second; if both are set, the lower one holds.", least=0
    )
    follower_replication_throttled_rate: int = setting(
        0, "Accepted for compatibility, without effect: leaders limit the rate.", least=0
    )
    catchup_concurrent_max: int = setting(
        8, "Replicas that may catch up with this node's leaders at the same time.", least=1
    )
    cordoned_log_dirs: str = setting(
        "",
        "'*', set at runtime, cordons this node: it gets no replicas of new topics and partitions. "
        "Present replicas stay until they are moved; `tidelog brokers drain` does both.",
        choices=("", "*"),
    )
    auto_create_topics_enable: bool = setting(True, "Create a topic when a client first names it.")
    num_partitions: int = setting(
        1, "Partitions of a topic that is created automatically.", least=1, most=10000
    )
    default_replication_factor: int = setting(
        -1, "Replicas of a new topic; -1 for three, or all nodes if there are fewer.", least=-1
    )
    socket_request_max_bytes: int = setting(
        100 * MIB, "The largest request; a larger one closes its connection.", least=1024, most=2**31 - 1
    )
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
        256 * MIB,
        "Bytes of unanswered requests in memory before reading pauses; as many of large HTTP bodies, of "
        "which more are refused with 503.",
        least=MIB,
    )
    fetch_max_bytes: int = setting(
        55 * MIB, "The most that one fetch returns, beyond a first batch.", least=1024
    )
    fetch_sessions_max: int = setting(1000, "Incremental fetch sessions kept.", least=0)
    tail_max_bytes: int = setting(
        64 * MIB, "Memory for the newest bytes of all logs, read without touching the disk.", least=MIB
    )
    checkpoint_ms: int = setting(
        5000, "How often durable log ends and high watermarks are stored on disk.", least=10
    )
    disk_reserve_bytes: int = setting(
        4 * MIB,
        "Disk space that the node sets aside for metadata, votes and checkpoints on a full disk; 0 = none.",
        least=0,
        most=2**31 - 1,
    )
    metadata_snapshot_records: int = setting(
        20_000, "Records of the metadata log between two snapshots of the metadata.", least=1
    )
    metadata_log_segment_bytes: int = setting(
        16 * MIB, "The size of a segment of the metadata log.", least=1000
    )
    retention_check_ms: int = setting(
        300_000, "How often logs are checked for segments past retention.", least=10
    )
    log_cleaner_backoff_ms: int = setting(15_000, "How often logs are checked for compaction.", least=10)
    log_cleaner_dedupe_buffer_size: int = setting(
        128 * MIB,
        "Memory for the keys of the log being compacted, about 200 bytes each; with more keys it "
        "takes more passes.",
        least=MIB,
    )
    log_cleaner_io_max_bytes_per_second: int = setting(
        0, "How many bytes compaction reads and writes per second; 0 for no limit.", least=0
    )
    scrub_bytes_per_second: int = setting(
        4 * MIB,
        "Bytes per second that the scrubber reads to find rot, with idle priority; 0 turns it off.",
        least=0,
    )
    scrub_interval_ms: int = setting(
        7 * DAY_MS, "The least time between the starts of two scrub cycles.", least=1
    )
    producer_id_expiration_ms: int = setting(
        DAY_MS,
        "Forget an idempotent producer whose last record is this old, and which has written "
        "nothing for an hour.",
        least=1,
    )
    idempotency_window_ms: int = setting(
        600_000, "How long a request over HTTP is recognised by its Idempotency-Key.", least=1
    )
    http_max_body_bytes: int = setting(
        8 * MIB, "The largest body of an HTTP request.", least=1024, most=1024 * MIB
    )
    http_cors_origins: str = setting(
        "",
        "Origins whose web pages may use the HTTP interface; `*` for all.",
        is_list=True,
        pattern=r"\*|https?://[^/\s,]+",
        form="origins as http://HOST:PORT, or *",
    )
    schema_registry_url: str = setting(
        "",
        "URL of the schema registry for records over HTTP, as http://127.0.0.1:8081; without it, "
        "`encoding=avro`, `protobuf` and `json-schema` are refused. The environment variable "
        "TIDELOG_SCHEMA_REGISTRY_USER has its USER:PASSWORD.",
        pattern=r"https?://[^/@\s,?#]+(/[^@\s,?#]*)?",
        form="an address as http://HOST:PORT, without a user",
    )
    max_incremental_fetch_partitions: int = setting(
        100_000, "Partitions that one fetch session may hold.", least=1
    )
    group_max_size: int = setting(2**31 - 1, "The most members that a consumer group may have.", least=1)
    group_max_bytes: int = setting(
        32 * MIB,
        "The most bytes that the members of a consumer group may store as their metadata, together.",
        least=1024,
        most=64 * MIB,
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
        4096, "The longest metadata that a consumer may store with a committed offset.", least=0
    )
    offsets_retention_minutes: int = setting(
        7 * 24 * 60,
        "Forget the offsets of a group this long after its last member left. A clock that jumped is "
        "believed after a day.",
        least=1,
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000, "How often offsets are checked for expiry.", least=1
    )
    offsets_topic_num_partitions: int = setting(
        50, "Partitions of __consumer_offsets; fixed once it exists.", least=1, most=10000
    )
    transaction_max_timeout_ms: int = setting(
        86_400_000, "The longest transaction timeout that a producer may ask for.", least=1
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000, "How long an unused transactional id is remembered.", least=1
    )
    transaction_state_log_num_partitions: int = setting(
        50, "Partitions of __transaction_state; fixed once it exists.", least=1, most=10000
    )
    queues_topic_num_partitions: int = setting(
        8, "Partitions of __queues; fixed once it exists.", least=1, most=1000
    )
    queues_receive_max_bytes: int = setting(
        MIB, "The most bytes in one answer to a receiver, unless it is a single message.", least=1
    )
    queues_requests_max_bytes: int = setting(
        16 * MIB,
        "Memory of each partition of __queues for Idempotency-Keys; when it is full, the oldest are "
        "forgotten early.",
        least=64 * 1024,
    )
    queues_pointer_retention_ms: int = setting(
        7_776_000_000,
        "How long the pointer of a client that reads nothing is kept; then the client reads from the "
        "beginning. -1: unlimited.",
        least=-1,
    )
    http_min_replicas_ack: int = setting(
        -1,
        "Default of `min_replicas_ack` for writes over HTTP: replicas beside the leader that must hold "
        "the write. 0: the leader alone; -1: as the topic demands.",
        least=-1,
        most=100,
    )
    http_sync_timeout_ms: int = setting(
        30_000,
        "Default of `sync_timeout_ms` for writes over HTTP: how long they wait to be committed.",
        least=1,
        most=300_000,
    )
    replication_lagging_ms: int = setting(
        100,
        "An in-sync replica that is behind for longer than this is reported as lagging "
        "(`/health/replication`); it stays in sync until replica.lag.time.max.ms.",
        least=1,
    )
    replication_stream_batch_size: int = setting(
        100, "The most entries that the replication stream sends in one message.", least=1
    )
    replication_stream_batch_timeout_ms: int = setting(
        10, "How long the replication stream waits to fill a message.", least=0
    )
    replication_stream_compression: bool = setting(
        True, "Whether the replication stream compresses messages."
    )
    replication_stream_compression_threshold: int = setting(
        1024, "The size from which the replication stream compresses a message.", least=0
    )
    replication_stream_full_sync_threshold: int = setting(
        10_000, "A copy that is further behind than this starts from a snapshot.", least=0
    )
    replication_stream_heartbeat_interval_ms: int = setting(
        1000, "How often the replication stream sends a heartbeat when it has nothing else to send.", least=10
    )
    replication_stream_replica_timeout_secs: int = setting(
        30, "How long a copy may be silent before it is disconnected.", least=1
    )
    authorizer_enabled: bool = setting(
        False,
        "Whether ACLs are enforced: whoever is not allowed to do something is refused. Set it on every "
        "node, once `super.users` or ACLs let somebody in.",
    )
    super_users: str = setting(
        "",
        "User:NAME;User:NAME of those who may do everything, whatever ACLs say.",
        pattern=r"\s*\w+:[^;]+(;\s*\w+:[^;]+)*;?\s*",
        form="principals as User:NAME;User:NAME",
    )
    allow_everyone_if_no_acl_found: bool = setting(
        False, "Whether everybody may do everything to a resource that no ACL covers."
    )
    read_only: bool = setting(
        False,
        "Whether clients may change nothing: no records, topics, queues or permissions. Offsets of groups "
        "and settings of nodes can be changed still; super users may do everything.",
    )
    topic_defaults: TopicConfig = field(default_factory=TopicConfig)
    cluster_secret: bytes = field(default=b"", repr=False)
    """What the file holds, as whoever makes the node has read it."""
    first_user: str = field(default="", repr=False)
    """NAME:PASSWORD of the file, likewise."""
    http_chosen: bool = False
    """Whether somebody set `http`: then it is served there, or the node does not start."""

    @property
    def catchup_limit(self) -> int:
        """What all catch-ups get together, in bytes per second; 0 for no limit."""
        limits = (self.catchup_bytes_per_second, self.leader_replication_throttled_rate)
        return min(filter(None, limits), default=0)

    @property
    def http_endpoint(self) -> Endpoint | None:
        return Endpoint.parse(self.http) if self.http else None

    @property
    def quorum_nodes(self) -> dict[NodeId, Endpoint]:
        """The nodes that form the quorum; none for a node that is alone."""
        return parse_quorum(self.quorum) if self.quorum else {}

    @property
    def peer_endpoint(self) -> Endpoint | None:
        """Where this node listens to its peers; None if it is alone."""
        if self.peer:
            return Endpoint.parse(self.peer)
        return self.quorum_nodes.get(self.node_id)

    @property
    def open_peer(self) -> Endpoint | None:
        at = self.peer_endpoint
        is_open = at is not None and not self.cluster_secret_file and not is_loopback(at.host)
        return at if is_open else None


NODE_SETTINGS: Final = settings_of(NodeConfig)


DYNAMIC_NODE_SETTINGS: Final = frozenset(
    {
        *(TOPIC_DEFAULT_PREFIX + key for key in TOPIC_SETTINGS),
        "auto.create.topics.enable",
        "catchup.bytes.per.second",
        "catchup.concurrent.max",
        "catchup.threshold.records",
        "connections.max",
        "connections.max.idle.ms",
        "cordoned.log.dirs",
        "default.replication.factor",
        "fetch.max.bytes",
        "follower.replication.throttled.rate",
        "frame.timeout.ms",
        "http.max.body.bytes",
        "http.min.replicas.ack",
        "http.sync.timeout.ms",
        "idempotency.window.ms",
        "leader.replication.throttled.rate",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
        "num.partitions",
        "producer.id.expiration.ms",
        "read.only",
        "replication.lagging.ms",
        "scrub.bytes.per.second",
        "scrub.interval.ms",
        "socket.request.max.bytes",
    }
)
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
    """`config` with settings changed while running; ConfigError for one that cannot be.

    Those that contradict each other are taken: they may have been set at different times, and a
    node must start all the same. Who sets them calls `check_together`.
    """
    started = {key: node_value(config, key) for key in all_node_settings()}
    return _parse(started | dict(changes))


def node_config(*sources: Mapping[str, object]) -> NodeConfig:
    """The node's config from its sources, the later the stronger."""
    merged: dict[str, object] = {}
    for source in sources:
        merged.update(translate(source, merged))
    config = _parse(merged)
    if config.broker_heartbeat_interval_ms >= config.broker_session_timeout_ms:
        raise ConfigError(
            f"broker.heartbeat.interval.ms is {config.broker_heartbeat_interval_ms}, but a node "
            f"that is silent for broker.session.timeout.ms, {config.broker_session_timeout_ms}, "
            "leads nothing; raise that, too (replication.replica_timeout_secs is the same), or "
            "lower the first"
        )
    check_together(config.topic_defaults, TOPIC_DEFAULT_PREFIX)
    return config


def _parse(values: Mapping[str, object]) -> NodeConfig:
    own: dict[str, object] = {}
    for_topics: dict[str, object] = {}
    for name, value in values.items():
        topic_key = name.removeprefix(TOPIC_DEFAULT_PREFIX)
        if name in NODE_SETTINGS:
            own[name.replace(".", "_")] = NODE_SETTINGS[name].parse(value)
        elif topic_key != name and topic_key in TOPIC_SETTINGS:
            for_topics[topic_key] = value
        else:
            known = [*all_node_settings(), *FORMER_KEYS]
            raise ConfigError(f"there is no setting {name!r}" + similar(name, known))
    config = NodeConfig(**own)  # type: ignore[arg-type]
    for name in ("kafka", "http", "peer", "kafka_advertised"):
        if value := getattr(config, name):
            try:
                Endpoint.parse(value)
            except ValueError as error:
                raise ConfigError(f"{name.replace('_', '.')}: {error}") from None
    config.check_security()
    if config.quorum_nodes and config.peer_endpoint is None:
        raise ConfigError(
            f"node {config.node_id} is not one of the quorum; set `peer` (--peer) to the address "
            "where the others reach it"
        )
    try:
        defaults = topic_config(for_topics, TopicConfig())
    except ConfigError as error:
        raise ConfigError(f"{TOPIC_DEFAULT_PREFIX}{error}") from None
    return dataclasses.replace(config, topic_defaults=defaults, http_chosen="http" in values)


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
