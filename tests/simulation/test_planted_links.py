"""Bugs planted in the links between nodes, each found by the situation that it is about.

Rule 1: a bug is planted by replacing a part of the product, never by a switch in it.
Rule 2: the same plan passes without the bug; so it is the bug that was found.
"""

import asyncio
from dataclasses import replace

import pytest

from tidelog.peers.link import Link
from tidelog.peers.listener import PeerListener
from tidelog.peers.stream import Stream
from tidelog.security.secrets import Secret
from tidelog.simulation.knocks import STRANGERS
from tidelog.simulation.plan import Fault, Plan
from tidelog.simulation.story import LIVENESS
from tidelog.simulation.swarm import make_plan, play


def plant_links_that_are_kept_though_nothing_comes(patch: pytest.MonkeyPatch) -> None:
    """A stream whose peer has closed its half is closed once all is sent, and used until then."""
    patch.setattr(Stream, "eof_received", asyncio.BufferedProtocol.eof_received)
    patch.setattr(Link, "_doubt", lambda self, stream: None)
    patch.setattr(PeerListener, "_end_earlier", lambda self, hello: None)


def of_forgotten_connections() -> Plan:
    return make_plan(1, story="replicated", kinds=["forget"], nodes=3, chaos_seconds=6)


@pytest.mark.slow
def test_a_link_that_is_used_though_nothing_comes_by_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = of_forgotten_connections()
    assert play(plan).violation is None

    plant_links_that_are_kept_though_nothing_comes(monkeypatch)

    violation = play(plan).violation
    assert violation is not None
    assert violation.name == LIVENESS


@pytest.mark.slow
def test_a_node_that_believes_whoever_claims_to_have_the_secret_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guarded = make_plan(2, story="cluster", kinds=["knock"], nodes=3, chaos_seconds=6)
    knocks = [Fault(1.0 + at, "knock", {"node": at, "claimed": 4, "what": "proof"}) for at in (1, 2, 3)]
    plan = replace(guarded, faults=tuple(knocks))
    assert play(plan).violation is None

    monkeypatch.setattr(Secret, "key_of", lambda self, *proof: self.newest)

    violation = play(plan).violation
    assert violation is not None
    assert violation.name == STRANGERS
