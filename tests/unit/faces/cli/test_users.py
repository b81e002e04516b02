"""Users, as a person asks for them."""

import json

import pytest

from tidelog.faces.cli import users

SHOWN = {"user": "alice", "passwords": [{"mechanism": "SCRAM-SHA-256", "iterations": 16384}]}


@pytest.fixture
def asked(monkeypatch):
    """What the cluster was asked; it answers each verb with a user."""
    asked: list[tuple[str, dict[str, object]]] = []

    def perform(bootstrap, verb, **said):
        asked.append((verb, said))
        return SHOWN

    monkeypatch.setattr(users, "perform", perform)
    monkeypatch.setattr(users, "pages", lambda bootstrap, verb, key: {"users": [SHOWN]})
    return asked


def test_a_password_comes_from_a_file_and_never_from_the_command_line(tidelog, asked, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("pencil\nmore\n")

    added = tidelog("users", "add", "alice", "--password-file", secret)
    changed = tidelog(
        "users", "password", "alice", "--password-file", "-", "--mechanism", "scram-sha-256", stdin=b"pen\n"
    )

    assert (added.code, added.out) == (0, "added alice\n")
    assert (changed.code, changed.out) == (0, "changed alice\n")
    assert asked == [
        ("users.set", {"user": "alice", "password": "pencil", "new": True}),
        ("users.set", {"user": "alice", "password": "pen", "new": False, "mechanisms": ["SCRAM-SHA-256"]}),
    ]


@pytest.mark.parametrize("arguments", [(), ("--password-file", "/nowhere/at/all"), ("--password-file", "-")])
def test_without_a_password_nobody_is_asked(tidelog, arguments):
    result = tidelog("users", "add", "alice", "--bootstrap", "127.0.0.1:1", *arguments)

    assert result.code in (1, 2) and result.err.count("\n") == 1 and "password" in result.err


def test_users_are_listed_with_their_mechanisms(tidelog, asked):
    shown = tidelog("users", "list")
    document = tidelog("users", "list", "--json")

    assert "alice" in shown.out and "SCRAM-SHA-256" in shown.out
    assert json.loads(document.out) == [SHOWN]


def test_a_user_is_removed(tidelog, asked):
    assert tidelog("users", "remove", "alice").out == "removed alice\n"
    assert asked == [("users.remove", {"user": "alice"})]
