"""An operator who asks any node over HTTP for all that operators may ask for, under faults.

Rule 1: an order is drawn from the HTTP face's own table of operations, so that a new operation is
        asked for as soon as it is there. The node's own application answers it, in the node's
        process; only the connection to it is left out.
Rule 2: what may lose or change what the story's clients rely on is asked of the operator's own
        topics and groups, whose names begin with `OWN`.
Rule 3: an order is given once. It may be refused, and it may stay without an answer; it never fails
        by an error that the node did not foresee.

| invariant                     | meaning                                                          |
|-------------------------------|------------------------------------------------------------------|
| an operator is answered       | by what the operation promises, or by a refusal (4xx, 503, 504)  |
| an answer is possible         | replicas are nodes, leaders and in-sync sets are replicas        |
"""

import random
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from tidelog.config import DYNAMIC_NODE_SETTINGS
from tidelog.config.node import all_node_settings
from tidelog.errors import TidelogError
from tidelog.faces.http import topics, verbs
from tidelog.faces.http.api import Operation
from tidelog.faces.http.openapi import name_of
from tidelog.simulation.http_door import call
from tidelog.simulation.node_calls import ask_node, raise_error, up_from
from tidelog.simulation.nodes import OWN
from tidelog.simulation.plan import Fault, Plan, moments
from tidelog.simulation.world import World

VERBS: Final = (*verbs.OPERATIONS, *topics.OPERATIONS)
"""All that an operator asks of a node over HTTP."""
ANSWERED: Final = "an operator is answered"
POSSIBLE: Final = "an answer is possible"

_SECONDS: Final = 12.0
_REFUSALS: Final = (503, 504)
_PARAMETER: Final = re.compile(r"{(\w+)(?::(\w+))?}")
_CHANGES: Final[dict[str, tuple[Any, ...]]] = {
    "catchup.bytes.per.second": (0, 200_000, 4_000_000),
    "catchup.concurrent.max": (1, 4),
    "catchup.threshold.records": (0, 5, 1000),
    "connections.max.idle.ms": (500, 60_000),
    "fetch.max.bytes": (2000, 1 << 20),
    "log.cleaner.io.max.bytes.per.second": (100_000, 100_000_000),
    "log.index.interval.bytes": (200, 4096),
    "log.segment.bytes": (5_000, 50_000),
    "num.partitions": (1, 3),
}
"""Values of settings that a story bears; every other dynamic setting is set to its default."""


def verb_of(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


# Drawing an order.


class _Draw:
    """Draws what one order says."""

    def __init__(self, choose: random.Random, plan: Plan) -> None:
        self.random = choose
        self.nodes = plan.nodes
        self.drained = choose.randint(1, plan.nodes)
        """Only one broker of a seed is ever drained: the others have to have room for all."""
        self.users = f"tide-{choose.randrange(plan.pace.topics)}"

    def node(self) -> int:
        return self.random.randint(1, self.nodes)

    def own(self) -> str:
        return f"{OWN}{self.random.randint(1, 3)}"

    def path(self, operation: Operation) -> str:
        """The operation's path, with a value for each of its parameters."""

        def value(found: re.Match[str]) -> str:
            name, kind = found.groups()
            if name_of(operation) == "brokers_drain":
                return str(self.drained)
            if name_of(operation) == "operations_promote_partition":
                return {"topic": self.random.choice((self.users, self.own()))}.get(name, "0")
            if name_of(operation) == "configs_describe_topic_configs":
                return self.random.choice((self.users, self.own()))
            if name_of(operation) == "quorum_remove_voter":
                return str(self.nodes + 1)  # who votes is for another situation to change
            if name == "user":
                return f"user-{self.random.randint(1, 2)}"
            if name == "group":
                return f"{OWN}1"  # the one that commits offsets
            if name == "broker":
                return self.random.choice(("default", str(self.node())))
            if name == "partition":
                return "0"
            return str(self.node()) if kind == "int" else quote(self.own())

        return _PARAMETER.sub(value, operation.path)

    def body(self, operation: Operation) -> Any:
        drawn = _BODIES.get(name_of(operation))
        return {} if drawn is None else drawn(self)


def _drain(draw: _Draw) -> Any:
    return draw.random.choice(({}, {"dry_run": True}, {"undo": True}))


def _settings(draw: _Draw) -> Any:
    name = draw.random.choice(sorted(DYNAMIC_NODE_SETTINGS))
    if draw.random.random() < 0.7:
        name = draw.random.choice(list(_CHANGES))
    values = (*_CHANGES.get(name, (all_node_settings()[name].default,)), None)
    return {name: draw.random.choice(values)}


def _election(draw: _Draw) -> Any:
    return draw.random.choice(({"type": "preferred"}, {"type": "unclean", "topic": draw.own()}))


def _moves(draw: _Draw) -> Any:
    replicas = draw.random.sample(range(1, draw.nodes + 1), draw.random.randint(1, draw.nodes))
    return draw.random.choice(
        (
            {"balance": True},
            {"balance": True, "dry_run": True},
            {"topic": draw.own(), "replicas": replicas},
            {"topic": draw.own(), "replication": draw.random.randint(1, draw.nodes)},
        )
    )


def _new_topic(draw: _Draw) -> Any:
    replication = draw.random.randint(1, min(3, draw.nodes))
    return {"name": draw.own(), "partitions": draw.random.randint(1, 2), "replication": replication}


def _about(draw: _Draw) -> dict[str, str]:
    """What somebody may do; the authorizer is off, so nobody minds."""
    return {"operation": draw.random.choice(("Read", "Write")), "kind": "Topic", "name": draw.own()}


def _topic_change(draw: _Draw) -> Any:
    return {"config": {"retention.ms": draw.random.choice((60_000, 3_600_000, None))}}


_BODIES: Final[dict[str, Callable[[_Draw], Any]]] = {
    "groups_reset_group": lambda draw: {"topic": draw.own(), "to": "earliest"},
    "brokers_drain": _drain,
    "configs_change_topic_configs": lambda draw: {"segment.bytes": draw.random.choice((5000, None))},
    "configs_change_broker_configs": _settings,
    "moves_elect_leaders": _election,
    "moves_begin_moves": _moves,
    "operations_promote_partition": lambda draw: {"node": draw.node()},
    "topics_make_topic": _new_topic,
    "acls_add_acls": lambda draw: {"acls": [{"principal": f"User:{OWN}", **_about(draw)}]},
    "tokens_create_token": lambda draw: {"user": f"user-{draw.random.randint(1, 2)}", "days": 1},
    "users_set_user": lambda draw: {"password": f"{draw.random.random()}"},
    "topics_change_topic": _topic_change,
}
"""What an order of an operation says, by the operation's name, where nothing is not enough."""
_QUERIES: Final[dict[str, Callable[[_Draw], Mapping[str, str]]]] = {
    "groups_delete_offsets": lambda draw: {"topic": draw.own()},
    "acls_remove_acls": lambda draw: {"principal": f"User:{OWN}", "name": draw.own()},
    "acls_explain_acl": lambda draw: {"principal": f"User:{OWN}", **_about(draw)},
    "configs_change_topic_configs": lambda draw: {"dry_run": draw.random.choice(("true", "false"))},
}
assert {*_BODIES, *_QUERIES} <= set(map(name_of, VERBS)), "only for what there is"


def draw_orders(plan: Plan, choose: random.Random) -> list[Fault]:
    """Orders of all verbs, in turns, each turn in another order."""
    draw = _Draw(choose, plan)
    rate = choose.choice((1.0, 2.0, 4.0))  # per simulated second
    turn: list[Operation] = []
    orders = []
    for at in moments(choose, rate, plan.chaos_seconds):
        if not turn:
            turn = [topics.OPERATIONS[0], *choose.sample(VERBS, len(VERBS))][::-1]
        operation = turn.pop()
        order = {"asked": draw.node(), "verb": verb_of(operation), "path": draw.path(operation)}
        if (query := _QUERIES.get(name_of(operation))) is not None:
            order["query"] = urlencode(query(draw))
        if operation.body is not None:
            order["body"] = draw.body(operation)
        orders.append(Fault(at, "order", order))
    return orders


# Giving it.


def order(world: World, asked: int, verb: str, path: str, query: str = "", body: Any = None) -> None:
    """Ask a node for something, as a request over HTTP does."""
    world.count("order")
    task = world.client("operator").spawn(_order(world, asked, verb, path, query, body))
    task.add_done_callback(raise_error)


async def _order(world: World, asked: int, verb: str, path: str, query: str, body: Any) -> None:
    method, asked = verb.partition(" ")[0], up_from(world, asked)
    ask = partial(call, method=method, path=path, query=query, body=msgspec.json.encode(body))
    try:
        status, document = await ask_node(world, asked, ask, _SECONDS)
    except (TidelogError, TimeoutError) as error:
        world.trace.note("operator", f"{method} {path}: {type(error).__name__}: {error}")
        return
    world.trace.note("operator", f"{method} {path}: {status}")
    if status >= 500 and status not in _REFUSALS:
        world.fail(ANSWERED, f"{method} {path} of node {asked}: {status} {document}")
    if status == 200 and (problem := impossible(document, frozenset(world.machines))):
        world.fail(POSSIBLE, f"{method} {path} of node {asked}: {problem} in {document}")


def impossible(document: Any, nodes: frozenset[int]) -> str | None:
    """What an answer says that cannot be, whatever else is true."""
    if isinstance(document, list):
        return next(filter(None, (impossible(one, nodes) for one in document)), None)
    if not isinstance(document, dict):
        return None
    replicas = document.get("replicas")
    if isinstance(replicas, list) and all(isinstance(node, int) for node in replicas):
        if strangers := set(replicas) - nodes:
            return f"replicas {sorted(strangers)} are no nodes"
        in_sync = document.get("in_sync")
        if isinstance(in_sync, list) and (others := set(in_sync) - set(replicas)):
            return f"{sorted(others)} are in sync and hold nothing"
        if document.get("leader") not in (None, *replicas):
            return f"{document['leader']} leads and holds nothing"
    return impossible(list(document.values()), nodes)
