"""Tokens, as a person asks for them."""

import json

import pytest

from tidelog.faces.cli import tokens

DAY_MS = 24 * 60 * 60 * 1000
SHOWN = {"id": "00ff", "user": "alice", "note": "dash", "created_ms": 0, "expires_ms": DAY_MS}


@pytest.fixture
def asked(monkeypatch):
    """What the cluster was asked."""
    asked: list[tuple[str, dict[str, object]]] = []

    def perform(bootstrap, verb, **said):
        asked.append((verb, said))
        return SHOWN | {"token": "tl_00ff_secret"}

    monkeypatch.setattr(tokens, "perform", perform)
    monkeypatch.setattr(tokens, "pages", lambda bootstrap, verb, key: {"tokens": [SHOWN]})
    return asked


def test_a_token_is_all_that_is_printed(tidelog, asked):
    result = tidelog("tokens", "create", "alice", "--days", 1, "--note", "dash")

    assert (result.code, result.out) == (0, "tl_00ff_secret\n")
    assert "until 1970-01-02" in result.err
    assert asked == [("tokens.create", {"user": "alice", "days": 1, "note": "dash"})]


def test_tokens_are_listed_and_revoked(tidelog, asked):
    shown = tidelog("tokens", "list").out

    assert "00ff" in shown and "alice" in shown and "1970-01-02" in shown
    assert json.loads(tidelog("tokens", "list", "--json").out) == [SHOWN]
    assert tidelog("tokens", "revoke", "00ff").out == "revoked 00ff\n"
    assert asked == [("tokens.revoke", {"id": "00ff"})]
