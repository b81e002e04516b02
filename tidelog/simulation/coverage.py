"""What the seeds of a run have met, held against what there is.

Rule 1: what there is comes from the tables that the nodes and the swarm work by. No name is written
        here a second time, so that a new row of a table shows as never met until a story meets it.
Rule 2: a request counts when a node begins to handle it, a fault when it has befallen something, a
        role when a process in that role was hit.
Rule 3: counting changes nothing: a seed has the same history with it and without.

| section    | a name is                                     | what there is                      |
|------------|-----------------------------------------------|------------------------------------|
| apis       | a request of Kafka's protocol                 | `APIS` of `wire/apis.py`           |
| peers      | a message from node to node                   | the handlers of a `ClusterMember`  |
| work       | work that the leader of a partition does      | the servers of a node's `Serving`  |
| verbs      | what an operator asks of a node over HTTP     | `OPERATIONS` of the face's modules |
| faults     | a kind of fault, or of an operator's order    | `EVERY_KIND` of `situations.py`    |
| situations | a situation that the plan had                 | `SITUATIONS`                       |
| roles      | a fault, and a role of a process that it hit  | kinds that name a node, by `Role`  |
| pairs      | two kinds within `PAIR_SECONDS` of each other | all pairs of kinds                 |
"""

from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from inspect import signature
from itertools import combinations
from typing import Any, Final

from tidelog.broker.serving import Serving
from tidelog.cluster.hub import Hub
from tidelog.cluster.quorum import Quorum
from tidelog.faces.http.api import Call
from tidelog.kafka.requests import Requests
from tidelog.model import INTERNAL_TOPICS
from tidelog.simulation.machine import Machine
from tidelog.simulation.met import Met
from tidelog.simulation.operators import VERBS, verb_of
from tidelog.simulation.plan import Fault, Plan
from tidelog.simulation.quorum import quorum_of
from tidelog.simulation.situations import EVERY_KIND, SITUATIONS
from tidelog.simulation.world import World
from tidelog.wire.apis import APIS, Api

PAIR_SECONDS: Final = 5.0
_VICTIMS: Final = ("node", "source", "target")
"""The arguments of a fault that say whom it hits."""


class Role(StrEnum):
    """What a process is at when a fault hits it; most are several at once."""

    LEADER = "leader"
    """Of a partition of a user's topic."""
    FOLLOWER = "follower"
    COORDINATOR = "coordinator"
    """The leader of a partition in which the cluster keeps groups, transactions or queues."""
    CONTROLLER = "controller"
    VOTER = "voter"
    OBSERVER = "observer"
    """A broker that follows the quorum and does not vote in it."""
    STARTING = "starting"
    """Not up yet."""


def names(met: Met, section: str) -> list[str]:
    """What there is, and what was met beyond that."""
    there_is = {
        "apis": [api.title for api in APIS],
        "verbs": [verb_of(operation) for operation in VERBS],
        "faults": list(EVERY_KIND),
        "situations": [situation.name for situation in SITUATIONS],
        "roles": [cell(kind, role) for kind in EVERY_KIND if hits_nodes(kind) for role in Role],
        "pairs": [_pair(*kinds) for kinds in combinations(EVERY_KIND, 2)],
    }.get(section) or sorted(met.tables[section])
    return list(dict.fromkeys([*there_is, *sorted(met.counts[section])]))


def never(met: Met, section: str) -> list[str]:
    """What there is and was not met, in order."""
    counts = met.counts[section]
    return [name for name in names(met, section) if not counts[name]]


def hits_nodes(kind: str) -> bool:
    """Whether faults of this kind say which node they hit."""
    return not {"node", "source"}.isdisjoint(signature(EVERY_KIND[kind]).parameters)


def roles_of(machine: Machine) -> list[Role]:
    """What the process of a machine is at now; nothing, if there is none."""
    if machine.node is None:
        return []
    if not machine.is_up:
        return [Role.STARTING]
    broker, roles = machine.node.broker, []
    kept = {
        (partition.name.topic in INTERNAL_TOPICS, partition.leader is not None)
        for partition in broker.partitions()
    }
    if (False, True) in kept:
        roles.append(Role.LEADER)
    if (True, True) in kept:
        roles.append(Role.COORDINATOR)
    if (False, False) in kept or (True, False) in kept:
        roles.append(Role.FOLLOWER)
    if (quorum := quorum_of(machine)) is not None:
        if quorum.leads:
            roles.append(Role.CONTROLLER)
        roles.append(Role.VOTER if _votes(quorum) else Role.OBSERVER)
    return roles


class Coverage:
    """Counts what one world meets, from before its nodes are made until it is left."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.met = Met()
        self._world = world
        self._befallen: list[tuple[float, str]] = []
        self._methods: list[tuple[type, str, Any]] = []
        self.met.counts["situations"].update(plan.situations)
        world.on_end.append(self._look_at)

    def __enter__(self) -> "Coverage":
        for section, owner, method, name_of in _COUNTED:
            handle = getattr(owner, method)
            self._methods.append((owner, method, handle))
            setattr(owner, method, _counted(handle, self.met.counts[section], name_of))
        return self

    def __exit__(self, *_: object) -> None:
        while self._methods:
            setattr(*self._methods.pop())

    def befall(self, fault: Fault) -> None:
        """Let a fault happen, and note whom it hit."""
        world, kind = self._world, fault.kind
        hit = [fault.arguments[name] for name in _VICTIMS if name in fault.arguments]
        machines = [world.machines[node] for node in hit if isinstance(node, int)]
        roles = {role for machine in machines for role in roles_of(machine)}
        before = world.faults.total()
        EVERY_KIND[kind](world, **fault.arguments)
        for role in sorted(roles):
            self.met.count("roles", cell(kind, role))
        if roles or world.faults.total() > before:
            others = {other for at, other in self._befallen if at >= world.now - PAIR_SECONDS} - {kind}
            for other in sorted(others):
                self.met.count("pairs", _pair(*sorted((kind, other), key=list(EVERY_KIND).index)))
            self._befallen.append((world.now, kind))
            self.met.count("faults", kind)

    def end(self) -> Met:
        """All that was met, once it is over."""
        for machine in self._world.machines.values():
            self._look_at(machine)
        counts = self.met.counts["faults"]
        for kind in self._world.faults.keys() & EVERY_KIND.keys():
            counts[kind] = max(counts[kind], self._world.faults[kind])  # some come later
        return self.met

    def _look_at(self, machine: Machine) -> None:
        """Learn which messages and which work a node takes."""
        broker = getattr(machine.node, "broker", None)
        if broker is not None and machine.is_up:
            tables = self.met.tables
            tables["peers"] |= {kind.__name__ for kind in broker.member._handlers}
            tables["work"] |= {kind.__name__ for kind in broker.serving._servers}


def _counted(
    handle: Callable[..., Any], counts: Counter[str], name_of: Callable[..., str]
) -> Callable[..., Any]:
    @wraps(handle)
    def counted(*args: Any) -> Any:
        counts[name_of(*args)] += 1
        return handle(*args)

    return counted


def _votes(quorum: Quorum) -> bool:
    return quorum.me.key in quorum.raft.voters


def _title(api: Api | None) -> str:
    return "unknown" if api is None else api.title


_COUNTED: Final[tuple[tuple[str, type, str, Callable[..., str]], ...]] = (
    ("apis", Requests, "handle", lambda _, frame, header, *rest: _title(header.api)),
    ("apis", Requests, "handle_repeated", lambda *_: Api.PRODUCE.title),
    ("peers", Hub, "_receive", lambda _, node, message, *rest: type(message).__name__),
    ("verbs", Call, "__init__", lambda _, node, operation, *rest: verb_of(operation)),
    ("work", Serving, "_serve", lambda _, topic, number, work, *rest: type(work).__name__),
)
"""Where requests go through: the section, the class, its method, and the name by the arguments."""


def cell(kind: str, role: Role) -> str:
    return f"{kind}, {role}"


def _pair(one: str, other: str) -> str:
    return f"{one} + {other}"
