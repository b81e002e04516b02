"""The keys of configuration files that were written for a master and its replicas.

Rule 1: such a key has the effect that it had, under the name that it has here; or it has none and
        its sentence says why; or it is refused with what to do instead. None is ignored.
Rule 2: leaders are elected, partition by partition. What would make a node a master or a replica
        for good is refused where it promises something that is not kept.
Rule 3: a file may say a thing once: by its old name or by ours.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tidelog.config.setting import Setting
from tidelog.errors import ConfigError
from tidelog.model import Endpoint

_log = logging.getLogger(__name__)

HOUR_MS: Final = 60 * 60 * 1000
HTTP_DEFAULT: Final = Endpoint(host="127.0.0.1", port=8080)
PEER_DEFAULT: Final = Endpoint(host="127.0.0.1", port=9192)

_ELECTED: Final = (
    "leaders are elected, partition by partition; leave it out, and name the nodes of the cluster "
    "in `quorum` (--quorum ID@HOST:PORT,...), the same on every node"
)
_CLIENTS: Final = "An option of the client that follows the replication stream; none of a node's."


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedKey:
    """One key of such a file, and what becomes of it here."""

    written: str
    """As the file has it: `replication.log_max_entries`."""
    kind: type
    default: Any
    doc: str
    targets: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    """Our settings that it sets, and how; to None if it leaves one as it is."""
    least: float | None = None
    most: float | None = None
    choices: tuple[str | bool, ...] = ()
    why: str = ""
    """Why nothing else may be chosen; or, of a key that is refused, why it is."""
    part: str = ""
    """`host` or `port`, where the target is an address that two keys make."""
    is_refused: bool = False

    @property
    def name(self) -> str:
        return self.written.replace("_", ".")

    @property
    def setting(self) -> Setting:
        return Setting(
            name=self.name,
            kind=self.kind,
            default=self.default,
            doc=self.doc,
            least=self.least,
            most=self.most,
            choices=self.choices,
            why=self.why,
        )

    def parse(self, value: object) -> Any:
        if self.is_refused:
            raise ConfigError(f"{self.name} is refused: {self.why}")
        return self.setting.parse(value)


def _same(value: Any) -> Any:
    return value


def _to_ms(seconds: int) -> int:
    return seconds * 1000


def _key(
    written: str, default: Any, doc: str, target: str | Mapping[str, Callable[[Any], Any]] = "", **more: Any
) -> SeedKey:
    if isinstance(target, str):
        target = {target: _same} if target else {}
    return SeedKey(written=written, kind=type(default), default=default, doc=doc, targets=target, **more)


_HEARTBEATS: Final = ("broker.heartbeat.interval.ms", "replication.stream.heartbeat.interval.ms")


_KEYS: Final = (
    _key(
        "server.role",
        "master",
        "Every node leads some partitions and follows others.",
        choices=("master",),
        why=_ELECTED,
    ),
    _key("server.host", "0.0.0.0", "The host of `http`.", "http", part="host"),
    _key("server.port", 15500, "The port of `http`.", "http", part="port", least=0, most=65535),
    _key(
        "server.read_only",
        False,
        "Any node takes a write and sends it to the leader.",
        choices=(False,),
        why="any node takes writes and sends them to the leader; leave it out. Reads with "
        "consistency=local are answered by the node's own replica",
    ),
    _key(
        "replication.enabled",
        True,
        "false: a new topic has one replica, unless it asks for more. true: no effect.",
        {"default.replication.factor": lambda enabled: None if enabled else 1},
    ),
    _key(
        "replication.mode",
        "master",
        "Every node leads and follows; and 'sync' is how a write is answered anyway, "
        "once every replica in sync holds it.",
        choices=("master", "sync"),
        why=_ELECTED,
    ),
    _key("replication.master_host", "", "Where the master is.", is_refused=True, why=_ELECTED),
    _key("replication.master_port", 15501, "Where the master is.", is_refused=True, why=_ELECTED),
    _key("replication.listen_host", "0.0.0.0", "The host of `peer`.", "peer", part="host"),
    _key("replication.listen_port", 15501, "The port of `peer`.", "peer", part="port", least=0, most=65535),
    _key(
        "replication.log_retention_mode",
        "hybrid",
        "How the two limits below combine: 'hybrid' deletes segments that are past both.",
        "log.retention.mode",
        choices=("any", "hybrid"),
    ),
    _key(
        "replication.log_retention_hours",
        24,
        "How long records are kept, in hours.",
        {"log.retention.ms": lambda hours: hours * HOUR_MS if hours >= 0 else -1},
        least=-1,
        most=2**40,
    ),
    _key(
        "replication.log_max_entries",
        1_000_000,
        "How many records a partition keeps.",
        "log.retention.records",
        least=-1,
    ),
    _key(
        "replication.log_compression",
        True,
        "Batches are kept as their producers compressed them; set compression.type there.",
    ),
    _key(
        "replication.min_replicas_for_write",
        0,
        "How many replicas beside the leader must be in sync for a write to a topic that is made "
        "by this node.",
        {"log.min.insync.replicas": lambda others: others + 1},
        least=0,
        most=2**30,
    ),
    _key(
        "replication.min_replicas_ack",
        1,
        "Default of `min_replicas_ack` for writes over HTTP.",
        "http.min.replicas.ack",
        least=0,
        most=100,
    ),
    _key(
        "replication.sync_timeout_ms",
        100,
        "Default of `sync_timeout_ms` for writes over HTTP.",
        "http.sync.timeout.ms",
        least=1,
        most=300_000,
    ),
    _key(
        "replication.heartbeat_interval_ms",
        1000,
        "How often nodes send heartbeats, to the voters and in replication streams.",
        dict.fromkeys(_HEARTBEATS, _same),
        least=10,
    ),
    _key(
        "replication.heartbeat_interval_secs",
        5,
        "The same, in seconds.",
        dict.fromkeys(_HEARTBEATS, _to_ms),
        least=1,
        most=2**20,
    ),
    _key(
        "replication.replica_timeout_secs",
        30,
        "How long a node may be silent before it leads nothing, and a replica of a stream before "
        "it is let go.",
        {"broker.session.timeout.ms": _to_ms, "replication.stream.replica.timeout.secs": _same},
        least=1,
        most=2**20,
    ),
    _key(
        "replication.sync_interval_ms",
        100,
        "Nothing polls; a leader holds a follower's request until there are records.",
        least=0,
    ),
    _key("replication.reconnect_interval_secs", 5, _CLIENTS, least=0),
    _key("replication.reconnect_max_attempts", 0, _CLIENTS, least=0),
    _key("replication.apply_batch_size", 100, _CLIENTS, least=1),
    _key(
        "replication.full_sync_threshold",
        10_000,
        "A replica of a stream that is further behind starts from a snapshot.",
        "replication.stream.full.sync.threshold",
        least=0,
    ),
    _key(
        "replication.batch_size",
        100,
        "The most entries of a stream in one message.",
        "replication.stream.batch.size",
        least=1,
    ),
    _key(
        "replication.batch_timeout_ms",
        10,
        "How long a stream waits to fill a message.",
        "replication.stream.batch.timeout.ms",
        least=0,
    ),
    _key(
        "replication.compression",
        True,
        "Whether a stream compresses messages.",
        "replication.stream.compression",
    ),
    _key(
        "replication.compression_threshold",
        1024,
        "The size from which a stream compresses a message.",
        "replication.stream.compression.threshold",
        least=0,
    ),
    _key(
        "replication.tcp_nodelay",
        True,
        "It is always on.",
        choices=(True,),
        why="it is always on; leave it out",
    ),
    _key("replication.keepalive_secs", 60, "Heartbeats detect the loss of a node sooner.", least=0),
)

FORMER_KEYS: Final[Mapping[str, SeedKey]] = {key.name: key for key in _KEYS}


def translate(source: Mapping[str, object], before: Mapping[str, object]) -> dict[str, object]:
    """What one source says, in our keys; `before` is what weaker sources say.

    ConfigError for a key that is refused, and for what is said twice.
    """
    ours = {name: value for name, value in source.items() if name not in FORMER_KEYS}
    said = dict.fromkeys(ours, "")
    parts: dict[str, dict[str, Any]] = {}
    for name, value in source.items():
        key = FORMER_KEYS.get(name)
        if key is None:
            continue
        parsed = key.parse(value)
        if not key.targets:
            _log.warning("%s is taken, and has no effect. %s", name, key.doc)
        for target, convert in key.targets.items():
            if (converted := convert(parsed)) is None:
                continue
            other = said.get(target)
            if other is not None and not (key.part and target in parts):
                raise ConfigError(f"{name} and {other or target} say the same; keep one of them")
            said[target] = name
            if key.part:
                parts.setdefault(target, {})[key.part] = converted
            else:
                ours[target] = converted
    for target, given in parts.items():
        ours[target] = str(_address(target, given, before))
    return ours


def _address(target: str, given: Mapping[str, Any], before: Mapping[str, object]) -> Endpoint:
    """The address that one part or both make, with the rest as it was."""
    base = HTTP_DEFAULT if target == "http" else PEER_DEFAULT
    if known := before.get(target):
        try:
            base = Endpoint.parse(str(known))
        except ValueError as error:
            raise ConfigError(f"{target}: {error}") from None
    return Endpoint(host=given.get("host", base.host), port=given.get("port", base.port))


def former_reference() -> list[str]:
    """The table of these keys, in Markdown."""
    lines = ["| key | there | here | what it does |", "|---|---|---|---|"]
    for key in _KEYS:
        here = ", ".join(f"`{target}`" for target in key.targets) or "no effect"
        why = f" Anything else is refused: {key.why}." if key.why else ""
        if key.is_refused:
            here, why = "refused", f" {key.why[:1].upper()}{key.why[1:]}."
        default = key.setting.text(key.default) or "(none)"
        lines.append(f"| `{key.written}` | {default} | {here} | {key.doc}{why} |")
    return lines
