"""Bugs planted in key-value, each found by its invariant.

Rule 1: a bug is planted by replacing a part of the product, never by a switch in it.
Rule 2: the same plan passes without the bug; so it is the bug that was found.
"""

import sqlite3
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import pytest

from tidelog.broker.lead_confirmation import Confirming
from tidelog.broker.writing import Write
from tidelog.copies.node.views import View
from tidelog.copies.views.kv import Change, Entry, get_entry, record_of
from tidelog.errors import NotLeader
from tidelog.log.producers import ProducerStates
from tidelog.model import ONCE_PRODUCER_MIN
from tidelog.partition.driver import Partition
from tidelog.partition.leader import Leader
from tidelog.services import kv
from tidelog.services.kv import Kv
from tidelog.services.kv_state import LeaderState
from tidelog.services.kv_work import KvGet, KvGot
from tidelog.simulation import keyvalue_watch as watch
from tidelog.simulation import registers
from tidelog.simulation.keyvalue import SAME_ANSWER, KvPace
from tidelog.simulation.plan import Fault, Plan
from tidelog.simulation.swarm import make_plan, play

# The bugs.


def plant_strong_reads_without_confirmation(patch: pytest.MonkeyPatch) -> None:
    """A leader tells what it has, though another may lead by now."""

    async def confirm(self: Confirming, partition: Partition, leader: Leader, deadline: float) -> None:
        if partition.leader is not leader:
            raise NotLeader(leader=None)

    patch.setattr(Confirming, "confirm", confirm)


def plant_conditions_on_the_view_alone(patch: pytest.MonkeyPatch) -> None:
    """A write is decided on what is committed, and not on what is written and will be."""

    def current(self: LeaderState, key: bytes) -> Entry | None:
        return self.view.ask(partial(get_entry, key=key))

    patch.setattr(LeaderState, "current", current)


def plant_views_of_the_undecided(patch: pytest.MonkeyPatch) -> None:
    """A view goes as far as the watermark, past transactions that may yet be aborted."""
    patch.setattr(Partition, "last_stable_offset", Partition.high_watermark)


def plant_replicas_that_answer_at_once(patch: pytest.MonkeyPatch) -> None:
    """A replica shows what it has when it starts, which may be less than it had shown before."""

    async def fresh(self: Kv, view: View, deadline: float) -> None:
        await view.reached(0, deadline)
        view.is_fresh = True

    patch.setattr(Kv, "_fresh", fresh)


def plant_expiry_of_whatever_is_there(patch: pytest.MonkeyPatch) -> None:
    """A key is deleted by an old time of its, though it was put again."""

    expire, times = Kv._expire, WeakKeyDictionary[LeaderState, dict[bytes, int]]()

    async def expire_by_old_times(self: Kv) -> None:
        now_ms = self._broker.host.clock.wall_ms()
        for state in self._leading.values():
            if state.is_over or not state.view.is_whole:
                continue
            known = times.setdefault(state, {})
            for key in [key for key, at_ms in known.items() if at_ms <= now_ms]:
                del known[key]
                write = Write(state.partition, self._broker.host.clock, copies=None, deadline=0)
                write.append([record_of(Change(key, None), now_ms)])
            known |= dict(state.view.ask(_times_of_all))
        await expire(self)

    patch.setattr(Kv, "_expire", expire_by_old_times)


def _times_of_all(database: sqlite3.Connection) -> list[tuple[bytes, int]]:
    asked = "SELECT key, expires FROM entries WHERE expires IS NOT NULL"
    return database.execute(asked).fetchall()


def plant_expiry_by_anybodys_clock(patch: pytest.MonkeyPatch) -> None:
    """Whoever answers hides what has expired by its own clock."""
    serve_get = Kv._serve_get

    async def serve(self: Kv, partition: Partition, work: KvGet, deadline: float) -> KvGot:
        got = await serve_get(self, partition, work, deadline)
        expires = None if got.entry is None else got.entry.expires_at_ms
        if expires is not None and expires <= self._broker.host.clock.wall_ms():
            return msgspec.structs.replace(got, entry=None)
        return got

    patch.setattr(Kv, "_serve_get", serve)


def plant_requests_forgotten_at_failover(patch: pytest.MonkeyPatch) -> None:
    """Who begins to lead does not know which requests were done before."""
    lead = Partition.lead

    def lead_and_forget(self: Partition, *args: Any, **more: Any) -> None:
        lead(self, *args, **more)
        states: ProducerStates = self.log.producers
        for producer_id in [each for each, _ in states.items() if each >= ONCE_PRODUCER_MIN]:
            del states._states[producer_id]
            states._once.pop(producer_id, None)

    patch.setattr(Partition, "lead", lead_and_forget)


def plant_refusals_that_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A request that was refused, since its key was there, is judged again when it comes again."""
    patch.setattr(kv, "may_be_met", lambda change, settled_to: False)


# How they are found.


CALM = ()
SILENT = (Fault(1.0, "isolate", {"node": 1, "seconds": 6.0}),)
RESTARTED = tuple(Fault(1.0 * node, "crash", {"node": node, "down_seconds": 0.1}) for node in (1, 2, 3))
AHEAD = tuple(Fault(0.1, "jump_clock", {"node": node, "seconds": 3600}) for node in (2, 3))
"""The clocks of those who follow; node 1 leads."""
BACK_ALONE = (*SILENT, Fault(1.01, "crash", {"node": 2, "down_seconds": 0.1}))
"""One cannot be reached, and another, that follows it, starts anew."""

PLAIN = KvPace(clients=5, keys=2, think_seconds=0.02, patience_seconds=0.5, once_chance=0.3)
KEYED = replace(PLAIN, once_chance=1.0)
SHORT_LIVED = replace(PLAIN, ttl_ms_max=400)
COMING_AND_GOING = replace(KEYED, clients=8, keys=1, ttl_ms_max=300)
MANY = replace(PLAIN, clients=12, patience_seconds=0.2)
TRANSACTING = replace(PLAIN, transactions=2, abort_chance=0.5)


def a_plan(seed: int, pace: KvPace, faults: tuple[Fault, ...]) -> Plan:
    plan = make_plan(seed, story="kv", nodes=3, kinds=(), chaos_seconds=3)
    seconds = 7.0 if SILENT[0] in faults else 3.0
    # Who starts anew knows of little, and follows for long whom it cannot reach.
    node = {**plan.node, "checkpoint_ms": 60_000, "broker_session_timeout_ms": 3000}
    return replace(
        plan,
        pace=replace(plan.pace, topics=1, partitions=1, replication=3),
        kv_pace=pace,
        faults=faults,
        chaos_seconds=seconds,
        node=node,
    )


SEEDS = range(2, 32)
"""Tried one after the other: a history depends on every moment, and changes with the product."""


@pytest.mark.parametrize(
    ("plant", "pace", "faults", "names"),
    [
        (plant_strong_reads_without_confirmation, PLAIN, SILENT, {registers.STALE_READ}),
        (plant_conditions_on_the_view_alone, PLAIN, CALM, {registers.BROKEN_CONDITION}),
        (plant_views_of_the_undecided, TRANSACTING, CALM, {watch.VIEW}),
        (plant_replicas_that_answer_at_once, MANY, BACK_ALONE, {registers.WENT_BACK}),
        (plant_expiry_of_whatever_is_there, SHORT_LIVED, CALM, {watch.EXPIRED}),
        (plant_expiry_by_anybodys_clock, SHORT_LIVED, AHEAD, {registers.WENT_BACK}),
        (plant_requests_forgotten_at_failover, KEYED, RESTARTED, {watch.ONCE, SAME_ANSWER}),
        (plant_refusals_that_are_forgotten, COMING_AND_GOING, CALM, {SAME_ANSWER}),
    ],
)
def test_a_bug_is_found_by_its_invariant(plant, pace, faults, names):
    seed, violation = 0, None
    for seed in SEEDS:
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            violation = play(a_plan(seed, pace, faults)).violation
        if violation is not None:
            break

    assert violation is not None
    assert violation.name in names
    assert play(a_plan(seed, pace, faults)).violation is None
