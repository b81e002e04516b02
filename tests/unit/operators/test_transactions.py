"""A transaction as operators see it."""

from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.errors import InvalidTransactionState
from tidelog.operators.transactions import require_abortable, show
from tidelog.txn.events import TransactionView


def view(state: str) -> TransactionView:
    return TransactionView(
        transactional_id="tx",
        state=state,
        producer_id=7,
        epoch=3,
        timeout_ms=60_000,
        started_ms=5_000,
        updated_ms=5_000,
        places=(),
        unmarked=(),
    )


def at(now_ms: int) -> Any:
    clock = SimpleNamespace(wall_ms=lambda: now_ms)
    return SimpleNamespace(node_id=1, host=SimpleNamespace(clock=clock))


@pytest.mark.parametrize(
    ("state", "now_ms", "age_ms", "overdue"),
    [
        ("Ongoing", 5_000, 0, False),
        ("Ongoing", 65_000, 60_000, False),
        ("Ongoing", 65_001, 60_001, True),
        ("PrepareAbort", 65_001, 60_001, True),
        ("Ongoing", 0, 0, False),  # this clock is behind
        ("CompleteCommit", 65_001, None, False),
    ],
)
def test_a_transaction_is_overdue_when_it_is_open_for_longer_than_its_timeout(state, now_ms, age_ms, overdue):
    found = show(at(now_ms), view(state))

    assert (found.age_ms, found.overdue) == (age_ms, overdue)


@pytest.mark.parametrize(
    ("state", "word"), [("Empty", "no open transaction"), ("PrepareCommit", "it is committed")]
)
def test_what_is_not_open_or_is_committed_is_not_aborted(state, word):
    with pytest.raises(InvalidTransactionState, match=word):
        require_abortable(show(at(5_000), view(state)))
