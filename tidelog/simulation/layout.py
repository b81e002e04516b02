"""How the nodes of a cluster are laid out: who votes in the quorum, and in which rack each stands.

A node that does not vote is a broker like any other. It leads, follows and coordinates; but nobody
tells it what replicas report, and it learns of the quorum from those who vote.
"""

import random
from collections.abc import Collection
from dataclasses import replace

from tidelog.faces.node import Node
from tidelog.host import Host
from tidelog.simulation.nodes import http_of, peer_of, rack_of, real_node
from tidelog.simulation.plan import Fault, Plan
from tidelog.simulation.world import NodeFactory

_ELSEWHERE_CHANCE = 0.4


def node_factory(plan: Plan) -> NodeFactory:
    """Makes the nodes of a plan."""
    if plan.story == "alone":
        return lambda host, number: real_node(host, number, **plan.node)
    voters = plan.nodes if plan.voters is None else plan.voters
    quorum = ",".join(f"{number}@{peer_of(number)}" for number in range(1, voters + 1))

    def make(host: Host, number: int) -> Node:
        settings = {**plan.node, "quorum": quorum}
        if number > voters:
            settings["peer"] = peer_of(number)
        if plan.story == "http":
            settings["http"] = http_of(number)
        if plan.has_racks:
            settings["rack"] = rack_of(number)
        return real_node(host, number, **settings)

    return make


def observers(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """Some brokers do not vote; of three nodes, one votes, or two more come that do not.

    Faults that were drawn for three nodes hit the other two as well.
    """
    if plan.nodes >= 5:
        return replace(plan, voters=choose.choice((1, 3, 3)))
    if choose.random() < 0.3:
        return replace(plan, voters=1)
    faults = tuple(_moved(fault, plan.nodes, choose) for fault in plan.faults)
    return replace(plan, nodes=plan.nodes + 2, voters=plan.nodes, faults=faults)


def _moved(fault: Fault, nodes: int, choose: random.Random) -> Fault:
    """The fault, or the same of a node that does not vote."""
    arguments = dict(fault.arguments)
    for name in ("node", "source", "target"):
        if isinstance(arguments.get(name), int) and choose.random() < _ELSEWHERE_CHANCE:
            arguments[name] = nodes + choose.randint(1, 2)
            break
    return replace(fault, arguments=arguments)


def racks(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """Every node stands in a rack of its own, and consumers read from the replica in theirs."""
    readers = choose.randint(1, max(plan.pace.consumers, 1))
    return replace(plan, has_racks=True, pace=replace(plan.pace, rack_readers=readers))
