"""Permissions as operators see, change and explain them."""

from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from tests.unit.faces.http.cluster import Cluster

ALICE = "User:alice"
READS = {"principal": ALICE, "operation": "Read", "kind": "Topic", "name": "orders"}


@pytest.fixture
def world() -> Iterator[Cluster]:
    # Whoever has proved nothing is the operator here.
    with Cluster(1, authorizer_enabled=True, super_users="User:ANONYMOUS;User:root") as world:
        yield world


def add(world, *acls):
    return world.post(1, "/v1/acls", {"acls": list(acls)})


def listed(world, **query):
    found, after = [], None
    while True:
        page = world.get(1, f"/v1/acls?{urlencode(query | ({} if after is None else {'after': after}))}")
        found += page["acls"]
        if (after := page["next"]) is None:
            return found


def remove(world, **query):
    return world.ask(1, f"/v1/acls?{urlencode(query)}", "DELETE")


def explain(world, **asked):
    found = world.get(1, f"/v1/acls/explain?{urlencode(asked)}")
    return found["allowed"], found["reason"], len(found["acls"])


def test_what_was_added_is_listed_page_by_page_and_added_once(world):
    acls = [READS | {"name": f"t{number}"} for number in range(5)]

    assert add(world, *acls) == {"added": 5}
    assert add(world, *acls, READS) == {"added": 1}

    shown = listed(world, limit=2)
    assert sorted(one["name"] for one in shown) == ["orders", "t0", "t1", "t2", "t3", "t4"]
    assert shown[0] == READS | {"pattern": "Literal", "effect": "Allow", "host": "*"}


def test_what_covers_a_name_is_found(world):
    add(
        world,
        READS,
        READS | {"name": "ord", "pattern": "Prefixed"},
        READS | {"name": "*"},
        READS | {"name": "x"},
    )

    names = {one["name"] for one in listed(world, name="orders", covering="true")}

    assert names == {"orders", "ord", "*"}
    assert [one["name"] for one in listed(world, name="orders")] == ["orders"]


def test_what_is_removed_is_told_and_a_denial_stays(world):
    add(world, READS, READS | {"effect": "Deny"})

    tried = remove(world, principal=ALICE, effect="Allow", dry_run="true").json
    assert (tried["removed"], tried["dry_run"], len(listed(world))) == (1, True, 2)
    done = remove(world, principal=ALICE, effect="Allow").json

    assert (done["removed"], done["dry_run"]) == (1, False)
    assert [one["effect"] for one in listed(world)] == ["Deny"]
    assert remove(world).status == 400  # everything is not removed by saying nothing


def test_a_decision_is_explained_by_what_decides_it(world):
    asked = {"principal": ALICE, "operation": "Describe", "kind": "Topic", "name": "orders"}

    assert explain(world, **asked) == (False, "no ACL allows it", 0)
    add(world, READS)
    assert explain(world, **asked) == (True, "an ACL allows it, and none denies it", 1)
    add(world, READS | {"operation": "All", "effect": "Deny", "host": "10.0.0.1"})
    assert explain(world, **asked)[0]
    assert explain(world, **asked, host="10.0.0.1") == (False, "an ACL denies it", 1)
    assert explain(world, **asked | {"principal": "User:root"}) == (True, "it is one of super.users", 0)


@pytest.mark.parametrize(
    "wrong", [{"principal": "alice"}, {"operation": "Eat"}, {"kind": "DelegationToken"}, {"name": ""}]
)
def test_what_nobody_can_be_given_is_refused(world, wrong):
    assert world.ask(1, "/v1/acls", "POST", {"acls": [READS | wrong]}).status == 400
    assert listed(world) == []


def test_what_is_off_is_said():
    with Cluster(1) as world:
        asked = {"principal": ALICE, "operation": "Write", "kind": "Topic", "name": "orders"}

        allowed, reason, _ = explain(world, **asked)

        assert allowed and "authorizer.enabled is off" in reason
