"""What a log knows of transactions equals what a simple reading of its batches tells."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.log.logs import DIRECTORY, Rig, make_batch
from tidelog.host import read_file
from tidelog.log.closing import close_logs
from tidelog.log.epochs import EpochHistory
from tidelog.log.log import Log
from tidelog.log.producers import ProducerStates
from tidelog.log.retention import remove_segments
from tidelog.log.transactions import Transactions, fold
from tidelog.log.truncation import cut_end, remove_all
from tidelog.model import NO_OFFSET, Offset, ProducerId
from tidelog.records import (
    CONTROL,
    TRANSACTIONAL,
    Marker,
    Record,
    encode_batch,
    encode_marker,
    read_header,
    read_marker,
    stamp,
)

SEGMENT_BYTES = 400


class TransactionRig(Rig):
    """A log that takes transactions, and what a clean stop and a cut do to it."""

    def begin(self, producer: ProducerId, count: int = 1, *, epoch: int = 0) -> Offset:
        """Append a transactional batch; its first offset."""
        self.append(
            count, producer_id=producer, producer_epoch=epoch, base_sequence=0, attributes=TRANSACTIONAL
        )
        return self.log.end - count

    def end(self, producer: ProducerId, *, commits: bool, epoch: int = 0, coordinator: int = 0) -> Offset:
        """Append a marker; its offset."""
        batch = encode_marker(
            Marker(commits=commits, coordinator_epoch=coordinator),
            producer_id=producer,
            producer_epoch=epoch,
            now_ms=1000,
        )
        self.append_batch(batch)
        return self.log.end - 1

    def abort(self, producer: ProducerId) -> Offset:
        return self.end(producer, commits=False)

    def commit(self, producer: ProducerId) -> Offset:
        return self.end(producer, commits=True)

    def append_batch(self, batch: bytearray) -> None:
        offset = self.log.end
        stamp(batch, offset, 0)
        self.log.append(bytes(batch), read_header(batch), offset, 0)

    def roll(self) -> None:
        if self.log.active.size:
            self.log.roll()
        self.flush()

    def flush(self) -> None:
        self.write()
        self.sync()

    def stop_and_open(self, **how: Any) -> None:
        """Stop cleanly, and start again."""
        self.flush()
        close_logs(self.disk, DIRECTORY, [self.log])
        self._open(clean=True, durable_mark=self.log.end, **how)

    def crash_and_open(self, **how: Any) -> None:
        self._open(durable_mark=self.log.synced_end, **how)

    def cut(self, end: Offset, **how: Any) -> None:
        self.flush()
        epochs = EpochHistory(self.log.epochs)
        epochs.cut_end(end)
        cut_end(self.disk, DIRECTORY, end, epochs)
        self._open(**how)

    def _open(self, **how: Any) -> None:
        how.setdefault("start", self.log.start)
        self.log = Log(DIRECTORY, self.config, self.budget, self.open(**how))


def new_rig(**config: Any) -> TransactionRig:
    return TransactionRig(index_interval_bytes=0, **config)


# The last stable offset.


def test_without_transactions_the_watermark_is_stable():
    rig = new_rig()
    rig.append(5)
    rig.append(2, producer_id=1, producer_epoch=0, base_sequence=0)

    assert rig.log.last_stable(6) == 6
    assert rig.log.aborted(0, 7) == []


def test_an_open_transaction_holds_the_last_stable_offset_back():
    rig = new_rig()
    rig.append(3)
    rig.begin(1, 2)
    rig.append(4)

    assert rig.log.last_stable(2) == 2
    assert rig.log.last_stable(9) == 3


def test_an_ended_transaction_holds_it_back_until_the_watermark_passes_its_marker():
    rig = new_rig()
    first = rig.begin(1, 2)
    rig.append(3)
    marker = rig.commit(1)
    rig.append(1)

    assert [rig.log.last_stable(w) for w in (0, 1, marker)] == [0, first, first]
    assert rig.log.last_stable(marker + 1) == marker + 1


def test_a_long_transaction_hides_those_within_it_until_it_is_decided():
    rig = new_rig()
    rig.append(2)
    outer = rig.begin(1)
    for _ in range(3):
        rig.begin(2)
        rig.abort(2)
    marker = rig.commit(1)
    later = rig.begin(3)
    rig.abort(3)

    assert rig.log.last_stable(marker) == outer
    assert rig.log.last_stable(later + 1) == later
    assert rig.log.last_stable(rig.log.end) == rig.log.end


def test_the_last_stable_offset_never_lies_below_the_start():
    rig = new_rig()
    rig.begin(1)
    rig.append(9)
    rig.flush()

    rig.log.advance_start(6)

    assert rig.log.last_stable(8) == 6
    assert rig.log.last_stable(9) == 6


def test_undecided_transactions_are_found_again_after_a_stop():
    rig = new_rig()
    rig.append(3)
    first = rig.begin(1)
    rig.roll()
    marker = rig.commit(1)
    rig.append(4)

    for restart in (rig.stop_and_open, rig.crash_and_open, rig.stop_and_open):
        rig.flush()
        restart(watermark=marker)

        assert rig.log.last_stable(marker) == first
        rig.append(1)
    assert rig.log.last_stable(marker + 1) == marker + 1


def test_a_cut_marker_opens_its_transaction_again():
    rig = new_rig()
    first = rig.begin(1)
    rig.roll()
    marker = rig.abort(1)
    rig.append(2)

    rig.cut(marker, watermark=marker)

    assert rig.log.last_stable(marker) == first
    assert rig.log.producers.transaction_start(1) == first
    assert rig.log.aborted(0, marker) == []
    rig.commit(1)
    assert rig.log.last_stable(marker + 1) == marker + 1
    assert rig.log.aborted(0, marker + 1) == []


@pytest.mark.parametrize("batches", [1, 7])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_log_begun_inside_of_a_transaction_knows_what_its_marker_ends(batches, ends, goes_on):
    """Its leader has the marker already, but has not committed it."""
    leader = new_rig()
    first = leader.begin(1)
    leader.append(3)
    start = leader.log.end
    leader.append(2)
    for _ in range(batches - 1):  # more than are remembered of a producer
        leader.begin(1)
    marker = leader.log.end
    if ends:
        leader.end(1, commits=False, epoch=1)
    if goes_on:
        leader.begin(1, epoch=1)
    snapshot = leader.log.producers_before(start, 10_000)

    found, transactions = ProducerStates.decode(snapshot), Transactions()
    assert found.transaction_start(1) == first
    for batch in leader.read_all():
        if read_header(batch).base_offset >= start:
            fold(found, transactions, read_header(batch), batch)

    for watermark in (start, marker, leader.log.end):
        expected = leader.log.last_stable(watermark)
        assert transactions.last_stable(found, watermark) == expected, f"at {watermark}"


def test_a_log_begun_anew_knows_of_no_transaction():
    rig = new_rig()
    rig.begin(1)
    rig.begin(2)
    rig.roll()
    rig.abort(2)
    rig.roll()

    remove_all(rig.disk, DIRECTORY, EpochHistory())
    rig.log = Log(DIRECTORY, rig.config, rig.budget, rig.open(start=7))

    assert rig.names() == ["leader-epoch-checkpoint"]
    assert rig.log.last_stable(7) == 7
    assert len(rig.log.producers) == 0


# Control batches.


def test_a_marker_without_a_transaction_changes_nothing_but_its_producer():
    rig = new_rig()

    rig.abort(1)

    assert rig.log.last_stable(1) == 1
    assert rig.log.aborted(0, 1) == []
    assert rig.log.producers.get(1) is not None


@pytest.mark.parametrize(
    "batch",
    [
        encode_batch([Record(key=b"\0\0\0\x02", value=b"\0" * 8)], attributes=CONTROL),
        encode_batch(
            [Record(key=b"\0\0\0\x05", value=b"\0" * 8)],
            attributes=CONTROL | TRANSACTIONAL,
            producer_id=1,
            producer_epoch=0,
        ),
        encode_batch(
            [Record(key=b"\0", value=None)],
            attributes=CONTROL | TRANSACTIONAL,
            producer_id=1,
            producer_epoch=0,
        ),
    ],
)
def test_other_control_batches_pass_without_effect(batch):
    rig = new_rig()
    first = rig.begin(1)

    rig.append_batch(batch)

    assert rig.log.last_stable(2) == first
    assert rig.log.producers.transaction_start(1) == first
    rig.flush()
    rig.crash_and_open()
    assert rig.log.last_stable(2) == first


# Aborted transactions.


def test_aborted_transactions_are_found_by_any_range_they_touch():
    rig = new_rig()
    rig.append(2)  # 0, 1
    rig.begin(1, 2)  # 2, 3
    rig.begin(2, 2)  # 4, 5
    rig.append(2)  # 6, 7
    rig.abort(2)  # 8
    rig.begin(3)  # 9
    rig.commit(3)  # 10
    rig.abort(1)  # 11
    rig.append(1)  # 12

    assert rig.log.aborted(0, 2) == []
    assert rig.log.aborted(0, 3) == [(1, 2)]
    assert rig.log.aborted(7, 8) == [(2, 4), (1, 2)]
    assert rig.log.aborted(9, 10) == [(1, 2)]
    assert rig.log.aborted(12, 13) == []
    assert rig.log.aborted(0, 13) == [(2, 4), (1, 2)]


def test_an_index_has_kafkas_bytes_and_lies_beside_the_segment_of_its_markers():
    rig = new_rig()
    rig.append(2)
    rig.roll()
    rig.begin(5)  # 2
    rig.begin(6)  # 3
    rig.roll()
    rig.abort(6)  # 4
    rig.abort(5)  # 5
    rig.roll()

    assert [name for name in rig.names() if name.endswith(".txnindex")] == [f"{4:020d}.txnindex"]
    assert read_file(rig.disk, DIRECTORY / f"{4:020d}.txnindex") == bytes.fromhex(
        "0000 0000000000000006 0000000000000003 0000000000000004 0000000000000002"
        "0000 0000000000000005 0000000000000002 0000000000000005 0000000000000006"
    )


def test_a_log_without_transactions_has_no_such_files():
    rig = new_rig()
    rig.append(1, producer_id=1, producer_epoch=0, base_sequence=0)
    rig.roll()
    rig.append(1)
    rig.stop_and_open()

    assert not any(name.endswith(".txnindex") for name in rig.names())


def damaged_by_cutting(data: bytes) -> bytes:
    return data[:-1]


def damaged_by_another_version(data: bytes) -> bytes:
    return b"\0\x01" + data[2:]


def damaged_by_a_wild_offset(data: bytes) -> bytes:
    return data[:18] + b"\x7f" + data[19:]


@pytest.mark.parametrize(
    "damage", [None, damaged_by_cutting, damaged_by_another_version, damaged_by_a_wild_offset]
)
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_lost_or_damaged_index_is_built_again_from_its_segment(number, damage, is_clean):
    rig = new_rig()
    rig.append(1)
    rig.roll()
    for producer in (1, 2, 3):
        rig.begin(producer)
        rig.begin(9)
        rig.abort(producer)
        rig.end(9, commits=producer != 2)
        rig.roll()
    rig.begin(4)
    rig.abort(4)
    rig.stop_and_open()
    whole = rig.log.aborted(0, rig.log.end)
    files = [name for name in rig.names() if name.endswith(".txnindex")]
    assert len(files) == 4
    path = DIRECTORY / files[number + is_clean]  # of the active one only after a clean stop
    before = read_file(rig.disk, path)

    if damage is None:
        rig.disk.remove(path)
    else:
        rig.disk.open(path).truncate(0)
        rig.disk.open(path).write(0, [damage(before)])
    (rig.stop_and_open if is_clean else rig.crash_and_open)()

    assert rig.log.aborted(0, rig.log.end) == whole
    assert len(whole) == 5
    assert read_file(rig.disk, path) == before


def test_an_index_is_complete_after_a_crash_though_its_producers_are_forgotten():
    rig = new_rig()
    rig.append(1)
    first = rig.begin(1)
    rig.abort(1)
    rig.log.producers.expire(10**15, end=rig.log.end, now=0.0, seconds=0.0)
    rig.stop_and_open()
    rig.append(1)
    rig.flush()

    rig.crash_and_open()

    assert rig.log.aborted(0, 4) == [(1, first)]


# Rot in a sealed segment, before it is healed.


def with_a_sealed_end() -> tuple[TransactionRig, Offset, Offset]:
    """A transaction is committed, and one aborted, in the second segment: [start, end)."""
    rig = new_rig()
    rig.append(1)
    rig.begin(1)
    rig.begin(2)
    rig.roll()
    start = rig.log.end
    rig.commit(1)
    rig.begin(3)
    rig.abort(2)
    rig.roll()
    end = rig.log.end
    rig.commit(3)
    rig.begin(4)
    rig.flush()
    return rig, start, end


def test_rot_hides_no_end_of_a_transaction_from_a_start():
    """Whatever bit flips: nothing undecided counts as decided, nothing decided as open."""
    rig, start, end = with_a_sealed_end()
    path, watermarks = rig.log.segments[1].path(), range(start, rig.log.end + 1)
    producers, aborted = rig.log.producers, rig.log.aborted(0, rig.log.end)
    truth = {}
    for watermark in watermarks:
        rig.crash_and_open(watermark=watermark)
        truth[watermark] = rig.log.last_stable(watermark)

    for byte in range(len(read_file(rig.disk, path))):
        rig.disk.flip_bit(path, byte, byte % 8)
        for watermark in watermarks:
            rig.crash_and_open(watermark=watermark)
            stable = rig.log.last_stable(watermark)
            assert stable <= truth[watermark], f"byte {byte}"
            assert stable == truth[watermark] or watermark < end, f"byte {byte}"
        rig.crash_and_open(watermark=start)
        assert rig.log.last_stable(rig.log.end) == truth[rig.log.end], f"byte {byte}"
        assert (rig.log.producers, rig.log.aborted(0, rig.log.end)) == (producers, aborted)
        rig.disk.flip_bit(path, byte, byte % 8)


def test_an_index_that_rot_keeps_from_being_built_is_built_once_the_rot_is_healed():
    rig, start, _ = with_a_sealed_end()
    segment = rig.log.segments[1]
    path, index = segment.path(), segment.path(".txnindex")
    aborted, content = rig.log.aborted(0, rig.log.end), read_file(rig.disk, index)
    byte = len(read_file(rig.disk, path)) - 1
    rig.disk.remove(index)

    rig.disk.flip_bit(path, byte, 0)
    rig.crash_and_open(watermark=start)
    assert not rig.disk.exists(index)
    rig.disk.flip_bit(path, byte, 0)
    rig.crash_and_open(watermark=start)

    assert rig.log.aborted(0, rig.log.end) == aborted
    assert read_file(rig.disk, index) == content


# All of it against a simple reading.


@dataclass(slots=True)
class Model:
    """Every batch that was appended and not cut, and what follows from that."""

    batches: list[bytes] = field(default_factory=list)
    watermark: Offset = 0
    start: Offset = 0
    epochs: dict[ProducerId, int] = field(default_factory=dict)

    def ended(self) -> tuple[dict[ProducerId, Offset], list[tuple[ProducerId, Offset, Any]]]:
        """The open transactions, and producer, first offset and marker of those that ended."""
        opened: dict[ProducerId, Offset] = {}
        ended = []
        for batch in self.batches:
            header = read_header(batch)
            if not header.is_transactional:
                continue
            if not header.is_control:
                opened.setdefault(header.producer_id, header.base_offset)
            elif header.producer_id in opened:
                first = opened.pop(header.producer_id)
                found = read_marker(batch)
                assert found is not None
                ended.append((header.producer_id, first, (header.base_offset, found.commits)))
        return opened, ended

    def producers(self) -> ProducerStates:
        states = ProducerStates()
        for batch in self.batches:
            if (header := read_header(batch)).is_idempotent:
                fold(states, Transactions(), header, batch)
        return states

    def check(self, log: Log) -> None:
        opened, ended = self.ended()
        undecided = [first for _, first, (marker, _) in ended if marker >= self.watermark]
        stable = min([self.watermark, *opened.values(), *undecided])
        assert log.last_stable(self.watermark) == max(stable, self.start)
        assert log.producers == self.producers()
        assert {p: log.producers.transaction_start(p) for p in opened} == opened
        assert log.producers.first_open() == min(opened.values(), default=NO_OFFSET)
        for start in range(log.start, log.end, 1 + (log.end - log.start) // 6):
            for end in (start + 1, start + 6, log.end):
                assert log.aborted(start, end) == [
                    (producer, first)
                    for producer, first, (marker, commits) in ended
                    if not commits and first < end and marker >= start
                ]


WEIGHTS = {
    "write": 30,
    "mark": 25,
    "plain": 5,
    "commit": 15,
    "roll": 6,
    "stop": 5,
    "crash": 5,
    "cut": 3,
    "delete": 2,
    "lose": 4,
}


class World:
    """A log and its model, to which the same happens."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.rig = new_rig(segment_bytes=SEGMENT_BYTES)
        self.model = Model()

    def do(self, kind: str) -> None:
        act: Callable[[], None] = getattr(self, f"_{kind}")
        act()

    def _between(self, low: int, high: int) -> int:
        return self.choose.randint(low, high)

    def _take(self, batch: bytearray) -> None:
        self.rig.append_batch(batch)
        self.model.batches.append(bytes(batch))

    def _write(self) -> None:
        producer = self._between(1, 4)
        epoch = self.model.epochs.get(producer, 0)
        self._take(
            make_batch(
                self._between(1, 3),
                producer_id=producer,
                producer_epoch=epoch,
                base_sequence=7,
                attributes=TRANSACTIONAL,
            )
        )

    def _plain(self) -> None:
        count = self._between(1, 3)
        self._take(make_batch(count, producer_id=11, producer_epoch=0, base_sequence=7))

    def _mark(self) -> None:
        producer = self._between(1, 4)
        self.model.epochs[producer] = self.model.epochs.get(producer, 0) + self._between(0, 1)
        marker = Marker(commits=self._between(0, 1) == 1, coordinator_epoch=3)
        self._take(
            encode_marker(
                marker, producer_id=producer, producer_epoch=self.model.epochs[producer], now_ms=2000
            )
        )

    def _roll(self) -> None:
        self.rig.roll()

    def _stop(self) -> None:
        self.rig.stop_and_open(watermark=self.model.watermark)

    def _crash(self) -> None:
        self.rig.flush()
        self.rig.crash_and_open(watermark=self.model.watermark)

    def _cut(self) -> None:
        model, log = self.model, self.rig.log
        ends = [read_header(batch).next_offset for batch in model.batches[-10:]]
        ends = [end for end in ends if end >= log.start and end > log.segments[0].base]
        if not ends:
            return
        end = self.choose.choice(ends)
        model.batches = [b for b in model.batches if read_header(b).last_offset < end]
        model.watermark = min(model.watermark, end)
        self.rig.cut(end, watermark=model.watermark)

    def _commit(self) -> None:
        model, end = self.model, self.rig.log.end
        model.watermark = self._between(model.watermark, min(model.watermark + 20, end))

    def _delete(self) -> None:
        model, log = self.model, self.rig.log
        self.rig.flush()
        model.start = self._between(log.start, model.watermark)
        gone = log.advance_start(model.start)
        remove_segments(self.rig.disk, gone, log.segments[0].base)

    def _lose(self) -> None:
        files = [name for name in self.rig.names() if name.endswith(".txnindex")]
        if files:
            self.rig.disk.remove(DIRECTORY / self.choose.choice(files))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_a_log_knows_what_a_reading_of_all_its_batches_tells(seed):
    world = World(seed)
    stable = 0

    for act in world.choose.choices(list(WEIGHTS), list(WEIGHTS.values()), k=100):
        world.do(act)
        world.model.check(world.rig.log)
        if act != "cut":
            assert world.rig.log.last_stable(world.model.watermark) >= stable
        stable = world.rig.log.last_stable(world.model.watermark)
