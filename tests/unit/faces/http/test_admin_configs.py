"""Settings over HTTP, asked of any node."""

from collections.abc import Iterator

import pytest

from tests.unit.faces.http.cluster import Cluster

TOPIC = "/v1/configs/topics/orders"
WEEK_MS = str(7 * 24 * 60 * 60 * 1000)


@pytest.fixture(scope="module")
def world() -> Iterator[Cluster]:
    with Cluster(3) as world:
        world.do(world.kafka().create_topic("orders", configs={"segment.ms": "5000"}))
        yield world


def changed(world: Cluster, path: str) -> dict[str, tuple[str, str]]:
    """Value and source of what is not at its default."""
    found = world.get(1, f"{path}?changed=true&limit=1000")
    return {one["name"]: (one["value"], one["source"]) for one in found["configs"]}


def test_settings_are_listed_page_by_page_with_what_they_do(world):
    first = world.get(3, f"{TOPIC}?limit=5")
    rest = world.get(3, f"{TOPIC}?limit=1000&after={first['next']}")

    names = [one["name"] for one in first["configs"] + rest["configs"]]
    assert names == sorted(names) and "retention.ms" in names and rest["next"] is None
    assert first["configs"][0]["name"] == "cleanup.policy" and first["configs"][0]["doc"]
    assert changed(world, TOPIC) == {"segment.ms": ("5000", "topic")}
    assert world.ask(1, "/v1/configs/topics/nope").status == 404


def test_settings_are_set_and_unset_and_what_may_be_lost_is_told(world):
    body = {"retention.ms": 1000, "preallocate": False}

    dry = world.ask(1, f"{TOPIC}?dry_run=true", "PATCH", body).json
    untouched = changed(world, TOPIC)
    done = world.ask(2, TOPIC, "PATCH", body).json
    world.run(0.5)
    after = changed(world, TOPIC)
    undone = world.ask(3, TOPIC, "PATCH", {"retention.ms": None, "preallocate": None}).json

    assert dry["dry_run"] and dry["changes"] == done["changes"]
    assert untouched == {"segment.ms": ("5000", "topic")}
    assert done["changes"][0] == {"name": "retention.ms", "before": WEEK_MS, "after": "1000"}
    assert "may be deleted" in done["warnings"][0]
    assert (after["retention.ms"], after["preallocate"]) == (("1000", "topic"), ("false", "topic"))
    assert undone["changes"][0]["after"] == WEEK_MS


def test_one_brokers_settings_and_those_of_all_are_kept_apart(world):
    one = world.ask(1, "/v1/configs/brokers/3", "PATCH", {"num.partitions": 9}).json
    every = world.ask(2, "/v1/configs/brokers/default", "PATCH", {"num.partitions": 3}).json
    world.run(0.5)

    assert (one["name"], every["name"]) == ("3", "default")
    assert changed(world, "/v1/configs/brokers/3")["num.partitions"] == ("9", "broker")
    assert changed(world, "/v1/configs/brokers/2")["num.partitions"] == ("3", "all brokers")
    assert world.node(2).broker.config.num_partitions == 3
    undone = world.ask(3, "/v1/configs/brokers/default", "PATCH", {"num.partitions": None}).json
    assert undone["changes"] == [{"name": "num.partitions", "before": "3", "after": "1"}]


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        (TOPIC, {}, 400, "say what to change"),
        (TOPIC, {"retention.ms": "soon"}, 400, "retention.ms"),
        (TOPIC, {"segment.ms": 1, "nonsense": 1}, 400, "nonsense"),
        (TOPIC, {"nonsense": None}, 400, "nonsense"),
        (TOPIC, {"retention.ms": [1]}, 400, "JSON"),
        (TOPIC, [], 400, "JSON"),
        ("/v1/configs/topics/nope", {"segment.ms": 1}, 404, "nope"),
        ("/v1/configs/brokers/1", {"node.id": 7}, 400, "node.id"),
        ("/v1/configs/brokers/9", {"num.partitions": 7}, 404, "no broker '9'"),
        ("/v1/configs/brokers/one", {"num.partitions": 7}, 404, "no broker 'one'"),
    ],
    ids=str,
)
def test_what_cannot_be_set_is_refused_and_nothing_is_changed(world, path, body, status, word):
    before = changed(world, TOPIC)

    answer = world.ask(1, path, "PATCH", body)

    assert (answer.status, word in answer.json["detail"]) == (status, True), answer.json
    assert changed(world, TOPIC) == before
