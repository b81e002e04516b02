"""Settings of topics and brokers, seen and changed while the cluster runs.

Rule 1: a change is made as a whole or not at all, and told as before and after.
Rule 2: the settings of all brokers have the name `default`, since a path cannot name nobody.
Rule 3: the settings of one broker are that broker's to tell and to check: it alone knows with which
        it was started.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from tidelog.broker.broker import Broker
from tidelog.errors import BrokerIdNotRegistered, BrokerNotAvailable, InvalidConfig, InvalidRequest, error_of
from tidelog.kafka import configs
from tidelog.kafka.configs import Entry, Resource, SettingChange, Source
from tidelog.model import NodeId
from tidelog.operators.values import LIMIT, After, DryRun, Limit, page
from tidelog.operators.verbs import Http, Permission, Verb
from tidelog.security.permissions import Kind, Operation

if TYPE_CHECKING:
    from tidelog.operators.desk import Desk

ALL_BROKERS: Final = "default"
SOURCES: Final[Mapping[Source, str]] = {
    Source.TOPIC: "topic",
    Source.NODE: "broker",
    Source.ALL_NODES: "all brokers",
    Source.FILE: "at start",
    Source.DEFAULT: "default",
}
LIMITS: Final = frozenset({"retention.ms", "retention.bytes", "retention.records"})
"""Settings that delete records once they are smaller."""
NO_LIMIT: Final = -1
MANNERS: Final = frozenset({"cleanup.policy", "retention.mode"})
"""Settings that delete other records once they are different."""
TOPIC_DEFAULT_PREFIX: Final = "log."

Value: TypeAlias = str | int | float | bool | None


class DescribeTopicConfigs(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    changed: Annotated[bool, Meta(description="Only those that are not at their default.")] = False
    limit: Limit = LIMIT
    after: After = None


class DescribeBrokerConfigs(msgspec.Struct, frozen=True, kw_only=True):
    broker: str
    changed: Annotated[bool, Meta(description="Only those that are not at their default.")] = False
    limit: Limit = LIMIT
    after: After = None


class ChangeTopicConfigs(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    settings: dict[str, Value]
    dry_run: DryRun = False


class ChangeBrokerConfigs(msgspec.Struct, frozen=True, kw_only=True):
    broker: str
    settings: dict[str, Value]
    dry_run: DryRun = False


class Config(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: str | None
    """Null for a secret."""
    source: str
    """`topic`, `broker`, `all brokers`, `at start` or `default`."""
    default: bool
    read_only: bool
    doc: str | None


class Configs(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    configs: list[Config]
    next: str | None


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    before: str | None
    after: str | None


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    changes: list[Changed]
    warnings: list[str]
    """What may be lost by it."""
    dry_run: bool


# Looking.


async def describe_topic_configs(desk: "Desk", asked: DescribeTopicConfigs) -> Configs:
    return _describe(configs.topic_entries(desk.broker, asked.topic), asked.topic, asked)


async def describe_broker_configs(desk: "Desk", asked: DescribeBrokerConfigs) -> Configs:
    return _describe(configs.node_entries(desk.broker, node_name(asked)), asked.broker, asked)


def _describe(
    entries: Sequence[Entry], name: str, asked: DescribeTopicConfigs | DescribeBrokerConfigs
) -> Configs:
    found = {entry.setting.name: entry for entry in entries if not (asked.changed and entry.is_default)}
    names, after = page(found, limit=asked.limit, after=asked.after)
    return Configs(name=name, configs=[_show(found[key]) for key in names], next=after)


def _show(entry: Entry) -> Config:
    source, value = entry.values[0]
    return Config(
        name=entry.setting.name,
        value=value,
        source=SOURCES[source],
        default=entry.is_default,
        read_only=entry.read_only,
        doc=entry.setting.doc,
    )


def node_name(asked: DescribeBrokerConfigs | ChangeBrokerConfigs) -> str:
    """The broker that is meant, as the broker's own service names it: nothing stands for all."""
    return "" if asked.broker == ALL_BROKERS else str(int(asked.broker))


def at_broker(broker: Broker, asked: DescribeBrokerConfigs | ChangeBrokerConfigs) -> NodeId | None:
    """The broker that is meant; None for all of them."""
    name, brokers = asked.broker, broker.image.brokers
    if name == ALL_BROKERS:
        return None
    if not (name.isascii() and name.isdecimal() and len(name) <= 10 and int(name) in brokers):
        raise error_of(
            BrokerIdNotRegistered.code, f"there is no broker {name!r}; {ALL_BROKERS!r} stands for all of them"
        )
    if brokers[int(name)].fenced and int(name) != broker.node_id:
        raise BrokerNotAvailable(f"broker {name} is down or unreachable (fenced)")
    return int(name)


# Changing.


async def change_topic_configs(desk: "Desk", asked: ChangeTopicConfigs) -> Changes:
    return await _change(desk.broker, Resource.TOPIC, asked.topic, asked.topic, asked)


async def change_broker_configs(desk: "Desk", asked: ChangeBrokerConfigs) -> Changes:
    return await _change(desk.broker, Resource.BROKER, node_name(asked), asked.broker, asked)


async def _change(
    broker: Broker, resource: Resource, name: str, shown: str, asked: ChangeTopicConfigs | ChangeBrokerConfigs
) -> Changes:
    wanted = [
        SettingChange(name=key, value=_text(value), config_operation=_operation(value))
        for key, value in asked.settings.items()
    ]
    if not wanted:
        raise InvalidRequest('say what to change: {"retention.ms": 3600000}, or null to unset it')
    is_topic = resource is Resource.TOPIC
    entries = configs.topic_entries(broker, name) if is_topic else configs.node_entries(broker, name)
    known = {entry.setting.name: entry for entry in entries}
    for one in wanted:
        if one.value is None and one.name not in known:
            raise InvalidConfig(f"there is no setting {one.name!r}; see `tidelog configs describe --all`")
    await configs.change(broker, resource, name, wanted, validate_only=True)
    own = Source.TOPIC if is_topic else Source.NODE if name else Source.ALL_NODES
    changes = [planned(one.name, one.value, known.get(one.name), own) for one in wanted]
    if not asked.dry_run:
        await configs.change(broker, resource, name, wanted, validate_only=False)
    return Changes(
        name=shown,
        changes=changes,
        warnings=[warning for one in changes for warning in warnings_of(one)],
        dry_run=asked.dry_run,
    )


def _text(value: Value) -> str | None:
    """A value as settings have it: text, or None to unset it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if value is None else str(value)


def _operation(value: Value) -> configs.Operation:
    return configs.Operation.DELETE if value is None else configs.Operation.SET


def planned(key: str, value: str | None, known: Entry | None, own: Source) -> Changed:
    """One change, given what the setting is now; `own` is where the change is kept."""
    if known is None:  # refused by the check, unless a node knows more settings than it tells
        return Changed(name=key, before=None, after=value)
    at = [one for one in known.values if one[0] >= own]
    before = at[0][1] if at else known.values[0][1]
    if value is None:
        value = next((text for source, text in at if source != own), before)
    return Changed(name=key, before=before, after=value)


def warnings_of(change: Changed) -> list[str]:
    """What a change may cost."""
    key, is_none = change.name.removeprefix(TOPIC_DEFAULT_PREFIX), change.before == change.after
    if key in LIMITS and _is_tighter(change):
        return [f"{change.name} becomes smaller: records beyond it may be deleted, for good"]
    if key in MANNERS and not is_none:
        return [f"{change.name} changes: records that were kept so far may be deleted, for good"]
    return []


def _is_tighter(change: Changed) -> bool:
    try:
        before, after = int(change.before or ""), int(change.after or "")
    except ValueError:
        return False
    return after != NO_LIMIT and (before == NO_LIMIT or after < before)


_TOPIC: Final = "/v1/configs/topics/{topic}"
_BROKER: Final = "/v1/configs/brokers/{broker}"
_NO_TOPIC: Final = {404: "There is no such topic."}
_NO_BROKER: Final = {404: "There is no such broker.", 503: "It does not run."}

VERBS: Final = (
    Verb(
        name="configs.describe_topic",
        do=describe_topic_configs,
        permission=Permission(Operation.DESCRIBE_CONFIGS, Kind.TOPIC, "topic"),
        summary="List the settings of a topic: value, source, meaning.",
        http=Http("GET", _TOPIC, errors=_NO_TOPIC),
    ),
    Verb(
        name="configs.change_topic",
        do=change_topic_configs,
        permission=Permission(Operation.ALTER_CONFIGS, Kind.TOPIC, "topic"),
        is_dangerous=True,
        summary="Change settings of a topic, or reset them with null; all or none.",
        http=Http("PATCH", _TOPIC, query=("dry_run",), body="settings", errors=_NO_TOPIC),
    ),
    Verb(
        name="configs.describe_broker",
        do=describe_broker_configs,
        where=at_broker,
        permission=Permission(Operation.DESCRIBE_CONFIGS, Kind.CLUSTER),
        summary="List the settings of a broker, or of all brokers (`default`).",
        http=Http("GET", _BROKER, errors=_NO_BROKER),
    ),
    Verb(
        name="configs.change_broker",
        do=change_broker_configs,
        where=at_broker,
        permission=Permission(Operation.ALTER_CONFIGS, Kind.CLUSTER),
        is_dangerous=True,
        summary="Change settings of a broker, or of all brokers (`default`), or reset them with null.",
        http=Http("PATCH", _BROKER, query=("dry_run",), body="settings", errors=_NO_BROKER),
    ),
)
