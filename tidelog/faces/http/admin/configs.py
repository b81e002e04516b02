"""Settings of topics and brokers, seen and changed while the cluster runs.

Rule 1: a change is made as a whole or not at all, and told as before and after.
Rule 2: the settings of all brokers have the name `default`, since a path cannot name nobody.
"""

from typing import Final, TypeAlias

import msgspec

from tidelog.client.admin import ConfigInfo, Resource
from tidelog.client.settings import config_changes, plan_changes, source_name
from tidelog.faces.http.admin.asking import DRY_RUN, operator
from tidelog.faces.http.api import Call, Operation, Param
from tidelog.faces.http.paging import AFTER, LIMIT, page
from tidelog.faces.http.problems import Problem

TAG: Final = "configs"
ALL_BROKERS: Final = "default"

Value: TypeAlias = str | int | float | bool | None


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


async def describe_topic_configs(call: Call) -> Configs:
    return await _describe(call, Resource.TOPIC, call.path["topic"])


async def describe_broker_configs(call: Call) -> Configs:
    return await _describe(call, Resource.BROKER, _broker(call))


async def change_topic_configs(call: Call) -> Changes:
    return await _change(call, Resource.TOPIC, call.path["topic"])


async def change_broker_configs(call: Call) -> Changes:
    return await _change(call, Resource.BROKER, _broker(call))


def _broker(call: Call) -> str:
    """The broker that the path names, as Kafka's protocol names it."""
    name: str = call.path["broker"]
    if name == ALL_BROKERS:
        return ""
    if not (name.isascii() and name.isdecimal() and int(name) in call.broker.image.brokers):
        raise Problem(404, f"there is no broker {name!r}; {ALL_BROKERS!r} stands for all of them")
    if call.broker.image.brokers[int(name)].fenced:
        raise Problem(
            503, f"broker {name} is fenced: it does not run, or nobody can reach it",
            headers={"retry-after": "1"},
        )  # fmt: skip
    return str(int(name))


async def _describe(call: Call, resource: Resource, name: str) -> Configs:
    found = {
        config.name: config
        for config in await operator(call).describe_configs(resource, name)
        if not (call["changed"] and config.is_default)
    }
    names, after = page(found, limit=call["limit"], after=call["after"])
    return Configs(
        name=name or ALL_BROKERS, configs=[_show(found[one]) for one in names], next=after
    )


def _show(config: ConfigInfo) -> Config:
    return Config(
        name=config.name, value=config.value, source=source_name(config),
        default=config.is_default, read_only=config.read_only, doc=config.doc,
    )  # fmt: skip


async def _change(call: Call, resource: Resource, name: str) -> Changes:
    wanted = [(key, _text(value)) for key, value in call.body.items()]
    if not wanted:
        raise Problem(400, 'say what to change: {"retention.ms": 3600000}, or null to unset it')
    client = operator(call)
    changes = await plan_changes(client, resource, name, wanted)
    if not call["dry_run"]:
        await client.alter_configs(resource, name, config_changes(wanted))
    return Changes(
        name=name or ALL_BROKERS,
        changes=[Changed(name=one.name, before=one.before, after=one.after) for one in changes],
        warnings=[warning for one in changes for warning in one.warnings()],
        dry_run=call["dry_run"],
    )


def _text(value: Value) -> str | None:
    """A value as Kafka's protocol has it: text, or None to unset it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if value is None else str(value)


_CHANGED: Final = Param(
    name="changed", kind=bool, default=False, doc="Only those that are not at their default."
)
_TOPIC: Final = "/v1/configs/topics/{topic}"
_BROKER: Final = "/v1/configs/brokers/{broker}"
_NO_TOPIC: Final = {404: "There is no such topic."}
_NO_BROKER: Final = {404: "There is no such broker.", 503: "It does not run."}

OPERATIONS: Final = (
    Operation(
        method="GET", path=_TOPIC, handler=describe_topic_configs, tag=TAG,
        params=(_CHANGED, LIMIT, AFTER), answer=Configs, errors=_NO_TOPIC,
        summary="Every setting of a topic: its value, where that comes from, what it does.",
    ),
    Operation(
        method="PATCH", path=_TOPIC, handler=change_topic_configs, tag=TAG, params=(DRY_RUN,),
        body=dict[str, Value], answer=Changes, errors=_NO_TOPIC,
        summary="Set some of a topic's settings, or unset them with null; all or nothing.",
    ),
    Operation(
        method="GET", path=_BROKER, handler=describe_broker_configs, tag=TAG,
        params=(_CHANGED, LIMIT, AFTER), answer=Configs, errors=_NO_BROKER,
        summary="Every setting of a broker; of `default`, what all brokers have.",
    ),
    Operation(
        method="PATCH", path=_BROKER, handler=change_broker_configs, tag=TAG, params=(DRY_RUN,),
        body=dict[str, Value], answer=Changes, errors=_NO_BROKER,
        summary="Set some of a broker's settings, or of all brokers (`default`); null unsets.",
    ),
)  # fmt: skip
