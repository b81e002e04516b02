"""Changes of settings: what each would do, before it is done, and what it may cost.

Rule: a change is checked by the cluster as a whole before it is made, and told as before and after.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from tidelog.client.admin import AdminClient, ConfigChange, ConfigInfo, Resource, Source
from tidelog.client.cluster import Refused

HIDDEN: Final = "(hidden)"
NO_LIMIT: Final = -1
SOURCES: Final[Mapping[int, str]] = {
    Source.TOPIC: "topic",
    Source.BROKER: "broker",
    Source.ALL_BROKERS: "all brokers",
    Source.START: "at start",
    Source.DEFAULT: "default",
}
LIMITS: Final = frozenset({"retention.ms", "retention.bytes", "retention.records"})
"""Settings that delete records once they are smaller."""
MANNERS: Final = frozenset({"cleanup.policy", "retention.mode"})
"""Settings that delete other records once they are different."""
TOPIC_DEFAULT_PREFIX: Final = "log."


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One line of before -> after; None where there is no value."""

    name: str
    before: str | None
    after: str | None

    @property
    def is_none(self) -> bool:
        return self.before == self.after

    def warnings(self) -> list[str]:
        """What it may cost."""
        key = self.name.removeprefix(TOPIC_DEFAULT_PREFIX)
        if key == "partitions" and not self.is_none:
            return [
                "keys will map to other partitions: a key's new records may go to another "
                "partition than its old ones, so their order is kept only within each"
            ]
        if key in LIMITS and self._is_tighter():
            return [f"{self.name} becomes smaller: records beyond it may be deleted, for good"]
        if key in MANNERS and not self.is_none:
            return [f"{self.name} changes: records that were kept so far may be deleted, for good"]
        return []

    def _is_tighter(self) -> bool:
        try:
            before, after = int(self.before or ""), int(self.after or "")
        except ValueError:
            return False
        return after != NO_LIMIT and (before == NO_LIMIT or after < before)


async def plan_changes(
    client: AdminClient,
    resource: Resource,
    name: str,
    wanted: Sequence[tuple[str, str | None]],
) -> list[Change]:
    """What the changes would do; Refused if they cannot be made. The name of all brokers is ''."""
    known = {config.name: config for config in await client.describe_configs(resource, name)}
    for key, value in wanted:
        if value is None and key not in known:
            what = f"there is no setting {key!r}"
            raise Refused(ErrorCode.invalid_config, what, "see `tidelog configs describe --all`")
    await client.alter_configs(resource, name, config_changes(wanted), validate_only=True)
    own = Source.TOPIC
    if resource is Resource.BROKER:
        own = Source.BROKER if name else Source.ALL_BROKERS
    return [planned(key, value, known.get(key), own) for key, value in wanted]


def config_changes(wanted: Iterable[tuple[str, str | None]]) -> list[ConfigChange]:
    return [ConfigChange(name=key, value=value) for key, value in wanted]


def planned(key: str, value: str | None, known: ConfigInfo | None, own: Source) -> Change:
    """One change, given what the setting is now; `own` is where the change is kept."""
    if known is None:  # a node that knows more settings than it tells
        return Change(name=key, before=None, after=value)
    if known.sensitive:
        return Change(name=key, before=HIDDEN, after=HIDDEN + " anew")
    at = [one for one in known.values if one.source >= own]
    before = at[0].value if at else known.value
    if value is None:
        below = (one.value for one in at if one.source != own)
        value = next(below, known.value if known.source != own else None)
    return Change(name=key, before=before, after=value)


def source_name(config: ConfigInfo) -> str:
    """Where a value comes from, for people."""
    return SOURCES.get(config.source, f"source {config.source}")
