"""Records that are deleted under transactions; compaction that changes under keys and values."""

from typing import Any

import pytest

from tidelog.log.log import Log
from tidelog.model import Offset
from tidelog.simulation.swarm import make_plan, play
from tidelog.simulation.transaction_watch import STABLE


def plan_of(story: str, seed: int, *kinds: str, chaos_seconds: float = 6) -> Any:
    return make_plan(seed, story=story, nodes=3, kinds=kinds, chaos_seconds=chaos_seconds)


@pytest.mark.parametrize(
    ("story", "kinds"),
    [
        ("transactions", ("delete_records", "alter_retention", "crash")),
        ("kv", ("delete_records", "alter_compaction", "crash")),
    ],
)
def test_nothing_else_is_lost_where_records_are_deleted(story: str, kinds: tuple[str, ...]) -> None:
    outcome = play(plan_of(story, 10, *kinds))

    assert outcome.violation is None
    assert outcome.acknowledged > 0
    assert outcome.faults["delete_records"] > 0


def test_a_last_stable_offset_that_stays_in_what_is_deleted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def last_stable(self: Log, watermark: Offset) -> Offset:
        return self.transactions.last_stable(self.producers, watermark)

    monkeypatch.setattr(Log, "last_stable", last_stable)
    found = []
    for seed in (10, 11, 12):
        violation = play(plan_of("transactions", seed, "delete_records")).violation
        found.append(None if violation is None else violation.name)
        if found[-1] == STABLE:
            break

    assert found[-1] == STABLE, found
