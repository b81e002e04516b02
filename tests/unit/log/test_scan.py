import random
import struct
from dataclasses import dataclass

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.log.logs import DIRECTORY, make_batch, new_disk
from tidelog.log import scan as scanning
from tidelog.log.epochs import EpochHistory
from tidelog.log.scan import Before, Block, Scan, blocks
from tidelog.log.segment import Segment
from tidelog.records import batch_size_at, stamp


class ScanBatchByBatch(Scan):
    def _take_block(self, block: Block) -> bool:
        return False


def scanned(kind: type[Scan], content: bytes, **options: object) -> tuple[Scan, Segment]:
    disk, segment = new_disk(), Segment(DIRECTORY, 3)
    disk.open(segment.path(), create=True).write(0, [content])
    how = {"start": 0, "mark": 0, "interval_bytes": 300, "has_gaps": False, "before": Before()}
    scan = kind(segment, **(how | options))  # type: ignore[arg-type]
    scan.run(segment.open(disk))
    return scan, segment


def told(scan: Scan, segment: Segment) -> tuple[object, ...]:
    """All that a scan tells of a file."""
    found = {name: getattr(segment, name) for name in Segment.__slots__}
    del found["file"], found["directory"], found["offsets"], found["times"]
    marks = (scan.marked_size, scan.checksum, scan.written_from)
    return scan.end, list(scan.epochs), marks, found, segment.index_contents()


def log_of(seed: int) -> bytes:
    """Batches from offset 3 on: runs of one size and others, sometimes with gaps, epochs, producers."""
    rng = random.Random(seed)
    content, offset, epoch = bytearray(), 3, 0
    odd = rng.choice((0.0, 0.0, 0.05))
    for _ in range(rng.randint(1, 6)):
        size, count = rng.randrange(12), rng.choice((1, 1, 3))
        writer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0} if rng.random() < 0.2 else {}
        same_size = rng.random() < 0.7
        for _ in range(rng.randrange(40)):
            if rng.random() < odd:
                epoch = max(0, epoch + rng.choice((-1, 1, 1)))
            if rng.random() < odd:
                offset += rng.choice((-1, 2))
            time_ms = rng.choice((-1, 1000, rng.randrange(3000)))
            batch = make_batch(
                count, size=size if same_size else rng.randrange(90), time_ms=time_ms, **writer
            )
            stamp(batch, offset, epoch)
            if rng.random() < odd:
                struct.pack_into(">i", batch, 23, -1)
                struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
            content += batch
            offset += count - (batch[23] >> 7)
    return bytes(content)


def damaged(seed: int, content: bytes) -> bytes:
    rng, data = random.Random(seed), bytearray(content)
    match rng.randrange(5):
        case 0 if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 1:
            del data[rng.randrange(len(data) + 1) :]
        case 2:
            data += rng.choice((bytes(200), b"\xff" * 70, data[:100], b"x"))
    return bytes(data)


@dataclass(frozen=True)
class Sizes:
    block: int
    chunk: int


SIZES = st.sampled_from([Sizes(1024, 4 << 20), Sizes(7, 1000), Sizes(2, 150)])


@given(st.integers(0, 2**32), SIZES)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_a_scan_by_blocks_tells_what_a_scan_batch_by_batch_does(seed, sizes):
    rng = random.Random(seed)
    content = damaged(seed, log_of(seed))
    epochs = EpochHistory([(0, 0), (1, rng.randrange(200))]) if rng.random() < 0.1 else None
    how = {
        "start": rng.choice((0, rng.randrange(150))),
        "mark": rng.choice((0, rng.randrange(150))),
        "interval_bytes": rng.choice((0, 100, 400)),
        "has_gaps": rng.random() < 0.5,
        "before": Before(
            synced_end=rng.choice((0, rng.randrange(150))),
            end_max=rng.choice((2**63 - 1, rng.randrange(300))),
            epochs=epochs,
        ),
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scanning, "_BLOCK_BATCHES", sizes.block)
        patched.setattr(scanning, "CHUNK_BYTES", sizes.chunk)

        by_blocks = scanned(Scan, content, **how)

        assert told(*by_blocks) == told(*scanned(ScanBatchByBatch, content, **how))


@given(st.integers(0, 2**32), SIZES)
@settings(max_examples=50, deadline=None, derandomize=True)
def test_blocks_lead_from_batch_to_batch(seed, sizes):
    content = damaged(seed, log_of(seed))
    file = new_disk().open(DIRECTORY / "x", create=True)
    file.write(0, [content])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scanning, "_BLOCK_BATCHES", sizes.block)
        patched.setattr(scanning, "CHUNK_BYTES", sizes.chunk)

        found = [b.chunk_at + at for b in blocks(file, 0, len(content)) for at in b.places[:-1]]

    expected, at = [], 0
    while (size := batch_size_at(content, at, len(content))) and at + size <= len(content):
        expected.append(at)
        at += size
    assert found == expected


@pytest.mark.parametrize("sizes", [[10], [10, 20, 15]])
def test_batches_that_are_whole_are_not_looked_at_one_by_one(sizes, monkeypatch):
    content = bytearray()
    for offset in range(3, 3000):
        batch = make_batch(size=sizes[offset % len(sizes)])
        stamp(batch, offset, 4)
        content += batch
    monkeypatch.setattr(Scan, "_take_batches", None)

    scan, segment = scanned(Scan, bytes(content))

    assert (scan.end, segment.size, list(scan.epochs)) == (3000, len(content), [(4, 3)])


def test_bytes_that_changed_past_the_mark_are_noticed():
    content = log_of(1)
    scan, segment = scanned(Scan, content, mark=10)
    assert segment.size > scan.marked_size > 0
    file = segment.file
    assert file is not None
    assert scan.is_still_there(file)

    file.write(scan.marked_size - 1, [bytes([content[scan.marked_size - 1] ^ 1])])
    assert scan.is_still_there(file), "what lies below the mark was not written again"
    file.write(segment.size - 1, [bytes([content[segment.size - 1] ^ 1])])
    assert not scan.is_still_there(file)
    file.truncate(segment.size - 1)
    assert not scan.is_still_there(file)
