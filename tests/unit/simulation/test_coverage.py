"""What the seeds of a run have met."""

import pickle
import subprocess
import sys

from tidelog.faces.node import Node
from tidelog.host import Host
from tidelog.kafka.requests import Requests
from tidelog.simulation.coverage import Coverage, Role, cell, hits_nodes, never, roles_of
from tidelog.simulation.met import Met
from tidelog.simulation.nodes import real_node
from tidelog.simulation.plan import Fault, Plan
from tidelog.simulation.situations import EVERY_KIND
from tidelog.simulation.world import World
from tidelog.wire.apis import APIS

QUORUM = ",".join(f"{n}@node-{n}:9192" for n in (1, 2, 3))
"""Node 4 does not vote."""
PLAN = Plan(seed=1, nodes=4, chaos_seconds=1.0, faults=())


def test_all_that_there_is_counts_as_never_met_at_first():
    met = Met()

    assert never(met, "apis") == [api.title for api in APIS]
    assert never(met, "faults") == list(EVERY_KIND)
    assert cell("crash", Role.CONTROLLER) in never(met, "roles")
    assert not any(name.startswith("spike") for name in never(met, "roles"))
    assert "crash + pause" in never(met, "pairs")


def test_what_was_met_adds_up():
    met, other = Met(), Met()
    met.count("apis", "Fetch")
    other.count("apis", "Fetch")
    other.tables["work"].add("KvGet")

    met.add(other)

    assert met.counts["apis"] == {"Fetch": 2}
    assert "Fetch" not in never(met, "apis")
    assert never(met, "work") == ["KvGet"]


def test_who_adds_up_what_workers_met_loads_nothing_of_a_node():
    script = (
        "import pickle, sys, tidelog.faces.cli, tidelog.simulation.campaign as campaign\n"
        "campaign.Totals().met = pickle.load(sys.stdin.buffer)\n"
        "print(*({'kio', 'tidelog.broker', 'tidelog.wire'} & set(sys.modules)))"
    )

    loaded = subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps(Met()), capture_output=True, check=True
    )

    assert loaded.stdout.split() == []


def test_a_kind_hits_nodes_if_it_says_which():
    assert hits_nodes("crash") and hits_nodes("cut")
    assert not hits_nodes("spike") and not hits_nodes("lose_power_everywhere")


def broker(host: Host, number: int) -> Node:
    return real_node(host, number, quorum=QUORUM, peer=f"node-{number}:9192")


def test_roles_faults_and_requests_are_seen():
    with World(seed=7, nodes=4, node_factory=broker) as world, Coverage(world, PLAN) as coverage:
        assert roles_of(world.machines[1]) == []
        world.restart_everyone()
        world.run(0.001)
        assert roles_of(world.machines[1]) == [Role.STARTING]
        world.run_until(world.all_up, 30)
        roles = [roles_of(world.machines[node]) for node in world.machines]
        assert sum(Role.CONTROLLER in found for found in roles) == 1
        assert [Role.VOTER in found for found in roles] == [True, True, True, False]
        assert [Role.OBSERVER in found for found in roles] == [False, False, False, True]

        coverage.befall(Fault(0.0, "crash", {"node": 4, "down_seconds": 60.0}))
        coverage.befall(Fault(0.0, "pause", {"node": 4, "seconds": 1.0}))  # it is down
        coverage.befall(Fault(0.0, "spike", {"chance": 0.1, "seconds": 1.0}))
        met = coverage.end()

    assert met.counts["faults"] == {"crash": 1, "spike": 1}
    assert met.counts["roles"] == {cell("crash", Role.OBSERVER): 1}
    assert met.counts["pairs"] == {"crash + spike": 1}
    assert met.counts["peers"]["Register"] >= 4
    assert {"Vote", "StopNode"} <= met.tables["peers"]
    assert "KvGet" in met.tables["work"]


def test_counting_ends_with_the_world():
    handle = Requests.handle
    with World(seed=7, nodes=1) as world:
        with Coverage(world, PLAN):
            assert Requests.handle is not handle

        assert Requests.handle is handle
