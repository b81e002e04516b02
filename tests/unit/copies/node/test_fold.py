"""Pieces of a log that are taken into a view."""

from types import SimpleNamespace
from typing import Any

from tidelog.copies.node.fold import Fold
from tidelog.copies.views.store import Position
from tidelog.log.epochs import EpochHistory
from tidelog.log.reading import Read


def test_a_view_goes_no_further_than_was_read():
    """Compaction took all before the damage at 5; what is damaged is not passed over with it."""
    taken: list[Position] = []
    store: Any = SimpleNamespace(apply=lambda records, at: taken.append(at))
    cold: Any = SimpleNamespace(offset=2, perform_checked=lambda disk, has_gaps: b"")
    disk: Any = None

    folded = Fold(
        store=store,
        disk=disk,
        found=Read((), 0, 5, cold, True),
        aborted=(),
        offset=2,
        epochs=EpochHistory(),
        at=Position(),
        may_have_gaps=True,
    ).perform()

    assert folded is not None and folded.has_gaps
    assert [at.applied for at in taken] == [5]
