"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: settings seen and changed at run time.

Rule 1: a change is checked as a whole before any of it is committed: the new settings must be
        possible together, or nothing changes.
Rule 2: a committed change takes effect at once and survives a restart, because it is metadata.
Rule 3: what a change leaves alone is decided on the newest metadata, so that of two changes at once
        none is lost.
Rule 4: a lower `min.insync.replicas` and who is eligible no more because of it are one decision.
        All nodes must have the same default: a leader commits by its own, and the controller
        counts who holds what by another's. So it is changed for all of them, or for a topic.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Protocol, TypeAlias

from tidelog.broker.broker import Broker
from tidelog.config import (
    DYNAMIC_NODE_SETTINGS,
    NODE_SETTINGS,
    TOPIC_DEFAULT_PREFIX,
    TOPIC_SETTINGS,
    NodeConfig,
    Setting,
    TopicConfig,
    all_node_settings,
    check_together,
    node_value,
    split_list,
    with_node_changes,
)
from tidelog.config.topic import shown_min_in_sync
from tidelog.controller import decisions
from tidelog.controller.image import ClusterImage
from tidelog.controller.records import MetadataRecord
from tidelog.errors import BrokerError, ConfigError, InvalidConfig, InvalidRequest
from tidelog.kafka.context import Request
from tidelog.security.permissions import Kind


class Resource(IntEnum):
    """What can have configs."""

    TOPIC = 2
    BROKER = 4


class Source(IntEnum):
    """Where a value comes from, the strongest first."""

    TOPIC = 1
    NODE = 2
    ALL_NODES = 3
    FILE = 4
    DEFAULT = 5


class Operation(IntEnum):
    """What IncrementalAlterConfigs does to one key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_TYPES: Final = {bool: 1, str: 2, int: 5, float: 6}
_LIST_TYPE: Final = 7
_MIN_IN_SYNC: Final = "min.insync.replicas"


def describe_configs(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    """Every setting of the resources asked for, with its value, its source and its meaning."""
    results = []
    for asked in request.resources:
        answer: dict[str, Any] = {
            "resource_type": asked.resource_type,
            "resource_name": asked.resource_name,
            "error_message": None,
        }
        try:
            _require(context, asked)
            answer["configs"] = _describe(broker, asked, request)
        except BrokerError as error:
            answer |= {"error_code": error.code, "error_message": str(error), "configs": []}
        results.append(answer)
    return {"results": results}


def _require(context: Request, asked: Any) -> None:
    """Let the client see or change the settings of the resource, or raise the error that it gets."""
    if asked.resource_type == Resource.TOPIC:
        context.require(Kind.TOPIC, asked.resource_name)
    else:
        context.require(Kind.CLUSTER)


def _describe(broker: Broker, asked: Any, request: Any) -> list[dict[str, Any]]:
    synonyms = bool(getattr(request, "include_synonyms", False))
    documentation = bool(getattr(request, "include_documentation", False))
    wanted = None if asked.configuration_keys is None else set(asked.configuration_keys)
    if asked.resource_type == Resource.TOPIC:
        entries = topic_entries(broker, asked.resource_name)
    elif asked.resource_type == Resource.BROKER:
        entries = node_entries(broker, asked.resource_name)
    else:
        raise InvalidRequest(f"resources of type {asked.resource_type} have no configs here")
    return [
        entry.answer(synonyms=synonyms, documentation=documentation)
        for entry in entries
        if wanted is None or entry.setting.name in wanted
    ]


class Entry:
    """One setting of a resource: the values that compete for it, the strongest first."""

    def __init__(self, setting: Setting, values: list[tuple[Source, str, Any]], *, read_only: bool) -> None:
        self.setting = setting
        self._values = values
        self.read_only = read_only

    @property
    def values(self) -> list[tuple[Source, str | None]]:
        """The values as text, and where each comes from."""
        return [(source, self.setting.text(value)) for source, _, value in self._values]

    @property
    def is_default(self) -> bool:
        return self._values[0][0] is Source.DEFAULT

    def answer(self, *, synonyms: bool, documentation: bool) -> dict[str, Any]:
        setting = self.setting
        source, _, value = self._values[0]
        return {
            "name": setting.name,
            "value": setting.text(value),
            "read_only": self.read_only,
            "is_default": self.is_default,
            "config_source": source,
            "is_sensitive": False,
            "config_type": _LIST_TYPE if setting.is_list else _TYPES[setting.kind],
            "documentation": setting.doc if documentation else None,
            "synonyms": [
                {"name": name, "value": setting.text(value), "source": source}
                for source, name, value in (self._values if synonyms else ())
            ],
        }


def topic_entries(broker: Broker, name: str) -> list[Entry]:
    topic = decisions.find_topic(broker.image, name)
    defaults = TopicConfig()
    entries = []
    for key, setting in TOPIC_SETTINGS.items():
        field = key.replace(".", "_")
        values: list[tuple[Source, str, Any]] = []
        if key in topic.config:
            values.append((Source.TOPIC, key, setting.parse(topic.config[key])))
        values += _node_values(broker, TOPIC_DEFAULT_PREFIX + key)
        if values[-1][0] is not Source.DEFAULT:
            values.append((Source.DEFAULT, key, getattr(defaults, field)))
        if key == _MIN_IN_SYNC:
            replicas = topic.partitions[0].replication
            values = [(source, n, shown_min_in_sync(value, replicas)) for source, n, value in values]
        entries.append(Entry(setting, values, read_only=False))
    return entries


def node_entries(broker: Broker, name: str) -> list[Entry]:
    if name not in ("", str(broker.node_id)):
        raise InvalidRequest(f"there is no node {name!r}; ask for {broker.node_id}")
    return [
        Entry(setting, _node_values(broker, key), read_only=key not in DYNAMIC_NODE_SETTINGS)
        for key, setting in all_node_settings().items()
    ]


def _node_values(broker: Broker, key: str) -> list[tuple[Source, str, Any]]:
    setting = all_node_settings()[key]
    values: list[tuple[Source, str, Any]] = []
    for source, node in ((Source.NODE, broker.node_id), (Source.ALL_NODES, None)):
        changed = broker.image.node_configs.get(node, {})
        if key in changed:
            values.append((source, key, setting.parse(changed[key])))
    started_with = node_value(broker.started_with, key)
    default = node_value(NodeConfig(), key)
    if started_with != default:
        values.append((Source.FILE, key, started_with))
    return [*values, (Source.DEFAULT, key, default)]


# Changing.

Decide = Callable[[ClusterImage], list[MetadataRecord]]


class ChangeWanted(Protocol):
    """What shall become of one setting; IncrementalAlterConfigs has the same fields."""

    @property
    def name(self) -> str: ...
    @property
    def config_operation(self) -> int: ...
    @property
    def value(self) -> str | None: ...


Wanted: TypeAlias = Iterable[ChangeWanted] | Mapping[str, str]
"""Changes of single settings, or all settings of a resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """What shall become of one setting."""

    name: str
    config_operation: int
    value: str | None


async def alter_configs(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    """Replace all settings of a resource (the older API)."""
    responses = []
    for asked in request.resources:
        wanted = {c.name: c.value for c in asked.configs if c.value is not None}
        responses.append(await _answer(broker, context, asked, wanted, validate_only=request.validate_only))
    return {"responses": responses}


async def incremental_alter_configs(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    """Set, delete, append to and subtract from single settings of a resource."""
    return {
        "responses": [
            await _answer(broker, context, asked, asked.configs, validate_only=request.validate_only)
            for asked in request.resources
        ]
    }


async def _answer(
    broker: Broker, context: Request, asked: Any, wanted: Wanted, *, validate_only: bool
) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "resource_type": asked.resource_type,
        "resource_name": asked.resource_name,
        "error_message": None,
    }
    try:
        _require(context, asked)
        await change(broker, asked.resource_type, asked.resource_name, wanted, validate_only=validate_only)
    except BrokerError as error:
        answer |= {"error_code": error.code, "error_message": str(error)}
    return answer


async def change(broker: Broker, kind: int, name: str, wanted: Wanted, *, validate_only: bool) -> None:
    """Change some settings of a resource, or replace all; a refusal is raised."""
    if kind == Resource.TOPIC:
        decide = _change_of_topic(broker, name, wanted)
    elif kind == Resource.BROKER:
        decide = _change_of_node(broker, name, wanted)
    else:
        raise InvalidRequest(f"resources of type {kind} have no configs here")
    if validate_only:
        decide(broker.image)
    else:
        await broker.metadata.change(decide)
        await broker.acted()


def _change_of_topic(broker: Broker, name: str, wanted: Wanted) -> Decide:
    def decide(image: ClusterImage) -> list[MetadataRecord]:
        topic = decisions.find_topic(image, name)
        defaults = broker.config.topic_defaults
        after = wanted
        if not isinstance(after, Mapping):
            inherited = {
                key: setting.text(getattr(defaults, key.replace(".", "_")))
                for key, setting in TOPIC_SETTINGS.items()
                if setting.is_list
            }
            after = merged(topic.config, after, inherited)
        changed = decisions.change_topic_config(image, name=topic.name, config=after, defaults=defaults)
        return [changed, *decisions.eligible_after(image, changed, defaults)]

    return decide


def _change_of_node(broker: Broker, name: str, wanted: Wanted) -> Decide:
    def decide(image: ClusterImage) -> list[MetadataRecord]:
        node = _node_of(broker, name)
        below = broker.started_with
        if node is not None:
            below = with_node_changes(below, image.node_configs.get(None, {}))
        after = wanted
        if not isinstance(after, Mapping):
            inherited = {
                key: setting.text(node_value(below, key))
                for key, setting in all_node_settings().items()
                if setting.is_list
            }
            after = merged(image.node_configs.get(node, {}), after, inherited)
        config = _node_config_after(below, after)
        changed = decisions.change_node_config(image, node=node, config=after)
        if node is None:
            return [changed, *decisions.eligible_after(image, changed, config.topic_defaults)]
        own = TOPIC_DEFAULT_PREFIX + _MIN_IN_SYNC
        if after.get(own) not in (None, image.node_configs.get(node, {}).get(own)):
            raise InvalidConfig(f"{own} must be the same everywhere; set it for all nodes")
        return [changed]

    return decide


def _node_of(broker: Broker, name: str) -> int | None:
    """The node that is meant; None for all of them."""
    if name == "":
        return None
    if name != str(broker.node_id):
        raise InvalidRequest(f"there is no node {name!r}; ask for {broker.node_id}")
    return broker.node_id


def _node_config_after(below: NodeConfig, wanted: Mapping[str, str]) -> NodeConfig:
    """`wanted` over `below`; refused if it cannot be changed, or the two cannot be together."""
    for key in wanted:
        known = key in NODE_SETTINGS or key.removeprefix(TOPIC_DEFAULT_PREFIX) in TOPIC_SETTINGS
        if known and key not in DYNAMIC_NODE_SETTINGS:
            raise InvalidConfig(f"{key} cannot be changed while running; set it and restart")
    try:
        changed = with_node_changes(below, wanted)
        check_together(changed.topic_defaults, TOPIC_DEFAULT_PREFIX)
    except ConfigError as error:
        raise InvalidConfig(str(error)) from None
    return changed


def merged(
    before: Mapping[str, str], operations: Iterable[ChangeWanted], inherited: Mapping[str, str]
) -> dict[str, str]:
    """The settings after the operations; InvalidConfig for one that makes no sense.

    `inherited` holds all lists, as they are where `before` does not set them.
    """
    after = dict(before)
    seen = set()
    for change in operations:
        if change.name in seen:
            raise InvalidRequest(f"{change.name} is changed twice in one request")
        seen.add(change.name)
        match change.config_operation:
            case Operation.SET:
                if change.value is None:
                    raise InvalidRequest(f"{change.name} is set to nothing; delete it instead")
                after[change.name] = change.value
            case Operation.DELETE:
                after.pop(change.name, None)
            case Operation.APPEND | Operation.SUBTRACT:
                if change.name not in inherited:
                    raise InvalidConfig(f"{change.name} is not a list; set it instead")
                now = after.get(change.name, inherited[change.name])
                after[change.name] = _list_changed(change, now)
            case _:
                raise InvalidRequest(f"operation {change.config_operation} is unknown")
    return after


def _list_changed(change: ChangeWanted, now: str) -> str:
    words, given = split_list(now), split_list(change.value or "")
    if change.config_operation == Operation.APPEND:
        return ",".join(dict.fromkeys([*words, *given]))
    return ",".join(word for word in words if word not in given)
