import msgspec
import pytest

from tidelog.backup.manifest import (
    Chunk,
    GroupBackup,
    GroupOffset,
    Manifest,
    PartitionBackup,
    TopicBackup,
    decode,
    encode,
    gaps,
)
from tidelog.backup.problems import Damaged


def partition(*chunks, number=0, start=0, end=10):
    return PartitionBackup(
        partition=number,
        start=start,
        end=end,
        chunks=tuple(Chunk(start=a, end=b, file=f"{a}", bytes=100, records=b - a) for a, b in chunks),
    )


def manifest(*partitions, name="orders"):
    return Manifest(
        id="20260131T120000Z-abcdef",
        made_by="tidelog",
        cluster_id="c",
        parent=None,
        taken_ms=1,
        finished_ms=2,
        topics=(TopicBackup(name=name, id="id", replication=1, partitions=partitions),),
        groups=(
            GroupBackup(group="g", offsets=(GroupOffset(topic=name, partition=0, offset=7, metadata="m"),)),
        ),
        notes=("a note",),
    )


def test_a_manifest_is_read_as_it_was_written():
    made = manifest(partition((0, 4), (4, 10)))

    assert decode(encode(made), "it") == made


def test_it_knows_what_it_needs():
    made = manifest(partition((0, 4), (4, 10)))

    assert (made.files, made.records, made.bytes) == ({"0", "4"}, 10, 200)


def test_a_change_of_a_single_byte_is_found():
    data = encode(manifest(partition((0, 10))))

    for at in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[at] ^= 1
        try:
            read = decode(bytes(damaged), "it")
        except Damaged:
            continue
        assert read == decode(data, "it"), f"byte {at} was changed, and nobody noticed"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'{"sha256": "", "manifest": {}}'])
def test_what_is_no_manifest_is_said_to_be_none(data):
    with pytest.raises(Damaged, match="it"):
        decode(data, "it")


def test_a_manifest_cut_off_is_damaged():
    data = encode(manifest(partition((0, 10))))

    with pytest.raises(Damaged):
        decode(data[:-10], "it")


def test_a_manifest_of_the_future_says_that_a_newer_program_is_needed():
    made = msgspec.structs.replace(manifest(), version=2)

    with pytest.raises(Damaged, match="newer"):
        decode(encode(made), "it")


@pytest.mark.parametrize(
    "parts",
    [
        [partition((0, 4), (4, 10))],
        [partition((0, 10), start=3)],  # the log began within a file
        [partition(start=5, end=5)],
        [partition((0, 10)), partition((0, 10), number=1)],
    ],
)
def test_whole_ranges_leave_nothing_open(parts):
    assert gaps(manifest(*parts)) == []


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (partition((2, 10)), "0 to 1 are missing"),
        (partition((0, 4), (5, 10)), "comes where 4 should"),
        (partition((0, 9)), "end at 9"),
        (partition(), "nothing is there"),
        (partition((0, 4), (4, 4), (4, 10)), "comes where 4 should"),
        (partition((0, 10), number=1), "not all there are"),
        (partition((0, 10), start=12), "no range"),
    ],
)
def test_a_range_that_is_not_there_is_found(part, said):
    assert said in "; ".join(gaps(manifest(part)))


@pytest.mark.parametrize(
    "name",
    [
        "../victim",
        "chunks/../../victim",
        "/etc/passwd",
        "chunks//x",
        "chunks/./x",
        "",
        "..",
        "chunks\\..\\..\\victim",
        "C:/victim",
        "chunks/x\0",
        "manifests/another.json",
    ],
)
def test_a_manifest_that_names_what_is_no_file_of_a_backup_is_not_read(name):
    chunk = Chunk(start=0, end=10, file=name, bytes=1, records=10)
    one = PartitionBackup(partition=0, start=0, end=10, chunks=(chunk,))

    with pytest.raises(Damaged, match="no file of a backup"):
        decode(encode(manifest(one)), "it")
