"""`tidelog cluster restart`: all nodes of a local cluster anew, one after the other if wanted.

Rule 1: no node is stopped unless every replica is in sync, every broker is there and every voter
        follows: then one node may be missed, and nothing is.
Rule 2: the controller comes last, so that its place changes once.
Rule 3: where failover.mode is manual nobody would lead once the leader stops. Such leads are handed
        over before, and given back after.
"""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidelog.faces.cli.common import AsJson, UserError, note, print_json, run
from tidelog.faces.cli.promote import Outcome, Targets, heirs, promote_when_in_sync
from tidelog.model import NO_NODE, NodeId, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidelog.client.cluster import TopicInfo
    from tidelog.client.members import BrokerInfo, MembersClient, QuorumInfo
    from tidelog.faces.local.layout import ClusterFile

POLL_SECONDS: Final = 0.3
REASONS_MAX: Final = 5
SILENT_MS_MAX: Final = 5000
"""A voter that has not asked the quorum's leader for so long does not follow."""


def restart(
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help="The cluster's directory, as for `up`.")
    ],
    rolling: Annotated[
        bool, typer.Option("--rolling", help="Restart one node after the other; clients hardly notice.")
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=1,
            help="Timeout in seconds of each wait for replicas to be in sync.",
        ),
    ] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Stop and start the nodes, all at once or with --rolling one after the other.

    Data, ports and settings stay; nodes run the code that is installed now.
    With --rolling, each node is stopped only when all replicas are in sync, the
    active controller last. If a replica does not get in sync, the command stops
    and names it.

    \b
    Examples:
      tidelog cluster restart --data ./data --rolling
      tidelog cluster restart --data ./data
    """
    from tidelog.faces.local.control import ask

    directory, began = data.absolute(), time.monotonic()
    content = ask(directory, "status", seconds_max=10)
    _require_running(content, directory)
    nodes = run(_restart(directory, content, timeout, rolling=rolling))
    seconds = round(time.monotonic() - began, 1)
    if as_json:
        print_json({"data": str(directory), "nodes": nodes, "rolling": rolling, "seconds": seconds})
    else:
        print(f"restarted {_listed(nodes)} in {seconds:g} s; all replicas are in sync")


def _require_running(content: "ClusterFile", directory: Path) -> None:
    for entry in content.nodes:
        if entry.state != "running":
            raise UserError(
                f"node {entry.id} is {entry.state}; only a cluster that is whole is restarted: "
                f"tidelog cluster start {entry.id} --data {directory}"
            )


def _listed(nodes: Iterable[NodeId]) -> str:
    return ", ".join(f"node {node}" for node in nodes) or "no nodes"


async def _restart(directory: Path, content: "ClusterFile", timeout: float, *, rolling: bool) -> list[NodeId]:
    """The nodes, in the order in which they were restarted."""
    import asyncio

    from tidelog.client.members import MembersClient
    from tidelog.faces.local.control import ask

    async def tell(command: str, node: NodeId) -> None:
        await asyncio.to_thread(ask, directory, command, node, wait=True)

    nodes = [entry.id for entry in content.nodes]
    bootstrap = ",".join(entry.kafka for entry in content.nodes)
    async with MembersClient(bootstrap) as client:
        if not rolling:
            by_hand = await _led_by_hand(client)
            note("all nodes stop at once: clients must wait")
            await asyncio.gather(*(tell("stop", node) for node in nodes))
            await asyncio.gather(*(tell("start", node) for node in nodes))
            await _promote(client, dict.fromkeys(by_hand), timeout)  # whoever has the most
            await wait_whole(client, timeout)
            await _promote(client, by_hand, timeout)
            return nodes
        controller = (await client.view()).leader
        done: list[NodeId] = []
        for node in sorted(nodes, key=lambda node: (node == controller, node)):
            try:
                await wait_whole(client, timeout)
                handed = await _hand_over(client, node, timeout)
                note(f"node {node} stops")
                await tell("stop", node)
                await tell("start", node)
                note(f"node {node} runs again")
                await wait_whole(client, timeout)
                await _promote(client, handed, timeout)
            except UserError as error:
                raise UserError(f"{error}. Restarted so far: {_listed(done)}") from None
            done.append(node)
        return done


# What a node must wait for.


async def wait_whole(client: "MembersClient", timeout: float) -> None:
    """Return once one node may be missed; UserError with the reasons if that does not come."""
    import asyncio

    deadline, told = time.monotonic() + timeout, ""
    while True:
        reasons = why_not_whole(
            await client.brokers(), await client.topics(), await client.quorum(), time.time() * 1000
        )
        if not reasons:
            return
        more = f" and {len(reasons) - REASONS_MAX} more" if len(reasons) > REASONS_MAX else ""
        text = "; ".join(reasons[:REASONS_MAX]) + more
        if time.monotonic() > deadline:
            raise UserError(f"not all is well after {timeout:g} s, no node is stopped: {text}")
        if text != told:
            note(f"waiting: {text}")
            told = text
        await asyncio.sleep(POLL_SECONDS)


def why_not_whole(
    brokers: "Mapping[NodeId, BrokerInfo]", topics: "Iterable[TopicInfo]", quorum: "QuorumInfo", now_ms: float
) -> list[str]:
    """What is missing for one node to be missed."""
    reasons = [f"broker {broker.node} is fenced" for broker in brokers.values() if broker.fenced]
    for voter in quorum.voters:
        silent_ms = None if voter.fetched_ms is None else now_ms - voter.fetched_ms
        if voter.node != quorum.leader and (silent_ms is None or silent_ms > SILENT_MS_MAX):
            reasons.append(f"voter {voter.node} does not follow the quorum")
    for topic in topics:
        for one in topic.partitions:
            name = TopicPartition(topic.name, one.partition)
            behind = [node for node in one.replicas if node not in one.in_sync]
            if one.leader == NO_NODE:
                reasons.append(f"{name} has no leader (`tidelog promote {topic.name}`)")
            elif behind:
                reasons.append(f"{name} on {', '.join(map(str, behind))} is not in sync")
    return reasons


# Where an operator decides who leads.


async def _led_by_hand(client: "MembersClient", node: NodeId | None = None) -> Targets:
    """Who leads the partitions that nobody would lead without an operator; only what `node` does.

    Those with one replica wait for nobody.
    """
    from tidelog.client.admin import Resource

    found: Targets = {}
    for topic in await client.topics():
        led = [
            one
            for one in topic.partitions
            if one.leader == node or (node is None and one.leader != NO_NODE)
            if len(one.replicas) > 1
        ]
        configs = await client.describe_configs(Resource.TOPIC, topic.name) if led else []
        if any(one.name == "failover.mode" and one.value == "manual" for one in configs):
            found |= {TopicPartition(topic.name, one.partition): one.leader for one in led}
    return found


async def _hand_over(client: "MembersClient", node: NodeId, timeout: float) -> Targets:
    """Let others lead what would have no leader without `node`; who led it before."""
    by_hand = await _led_by_hand(client, node)
    there = [one.node for one in (await client.brokers()).values() if not one.fenced]
    targets, _ = heirs(await client.topics(), node, there)
    await _promote(client, {name: targets[name] for name in by_hand if name in targets}, timeout)
    return by_hand


async def _promote(client: "MembersClient", targets: Targets, timeout: float) -> None:
    outcome = Outcome()
    await promote_when_in_sync(client, targets, timeout, outcome)
    if outcome.refused:
        raise UserError("; ".join(list(outcome.refused.values())[:REASONS_MAX]))
