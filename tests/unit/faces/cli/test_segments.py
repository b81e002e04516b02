import json
import struct

import pytest
from crc32c import crc32c

from tidelog.faces.cli import segments
from tidelog.faces.cli.segments import Kind, Verifier, partition_directories
from tidelog.records import Record, encode_batch

TOPIC_ID = "ERERESIiQzOERFVVVVVVVQ"


class Partition:
    """A partition's files, written as a node would leave them."""

    def __init__(self, root, name="orders-0"):
        self.root = root
        self.path = root / name
        self.path.mkdir(parents=True)
        (self.path / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}\n")
        (self.path / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")

    def segment(self, base, batches, *, index=(), times=()):
        """Write one segment; `index` are (offset, position), `times` (timestamp, offset)."""
        stem = self.path / f"{base:020d}"
        stem.with_suffix(".log").write_bytes(b"".join(batches))
        entries = [struct.pack(">II", offset - base, position) for offset, position in index]
        stem.with_suffix(".index").write_bytes(b"".join(entries))
        entries = [struct.pack(">qI", time, offset - base) for time, offset in times]
        stem.with_suffix(".timeindex").write_bytes(b"".join(entries))
        return stem.with_suffix(".log")

    def verify(self):
        return Verifier(self.root).verify(self.path)

    def problems(self):
        return [(problem.kind, problem.position) for problem in self.verify().problems]


def batch(base, count=1, *, epoch=0, value=b"value", **options):
    records = [Record(key=b"k", value=value, timestamp_ms=1000 + base)] * count
    return bytes(encode_batch(records, base_offset=base, leader_epoch=epoch, **options))


def flip(file, position):
    data = bytearray(file.read_bytes())
    data[position] ^= 0x10
    file.write_bytes(data)


@pytest.fixture
def partition(tmp_path):
    return Partition(tmp_path / "data")


def test_a_whole_log_of_several_segments_is_fine(partition):
    first = [batch(0, 5), batch(5, 5)]
    partition.segment(0, first, index=[(9, len(first[0]))], times=[(1000, 4), (1005, 9)])
    partition.segment(10, [batch(10), batch(14, 2, epoch=3)])  # a gap upward is legal

    report = partition.verify()

    assert report.problems == [] and not report.is_damaged
    assert (report.segments, report.batches, report.records) == (2, 4, 13)
    assert (report.first_offset, report.next_offset) == (0, 16)
    assert report.topic_id == TOPIC_ID


def test_a_flipped_bit_is_one_corruption_and_the_rest_is_still_read(partition):
    batches = [batch(0, 5), batch(5, 5), batch(10, 5)]
    file = partition.segment(0, batches, index=[(9, len(batches[0]))])
    flip(file, len(batches[0]) + 70)

    report = partition.verify()

    assert [(one.kind, one.position) for one in report.problems] == [(Kind.CORRUPTION, len(batches[0]))]
    assert report.is_damaged
    assert (report.batches, report.next_offset) == (2, 15)


@pytest.mark.parametrize("field", [8, 11, 16], ids=["length", "length's end", "magic"])
def test_a_broken_header_is_passed_over_to_the_next_batch(partition, field):
    batches = [batch(0, 5), batch(5, 5), batch(10, 5)]
    file = partition.segment(0, batches)
    flip(file, len(batches[0]) + field)

    report = partition.verify()

    assert [(one.kind, one.position) for one in report.problems] == [(Kind.CORRUPTION, len(batches[0]))]
    assert report.batches == 2


@pytest.mark.parametrize("left", [1, 11, 60, 61, 90])
def test_a_cut_off_batch_at_the_end_of_the_newest_segment_is_a_torn_tail(partition, left):
    whole = batch(0, 5)
    partition.segment(0, [whole, batch(5, 20)[:left]])

    report = partition.verify()

    assert [(one.kind, one.position) for one in report.problems] == [(Kind.TORN_TAIL, len(whole))]
    assert not report.is_damaged


@pytest.mark.parametrize("tail", [bytes(5000), b"\x02" * 5000, batch(5, 5)[:-9] + bytes(9)])
def test_bytes_that_never_reached_the_disk_are_a_torn_tail(partition, tail):
    partition.segment(0, [batch(0, 5), tail])

    assert [kind for kind, _ in partition.problems()] == [Kind.TORN_TAIL]


def test_a_torn_tail_in_an_older_segment_is_corruption(partition):
    partition.segment(0, [batch(0, 5), batch(5, 5)[:70]])
    partition.segment(10, [batch(10)])

    assert [kind for kind, _ in partition.problems()] == [Kind.CORRUPTION]


def test_a_torn_tail_below_what_was_durable_is_corruption(partition):
    partition.segment(0, [batch(0, 5), batch(5, 5)[:70]])
    mark = partition.root / "recovery-point-offset-checkpoint"

    mark.write_text("0\n1\norders 0 5\n")
    above = partition.problems()
    mark.write_text("0\n1\norders 0 10\n")
    below = partition.problems()

    assert [kind for kind, _ in above] == [Kind.TORN_TAIL]
    assert [kind for kind, _ in below] == [Kind.CORRUPTION]


def test_overlapping_offsets_are_corruption(partition):
    partition.segment(0, [batch(0, 5), batch(3, 5)])

    assert partition.problems() == [(Kind.CORRUPTION, len(batch(0, 5)))]


def test_a_segment_that_begins_inside_of_the_one_before_is_corruption(partition):
    partition.segment(0, [batch(0, 20)])
    partition.segment(10, [batch(10, 20)])

    assert {kind for kind, _ in partition.problems()} == {Kind.CORRUPTION}


def test_a_batch_below_its_segments_name_is_corruption(partition):
    partition.segment(100, [batch(50)])

    assert partition.problems() == [(Kind.CORRUPTION, 0)]


def test_an_epoch_that_falls_is_corruption(partition):
    partition.segment(0, [batch(0, epoch=5), batch(1, epoch=4)])

    assert [kind for kind, _ in partition.problems()] == [Kind.CORRUPTION]


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ([(9, 0)], "not in the batch"),
        ([(9, 7)], "not where a batch begins"),
        ([(9, 10_000_000)], "behind the last batch"),
        ([(4, 0), (3, 200)], "rise"),
    ],
)
def test_an_index_must_point_at_the_batches_it_means(partition, index, expected):
    partition.segment(0, [batch(0, 5), batch(5, 5)], index=index)

    problems = partition.verify().problems

    assert problems and all(problem.kind is Kind.INDEX for problem in problems)
    assert any(expected in problem.message for problem in problems)


def test_an_index_into_a_damaged_batch_is_not_a_second_problem(partition):
    batches = [batch(0, 5), batch(5, 5), batch(10, 5)]
    file = partition.segment(0, batches, index=[(9, len(batches[0]))])
    flip(file, len(batches[0]) + 65)

    assert [kind for kind, _ in partition.problems()] == [Kind.CORRUPTION]


@pytest.mark.parametrize(
    ("times", "expected"), [([(1005, 5), (1000, 9)], "rise"), ([(1000, 50)], "behind the last batch")]
)
def test_a_time_index_must_rise_within_its_segment(partition, times, expected):
    partition.segment(0, [batch(0, 5), batch(5, 5)], times=times)

    (problem,) = partition.verify().problems

    assert problem.kind is Kind.INDEX and expected in problem.message


def test_missing_indexes_are_no_damage(partition):
    file = partition.segment(0, [batch(0, 5)])
    file.with_suffix(".index").unlink()
    file.with_suffix(".timeindex").unlink()

    assert partition.problems() == []


@pytest.mark.parametrize("text", ["", "0\n2\n0 0\n", "0\n2\n1 0\n0 5\n", "0\n1\n0 99\n", "x\ny\n"])
def test_a_damaged_epoch_checkpoint_is_found(partition, text):
    partition.segment(0, [batch(0, 5)])
    (partition.path / "leader-epoch-checkpoint").write_text(text)

    assert [kind for kind, _ in partition.problems()] == [Kind.CHECKPOINT]


def test_a_snapshot_must_fit_its_checksum(partition):
    partition.segment(0, [batch(0, 5)])
    body = struct.pack(">i", 0)
    file = partition.path / "00000000000000000005.snapshot"

    file.write_bytes(struct.pack(">hI", 1, crc32c(body)) + body)
    good = partition.problems()
    file.write_bytes(struct.pack(">hI", 1, 7) + body)
    bad = partition.problems()

    assert good == []
    assert [kind for kind, _ in bad] == [Kind.CHECKPOINT]


def test_a_batch_larger_than_memory_should_be_is_read_in_chunks(partition, monkeypatch):
    monkeypatch.setattr(segments, "CHUNK_BYTES", 256)
    batches = [batch(0, 5, value=b"x" * 10_000), batch(5), batch(6, 3, value=b"y" * 3000)]
    file = partition.segment(0, batches)
    whole = partition.problems()
    flip(file, len(batches[0]) + 20)

    assert whole == []
    assert partition.problems() == [(Kind.CORRUPTION, len(batches[0]))]


def test_partitions_are_found_by_name_and_sorted_by_number(tmp_path):
    for name in ("orders-10", "orders-2", "a-b-0", "orders-0.77-delete", "lost+found"):
        Partition(tmp_path, name)
    (tmp_path / "meta.properties").write_text("")

    found = [path.name for path in partition_directories(tmp_path)]

    assert found == ["a-b-0", "orders-2", "orders-10"]


def test_verify_says_what_is_damaged_and_fails(tidelog, partition):
    file = partition.segment(0, [batch(0, 5), batch(5, 5)])
    good = tidelog("log", "verify", partition.root)
    flip(file, 70)
    bad = tidelog("log", "verify", partition.root)
    as_json = tidelog("log", "verify", partition.path, "--json")

    assert good.code == 0 and " ok" in good.out
    assert bad.code == 1 and "DAMAGED" in bad.out
    assert "corruption: orders-0/00000000000000000000.log at 0" in bad.out
    document = json.loads(as_json.out)
    assert as_json.code == 1 and document["damaged"]
    assert document["partitions"][0]["problems"][0]["kind"] == "corruption"


def test_verify_reports_a_torn_tail_and_succeeds(tidelog, partition):
    partition.segment(0, [batch(0, 5), batch(5, 5)[:80]])

    result = tidelog("log", "verify", partition.root)

    assert result.code == 0 and "torn tail" in result.out


def test_dump_prints_a_line_per_batch_and_with_deep_per_record(tidelog, partition):
    file = partition.segment(
        0, [batch(0, 2, producer_id=9, producer_epoch=1, base_sequence=4), batch(2), batch(3)]
    )
    flip(file, len(file.read_bytes()) - 3)

    shallow = tidelog("log", "dump", partition.root, "--partition", "orders-0")
    deep = tidelog("log", "dump", partition.path, "--deep")

    assert shallow.code == deep.code == 0
    assert "offsets 0-1 position 0" in shallow.out and "producer 9/1 sequence 4-5" in shallow.out
    assert shallow.out.count("crc ok") == 2 and shallow.out.count("crc WRONG") == 1
    assert deep.out.count("key b'k' value b'value'") == 3


def test_dump_is_one_json_document(tidelog, partition):
    partition.segment(0, [batch(0, 2), b"garbage"])
    Partition(partition.root, "orders-1").segment(0, [batch(0)])

    document = json.loads(tidelog("log", "dump", partition.root, "--json", "--deep").out)

    first, second = document["partitions"]
    assert (first["partition"], first["topic_id"]) == ("orders-0", TOPIC_ID)
    good, bad = first["segments"][0]["batches"]
    assert good["crc_ok"] and [one["value"] for one in good["records"]] == ["value", "value"]
    assert not bad["crc_ok"] and bad["position"] == good["size"]
    assert second["segments"][0]["batches"][0]["last_offset"] == 0


@pytest.mark.parametrize("command", ["dump", "verify"])
def test_a_wrong_directory_or_partition_is_one_line(tidelog, partition, command):
    partition.segment(0, [batch(0)])

    missing = tidelog("log", command, "/nowhere")
    unknown = tidelog("log", command, partition.root, "--partition", "orders-7")

    assert missing.code == unknown.code == 1
    assert missing.err.count("\n") == unknown.err.count("\n") == 1
    assert "tidelog start --data" in missing.err and "orders-7" in unknown.err
