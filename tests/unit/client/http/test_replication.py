import httpx
import pytest

from tests.unit.client.http.fleet import Fleet, Gone, ok
from tidelog.client import Unavailable
from tidelog.client.http.replication import merge

PATH = "/health/replication"


def replica(name: str, lag_ms: int, status: str = "in_sync", **more: object) -> dict[str, object]:
    return {"id": name, "offset": 10, "lag_entries": 1, "lag_ms": lag_ms, "status": status, **more}


def master(*replicas: dict[str, object], status: str = "in_sync") -> dict[str, object]:
    return {"role": "master", "current_offset": 100, "status": status, "replicas": [*replicas]}


def test_a_replica_is_told_of_once_with_its_worst():
    status = merge(
        [
            master(replica("2", 5), replica("3", 90, "lagging"), status="lagging"),
            master(replica("3", 7), replica("2", 6), replica("1", 0)),
        ]
    )

    assert [one["id"] for one in status["replicas"]] == ["1", "2", "3"]
    assert status["replicas"][1]["lag_ms"] == 6
    third = status["replicas"][2]
    assert (third["lag_ms"], third["status"]) == (90, "lagging")
    assert (third["offset"], third["lag_entries"]) == (20, 2)
    assert (status["status"], status["current_offset"]) == ("lagging", 200)


def test_what_one_master_does_not_know_is_not_known():
    status = merge([master(replica("2", 5)), master(replica("2", 6, offset=None))])

    assert status["replicas"][0]["offset"] is None
    assert status["replicas"][0]["lag_entries"] == 2


def test_a_node_that_only_follows_has_no_replicas_of_its_own():
    status = merge([{"role": "replica", "lag_ms": 5, "status": "in_sync"}])

    assert status["replicas"] == []
    assert status["nodes"][0]["lag_ms"] == 5


def test_every_node_is_asked_and_one_that_hangs_is_named():
    fleet = Fleet("a:1", "b:2", "c:3")
    fleet.says(PATH, ok(master(replica("2", 70))), node="a:1")
    fleet.says(PATH, Gone(httpx.ReadTimeout), node="b:2")
    fleet.says(PATH, ok(master(replica("2", 5))), node="c:3")

    status = fleet.client().replication.status()

    assert [asked.node for asked in fleet.questions(PATH)] == ["a:1", "b:2", "c:3"]
    assert status["unreachable"] == ["http://b:2"]
    assert status["replicas"][0]["lag_ms"] == 70
    assert fleet.slept == []


def test_a_client_that_keeps_to_its_addresses_asks_just_them():
    fleet = Fleet("a:1", "b:2")
    fleet.says(PATH, ok(master()))

    assert fleet.client(discover=False).replication.status()["replicas"] == []
    assert [asked.node for asked in fleet.questions(PATH)] == ["a:1"]


def test_when_nobody_tells_it_is_an_error():
    fleet = Fleet("a:1", "b:2")
    fleet.says(PATH, Gone())

    with pytest.raises(Unavailable):
        fleet.client().replication.status()
