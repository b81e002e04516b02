import json

TOPIC_ID = "ERERESIiQzOERFVVVVVVVQ"


def test_a_topic_is_created_listed_described_and_deleted(tidelog, broker):
    created = tidelog("topics", "create", "orders", "--partitions", 3, "--config", "a=b")
    listed = tidelog("topics", "list")
    described = tidelog("topics", "describe", "orders")
    deleted = tidelog("topics", "delete", "orders", "--yes")

    assert [one.code for one in (created, listed, described, deleted)] == [0, 0, 0, 0]
    assert "orders created: 3 partitions" in created.out
    assert "orders" in listed.out and TOPIC_ID in listed.out
    assert "earliest" in described.out and TOPIC_ID in described.out
    assert broker.topics == {}


def test_json_is_one_document(tidelog, broker):
    created = json.loads(tidelog("topics", "create", "orders", "--json").out)
    listed = json.loads(tidelog("topics", "list", "--json").out)
    described = json.loads(tidelog("topics", "describe", "orders", "--json").out)
    deleted = json.loads(tidelog("topics", "delete", "orders", "--yes", "--json").out)

    assert created["name"] == "orders" and created["created"]
    assert listed["topics"][0] == {
        "name": "orders",
        "id": TOPIC_ID,
        "internal": False,
        "partitions": 1,
        "replication": 1,
    }
    assert described["partitions"] == [
        {"partition": 0, "leader": 1, "epoch": 4, "replicas": [1], "in_sync": [1], "earliest": 0, "latest": 0}
    ]
    assert deleted == {"name": "orders", "deleted": True}


def test_a_topic_that_exists_is_an_error_unless_that_is_fine(tidelog, broker):
    tidelog("topics", "create", "orders")

    again = tidelog("topics", "create", "orders")
    fine = tidelog("topics", "create", "orders", "--if-not-exists", "--json")

    assert again.code == 1 and "orders" in again.err
    assert fine.code == 0 and json.loads(fine.out)["created"] is False


def test_an_unknown_topic_is_an_error_that_says_how_to_make_it(tidelog, broker):
    result = tidelog("topics", "describe", "nope")

    assert result.code == 1
    assert result.err.count("\n") == 1 and "tidelog topics create nope" in result.err


def test_nothing_is_deleted_without_a_yes(tidelog, broker):
    tidelog("topics", "create", "orders")

    result = tidelog("topics", "delete", "orders")

    assert result.code == 1 and "--yes" in result.err
    assert "orders" in broker.topics


def test_a_hostile_name_is_shown_and_not_obeyed(tidelog, broker):
    broker.topics["[bold]x[/bold]\x1b[31m"] = broker.topics.setdefault("y", [])

    result = tidelog("topics", "list")

    assert "[bold]x[/bold]\\x1b[31m" in result.out
    assert "\x1b" not in result.out


def test_an_empty_cluster_says_what_to_do(tidelog, broker):
    result = tidelog("topics", "list")

    assert (result.code, result.out) == (0, "")
    assert "tidelog topics create" in result.err
