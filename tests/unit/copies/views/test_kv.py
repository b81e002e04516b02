"""The overlay: what a leader's log holds beyond its view, transactions among it."""

from typing import Any

from tidelog.copies.views.kv import Overlay
from tidelog.log.transactions import find_marker
from tidelog.records import (
    TRANSACTIONAL,
    Marker,
    Record,
    decode_batch,
    encode_batch,
    encode_marker,
    read_header,
    stamp,
)

PRODUCER = 7


class Log:
    """Batches, one after the other, that an overlay takes."""

    def __init__(self) -> None:
        self.overlay = Overlay(0)
        self.end = 0

    def _take(self, batch: bytearray) -> None:
        stamp(batch, self.end, 0)
        header = read_header(batch)
        records = () if header.is_control else decode_batch(batch)
        marker = find_marker(header, batch) if header.is_control else None
        self.overlay.fold(header, records, marker)
        self.end = header.next_offset

    def put(self, key: bytes, value: bytes | None, *, is_open: bool = False) -> None:
        more: dict[str, Any] = {"attributes": TRANSACTIONAL, "producer_id": PRODUCER, "producer_epoch": 0}
        self._take(encode_batch([Record(key=key, value=value)], **(more if is_open else {})))

    def end_transaction(self, *, commits: bool = True) -> None:
        marker = Marker(commits=commits, coordinator_epoch=0)
        self._take(encode_marker(marker, producer_id=PRODUCER, producer_epoch=0, now_ms=0))

    def version(self, key: bytes) -> int | None:
        found = self.overlay.get(key)
        return None if found is None else found.version


def test_what_a_transaction_wrote_counts_once_it_is_committed():
    log = Log()
    log.put(b"k", b"1")
    log.put(b"k", b"2", is_open=True)
    assert (log.version(b"k"), log.overlay.is_undecided(b"k")) == (0, True)

    log.end_transaction()

    assert (log.version(b"k"), log.overlay.is_undecided(b"k")) == (1, False)


def test_what_a_transaction_wrote_never_counts_if_it_is_aborted():
    log = Log()
    log.put(b"k", b"2", is_open=True)
    log.end_transaction(commits=False)

    assert (log.version(b"k"), log.overlay.is_undecided(b"k")) == (None, False)


def test_a_transaction_whose_end_the_view_saw_first_is_over():
    log = Log()
    log.put(b"k", b"1", is_open=True)
    log.put(b"k", b"2")

    # The marker, at 2, is committed and folded before the overlay is asked to take it.
    log.overlay.settle(3)
    log.end = 3

    assert not log.overlay.is_undecided(b"k")
    log.put(b"other", b"3", is_open=True)
    log.end_transaction()
    assert log.version(b"k") is None, "the view has a newer one"
    assert log.version(b"other") == 3


def test_of_a_decided_transaction_what_the_view_has_not_reached_stays():
    log = Log()
    log.put(b"a", b"1", is_open=True)
    log.put(b"b", b"2", is_open=True)

    log.overlay.settle(1)

    assert not log.overlay.is_undecided(b"a")
    assert log.overlay.is_undecided(b"b")
    log.end_transaction()
    assert (log.version(b"a"), log.version(b"b")) == (None, 1)


def test_it_knows_how_much_memory_it_takes_and_gives_all_of_it_back():
    log = Log()
    for _ in range(100):
        log.put(b"k", b"v" * 1000)
    log.put(b"t", b"v" * 1000, is_open=True)
    log.put(b"t", b"v" * 1000, is_open=True)
    assert log.overlay.size > 101 * 1000

    log.end_transaction()
    log.put(b"t", b"v" * 1000, is_open=True)
    log.overlay.settle(log.end)

    assert log.overlay.size == 0
    assert len(log.overlay) == 0
