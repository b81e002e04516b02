"""Brokers, replicas that move, elections and the quorum over HTTP, asked of any node."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.faces.http.cluster import Cluster
from tidelog.broker.topics import create_topic
from tidelog.cluster.messages import StopNode
from tidelog.controller.decisions import NewTopic
from tidelog.records import Record, encode_batch

THROTTLE = "catchup.bytes.per.second"
LARGE = bytes(encode_batch([Record(value=bytes(100_000))] * 8))
"""Several are more than anybody copies at once."""


@pytest.fixture(scope="module")
def world() -> Iterator[Cluster]:
    """Four nodes, of which the first three vote."""
    with Cluster(4, voters=3) as world:
        yield world


def create(world: Cluster, name: str, partitions: int = 2, replication: int = 2) -> None:
    world.do(world.kafka().create_topic(name, partitions=partitions, replication=replication))


def replicas(world: Cluster, topic: str) -> list[tuple[int, ...]]:
    return [one.replicas for one in world.node(1).broker.image.topics[topic].partitions]


def settled(world: Cluster) -> None:
    """Wait until everybody has heard of the moves, and nothing moves any more."""
    world.run(1.0)
    world.run_until(
        lambda: not any(place.partition.is_moving for place in world.node(1).broker.image.places.values()),
        60.0,
    )


# Brokers.


def test_brokers_are_listed_page_by_page_at_any_node(world):
    settled(world)
    first = world.get(4, "/v1/brokers?limit=3")
    rest = world.get(2, f"/v1/brokers?limit=3&after={first['next']}")

    assert [one["id"] for one in first["brokers"]] == [1, 2, 3] and first["next"] == 3
    assert [one["id"] for one in rest["brokers"]] == [4] and rest["next"] is None
    assert first["controller"] in (1, 2, 3)
    assert world.get(1, "/v1/brokers/4") == rest["brokers"][0]
    for missing in (world.ask(1, "/v1/brokers/9"), world.ask(1, "/v1/brokers/9", "DELETE")):
        assert missing.status == 404 and "no broker 9" in missing.json["detail"]


def test_a_broker_is_drained_after_a_plan_was_shown_and_gets_replicas_again(world):
    create(world, "drained", partitions=4, replication=3)
    before = replicas(world, "drained")

    planned = world.post(1, "/v1/brokers/4/drain", {"dry_run": True})
    untouched = replicas(world, "drained")
    done = world.post(2, "/v1/brokers/4/drain", {})
    settled(world)

    assert any(4 in some for some in before) and untouched == before
    assert (planned["cordoned"], planned["plan"]["dry_run"]) == (False, True)
    assert planned["plan"]["copies"] == sum(4 in some for some in before)
    assert done["cordoned"] and not done["plan"]["refused"]
    assert all(4 not in some for some in replicas(world, "drained"))
    assert world.get(1, "/v1/brokers/4")["cordoned"]
    assert world.post(3, "/v1/brokers/4/drain", {"undo": True}) == {
        "node": 4,
        "cordoned": False,
        "plan": None,
    }
    assert not world.get(1, "/v1/brokers/4")["cordoned"]


def test_what_nobody_else_could_hold_is_not_drained(world):
    create(world, "everywhere", partitions=1, replication=4)

    answer = world.ask(1, "/v1/brokers/4/drain", "POST", {})

    assert answer.status == 400 and "too few brokers are left" in answer.json["detail"]
    assert not world.get(1, "/v1/brokers/4")["cordoned"]
    world.do(world.kafka().delete_topic("everywhere"))
    wrong = world.ask(1, "/v1/brokers/4/drain", "POST", {"undo": True, "dry_run": True})
    assert wrong.status == 400


def test_a_broker_that_runs_is_not_removed(world):
    answer = world.ask(1, "/v1/brokers/4", "DELETE")

    assert answer.status == 409 and "stop it first" in answer.json["detail"]


def test_a_broker_is_stopped_by_way_of_another_and_then_removed():
    with Cluster(4, voters=3) as world:
        create(world, "only-here", partitions=8, replication=1)
        held = [number for number, some in enumerate(replicas(world, "only-here")) if some == (4,)]
        world.post(1, "/v1/brokers/4/drain", {"throttle_bytes_per_second": 1_000_000})
        stopping = world.post(2, "/v1/brokers/4/stop", {}, 202)
        wanted = world.node(4).stop_wanted.done()
        settled(world)
        world.stop(4)
        world.run_until(lambda: world.node(1).broker.image.brokers[4].fenced, 30.0)

        assert held and wanted
        unavailable = {one["partition"] for one in stopping["unavailable"]}
        assert unavailable and unavailable <= set(held)  # some may have moved by then
        again = world.ask(1, "/v1/brokers/4/stop", "POST", {})
        assert again.status == 409 and "fenced" in again.json["detail"]
        assert world.ask(3, "/v1/brokers/4", "DELETE").json == {"node": 4, "removed": True}
        world.run_until(lambda: 4 not in world.node(1).broker.image.brokers, 30.0)
        assert world.ask(1, "/v1/brokers/4").status == 404
        throttle = world.get(1, "/v1/configs/brokers/default?changed=true")["configs"]
        assert [(one["name"], one["source"]) for one in throttle if one["name"] == THROTTLE] == [
            (THROTTLE, "all brokers")
        ]


def test_a_node_stops_itself_as_it_stops_others(world):
    node = world.node(2)
    answer = world.ask(2, "/v1/brokers/2/stop", "POST", {})

    assert (answer.status, answer.json["node"], node.stop_wanted.done()) == (202, 2, True)
    assert world.ask(2, "/v1/brokers/2/stop", "POST", None).status == 415


def test_topics_may_be_made_while_a_broker_is_asked_to_stop(monkeypatch):
    with Cluster(2, voters=1) as world:
        create(world, "before", replication=2)
        broker = world.node(1).broker
        ask = broker.member.hub.ask

        async def ask_meanwhile(node: int, message: Any, *args: Any, **options: Any) -> Any:
            if isinstance(message, StopNode):
                await create_topic(broker, NewTopic(name="meanwhile", config={}))
            return await ask(node, message, *args, **options)

        monkeypatch.setattr(broker.member.hub, "ask", ask_meanwhile)

        stopping = world.post(1, "/v1/brokers/2/stop", {}, 202)

        assert (stopping["node"], stopping["unavailable"]) == (2, [])
        assert world.node(2).stop_wanted.done()


# Replicas that move.


def test_replicas_are_moved_by_hand_by_a_plan_and_by_number(world):
    create(world, "moved")
    path = "/v1/reassignments"

    by_hand = world.post(1, path, {"topic": "moved", "partition": 0, "replicas": [3, 4]})
    settled(world)
    plan = {"partitions": [{"topic": "moved", "partition": 1, "replicas": [4, 1]}]}
    by_plan = world.post(2, path, plan)
    settled(world)
    after = replicas(world, "moved")
    by_number = world.post(3, path, {"topic": "moved", "replication": 3, "dry_run": True})
    world.post(3, path, by_number | {"dry_run": False})
    settled(world)

    assert by_hand["partitions"] == [{"topic": "moved", "partition": 0, "replicas": [3, 4]}]
    assert by_plan["refused"] == [] and after == [(3, 4), (4, 1)]
    assert by_number["copies"] == 2
    assert [len(some) for some in replicas(world, "moved")] == [3, 3]


def test_what_is_refused_is_told_partition_by_partition(world):
    create(world, "partly")
    partitions = [
        {"topic": "partly", "partition": number, "replicas": some}
        for number, some in ((0, [1, 2]), (1, [1, 99]))
    ]

    found = world.post(1, "/v1/reassignments", {"partitions": partitions})

    ((place, error),) = [((one["topic"], one["partition"]), one["error"]) for one in found["refused"]]
    assert place == ("partly", 1) and "99" in error
    settled(world)


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({}, 400, "say what to do, once"),
        ({"balance": True, "drain": [1]}, 400, "say what to do, once"),
        ({"replication": 2}, 400, "need a topic"),
        ({"balance": True, "topic": "t"}, 400, "need a topic"),
        ({"topic": "t", "replication": 2, "partition": 0}, 400, "partition goes with replicas"),
        ({"topic": "nope", "replicas": [1]}, 404, "nope"),
        ({"topic": "nope", "replication": 2}, 404, "nope"),
        ({"drain": [9]}, 404, "9"),
        ({"balanced": True}, 400, "balance"),
        ({"topic": "t", "partition": 2**31, "replicas": [1]}, 400, "2147483647"),
        ({"topic": "t", "replicas": []}, 400, "length >= 1"),
    ],
    ids=str,
)
def test_a_move_that_says_too_little_or_too_much_is_refused(world, body, status, word):
    answer = world.ask(1, "/v1/reassignments", "POST", body)

    assert (answer.status, word in answer.json["detail"]) == (status, True), answer.json


def test_moves_are_watched_and_called_off():
    with Cluster(3) as world:
        create(world, "slow", partitions=3, replication=1)
        before = replicas(world, "slow")
        for number in (0, 1, 2) * 4:
            world.do(world.kafka().produce("slow", number, bytearray(LARGE)))
        targets: list[dict[str, Any]] = [
            {"topic": "slow", "partition": number, "replicas": [some[0], some[0] % 3 + 1]}
            for number, some in enumerate(before)
        ]

        world.post(1, "/v1/reassignments", {"partitions": targets, "throttle_bytes_per_second": 1})
        first = world.get(1, "/v1/reassignments?limit=1")
        rest = world.get(1, f"/v1/reassignments?after={first['next']}")
        one = world.ask(1, "/v1/reassignments?topic=slow&partition=0", "DELETE").json
        others = world.ask(2, "/v1/reassignments", "DELETE").json

        assert (first["moving"], first["in_sync"], first["replicas"]) == (3, 3, 6)
        assert first["partitions"][0]["adding"] == targets[0]["replicas"][1:]
        assert [some["partition"] for some in rest["partitions"]] == [1, 2]
        assert rest["next"] is None
        assert one["cancelled"] == [{"topic": "slow", "partition": 0}]
        assert [some["partition"] for some in others["cancelled"]] == [1, 2]
        world.run(1.0)
        assert replicas(world, "slow") == before
        assert world.ask(1, "/v1/reassignments?partition=1", "DELETE").status == 400


# Elections.


def test_the_first_replicas_lead_again_when_they_are_elected(world):
    create(world, "led", partitions=1, replication=2)
    first, second = replicas(world, "led")[0]
    topic = "/v1/topics/led/partitions/0/promote"
    world.post(1, topic, {"node": second})
    (order,) = replicas(world, "led")
    world.post(1, "/v1/reassignments", {"topic": "led", "replicas": [first, second]})
    wanted = {"type": "preferred", "topic": "led", "partition": 0}

    found = world.post(2, "/v1/elections", wanted)["partitions"]
    again = world.post(3, "/v1/elections", wanted)["partitions"]

    assert order == (second, first)
    assert (found[0]["leader"], found[0]["outcome"], found[0]["error"]) == (first, "elected", None)
    assert again[0]["outcome"] == "not needed"
    assert world.post(1, "/v1/elections", {"type": "unclean"}) == {"partitions": []}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"type": "unclean", "partition": 0}, 400),
        ({"type": "fair"}, 400),
        ({"type": "preferred", "topic": "t", "partition": 2**31}, 400),
        ({}, 400),
        ({"type": "preferred", "topic": "nope"}, 404),
    ],
    ids=str,
)
def test_an_election_that_makes_no_sense_is_refused(world, body, status):
    assert world.ask(1, "/v1/elections", "POST", body).status == status


@pytest.mark.parametrize("node", [1, 2, 3, 4])
def test_any_node_promotes_a_replica_though_the_controller_decides(world, node):
    name = f"promoted-at-{node}"
    create(world, name, partitions=1, replication=2)
    first, second = replicas(world, name)[0]
    path = f"/v1/topics/{name}/partitions/0/promote"

    planned = world.post(node, path, {"node": second, "dry_run": True})
    done = world.post(node, path, {"node": second})

    assert (planned["leader"], planned["previous_leader"], planned["dry_run"]) == (second, first, True)
    assert (done["leader"], done["changed"], done["dry_run"]) == (second, True, False)
    assert world.node(node).broker.image.topics[name].partitions[0].leader == second


# The quorum.


def test_the_quorum_is_told_at_any_node_and_a_broker_comes_to_vote_in_it(world):
    before = world.get(4, "/v1/quorum")
    added = world.post(4, "/v1/quorum/voters/4", {})
    during = world.get(1, "/v1/quorum")
    removed = world.ask(2, "/v1/quorum/voters/4", "DELETE").json

    assert sorted(one["node"] for one in before["voters"]) == [1, 2, 3]
    assert [one["node"] for one in before["observers"]] == [4]
    assert added == {"node": 4, "votes": True} and removed == {"node": 4, "votes": False}
    assert sorted(one["node"] for one in during["voters"]) == [1, 2, 3, 4]
    assert world.ask(1, "/v1/quorum/voters/9", "POST", {}).status == 404
    assert world.ask(1, f"/v1/quorum/voters/{2**31}", "POST", {}).status == 404
