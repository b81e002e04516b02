"""Power fails, or the process dies, anywhere in compaction: nothing that counts is lost."""

import contextlib
import random
from itertools import pairwise

import pytest

from tests.support.compaction import CompactedLog, compacted, fold, latest, random_records, record
from tidelog.host import Path, read_file
from tidelog.log.index import OFFSET_ENTRY, TIME_ENTRY
from tidelog.log.keymap import KEY_BYTES
from tidelog.log.segment import Segment, walk
from tidelog.records import Codec
from tidelog.simulation.disk import SimulatedCrash, SimulatedDisk

SEEDS = 200
PARTS = 4


def check(log: CompactedLog) -> None:
    """What holds after every start."""
    found = log.records()
    assert latest(found) == latest(log.written.values()), "the latest values differ"
    offsets = [record.offset for record in found]
    assert all(a < b for a, b in pairwise(offsets)), "an offset is served twice"
    assert all(log.written[record.offset] == record for record in found), "a record has changed"
    headers = log.headers()
    assert all(a.last_offset < b.base_offset for a, b in pairwise(headers)), "batches overlap"
    assert log.log.end == len(log.written), "the end has moved"
    assert not [name for name in log.names() if name.endswith((".cleaned", ".swap"))]
    assert log.consume(0, bytes_max=500) == found
    for segment in log.log.segments[:-1]:
        check_indexes(log, segment)


def check_indexes(log: CompactedLog, segment: Segment) -> None:
    """Both files of a sealed segment are there, and fit its batches."""
    file = segment.open(log.disk)
    batches = {at: header for header, at in walk(file, 0, file.size())}
    for relative, at in OFFSET_ENTRY.iter_unpack(read_file(log.disk, segment.path(".index"))):
        assert batches[at].last_offset == segment.base + relative, "the index misleads"
    *_, (newest_ms, _) = TIME_ENTRY.iter_unpack(read_file(log.disk, segment.path(".timeindex")))
    assert newest_ms == max(header.max_timestamp for header in batches.values())


def write_some(log: CompactedLog, generator: random.Random, sequences: dict[int, int]) -> None:
    for _ in range(generator.randint(1, 12)):
        count = generator.randint(1, 6)
        records = random_records(generator, count, keys=12, now_ms=log.now_ms)
        producer = generator.choice((-1, 0, 1, 2))
        sequence = sequences.get(producer, 0) if producer >= 0 else -1
        codec = generator.choice(list(Codec))
        log.append(*records, codec=codec, producer=producer, sequence=sequence)
        if producer >= 0:
            sequences[producer] = sequence + count
        if generator.random() < 0.3:
            log.roll()
    if generator.random() < 0.7 and log.log.active.size:
        log.log.roll()
        log.flush(sync=generator.random() < 0.5)  # the name of the new file may not be durable
    else:
        log.flush()


def crash_somewhere(disk: SimulatedDisk, generator: random.Random) -> None:
    """Die at any change, or at one of those by which files get and lose their names."""
    if generator.random() < 0.5:
        disk.crash_after(generator.randint(1, 60))  # about as many as a pass makes
        return
    left = generator.randint(1, 25)

    def hook(operation: str, path: Path) -> None:
        nonlocal left
        left -= operation in ("rename", "remove", "sync_directory")
        if left == 0:
            disk.on_operation = None
            raise SimulatedCrash(operation, path)

    disk.on_operation = hook


def live(seed: int) -> int:
    """A few rounds of writing and cleaning, each interrupted somewhere; how often one was."""
    generator = random.Random(seed)
    disk = SimulatedDisk(random.Random(f"{seed} disk"))
    log = CompactedLog(
        disk,
        compacted(
            segment_bytes=generator.choice((300, 1500, 100_000)),
            index_interval_bytes=100,
            delete_retention_ms=1000,
        ),
        key_bytes_max=generator.choice((3, 1000)) * KEY_BYTES,
    )
    sequences: dict[int, int] = {}
    crashes = 0
    for _ in range(4):
        write_some(log, generator, sequences)
        log.now_ms += generator.choice((0, 400, 2000))
        end = log.log.end
        producers = log.log.producers
        crash_somewhere(disk, generator)
        try:
            log.clean()
            if generator.random() < 0.3:
                log.clean()
        except SimulatedCrash:
            crashes += 1
            if generator.random() < 0.5:
                disk.crash()
            else:
                disk.kill()
            crash_somewhere(disk, generator)
            try:
                log.open(end)  # a start may be interrupted as well
            except SimulatedCrash:
                disk.crash()
        disk.on_operation = None
        disk.kill()
        log.open(end)
        check(log)
        assert log.log.end == end
        assert log.log.producers == producers, "the producers' state has changed"
        folded = fold(log)
        for producer in sequences:
            before, after = producers.get(producer), folded.get(producer)
            assert before is not None and after is not None, "a producer is forgotten"
            assert before.last_sequence == after.last_sequence
    # What was interrupted does not stop the passes that follow.
    if log.log.active.size:
        log.roll()
    log.first_dirty = 0
    while log.first_dirty < log.log.end:
        log.clean()
    check(log)
    newest = {record.key: record.offset for record in log.written.values()}
    assert {record.offset for record in log.records()} <= set(newest.values())
    log.now_ms += 10_000
    log.first_dirty = 0
    while log.first_dirty < log.log.end:
        log.clean()
    check(log)
    assert all(record.value is not None for record in log.records()), "a tombstone stays for ever"
    return crashes


@pytest.mark.parametrize("part", range(PARTS))
def test_crash_anywhere_in_compaction_loses_nothing(part):
    crashes = sum(live(seed) for seed in range(part, SEEDS, PARTS))

    assert crashes > SEEDS // PARTS, "the crashes missed the work"


def decide_and_die(seed: int) -> CompactedLog:
    """A log whose swap was decided, but not durably so, when its process died."""
    disk = SimulatedDisk(random.Random(seed))
    log = CompactedLog(disk, compacted(segment_bytes=100_000, index_interval_bytes=0))
    for value, keys in enumerate(("abc", "ab", "bcd", "c", "b")):
        for key in keys:
            log.append(record(key, f"{value}", time_ms=log.now_ms + value))
        log.roll()

    def die(operation: str, path: Path) -> None:
        if operation == "sync_directory" and any(n.endswith(".log.swap") for n in log.names()):
            raise SimulatedCrash(operation, path)

    disk.on_operation = die
    with pytest.raises(SimulatedCrash):
        log.clean()
    disk.on_operation = None
    return log


def test_decision_outlives_no_index():
    for seed in range(100):
        log = decide_and_die(seed)
        log.disk.crash()

        log.open(10)
        check(log)


@pytest.mark.parametrize("changes", [4, 8, 12])
def test_start_relies_on_no_decision_that_can_still_be_undone(changes):
    """The process dies and the machine does not; then power fails in the start."""
    for seed in range(60):
        log = decide_and_die(seed)
        log.disk.kill()
        log.disk.crash_after(changes)
        with contextlib.suppress(SimulatedCrash):
            log.open(10)
        log.disk.crash()

        log.open(10)
        check(log)
