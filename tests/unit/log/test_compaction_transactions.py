"""What compaction promises of transactions: aborted ones count for nothing, and leave no trace."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.compaction import (
    DIRECTORY,
    EPOCH,
    CompactedLog,
    broken,
    compacted,
    end,
    fold,
    latest,
    new_log,
    record,
    write,
)
from tidelog.host import read_file
from tidelog.log.producers import ProducerStates
from tidelog.log.transactions import find_marker
from tidelog.model import NO_OFFSET, Offset, ProducerId
from tidelog.records import CONTROL, DELETE_HORIZON, TRANSACTIONAL, Record, decode_batch, encode_batch
from tidelog.simulation.disk import SimulatedCrash

GRACE_MS = 1000


def transactional_log() -> CompactedLog:
    return new_log(topic=compacted(delete_retention_ms=GRACE_MS))


def committed(log: CompactedLog, start: Offset = 0) -> list[Record]:
    """What a client gets that reads only what is committed, by Kafka's rules."""
    aborted = sorted(log.log.aborted(start, log.log.end), key=lambda each: each[1])
    hidden: set[ProducerId] = set()
    found = []
    for header, batch in log.batches():
        while aborted and aborted[0][1] <= header.last_offset:
            hidden.add(aborted.pop(0)[0])
        if header.is_control:
            marker = find_marker(header, batch)
            if marker is not None and not marker.commits:
                hidden.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in hidden):
            found += decode_batch(batch)
    return found


def markers(log: CompactedLog) -> list[Offset]:
    return [h.base_offset for h in log.headers() if h.is_control and h.record_count]


def tail(log: CompactedLog) -> None:
    """Seal what was written so far, behind a batch that is not of interest."""
    log.append(record("zzz"))
    log.roll()


def values(log: CompactedLog) -> dict[bytes, bytes]:
    return {k: v for k, v in latest(committed(log)).items() if k != b"zzz"}


def test_aborted_records_go_and_shadow_nothing():
    log = transactional_log()
    log.append(record("a", "old"), record("b", "old"))
    write(log, 1, record("a", "aborted"), record("c", "aborted"))
    write(log, 2, record("b", "new"))
    end(log, 1, commits=False)
    end(log, 2, commits=True)
    tail(log)

    log.clean()

    assert values(log) == {b"a": b"old", b"b": b"new"}
    assert [r.value for r in log.records() if r.key in (b"a", b"b", b"c")] == [b"old", b"new"]


def test_aborted_tombstone_deletes_nothing():
    log = transactional_log()
    log.append(record("a", "old"))
    write(log, 1, record("a", None))
    end(log, 1, commits=False)
    tail(log)

    log.clean()
    log.now_ms += 10 * GRACE_MS
    log.first_dirty = 0
    log.clean()

    assert values(log) == {b"a": b"old"}


def test_aborted_records_go_where_the_keys_before_them_cannot_be_read():
    log = transactional_log()
    log.append_raw(broken([record("q")], damage=0))
    write(log, 1, record("c", "aborted"), record("d", "aborted"))
    write(log, 1, record("c", "aborted"))
    end(log, 1, commits=False)
    tail(log)

    log.clean()

    assert [h.base_offset for h in log.headers() if h.record_count] == [0, 4, 5]


def test_transaction_whose_marker_is_not_sealed_yet_is_judged_all_the_same():
    log = transactional_log()
    log.append(record("a", "old"))
    write(log, 1, record("a", "aborted"))
    log.append(record("zzz"))
    log.roll()
    end(log, 1, commits=False)
    log.flush()
    log.open(log.log.end)

    log.clean()

    assert values(log) == {b"a": b"old"}


@pytest.mark.parametrize("commits", [True, False])
def test_marker_stays_while_a_batch_of_its_transaction_is_left(commits):
    log = transactional_log()
    write(log, 1, record("a", "1"))
    write(log, 1, record("b", "1"))
    marker = end(log, 1, commits=commits)
    tail(log)
    log.clean()
    log.now_ms += 10 * GRACE_MS
    for _ in range(3):  # the last batch is kept, for its sequence; emptied if need be
        log.append(record("b", "2"))
        tail(log)
        log.clean()
        log.now_ms += 10 * GRACE_MS

    assert marker in markers(log)
    assert log.log.last_stable(log.log.end) == log.log.end
    assert values(log) == ({b"a": b"1", b"b": b"2"} if commits else {b"b": b"2"})


@pytest.mark.parametrize("commits", [True, False])
def test_batches_then_entry_then_marker_go_in_three_passes(commits):
    log = transactional_log()
    write(log, 1, record("a", "1"))
    marker = end(log, 1, commits=commits)
    write(log, 1, record("b", "1"))  # so that the first batch is not the producer's last
    end(log, 1, commits=True)
    log.append(record("a", "2"))
    tail(log)
    entries = [] if commits else [(1, 0)]

    log.clean()
    assert log.headers()[0].base_offset == marker
    assert log.log.aborted(0, 9) == entries

    log.first_dirty = 0
    log.clean()
    assert log.headers()[0].attributes & DELETE_HORIZON
    assert log.log.aborted(0, 9) == []

    log.now_ms += GRACE_MS - 1
    log.first_dirty = 0
    log.clean()
    assert marker in markers(log)

    log.now_ms += 1
    log.first_dirty = 0
    log.clean()
    assert marker not in markers(log)
    assert values(log) == {b"a": b"2", b"b": b"1"}


def test_last_marker_of_an_active_producer_keeps_its_epoch():
    log = transactional_log()
    for epoch in range(3):  # as of KIP-890: the marker is of the next epoch
        write(log, 1, record("a", str(epoch)), epoch=epoch)
        end(log, 1, commits=True, epoch=epoch + 1)
    log.append(record("a", "last"))
    tail(log)

    for _ in range(4):
        log.clean()
        log.first_dirty = 0
        log.now_ms += 10 * GRACE_MS

    assert [h.producer_epoch for h in log.headers() if h.is_control and h.record_count] == [3]
    assert fold(log) == log.log.producers


def test_marker_that_ends_its_segment_leaves_an_empty_batch():
    log = transactional_log()
    write(log, 1, record("a", "1"))
    end(log, 1, commits=False)
    write(log, 1, record("b", "1"))
    end(log, 1, commits=True)
    log.append(record("b", "2"))
    end(log, 1, commits=False)
    log.roll()

    for _ in range(4):
        log.first_dirty = 0
        log.clean()
        log.now_ms += 10 * GRACE_MS

    last = log.headers()[-1]
    assert last.is_control
    assert last.record_count == 0
    assert log.log.end == last.next_offset
    assert values(log) == {b"b": b"2"}


def test_other_control_batches_pass():
    log = transactional_log()
    other = encode_batch(
        [Record(key=b"\0\0\0\x07", value=b"\0" * 6)],
        attributes=CONTROL | TRANSACTIONAL,
        producer_id=1,
        producer_epoch=0,
        leader_epoch=EPOCH,
    )
    log.append_raw(other)
    log.append(record("a"))
    log.roll()

    for _ in range(3):
        log.first_dirty = 0
        log.clean()
        log.now_ms += 10 * GRACE_MS

    assert log.headers()[0].is_control
    assert log.headers()[0].record_count == 1


def test_files_of_joined_segments_are_joined():
    log = transactional_log()
    for producer in (1, 2, 3):
        write(log, producer, record("a", "1"))
        end(log, producer, commits=False)
        write(log, producer, record("b", "1"))
        end(log, producer, commits=True)
        log.append(record("zzz"))
        log.roll()
    before = log.log.aborted(0, log.log.end)

    log.clean()

    assert len(log.log.segments) == 2
    assert log.log.aborted(0, log.log.end) == before == [(1, 0), (2, 5), (3, 10)]
    files = [name for name in log.names() if name.endswith(".txnindex")]
    assert [int(name.partition(".")[0]) for name in files] == [0]
    assert len(read_file(log.disk, DIRECTORY / files[0])) == 3 * 34


# All of it against a simple reading.


@dataclass(slots=True)
class Story:
    """Random transactions, and passes that crash at times; and what must be found at the end."""

    choose: random.Random
    log: CompactedLog = field(default_factory=transactional_log)
    written: list[tuple[Record, ProducerId | None]] = field(default_factory=list)
    """Every record, and whose transaction it is of while that is open."""
    epochs: dict[ProducerId, int] = field(default_factory=dict)

    def step(self) -> None:
        producer = self.choose.randint(1, 4)
        match self.choose.choice(["plain", "write", "write", "write", "end", "end", "pass"]):
            case "plain":
                self.log.append(*self._records(None))
            case "write":
                epoch = self.epochs.get(producer, 0)
                write(self.log, producer, *self._records(producer), epoch=epoch)
            case "end":
                self._end(producer)
            case "pass":
                if self.log.log.active.size:
                    self.log.roll()
                self.log.now_ms += self.choose.choice((1, GRACE_MS))
                if self.choose.random() < 0.3:
                    self.log.first_dirty = 0
                self._clean()

    def _records(self, owner: ProducerId | None) -> list[Record]:
        records = []
        for _ in range(self.choose.randint(1, 3)):
            value = None if self.choose.random() < 0.2 else str(len(self.written))
            records.append(record(self.choose.choice("abcdef"), value))
            self.written.append((records[-1], owner))
        return records

    def _end(self, producer: ProducerId) -> None:
        commits = self.choose.random() < 0.5
        self.epochs[producer] = self.epochs.get(producer, 0) + self.choose.randint(0, 1)
        end(self.log, producer, commits=commits, epoch=self.epochs[producer])
        self.written = [
            (each, None if owner == producer else owner)
            for each, owner in self.written
            if owner != producer or commits
        ]

    def _clean(self) -> None:
        """A pass over what lies below the last stable offset, as the cleaner plans it."""
        stable = self.log.log.last_stable(self.log.log.end)
        active = self.log.log.segments
        sealed = [at for at, segment in enumerate(active) if segment.base <= stable][-1]
        if not sealed or self.log.first_dirty > active[sealed].base:
            return
        disk, log_end = self.log.disk, self.log.log.end
        disk.crash_after(self.choose.randint(1, 200))
        try:
            self.log.clean(sealed)
        except SimulatedCrash:
            if self.choose.random() < 0.5:
                disk.crash()
        disk.kill()
        self.log.open(log_end)

    def finish(self) -> None:
        for producer in range(1, 5):
            self._end(producer)
        self.log.flush()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_latest_committed_values_stay_however_often_a_log_is_compacted(seed):
    story = Story(random.Random(seed))
    log = story.log

    for _ in range(80):
        story.step()
        log.flush()
        assert log.log.last_stable(log.log.end) == fold_stable(log)
    story.finish()

    assert latest(committed(log)) == latest(record for record, _ in story.written)
    offset = log.log.end // 2
    later = [each for each in committed(log, offset) if each.offset >= offset]
    assert later == [each for each in committed(log) if each.offset >= offset]
    assert epochs_of(fold(log)) == epochs_of(log.log.producers)


def fold_stable(log: CompactedLog) -> Offset:
    """The last stable offset as the batches alone tell it, if all of them are committed."""
    first = fold(log).first_open()
    return log.log.end if first == NO_OFFSET else first


def epochs_of(states: ProducerStates) -> dict[ProducerId, tuple[int, int]]:
    return {p: (state.epoch, state.last_sequence) for p, state in states.items()}
