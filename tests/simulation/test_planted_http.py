"""Bugs planted in the HTTP client and in backups: the story of HTTP finds each.

Rule 1: a bug is planted by replacing a part of the product, never by a switch in it.
Rule 2: the same plan passes without the bug; so it is the bug that was found.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tidelog.backup import cluster_requests, restoring
from tidelog.backup.batches import without_holes
from tidelog.backup.creating import _Copying
from tidelog.client.http.core import Ask, Core, Tries
from tidelog.client.http.effects import Request
from tidelog.client.kafka import LATEST
from tidelog.faces.http import kv
from tidelog.simulation import queues, registers
from tidelog.simulation.backups import HAS, INVENTS, SAME, WHOLE, _MemoryOutput
from tidelog.simulation.http_clients import NEVER
from tidelog.simulation.plan import Fault, Plan
from tidelog.simulation.swarm import make_plan, play
from tidelog.simulation.world import UNEXPECTED_ERROR

CRASHES = ("crash", "reset", "cut")
BACKUPS_AT = (2.0, 3.0, 4.0, 5.0, 6.0, 7.0)


def plant_lost_requests_that_were_not_done(patch: pytest.MonkeyPatch) -> None:
    """The client says that nothing was written where nobody knows."""
    failed = Tries.failed

    def forget(self: Tries, origin: str, reply: Any) -> None:
        failed(self, origin, reply)
        self.may_have_happened = False

    patch.setattr(Tries, "failed", forget)


def plant_a_key_for_each_attempt(patch: pytest.MonkeyPatch) -> None:
    """The client repeats a write as if it were another."""
    request = Core._request

    def request_anew(self: Core, ask: Ask, url: str) -> Request:
        if ask.idempotency_key is not None:
            ask = replace(ask, idempotency_key=self._new_key())
        return request(self, ask, url)

    patch.setattr(Core, "_request", request_anew)


def plant_a_handler_that_fails(patch: pytest.MonkeyPatch) -> None:
    """A node cannot answer what it was asked rightly."""

    def fail(*_: object) -> None:
        raise ValueError("no entry is shown")

    patch.setattr(kv, "_shown", fail)


def plant_backups_of_whoever_says_that_it_leads(patch: pytest.MonkeyPatch) -> None:
    """A leader that is cut off tells where its log ended, and that is all that is read."""
    patch.setattr(cluster_requests, "LATEST_SURE", LATEST)


def plant_backups_that_do_not_read_on(patch: pytest.MonkeyPatch) -> None:
    """What was compacted away before it was read is missed."""

    async def stop(self: _Copying, client: Any, place: Any, share: Any, writer: Any) -> Any:
        return share

    patch.setattr(_Copying, "_read_on", stop)


def plant_restores_without_the_first_records(patch: pytest.MonkeyPatch) -> None:
    """A restore puts an empty batch where the first one was, and does not compare."""

    def lose(batches: Any, **bounds: Any) -> Iterator[Any]:
        return without_holes(list(batches)[1:], **bounds)

    patch.setattr(restoring, "without_holes", lose)

    async def compare(self: Any) -> None:
        pass

    patch.setattr(restoring._Work, "compare", compare)


def plant_files_that_are_cut(patch: pytest.MonkeyPatch) -> None:
    """The last byte of a file of a backup is lost."""
    finish = _MemoryOutput.finish

    def cut(self: _MemoryOutput) -> None:
        if self._name.startswith("chunks/"):
            del self._data[-1:]
        finish(self)

    patch.setattr(_MemoryOutput, "finish", cut)


def plan(seed: int, kinds: Collection[str], change: Callable[[Plan], Plan]) -> Plan:
    return change(make_plan(seed, story="http", nodes=3, chaos_seconds=8, kinds=kinds))


def _as_it_is(drawn: Plan) -> Plan:
    return drawn


def _early(drawn: Plan) -> Plan:
    """With backups before the chaos is over."""
    return replace(drawn, http_pace=replace(drawn.http_pace, backups_at=BACKUPS_AT))


def _cut_off(drawn: Plan) -> Plan:
    """A node hears nothing of the others, clients reach it, and backups are made meanwhile."""
    ways = [Fault(1.0, "cut", {"source": source, "target": 2, "seconds": 12.0}) for source in (1, 3)]
    return _early(replace(drawn, faults=tuple(ways)))


def _compacted(drawn: Plan) -> Plan:
    """Logs are compacted as fast as they can be, while a slow network is read through."""
    configs = dict(drawn.pace.topic_configs)
    configs |= {"min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "60000"}
    node = {
        **drawn.node,
        "log_cleaner_backoff_ms": 20,
        "topic_defaults": replace(drawn.node["topic_defaults"], segment_bytes=300),
    }
    pace = replace(drawn.pace, topics=1, partitions=1, topic_configs=tuple(configs.items()))
    kv_pace = replace(drawn.kv_pace, clients=3, keys=2, think_seconds=0.02, transactions=0)
    network = {**drawn.network, "latency_seconds": (0.001, 0.03)}
    return _early(replace(drawn, pace=pace, kv_pace=kv_pace, node=node, network=network))


def _messages(drawn: Plan) -> Plan:
    """Most of what is done is to publish, under keys of the client's own."""
    queue_pace = replace(
        drawn.queue_pace,
        writers=4,
        workers=3,
        think_seconds=0.05,
        anonymous_chance=1.0,
        max_deliveries=0,
        forget_chance=0.0,
        has_operators=False,
    )
    kv_pace = replace(drawn.kv_pace, clients=1, think_seconds=1.0, transactions=0)
    http_pace = replace(drawn.http_pace, timeout_seconds=0.5, retries=0, writers=0)
    return replace(drawn, queue_pace=queue_pace, kv_pace=kv_pace, http_pace=http_pace)


@pytest.mark.parametrize(
    ("plant", "seed", "kinds", "change", "invariant"),
    [
        (plant_lost_requests_that_were_not_done, 8, CRASHES, _as_it_is, registers.FAILED_WRITE),
        (plant_lost_requests_that_were_not_done, 1, CRASHES, _messages, NEVER),
        (plant_a_key_for_each_attempt, 5, CRASHES, _as_it_is, queues.ONCE),
        (plant_a_handler_that_fails, 2, (), _early, UNEXPECTED_ERROR),
        (plant_backups_of_whoever_says_that_it_leads, 7, ("cut",), _cut_off, HAS),
        (plant_backups_that_do_not_read_on, 4, ("slow_disk", "clog"), _compacted, INVENTS),
        (plant_restores_without_the_first_records, 1, (), _early, SAME),
        (plant_files_that_are_cut, 2, (), _early, WHOLE),
    ],
)
def test_the_story_of_http_finds_it(
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    seed: int,
    kinds: Collection[str],
    change: Callable[[Plan], Plan],
    invariant: str,
) -> None:
    drawn = plan(seed, kinds, change)
    plant(monkeypatch)

    violation = play(drawn).violation

    assert violation is not None
    assert violation.name == invariant


def test_nothing_is_found_where_nothing_is_planted() -> None:
    assert play(plan(7, ("cut",), _cut_off)).violation is None
