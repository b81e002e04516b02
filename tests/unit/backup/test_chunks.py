import hashlib

import msgspec
import pytest

from tidelog.backup.chunks import ChunkWriter, batches_of, check_chunk, chunk_name, read_chunk, run_of
from tidelog.backup.manifest import Chunk
from tidelog.backup.problems import Damaged
from tidelog.backup.storage import LocalStorage
from tidelog.log.unpacking import empty
from tidelog.model import ONCE_PRODUCER_MIN
from tidelog.records import (
    TRANSACTIONAL,
    Codec,
    Marker,
    Record,
    encode_batch,
    encode_marker,
    read_header,
    stamp,
)


def batch(base, count=1, **options):
    records = [Record(value=b"v%d" % n, timestamp_ms=1000) for n in range(count)]
    return bytes(encode_batch(records, base_offset=base, **options))


def marker(base, producer_id, *, commits):
    data = encode_marker(
        Marker(commits=commits, coordinator_epoch=0), producer_id=producer_id, producer_epoch=0, now_ms=0
    )
    stamp(data, base, 0)
    return bytes(data)


def transactional(base, producer_id):
    return batch(base, producer_id=producer_id, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL)


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(tmp_path)


def writer_of(storage, start=0, **options):
    return ChunkWriter(storage, "id", 3, start, "RUN", **options)


def test_a_chunk_holds_the_very_bytes_of_the_log(storage):
    writer = writer_of(storage)
    data = batch(0, 3, codec=Codec.GZIP) + batch(3, 2)

    writer.take(data, (), end=5)
    (chunk,) = writer.finish(5)

    assert storage.read(chunk.file) == data
    assert (chunk.start, chunk.end, chunk.bytes, chunk.batches, chunk.records) == (0, 5, len(data), 2, 5)
    assert chunk.sha256 == hashlib.sha256(data).hexdigest()


def test_chunks_are_cut_between_batches_once_they_are_large_enough(storage):
    one = batch(0)
    writer = writer_of(storage, bytes_max=2 * len(one))

    for base in range(5):
        writer.take(batch(base), (), end=5)
    chunks = writer.finish(5)

    assert [(chunk.start, chunk.end, chunk.batches) for chunk in chunks] == [(0, 2, 2), (2, 4, 2), (4, 5, 1)]


def test_markers_and_what_was_aborted_are_left_out(storage):
    writer = writer_of(storage)
    data = b"".join(
        [
            transactional(0, 1),
            transactional(1, 2),
            marker(2, 1, commits=False),
            marker(3, 2, commits=True),
            transactional(4, 1),
            marker(5, 1, commits=True),
        ]
    )

    writer.take(data, ((1, 0),), end=6)
    (chunk,) = writer.finish(6)

    kept = [header.base_offset for header, _ in batches_of(read_chunk(storage, chunk), chunk)]
    assert kept == [1, 4]
    assert (chunk.start, chunk.end) == (0, 6)


def test_where_nothing_counts_there_is_no_file(storage):
    writer = writer_of(storage)

    writer.take(transactional(0, 1) + marker(1, 1, commits=False), ((1, 0),), end=2)

    assert writer.finish(2) == (Chunk(start=0, end=2),)
    assert storage.names("") == []


def emptied(base, producer_id):
    data = batch(base, producer_id=producer_id, producer_epoch=0, base_sequence=0)
    return bytes(empty(read_header(data))[1])


def test_of_batches_without_records_those_of_idempotency_keys_are_kept(storage):
    writer = writer_of(storage)
    kept = emptied(1, ONCE_PRODUCER_MIN + 7)

    writer.take(emptied(0, 7) + kept + emptied(2, 8), (), end=3)
    (chunk,) = writer.finish(3)

    assert storage.read(chunk.file) == kept
    assert (chunk.start, chunk.end, chunk.batches, chunk.records) == (0, 3, 1, 0)
    check_chunk(storage, chunk, deep=True)


def test_nothing_is_taken_from_beyond_the_end(storage):
    writer = writer_of(storage)

    writer.take(batch(0) + batch(1) + batch(2), (), end=2)
    (chunk,) = writer.finish(2)

    assert (chunk.end, chunk.records) == (2, 2)


def test_a_log_may_begin_within_a_batch(storage):
    writer = writer_of(storage, start=2)

    writer.take(batch(0, 5), (), end=5)
    (chunk,) = writer.finish(5)

    check_chunk(storage, chunk, deep=True)
    assert (chunk.start, chunk.end, chunk.records) == (2, 5, 5)


def test_who_gives_up_leaves_nothing(storage):
    writer = writer_of(storage, bytes_max=1)
    writer.take(batch(0) + batch(1) + batch(2), (), end=3)
    assert storage.names("chunks")
    assert storage.unfinished("chunks")

    writer.abandon()

    assert storage.names("") == storage.unfinished("") == []


def test_the_name_of_a_file_tells_for_which_backup_it_was_written():
    assert run_of(chunk_name("id", 3, 7, "20260131T120000Z-abcdef")) == "20260131T120000Z-abcdef"
    assert run_of("chunks/readme") is None


# Damage.


@pytest.fixture
def chunk(storage):
    writer = writer_of(storage)
    writer.take(batch(0, 3) + batch(3, 2, codec=Codec.LZ4), (), end=5)
    return writer.finish(5)[0]


def overwrite(storage, chunk, data):
    storage.remove(chunk.file)
    with storage.create(chunk.file) as output:
        output.write(data)


def resealed(chunk, data):
    """The chunk, as if `data` had been written."""
    return msgspec.structs.replace(chunk, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def test_a_whole_chunk_checks_out(storage, chunk):
    check_chunk(storage, chunk, deep=True)


def test_a_flipped_bit_is_found(storage, chunk):
    data = bytearray(storage.read(chunk.file))
    data[len(data) // 2] ^= 1
    overwrite(storage, chunk, data)

    with pytest.raises(Damaged, match="checksum"):
        check_chunk(storage, chunk, deep=False)


def test_a_file_cut_off_is_found(storage, chunk):
    overwrite(storage, chunk, storage.read(chunk.file)[:-1])

    with pytest.raises(Damaged, match="bytes"):
        check_chunk(storage, chunk, deep=False)


def test_a_missing_file_is_found(storage, chunk):
    storage.remove(chunk.file)

    with pytest.raises(Damaged, match="missing"):
        check_chunk(storage, chunk, deep=False)


def test_offsets_that_leave_their_range_are_found(storage, chunk):
    with pytest.raises(Damaged, match="does not belong"):
        check_chunk(storage, msgspec.structs.replace(chunk, end=4), deep=False)


def test_a_batch_that_is_missing_is_found(storage, chunk):
    data = batch(0, 3)
    overwrite(storage, chunk, data)

    with pytest.raises(Damaged, match="not all there were"):
        check_chunk(storage, resealed(chunk, data), deep=False)


def test_a_record_that_cannot_be_read_is_found_by_who_looks_deep(storage, chunk):
    # The producer has sealed what nobody can unpack.
    from tidelog.records import seal_batch

    data = bytes(
        seal_batch(
            b"\xff" * 20,
            count=5,
            attributes=0,
            base_timestamp=0,
            max_timestamp=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
        )
    )
    overwrite(storage, chunk, data)
    chunk = msgspec.structs.replace(resealed(chunk, data), batches=1)

    check_chunk(storage, chunk, deep=False)
    with pytest.raises(Damaged):
        check_chunk(storage, chunk, deep=True)
