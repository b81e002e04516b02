import random
import threading
from pathlib import Path as SystemPath
from uuid import UUID

import pytest
from crc32c import crc32c

from tidelog.host import Path, SystemDisk, read_file, system_host
from tidelog.log.checkpoints import COPY_SUFFIX
from tidelog.log.cut_notes import CUT_TAILS
from tidelog.log.directory import (
    CLEAN_MARKER,
    DURABLE_MARKS,
    FIRST_DIRTY,
    LOG_STARTS,
    META,
    PARTITION_METADATA,
    PROMISED_STARTS,
    PURGED,
    WATERMARKS,
    DataDirectory,
    DirectoryRefused,
    decode_id,
    encode_id,
)
from tidelog.model import TopicPartition
from tidelog.simulation.disk import SimulatedCrash, SimulatedDisk
from tidelog.simulation.host import simulated_host

ROOT = Path("/srv/data")
TIDE = TopicPartition("tide", 0)
EBB = TopicPartition("ebb", 12)
ONE, OTHER = UUID(int=1 << 80), UUID(int=2 << 80)


def new_disk(seed: int = 0) -> SimulatedDisk:
    return SimulatedDisk(random.Random(seed))


def directory(disk: SimulatedDisk, seed: int = 0) -> DataDirectory:
    return DataDirectory(simulated_host(seed, disk), ROOT)


def opened(disk: SimulatedDisk) -> DataDirectory:
    found = directory(disk)
    found.open(1)
    return found


def put(disk: SimulatedDisk, path: Path, content: bytes = b"") -> None:
    disk.make_directory(path.parent)
    file = disk.open(path, create=True)
    file.truncate(0)
    file.write(0, [content])


# Whose it is.


def test_ids_are_written_as_kafka_writes_them():
    value = UUID("12345678-9abc-def0-1234-56789abcdef0")

    assert encode_id(value) == "EjRWeJq83vASNFZ4mrze8A"
    assert decode_id("EjRWeJq83vASNFZ4mrze8A") == value


def test_a_new_directory_gets_its_identity_once():
    disk = new_disk()

    identity = directory(disk).open(1)
    disk.kill()

    assert identity.node_id == 1
    assert directory(disk, seed=99).open(1) == identity
    lines = read_file(disk, ROOT / META).decode().splitlines()
    assert lines == [
        "version=1",
        f"cluster.id={identity.cluster_id}",
        "node.id=1",
        f"directory.id={encode_id(identity.directory_id)}",
    ]


def test_the_identity_and_the_directory_itself_survive_power_loss():
    for seed in range(50):
        disk = new_disk(seed)
        identity = directory(disk).open(1)

        disk.crash()

        assert directory(disk, seed=99).open(1) == identity


def test_another_nodes_directory_is_refused_with_what_to_do():
    disk = new_disk()
    directory(disk).open(1)
    disk.kill()

    with pytest.raises(DirectoryRefused, match=r"belongs to node 1.*--node-id 1.*another --data"):
        directory(disk).open(2)


@pytest.mark.parametrize(
    "content", [b"", b"version=1\n", b"version=1\ncluster.id=x\nnode.id=one\ndirectory.id=AA\n"]
)
def test_a_damaged_identity_is_refused_and_not_replaced(content):
    disk = new_disk()
    put(disk, ROOT / META, content)

    with pytest.raises(DirectoryRefused, match=r"meta\.properties is damaged"):
        directory(disk).open(1)
    assert read_file(disk, ROOT / META) == content


def test_only_one_process_uses_a_directory():
    disk = new_disk()
    first = directory(disk)
    first.open(1)

    with pytest.raises(DirectoryRefused, match="in use by another node"):
        directory(disk).open(1)

    first.close(clean=False)
    directory(disk).open(1)


# How it was left.


def test_only_a_clean_stop_leaves_the_marker():
    disk = new_disk()
    assert not opened(disk).was_clean
    disk.kill()
    assert not opened(disk).was_clean
    disk.kill()
    last = opened(disk)
    last.close(clean=True)

    assert disk.exists(ROOT / CLEAN_MARKER)
    assert opened(disk).was_clean


def test_the_marker_is_gone_for_good_once_the_directory_is_open():
    for seed in range(50):
        disk = new_disk(seed)
        opened(disk).close(clean=True)
        assert opened(disk).was_clean

        disk.crash()

        assert not opened(disk).was_clean


@pytest.mark.parametrize("failing", range(1, 4))
def test_the_marker_is_gone_for_good_though_the_sync_of_its_removal_failed(failing):
    for seed in range(20):
        disk = new_disk(seed)
        opened(disk).close(clean=True)
        disk.fail_syncs(times=failing)
        for _ in range(failing):
            with pytest.raises(OSError):
                opened(disk)
            disk.kill()
        opened(disk)

        disk.crash()

        assert not opened(disk).was_clean


def test_a_full_disk_keeps_no_directory_from_being_opened():
    disk = new_disk()
    opened(disk).close(clean=False)
    disk.capacity_bytes = 0

    assert not opened(disk).was_clean
    assert not disk.exists(ROOT / CLEAN_MARKER)


# Checkpoints.


@pytest.mark.parametrize("name", [DURABLE_MARKS, LOG_STARTS, WATERMARKS])
def test_a_checkpoint_ends_with_its_checksum_and_is_read_at_the_next_start(name):
    disk = new_disk()
    found = opened(disk)

    found.write_checkpoint(name, {TIDE: 5, EBB: 2**40})
    disk.kill()

    content = b"1\n2\ntide 0 5\nebb 12 1099511627776\n"
    assert read_file(disk, ROOT / name) == content + b"crc32c %08x\n" % crc32c(content)
    again = opened(disk)
    read = {DURABLE_MARKS: again.durable_marks, LOG_STARTS: again.log_starts, WATERMARKS: again.watermarks}
    assert read.pop(name) == {TIDE: 5, EBB: 2**40}
    assert all(offsets == {} for offsets in read.values())


def test_a_cut_is_remembered_over_starts_until_it_is_forgotten():
    disk = new_disk()
    opened(disk).note_cut(TIDE, 5, 70)
    disk.crash()
    opened(disk).note_cut(EBB, 7, 80)
    disk.crash()

    found = opened(disk)
    assert found.cuts.places == {TIDE: 5, EBB: 7}
    assert found.cuts.sizes == {TIDE: 70, EBB: 80}
    found.forget_cuts([TIDE])
    disk.crash()

    again = opened(disk)
    assert (again.cuts.places, again.cuts.sizes) == ({EBB: 7}, {EBB: 80})


def test_what_a_log_lost_before_an_earlier_cut_was_made_good_adds_up():
    disk = new_disk()
    opened(disk).note_cut(TIDE, 7, 70)
    disk.crash()
    opened(disk).note_cut(TIDE, 5, 80)
    disk.crash()

    again = opened(disk)

    assert (again.cuts.places, again.cuts.sizes) == ({TIDE: 7}, {TIDE: 150})


def test_of_a_cut_that_an_earlier_release_has_noted_nobody_knows_the_size():
    disk = new_disk()
    opened(disk).write_checkpoint(CUT_TAILS, {TIDE: 5})
    disk.crash()
    opened(disk).note_cut(TIDE, 6, 80)
    disk.crash()

    again = opened(disk)

    assert (again.cuts.places, again.cuts.sizes) == ({TIDE: 6}, {})


def test_a_cut_that_a_full_disk_does_not_note_is_noted_later():
    disk = new_disk()
    found = opened(disk)
    disk.capacity_bytes = disk.used_bytes
    found.note_cut(TIDE, 5, 70)
    assert found.cuts.places == {TIDE: 5}

    disk.capacity_bytes = None
    found.forget_cuts([EBB])
    disk.crash()

    assert opened(disk).cuts.places == {TIDE: 5}


@pytest.mark.parametrize(
    ("noted", "most", "least", "mark"),
    [(None, 9, 0, None), (None, 9, 7, 7), (5, 9, 7, 7), (8, 9, 7, 8), (12, 9, 7, 9), (12, 9, 0, 9)],
)
def test_a_mark_is_between_what_is_synced_and_what_will_be_cut(noted, most, least, mark):
    disk = new_disk()
    found = opened(disk)
    if noted is not None:
        found.lower_mark(TIDE, noted, noted)
    found.lower_mark(EBB, 3, 3)

    found.lower_mark(TIDE, most, least)
    disk.crash()

    assert opened(disk).durable_marks == {EBB: 3} | ({} if mark is None else {TIDE: mark})


def test_a_crash_leaves_the_old_checkpoint_or_the_new_one():
    for seed in range(60):
        disk = new_disk(seed)
        found = opened(disk)
        found.write_checkpoint(DURABLE_MARKS, {TIDE: 5})
        disk.crash_after(1 + seed % 6)
        try:
            found.write_checkpoint(DURABLE_MARKS, {TIDE: 7, EBB: 9})
        except SimulatedCrash:
            pass
        disk.crash()

        assert opened(disk).durable_marks in ({TIDE: 5}, {TIDE: 7, EBB: 9})


@pytest.mark.parametrize("content", [b"", b"1\n0\n", b"0\n1\ntide x 5\n", b"0\n1\nnonsense\n", b"\xff"])
def test_an_unusable_checkpoint_is_ignored(content, caplog):
    disk = new_disk()
    put(disk, ROOT / DURABLE_MARKS, content)

    assert opened(disk).durable_marks == {}
    assert "damaged" in caplog.text


def test_a_checkpoint_of_an_earlier_release_is_read():
    disk = new_disk()
    put(disk, ROOT / DURABLE_MARKS, b"0\n1\ntide 0 5\n")

    assert opened(disk).durable_marks == {TIDE: 5}


@pytest.mark.parametrize("name", [LOG_STARTS, PROMISED_STARTS, PURGED, CUT_TAILS])
@pytest.mark.parametrize("suffix", ["", COPY_SUFFIX])
def test_no_flipped_bit_of_what_only_a_checkpoint_tells_is_believed_or_loses_it(name, suffix):
    disk = new_disk()
    opened(disk).write_checkpoint(name, {TIDE: 5, EBB: 12})
    disk.kill()
    path = ROOT / (name + suffix)
    whole = read_file(disk, path)

    for bit in range(0, 8 * len(whole), 3):
        disk.flip_bit(path, bit // 8, bit % 8)
        found = opened(disk)
        assert found.read_checkpoint(name) == {TIDE: 5, EBB: 12}
        assert read_file(disk, path) == whole, "it was written again"
        disk.kill()


def test_no_flipped_bit_of_any_other_checkpoint_is_believed():
    disk = new_disk()
    opened(disk).write_checkpoint(DURABLE_MARKS, {TIDE: 5, EBB: 12})
    disk.kill()

    for bit in range(8 * len(read_file(disk, ROOT / DURABLE_MARKS))):
        disk.flip_bit(ROOT / DURABLE_MARKS, bit // 8, bit % 8)
        assert opened(disk).durable_marks == {}
        disk.kill()
        disk.flip_bit(ROOT / DURABLE_MARKS, bit // 8, bit % 8)


def test_checkpoints_written_at_once_by_several_threads_stay_whole(tmp_path: SystemPath):
    found = DataDirectory(system_host(), Path(tmp_path))
    found.open(1)
    values = [{TopicPartition("tide", n): worker for n in range(50)} for worker in range(4)]
    errors: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            for _ in range(20):
                found.write_checkpoint(DURABLE_MARKS, values[worker])
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    found.close(clean=False)
    again = DataDirectory(system_host(), Path(tmp_path))
    again.open(1)
    assert again.durable_marks in values


# Partitions.


def test_a_partitions_directory_says_whose_it_is():
    disk = new_disk()
    found = opened(disk)

    found.make_partitions([TIDE], ONE)

    content = read_file(disk, ROOT / "tide-0" / PARTITION_METADATA)
    assert content == f"version: 0\ntopic_id: {encode_id(ONE)}\n".encode()
    assert found.topic_id_of(TIDE) == ONE
    assert found.topic_id_of(EBB) is None


@pytest.mark.parametrize("count", [1, 3, 20])
def test_new_partitions_survive_power_loss(count):
    for seed in range(20):
        disk = new_disk(seed)
        names = [TopicPartition("tide", number) for number in range(count)]
        opened(disk).make_partitions(names, ONE)

        disk.crash()

        found = opened(disk)
        assert [found.topic_id_of(name) for name in names] == [ONE] * count


def test_many_partitions_cost_one_sync():
    disk = new_disk()
    found = opened(disk)
    disk.counts.clear()

    found.make_partitions([TopicPartition("tide", number) for number in range(100)], ONE)

    syncs = ("datasync", "sync_directory", "sync_everything")
    assert sum(disk.counts[kind] for kind in syncs) == 1


@pytest.mark.parametrize("count", [3, 100])
def test_only_partitions_of_which_nothing_was_there_count_as_fresh(count):
    disk = new_disk()
    found = opened(disk)
    names = [TopicPartition("tide", number) for number in range(count)]
    found.claim(names[0], ONE)
    found.claim(names[1], OTHER)
    disk.make_directory(found.path(names[2]))
    put(disk, found.path(names[2]) / "00000000000000000007.log", b"left behind")

    assert found.make_partitions(names, ONE) == {*names[3:]}
    assert found.make_partitions(names, ONE) == set()


def test_many_new_partitions_are_looked_for_with_one_look():
    disk = new_disk()
    found = opened(disk)
    disk.counts.clear()

    found.make_partitions([TopicPartition("tide", number) for number in range(100)], ONE)

    assert disk.counts["open"] <= 102
    assert disk.counts["list"] + disk.counts["exists"] <= 2


def test_a_partition_that_is_there_is_left_as_it_is():
    disk = new_disk()
    found = opened(disk)
    found.claim(TIDE, ONE)
    put(disk, ROOT / "tide-0" / "00000000000000000000.log", b"records")
    disk.counts.clear()

    found.claim(TIDE, ONE)
    found.make_partitions([TIDE], ONE)

    assert read_file(disk, ROOT / "tide-0" / "00000000000000000000.log") == b"records"
    assert disk.counts["write"] == disk.counts["rename"] == 0


def test_a_partition_whose_making_was_torn_is_made_again():
    for seed in range(60):
        disk = new_disk(seed)
        found = opened(disk)
        disk.crash_after(1 + seed % 6)
        try:
            found.claim(TIDE, ONE)
        except SimulatedCrash:
            pass
        disk.crash()

        again = opened(disk)
        again.claim(TIDE, ONE)

        assert again.topic_id_of(TIDE) == ONE


def test_a_partition_whose_maker_was_killed_is_durable_once_it_is_claimed():
    for seed in range(60):
        disk = new_disk(seed)
        found = opened(disk)
        disk.crash_after(1 + seed % 6)
        try:
            found.claim(TIDE, ONE)
        except SimulatedCrash:
            pass
        disk.kill()  # what it wrote is there to be seen, and on no device

        opened(disk).claim(TIDE, ONE)
        disk.crash()

        assert opened(disk).topic_id_of(TIDE) == ONE


@pytest.mark.parametrize("make", ["claim", "make_partitions"])
def test_another_topics_directory_is_set_aside_and_never_served(make):
    disk = new_disk()
    found = opened(disk)
    found.claim(TIDE, ONE)
    put(disk, ROOT / "tide-0" / "00000000000000000000.log", b"records of another topic")

    if make == "claim":
        found.claim(TIDE, OTHER)
    else:
        found.make_partitions([TIDE], OTHER)

    assert found.topic_id_of(TIDE) == OTHER
    assert disk.list(ROOT / "tide-0") == [PARTITION_METADATA]
    (stray,) = [name for name in disk.list(ROOT) if name.endswith("-stray")]
    assert ONE.hex in stray
    kept = read_file(disk, ROOT / stray / "00000000000000000000.log")
    assert kept == b"records of another topic"


def test_a_new_partition_inherits_nothing_from_an_older_one_of_its_name():
    for seed in range(20):
        disk = new_disk(seed)
        found = opened(disk)
        found.durable_marks = {TIDE: 64, EBB: 7}
        found.log_starts, found.watermarks = {TIDE: 20}, {TIDE: 64, EBB: 7}
        for name, offsets in (
            (DURABLE_MARKS, found.durable_marks),
            (LOG_STARTS, found.log_starts),
            (WATERMARKS, found.watermarks),
            (FIRST_DIRTY, {TIDE: 50, EBB: 6}),
        ):
            found.write_checkpoint(name, offsets)

        found.make_partitions([TIDE], ONE)
        assert found.durable_marks == {EBB: 7}
        assert found.log_starts == {}

        disk.crash()
        again = opened(disk)
        assert (again.durable_marks, again.watermarks) == ({EBB: 7}, {EBB: 7})
        assert again.log_starts == {}
        assert again.read_checkpoint(FIRST_DIRTY) == {EBB: 6}


def test_a_partition_that_lost_only_its_metadata_keeps_its_marks():
    disk = new_disk()
    found = opened(disk)
    found.claim(TIDE, ONE)
    put(disk, ROOT / "tide-0" / "00000000000000000000.log", b"records")
    found.durable_marks = {TIDE: 64}
    disk.flip_bit(ROOT / "tide-0" / PARTITION_METADATA, 0, 0)
    put(disk, ROOT / "tide-0" / PARTITION_METADATA, b"rotten")

    found.claim(TIDE, ONE)

    assert found.topic_id_of(TIDE) == ONE
    assert found.durable_marks == {TIDE: 64}


def test_a_deleted_partition_is_out_of_sight_at_once_and_gone_after_a_restart():
    disk = new_disk()
    found = opened(disk)
    found.claim(TIDE, ONE)
    put(disk, ROOT / "tide-0" / "00000000000000000000.log", b"records")

    aside = found.set_aside_for_deletion(TIDE)

    assert aside is not None
    assert aside.name.startswith("tide-0.") and aside.name.endswith("-delete")
    assert not disk.exists(ROOT / "tide-0")
    assert found.set_aside_for_deletion(TIDE) is None
    disk.kill()
    opened(disk)
    assert not disk.exists(aside)


def test_the_longest_name_can_be_deleted_and_set_aside(tmp_path: SystemPath):
    found = DataDirectory(system_host(), Path(tmp_path))
    found.open(1)
    longest = TopicPartition("t" * 249, 99_999)
    for _ in range(2):
        found.claim(longest, ONE)
        found.claim(longest, OTHER)
        aside = found.set_aside_for_deletion(longest)
        assert aside is not None
        assert SystemDisk().is_directory(aside)
        for name in SystemDisk().list(Path(tmp_path)):
            if name.endswith("-stray"):
                SystemDisk().remove_tree(Path(tmp_path) / name)


def test_half_replaced_files_are_removed_at_a_start():
    disk = new_disk()
    opened(disk)
    put(disk, ROOT / (DURABLE_MARKS + ".tmp"), b"half")
    disk.kill()

    opened(disk)

    assert not disk.exists(ROOT / (DURABLE_MARKS + ".tmp"))


def test_unknown_partitions_are_reported_and_kept():
    disk = new_disk()
    found = opened(disk)
    for name in ("tide-0", "tide-1", "a-b-7"):
        disk.make_directory(ROOT / name)
    for name in ("notes", "x-y", "tide-2.abc-delete", "tide-3.abc-stray"):
        disk.make_directory(ROOT / name)
    put(disk, ROOT / "file-9")

    assert found.strangers([TIDE]) == ["a-b-7", "tide-1"]


def test_a_half_made_directory_is_removed_and_one_with_other_files_is_not():
    disk = new_disk()
    found = opened(disk)
    bare, named, filled = (TopicPartition("tide", number) for number in range(3))
    disk.make_directory(found.path(bare))
    found.make_partitions([named, filled], ONE)
    put(disk, found.path(filled) / "00000000000000000000.log")  # records that are not synced yet

    kept = found.remove_half_made([bare, named, filled, EBB])

    assert kept == [filled]
    assert [name for name in disk.list(ROOT) if name.startswith("tide")] == [str(filled)]
    assert len(disk.list(found.path(filled))) == 2


def test_no_directory_is_removed_while_one_of_them_cannot_be_listed():
    disk = new_disk()
    found = opened(disk)
    found.make_partitions([TIDE, EBB], ONE)
    put(disk, found.path(EBB) / "00000000000000000000.log", b"records")
    disk.fail_looks(times=1)

    with pytest.raises(OSError, match="Input/output error"):
        found.remove_half_made([EBB, TIDE])

    assert read_file(disk, found.path(EBB) / "00000000000000000000.log") == b"records"
    assert disk.exists(found.path(TIDE))


def test_leftovers_are_the_directories_of_topics_that_are_not_expected_there():
    disk = new_disk()
    found = opened(disk)
    found.claim(TIDE, ONE)
    found.claim(EBB, ONE)
    found.claim(TopicPartition("tide", 1), OTHER)
    disk.make_directory(ROOT / "tide-2")  # it does not say whose it is
    put(disk, ROOT / "file-9")

    left = found.leftovers({TIDE: ONE, EBB: OTHER})

    assert left == {EBB: ONE, TopicPartition("tide", 1): OTHER}


def test_removed_partitions_do_not_come_back():
    for seed in range(20):
        disk = new_disk(seed)
        found = opened(disk)
        for partition in (TIDE, EBB):
            found.claim(partition, ONE)
            put(disk, found.path(partition) / "00000000000000000000.log", b"records")

        found.remove([TIDE, TopicPartition("never", 3)])
        disk.crash()

        opened(disk)
        names = [name for name in disk.list(ROOT) if disk.is_directory(ROOT / name)]
        assert names == ["ebb-12"]
