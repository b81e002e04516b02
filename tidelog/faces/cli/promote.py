"""`tidelog promote`: say who leads a partition; planned, or by force.

A planned promotion waits until its target is in sync, and loses nothing. A forced one waits for
nobody: what may be lost is asked of the active controller and shown before it is done.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from tidelog.faces.cli.brokers import PATIENCE_SECONDS
from tidelog.faces.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    UserError,
    complain,
    note,
    number,
    print_json,
    print_table,
    run,
)
from tidelog.faces.cli.completing import topic_names
from tidelog.model import NO_NODE, NodeId, TopicPartition

if TYPE_CHECKING:
    from tidelog.client.cluster import PartitionInfo, TopicInfo
    from tidelog.client.members import MembersClient

POLL_SECONDS: Final = 0.5
TOLD_MAX: Final = 5
VAIN_MIN: Final = 3
"""How often in a row nobody leads before that counts: a node may hear of a leader a little late."""
PROMOTE: Final = "partitions.promote"
UNKNOWN_TOPIC: Final = 3
"""The one refusal that Kafka calls retriable, and that no patience helps."""

Targets: TypeAlias = dict[TopicPartition, NodeId | None]
"""Who shall lead each partition; None for whoever has the longest log."""


def promote(
    topic: Annotated[
        str | None,
        typer.Argument(metavar="[TOPIC]", help="Topic of the partitions.", autocompletion=topic_names),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", metavar="N", min=0, help="Promote only this partition; repeatable."),
    ] = None,
    to: Annotated[
        int | None, typer.Option("--to", metavar="NODE", min=0, help="New leader (default: the longest log).")
    ] = None,
    all_from: Annotated[
        int | None,
        typer.Option("--all-from", metavar="NODE", min=0, help="Hand over all leaderships of this broker."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Promote at once, even if acknowledged records are lost.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0, help="Timeout in seconds; 0 = unlimited.")
    ] = 300.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Make a replica the leader: planned, without loss, or by force.

    Planned, the command waits until the target is in sync, and then makes
    it the leader. The target also becomes the preferred leader, so it stays
    leader. Without --to, partitions without a leader get the replica with
    the longest log.

    With --force it does not wait. It first shows how many records may be
    lost, and asks for confirmation: records that only other replicas have are
    lost, even if those come back.

    With --all-from a broker hands all its leaderships to other in-sync
    replicas, for planned maintenance. `tidelog reassign start --balance`
    spreads leaders again.

    Exits with 1 if some partition could not be promoted.

    \b
    Examples:
      tidelog promote orders --partition 0 --to 3
      tidelog promote orders                      # failover.mode manual: elect a leader again
      tidelog promote orders --partition 0 --to 3 --force
      tidelog promote --all-from 2 --timeout 60
    """
    if (topic is None) == (all_from is None):
        raise UserError("say what to promote, once: a TOPIC, or --all-from NODE")
    if all_from is not None and (partition or to is not None or force):
        raise UserError("--all-from goes with neither --partition, --to nor --force")
    targets = run(_targets(bootstrap, topic, partition, to, all_from))
    outcome = Outcome()
    if force:
        prospects = run(_promote_now(bootstrap, targets, outcome, dry_run=True))
        lossy = [one for one in prospects if not one["clean"]]
        if lossy and not outcome.refused:
            _confirm(lossy, yes=yes)
        targets = {TopicPartition(o["topic"], o["partition"]): o["leader"] for o in prospects}
        outcome.promoted = run(_promote_now(bootstrap, targets, outcome, dry_run=False))
    else:
        run(_promote_when_in_sync(bootstrap, targets, timeout, outcome))
    _show(outcome, as_json=as_json)


@dataclass
class Outcome:
    """What became of the partitions."""

    promoted: list[dict[str, Any]] = field(default_factory=list)
    refused: dict[TopicPartition, str] = field(default_factory=dict)


def _show(outcome: Outcome, *, as_json: bool) -> None:
    if as_json:
        refused = [
            {"topic": name.topic, "partition": name.partition, "error": why}
            for name, why in outcome.refused.items()
        ]
        print_json({"promoted": outcome.promoted, "refused": refused})
    elif outcome.promoted:
        print_table(
            ["topic", "partition#", "leader#", "before#", "epoch#", "in sync", "lost#"],
            [
                (
                    one["topic"],
                    one["partition"],
                    one["leader"],
                    "-" if one["previous_leader"] is None else one["previous_leader"],
                    one["epoch"],
                    ",".join(map(str, one["in_sync"])),
                    lost(one),
                )
                for one in outcome.promoted
            ],
        )
    elif not outcome.refused:
        print("there is nothing to hand over")
    for why in list(outcome.refused.values())[:TOLD_MAX]:
        complain(why)
    if len(outcome.refused) > TOLD_MAX:
        complain(f"and {len(outcome.refused) - TOLD_MAX} more could not be promoted")
    if outcome.refused:
        raise typer.Exit(1)


def lost(one: dict[str, Any]) -> str:
    """How many records a promotion may have cost, in a word or two."""
    if one["clean"]:
        return "0"
    count = one["records_lost_max"]
    return "not known" if count is None else f"{number(count)} or fewer"


# What shall be promoted.


async def _targets(
    bootstrap: str,
    topic: str | None,
    numbers: Sequence[int] | None,
    to: NodeId | None,
    all_from: NodeId | None,
) -> Targets:
    from tidelog.client.members import MembersClient

    async with MembersClient(bootstrap, timeout_seconds=PATIENCE_SECONDS) as client:
        if topic is not None:
            found = await client.topic(topic)
            known = [one.partition for one in found.partitions]
            return {TopicPartition(topic, one): to for one in numbers or known}
        assert all_from is not None
        brokers = await client.brokers()
        if all_from not in brokers:
            raise UserError(f"there is no broker {all_from}; see `tidelog brokers list`")
        there = [node for node, broker in brokers.items() if not broker.fenced]
        targets, alone = heirs(await client.topics(), all_from, there)
    if alone:
        note(f"no other replica is there of {some_of(alone)}: away while broker {all_from} is")
    return targets


def heirs(
    topics: "Iterable[TopicInfo]", node: NodeId, there: Sequence[NodeId]
) -> tuple[Targets, list[TopicPartition]]:
    """Who leads what `node` leads now, each as much as the others; and what nobody else can.

    Of several replicas one in sync, and of these the one that leads the least.
    """
    leads = dict.fromkeys(there, 0)
    led: list[tuple[TopicPartition, PartitionInfo]] = []
    for topic in topics:
        for one in topic.partitions:
            if one.leader == node:
                led.append((TopicPartition(topic.name, one.partition), one))
            elif one.leader in leads:
                leads[one.leader] += 1
    targets: Targets = {}
    alone: list[TopicPartition] = []
    for name, one in led:
        others = [other for other in one.replicas if other != node and other in leads]
        if not others:
            alone.append(name)
            continue
        able = [other for other in others if other in one.in_sync] or others
        heir = min(able, key=lambda other: leads[other])
        leads[heir] += 1
        targets[name] = heir
    return targets, alone


def some_of(names: Sequence[TopicPartition]) -> str:
    more = f" and {len(names) - TOLD_MAX} more" if len(names) > TOLD_MAX else ""
    return ", ".join(map(str, names[:TOLD_MAX])) + more


# By force.


async def _promote_now(
    bootstrap: str, targets: Targets, outcome: Outcome, *, dry_run: bool
) -> list[dict[str, Any]]:
    """What the active controller says to each, done or not."""
    from tidelog.client.cluster import Refused
    from tidelog.client.members import MembersClient

    found = []
    async with MembersClient(bootstrap, timeout_seconds=PATIENCE_SECONDS) as client:
        for name, target in targets.items():
            asked = _asked(name, target) | {"force": True, "dry_run": dry_run}
            try:
                found.append(await client.perform(PROMOTE, **asked))
            except Refused as error:
                outcome.refused[name] = f"{name}: {error}"
    return found


def _asked(name: TopicPartition, target: NodeId | None) -> dict[str, Any]:
    return {"topic": name.topic, "partition": name.partition, "node": target}


def _confirm(lossy: Sequence[dict[str, Any]], *, yes: bool) -> None:
    for one in lossy[:TOLD_MAX]:
        note(risk(one))
    if len(lossy) > TOLD_MAX:
        note(f"and {len(lossy) - TOLD_MAX} more partitions")
    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError("nothing was promoted: add --yes if that may be lost")
    if not typer.confirm("What is lost cannot be brought back. Promote?", err=True):
        raise UserError("nothing was promoted")


def risk(one: dict[str, Any]) -> str:
    """What may be lost with a leader that may lack committed records."""
    name = f"{one['topic']}-{one['partition']}"
    if one["end"] is None:
        text = f"{name}: how far broker {one['leader']} goes is not known; anything may be lost"
    else:
        text = f"{name}: broker {one['leader']} ends at {number(one['end'])}"
        longest, missing = one["longest"], one["records_lost_max"]
        if missing:
            text += (
                f", the longest known end is broker {longest['node']}'s, {number(longest['end'])}: "
                f"{number(missing)} records may be lost"
            )
            committed = (one["high_watermark"] or 0) - one["end"]
            if committed > 0:
                text += f", of which {number(committed)} were committed"
        else:
            text += "; no replica that is known of goes further"
        if longest["last_epoch"] > one["last_epoch"]:
            text += (
                f"; its last record is of epoch {one['last_epoch']}, broker {longest['node']}'s of "
                f"{longest['last_epoch']}, so what lies before may differ, too"
            )
    if one["unknown"]:
        nodes = ", ".join(map(str, one["unknown"]))
        text += f"; of brokers {nodes} nothing is known, and what only they have is lost"
    return text


# Planned.


async def _promote_when_in_sync(bootstrap: str, targets: Targets, timeout: float, outcome: Outcome) -> None:
    from tidelog.client.members import MembersClient

    async with MembersClient(bootstrap, timeout_seconds=PATIENCE_SECONDS) as client:
        await promote_when_in_sync(client, targets, timeout, outcome)


async def promote_when_in_sync(
    client: "MembersClient", targets: Targets, timeout: float, outcome: Outcome
) -> None:
    """Promote each as soon as it loses nothing, and tell what is waited for meanwhile."""
    import asyncio

    pending = dict(targets)
    reasons: dict[TopicPartition, str] = {}
    try:
        async with asyncio.timeout(timeout or None):
            await _promote_all(client, pending, reasons, outcome)
    except TimeoutError:
        for name in pending:
            why = reasons.get(name, f"{name}: the controller has not decided it (see `tidelog quorum`)")
            outcome.refused[name] = f"{why}, after {timeout:g} s"


async def _promote_all(
    client: "MembersClient", pending: Targets, reasons: dict[TopicPartition, str], outcome: Outcome
) -> None:
    """Try until nothing is pending; `reasons` are why the rest is."""
    import asyncio

    told = ""
    unled: Counter[TopicPartition] = Counter()
    while True:
        waiting = await _try_each(client, pending, outcome)
        if not pending:
            return
        for name, why in (await _in_vain(client, waiting)).items():
            unled[name] += 1
            if unled[name] >= VAIN_MIN:
                outcome.refused[name] = why
                del pending[name]
        # Time may be up while it is found out: then the reason of the last round is the best.
        for name, why in waiting.items():
            reasons.setdefault(name, f"{name}: {why}")
        found = await _reasons(client, pending, waiting)
        reasons.clear()
        reasons.update(found)
        text = "; ".join(list(reasons.values())[:TOLD_MAX])
        if pending and text != told:
            note(f"waiting: {text}")
            told = text
        await asyncio.sleep(POLL_SECONDS)


async def _try_each(client: "MembersClient", pending: Targets, outcome: Outcome) -> dict[TopicPartition, str]:
    """Ask for every promotion once, and take out what is done or refused; why the rest waits."""
    from tidelog.client.cluster import Refused
    from tidelog.client.wire import ConnectionFailed

    waiting: dict[TopicPartition, str] = {}
    try:
        for name, target in list(pending.items()):
            try:
                outcome.promoted.append(await client.perform(PROMOTE, **_asked(name, target)))
                del pending[name]
            except Refused as error:
                if error.retriable and error.code != UNKNOWN_TOPIC:
                    waiting[name] = str(error)
                else:
                    outcome.refused[name] = f"{name}: {error}"
                    del pending[name]
    except ConnectionFailed as error:  # whom we asked is gone; the next round asks another
        waiting = {name: waiting.get(name, str(error)) for name in pending}
    return waiting


async def _in_vain(
    client: "MembersClient", waiting: Mapping[TopicPartition, str]
) -> dict[TopicPartition, str]:
    """What no patience helps: nobody leads it, so whoever lacks something cannot get it."""
    found = {}
    known = {
        TopicPartition(topic.name, one.partition): one
        for topic in await client.topics()
        for one in topic.partitions
    }
    for name, why in waiting.items():
        if name in known and known[name].leader == NO_NODE:
            in_sync = ", ".join(map(str, known[name].in_sync))
            found[name] = (
                f"{name}: {why}; the partition has no leader to catch up from: start a broker that is "
                f"in sync ({in_sync})"
            )
    return found


async def _reasons(
    client: "MembersClient", pending: Targets, waiting: Mapping[TopicPartition, str]
) -> dict[TopicPartition, str]:
    """What each waits for: how far its target is behind, by what its leader says."""
    from tidelog.faces.cli.replication import gather

    if not pending:
        return {}
    topics = sorted({name.topic for name in pending})
    behind = {
        (TopicPartition(one["topic"], one["partition"]), one["node"]): one
        for one in (await gather(client, None, topics))["behind"]
    }
    reasons = {}
    for name, target in pending.items():
        one = None if target is None else behind.get((name, target))
        reasons[name] = f"{name}: {waiting.get(name, 'it was not asked yet')}"
        if one is not None and one["state"] == "away":
            reasons[name] = f"{name}: broker {target} is away; start it"
        elif one is not None and one["lag_records"] is not None:
            lag = number(one["lag_records"])
            reasons[name] = f"{name}: broker {target} is {lag} records behind ({one['state']})"
    return reasons
