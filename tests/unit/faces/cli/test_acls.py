"""Permissions, as a person asks for them."""

import pytest

from tidelog.faces.cli import acls

SHOWN = {
    "principal": "User:alice",
    "operation": "Read",
    "kind": "Topic",
    "name": "or",
    "pattern": "Prefixed",
    "effect": "Allow",
    "host": "*",
}


@pytest.fixture
def asked(monkeypatch):
    """What the cluster was asked."""
    asked: list[tuple[str, dict[str, object]]] = []
    answers = {
        "acls.add": {"added": 1},
        "acls.remove": {"removed": 1, "acls": [SHOWN], "dry_run": False},
        "acls.explain": {"allowed": False, "reason": "no ACL allows it", "acls": []},
        "acls.list": {"acls": [SHOWN], "next": None},
    }

    def perform(bootstrap, verb, *key, **said):
        asked.append((verb, said))
        return answers[verb]

    monkeypatch.setattr(acls, "perform", perform)
    monkeypatch.setattr(acls, "pages", perform)
    return asked


def test_operations_are_added_one_by_one(tidelog, asked):
    result = tidelog("acls", "add", "User:alice", "read", "describe-configs", "--topic", "or", "--prefixed")

    assert (result.code, result.out) == (0, "added 1; 1 were there already\n")
    one = {"principal": "User:alice", "kind": "Topic", "name": "or", "pattern": "Prefixed", "effect": "Allow"}
    wanted = [one | {"operation": "Read"}, one | {"operation": "DescribeConfigs"}]
    assert asked == [("acls.add", {"acls": wanted})]


def test_what_is_removed_is_shown(tidelog, asked):
    result = tidelog("acls", "remove", "--principal", "User:alice", "--allow")

    assert asked == [("acls.remove", {"principal": "User:alice", "effect": "Allow", "dry_run": False})]
    assert "or..." in result.out and result.out.endswith("removed 1\n")


def test_an_explanation_and_a_list_are_for_people(tidelog, asked):
    told = tidelog("acls", "explain", "User:alice", "Write", "--cluster")
    listed = tidelog("acls", "list", "--group", "g")

    assert told.out == "denied: no ACL allows it\n"
    assert "User:alice" in listed.out
    assert asked == [
        ("acls.explain", {"principal": "User:alice", "operation": "Write", "kind": "Cluster"}),
        ("acls.list", {"covering": True, "kind": "Group", "name": "g"}),
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ("add", "User:alice", "Read"),
        ("explain", "User:alice", "Read"),
        ("add", "User:alice", "Read", "--topic", "a", "--group", "b"),
        ("remove", "--allow", "--deny"),
    ],
)
def test_what_is_not_clear_is_asked_of_nobody(tidelog, asked, arguments):
    result = tidelog("acls", *arguments)

    assert (result.code != 0, result.err.count("\n"), asked) == (True, 1, [])
