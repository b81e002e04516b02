"""What `SimulatedDisk` promises to the code above it, and what it refuses to promise."""

import errno
import random
from collections.abc import Callable
from functools import partial
from itertools import count, pairwise
from typing import Any

import pytest

from tidelog.host import Disk, File, Path, SystemDisk, read_file, replace_file
from tidelog.simulation.disk import SimulatedCrash, SimulatedDisk

SEEDS = range(200)
DATA = Path("/data")
LOG = DATA / "log"
PATTERN = bytes(position % 251 + 1 for position in range(4000))  # bytes that tell their place


def new_disk(seed: int = 0, **options: Any) -> SimulatedDisk:
    disk = SimulatedDisk(random.Random(seed), **options)
    disk.make_directory(DATA)
    disk.sync_everything(DATA)
    return disk


def put(disk: Disk, path: Path, content: bytes, *, synced: bool = True) -> File:
    """A file with `content`; synced: the bytes and all names."""
    file = disk.open(path, create=True)
    file.write(0, [content])
    if synced:
        file.datasync()
        disk.sync_everything(path.parent)
    return file


def content_of(disk: Disk, path: Path) -> bytes | None:
    return read_file(disk, path) if disk.exists(path) else None


def after_crash(path: Path, arrange: Callable[[SimulatedDisk], object]) -> list[bytes | None]:
    """What `path` holds after a crash, for every seed."""
    outcomes = []
    for seed in SEEDS:
        disk = new_disk(seed)
        arrange(disk)
        disk.crash()
        outcomes.append(content_of(disk, path))
    return outcomes


def is_pattern_or_zeros(content: bytes) -> bool:
    return all(byte in (0, PATTERN[position]) for position, byte in enumerate(content))


def tree(disk: Disk, path: Path) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    for name in disk.list(path):
        child = path / name
        if disk.is_directory(child):
            found[str(child)] = None
            found |= tree(disk, child)
        else:
            found[str(child)] = read_file(disk, child)
    return found


# Bytes.


def test_synced_bytes_survive_every_crash():
    content = random.Random(1).randbytes(3000)

    def arrange(disk):
        file = put(disk, LOG, content)
        file.write(1000, [b"un"])
        file.write(1003, [b"synced"])  # spares the byte at 1002
        file.write(3000, [b"unsynced" * 300])  # shares a sector with the synced tail

    for outcome in after_crash(LOG, arrange):
        assert outcome is not None
        assert outcome[:1000] == content[:1000]
        assert outcome[1002] == content[1002]
        assert outcome[1009:3000] == content[1009:]


def test_each_incarnation_keeps_what_all_before_it_synced():
    for seed in SEEDS:
        disk = new_disk(seed)
        content = b""
        for incarnation in b"abcd":
            file = disk.open(LOG, create=True)
            assert file.read(0, len(content)) == content
            file.truncate(len(content))  # drops what the crash left of the unsynced tail
            file.write(len(content), [bytes([incarnation]) * 700])
            disk.write_back()
            file.datasync()
            disk.sync_directory(DATA)
            content += bytes([incarnation]) * 700
            file.write(len(content), [b"unsynced" * 100])
            disk.write_back()
            disk.crash()
        assert read_file(disk, LOG)[: len(content)] == content


def test_unsynced_sectors_stay_old_become_new_or_tear():
    def arrange(disk):
        put(disk, LOG, b"o" * 2048).write(0, [b"n" * 2048])

    outcomes = after_crash(LOG, arrange)

    sectors = [bytes(o[at : at + 512]) for o in outcomes if o for at in range(0, 2048, 512)]
    assert len(sectors) == 4 * len(SEEDS)
    assert b"o" * 512 in sectors and b"n" * 512 in sectors
    assert any(b"n" in sector and b"o" in sector for sector in sectors)
    assert all(sector.lstrip(b"n").strip(b"o") == b"" for sector in sectors), "never blanked"
    assert b"o" * 2048 in outcomes and b"n" * 2048 in outcomes
    assert any(o and o[:512] == b"o" * 512 and o[512:1024] == b"n" * 512 for o in outcomes)


def test_an_unsynced_append_leaves_any_size_and_holes_of_zeros():
    def arrange(disk):
        put(disk, LOG, PATTERN[:100]).write(100, [PATTERN[100:2100]])

    outcomes = after_crash(LOG, arrange)

    sizes = {len(o or b"") for o in outcomes}
    assert min(sizes) == 100 and max(sizes) == 2100 and len(sizes) > 10
    assert PATTERN[:100] in outcomes and PATTERN[:2100] in outcomes
    assert any(o and bytes(512) in o and o[-1] for o in outcomes), "order is not kept"
    for outcome in outcomes:
        assert outcome is not None
        assert outcome.startswith(PATTERN[:100])
        assert is_pattern_or_zeros(outcome)


def test_an_unsynced_truncation_may_come_back_but_never_touches_what_is_below_it():
    def arrange(disk):
        put(disk, LOG, PATTERN[:1400]).truncate(700)

    outcomes = after_crash(LOG, arrange)

    assert PATTERN[:700] in outcomes and PATTERN[:1400] in outcomes
    for outcome in outcomes:
        assert outcome is not None
        assert outcome.startswith(PATTERN[:700])
        assert is_pattern_or_zeros(outcome)


def test_a_file_cut_and_rewritten_without_a_sync_may_be_left_empty():
    def arrange(disk):
        file = put(disk, LOG, b"old" * 100)
        file.truncate(0)
        file.write(0, [b"new" * 100])

    outcomes = after_crash(LOG, arrange)

    assert {b"", b"old" * 100, b"new" * 100} <= set(outcomes)


def test_a_synced_truncation_is_final():
    def arrange(disk):
        file = put(disk, LOG, b"k" * 700 + b"t" * 700)
        file.truncate(700)
        file.datasync()
        file.truncate(1000)

    for outcome in after_crash(LOG, arrange):
        assert outcome is not None
        assert outcome == b"k" * 700 + bytes(len(outcome) - 700)


def test_the_kernel_may_write_back_what_is_overwritten_later():
    def arrange(disk):
        file = put(disk, LOG, b"1" * 512)
        file.write(0, [b"2" * 512])
        disk.write_back()
        file.write(0, [b"3" * 512])

    assert {b"1" * 512, b"2" * 512, b"3" * 512} <= set(after_crash(LOG, arrange))


def test_a_write_back_promises_nothing_and_changes_nothing_for_readers():
    for seed in SEEDS:
        disk = new_disk(seed)
        put(disk, LOG, b"o" * 2000).write(1000, [b"n" * 2000])
        put(disk, DATA / "other", b"x", synced=False)
        before = tree(disk, DATA)

        disk.write_back()

        assert tree(disk, DATA) == before
        disk.sync_everything(DATA)
        disk.crash()
        assert tree(disk, DATA) == before


def test_nothing_is_unsynced_after_a_crash():
    for seed in SEEDS:
        disk = new_disk(seed)
        put(disk, LOG, b"o" * 2000).write(0, [b"n" * 4000])
        put(disk, DATA / "other", b"x", synced=False)
        disk.crash()
        survived = read_file(disk, LOG)
        names = disk.list(DATA)

        disk.open(LOG).write(len(survived), [b"more"])
        disk.crash()

        assert read_file(disk, LOG)[: len(survived)] == survived
        assert disk.list(DATA) == names


def test_scattered_writes_without_a_sync_all_become_durable_at_the_next_one():
    disk = new_disk()
    file = put(disk, LOG, bytes(40_000))
    file.write(0, [b"y" * 20_000])
    for position in range(39_990, -10, -10):  # more ranges than are kept unmerged
        file.write(position, [b"x"])

    file.datasync()
    disk.crash()

    assert read_file(disk, LOG) == (b"x" + b"y" * 9) * 2000 + (b"x" + bytes(9)) * 2000


# Names.


def test_a_created_file_may_vanish_until_its_directory_is_synced():
    def create(disk):
        put(disk, LOG, b"content", synced=False).datasync()

    def create_and_sync(disk):
        create(disk)
        disk.sync_directory(DATA)

    assert set(after_crash(LOG, create)) == {None, b"content"}
    assert set(after_crash(LOG, create_and_sync)) == {b"content"}


def test_syncing_a_new_directory_does_not_make_its_own_name_durable():
    inside = DATA / "new" / "file"

    def arrange(disk):
        disk.make_directory(DATA / "new")
        put(disk, inside, b"content", synced=False).datasync()
        disk.sync_directory(DATA / "new")

    def arrange_well(disk):
        arrange(disk)
        disk.sync_directory(DATA)

    assert set(after_crash(inside, arrange)) == {None, b"content"}
    assert set(after_crash(inside, arrange_well)) == {b"content"}


def test_a_removed_file_may_come_back_until_its_directory_is_synced():
    def remove(disk):
        put(disk, LOG, b"content")
        disk.remove(LOG)

    def remove_and_sync(disk):
        remove(disk)
        disk.sync_directory(DATA)

    assert set(after_crash(LOG, remove)) == {None, b"content"}
    assert set(after_crash(LOG, remove_and_sync)) == {None}


@pytest.mark.parametrize("target", [DATA / "new", DATA / "there" / "log", DATA / "fresh" / "log"])
def test_a_rename_happens_whole_or_not_at_all(target):
    outcomes = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        disk.make_directory(DATA / "there")
        put(disk, LOG, b"content")
        disk.make_directory(DATA / "fresh")  # not durable: the file must not vanish with it

        disk.rename(LOG, target)
        disk.crash()

        outcomes.add((content_of(disk, LOG), content_of(disk, target)))
    assert outcomes == {(b"content", None), (None, b"content")}


@pytest.mark.parametrize("synced", [DATA, DATA / "there"])
def test_a_rename_is_durable_once_either_directory_is_synced(synced):
    for seed in SEEDS:
        disk = new_disk(seed)
        disk.make_directory(DATA / "there")
        put(disk, LOG, b"content")

        disk.rename(LOG, DATA / "there" / "log")
        disk.sync_directory(synced)
        disk.crash()

        assert content_of(disk, LOG) is None
        assert content_of(disk, DATA / "there" / "log") == b"content"


def test_a_rename_over_a_file_leaves_the_old_or_the_new_one():
    def arrange(disk):
        put(disk, LOG, b"old")
        put(disk, DATA / "aside", b"new")
        disk.rename(DATA / "aside", LOG)

    assert set(after_crash(LOG, arrange)) == {b"old", b"new"}


def test_renames_in_a_row_leave_exactly_one_name():
    names = [DATA / name for name in "abcd"]
    outcomes = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        put(disk, names[0], b"content")
        for source, target in pairwise(names):
            disk.rename(source, target)
        disk.crash()
        outcomes.add(tuple(disk.list(DATA)))
    assert outcomes == {("a",), ("b",), ("c",), ("d",)}


def test_a_file_moved_out_of_a_removed_directory_keeps_a_name():
    for seed in SEEDS:
        disk = new_disk(seed)
        put(disk, LOG, b"x")
        disk.make_directory(DATA / "old")
        put(disk, DATA / "old" / "file", b"content")

        disk.rename(DATA / "old" / "file", DATA / "file")
        disk.remove_tree(DATA / "old")
        disk.crash()

        assert b"content" in tree(disk, DATA).values()


def test_a_removed_tree_may_come_back_in_parts():
    outcomes = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        disk.make_directory(DATA / "tree")
        for name in "abc":
            put(disk, DATA / "tree" / name, b"content")
        disk.remove_tree(DATA / "tree")
        assert disk.list(DATA) == []
        disk.crash()
        outcomes.add((disk.exists(DATA / "tree"), len(disk.list(DATA / "tree"))))
    assert outcomes == {(False, 0), (True, 0), (True, 1), (True, 2), (True, 3)}


def test_replace_file_leaves_the_old_or_the_new_content_at_every_crash_point():
    old, new = b"o" * 1500, b"n" * 1700
    outcomes: dict[int, set[bytes]] = {}  # by the change that crashed
    for seed in SEEDS:
        for operations in count(1):
            disk = new_disk(seed)
            replace_file(disk, LOG, old)
            disk.crash_after(operations)
            try:
                replace_file(disk, LOG, new)
                finished = True
            except SimulatedCrash:
                finished = False
            disk.crash()
            outcomes.setdefault(operations, set()).add(read_file(disk, LOG))
            if finished:
                break

    # create, truncate, write, datasync, rename; sync_directory; no crash
    assert outcomes == {1: {old}, 2: {old}, 3: {old}, 4: {old}, 5: {old}, 6: {old, new}, 7: {new}}


# Deaths.


def test_a_kill_keeps_the_page_cache_and_a_later_crash_still_loses_it():
    outcomes = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        put(disk, LOG, b"old").write(0, [b"new"])
        put(disk, DATA / "other", b"x", synced=False)

        disk.kill()

        assert tree(disk, DATA) == {str(LOG): b"new", str(DATA / "other"): b"x"}
        disk.crash()
        outcomes.add(content_of(disk, LOG))
    assert {b"old", b"new"} <= outcomes


@pytest.mark.parametrize("death", [SimulatedDisk.crash, SimulatedDisk.kill])
def test_files_opened_before_a_death_are_dead(death):
    disk = new_disk()
    file = put(disk, LOG, b"content")

    death(disk)

    uses: list[Callable[[], object]] = [
        file.size,
        file.datasync,
        lambda: file.read(0, 1),
        lambda: file.read_cached(0, 1),
        lambda: file.write(0, [b"zombie"]),
        lambda: file.truncate(0),
    ]
    for use in uses:
        with pytest.raises(OSError) as error:
            use()
        assert error.value.errno == errno.EIO
    file.close()
    assert read_file(disk, LOG) == b"content"


@pytest.mark.parametrize("death", [SimulatedDisk.crash, SimulatedDisk.kill])
def test_a_lock_is_held_until_it_is_closed_or_its_process_dies(death):
    disk = new_disk()
    disk.lock(LOG).close()
    dead = disk.lock(LOG)
    disk.sync_directory(DATA)
    with pytest.raises(BlockingIOError):
        disk.lock(LOG)

    death(disk)

    disk.lock(LOG)
    dead.close()  # must not free the lock of the next incarnation
    with pytest.raises(BlockingIOError):
        disk.lock(LOG)


def test_crash_after_stops_a_write_half_way():
    sizes = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        file = put(disk, LOG, b"")
        disk.crash_after(2)
        file.write(0, [b"a" * 10])
        with pytest.raises(SimulatedCrash):
            file.write(10, [b"b" * 10])
        disk.kill()
        sizes.add(len(read_file(disk, LOG)))
    assert sizes == set(range(10, 21))


def test_a_death_disarms_the_crash_point():
    disk = new_disk()
    disk.crash_after(3)
    disk.kill()

    for _ in range(5):
        put(disk, LOG, b"content")


def test_nothing_changes_between_the_crash_point_and_the_crash():
    disk = new_disk()
    file = put(disk, LOG, b"content")
    disk.crash_after(1)
    with pytest.raises(SimulatedCrash):
        file.truncate(0)

    changes: list[Callable[[], object]] = [
        lambda: file.write(0, [b"zombie"]),
        lambda: file.truncate(1),
        lambda: disk.remove(LOG),
        lambda: disk.rename(LOG, DATA / "new"),
        lambda: disk.open(DATA / "new", create=True),
        lambda: disk.make_directory(DATA / "new"),
        file.datasync,
    ]
    for change in changes:
        with pytest.raises(SimulatedCrash):
            change()
    disk.kill()
    assert tree(disk, DATA) == {str(LOG): b"content"}


def test_the_hook_sees_every_operation_before_it_happens_and_may_crash_it():
    seen = []

    def hook(operation, path):
        seen.append((operation, path.name, disk.exists(DATA / "b")))
        if operation == "rename":
            raise SimulatedCrash

    disk = new_disk()
    disk.counts.clear()
    disk.on_operation = hook
    with pytest.raises(SimulatedCrash):
        replace_file(disk, DATA / "b", b"content")

    operations = ["create", "truncate", "write", "datasync", "rename"]
    assert seen == [(operation, "b.tmp", False) for operation in operations]
    assert disk.counts == dict.fromkeys(operations, 1)
    with pytest.raises(SimulatedCrash):
        disk.remove(DATA / "b.tmp")


# Planted faults.


def test_data_whose_sync_failed_is_lost_though_the_second_sync_succeeded():
    for seed in SEEDS:
        disk = new_disk(seed)
        file = put(disk, LOG, b"synced")
        file.write(6, [b"dropped"])
        disk.fail_syncs(errno.EIO, times=1)
        with pytest.raises(OSError) as error:
            file.datasync()
        assert error.value.errno == errno.EIO

        file.datasync()

        assert read_file(disk, LOG) in (b"synceddropped", b"synced" + bytes(7))
        disk.crash()
        assert read_file(disk, LOG) == b"synced"


def test_after_a_failed_sync_some_see_the_new_bytes_and_some_the_old_ones():
    seen = set()
    for seed in SEEDS:
        disk = new_disk(seed, sector_bytes=4)
        file = put(disk, LOG, b"old.old.old.")
        file.write(0, [b"new.new.new.new."])
        disk.fail_syncs(times=1)
        with pytest.raises(OSError):
            file.datasync()
        seen.add(file.read(0, 100))

    assert {b"new.new.new.new.", b"old.old.old.\0\0\0\0", b"new.old.new.new."} <= seen


def test_memory_keeps_what_a_failed_sync_lost_for_as_long_as_it_likes():
    seen = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        file = put(disk, LOG, b"old")
        file.write(0, [b"new"])
        disk.fail_syncs(times=1)
        with pytest.raises(OSError):
            file.datasync()
        before = file.read(0, 3)
        disk.kill()
        seen.add((before, read_file(disk, LOG)))

    assert seen == {(b"new", b"new"), (b"new", b"old"), (b"old", b"old")}


def test_who_asks_the_device_after_a_failed_sync_sees_what_it_has():
    for seed in SEEDS:
        disk = new_disk(seed, sector_bytes=4)
        file = put(disk, LOG, b"old.old.old.")
        file.write(0, [b"new.new.new."])
        disk.fail_syncs(times=1)
        with pytest.raises(OSError):
            file.datasync()

        assert file.read_device(4, 4) == b"old."
        assert file.read(4, 4) == b"old."


def test_what_is_written_again_after_a_failed_sync_leaves_memory_no_more():
    for seed in SEEDS:
        disk = new_disk(seed)
        file = put(disk, LOG, b"old.old.")
        file.write(0, [b"new.new."])
        disk.fail_syncs(times=1)
        with pytest.raises(OSError):
            file.datasync()
        file.write(0, [b"newer..."])

        disk.kill()

        assert read_file(disk, LOG) == b"newer..."


def test_data_written_after_a_failed_sync_becomes_durable_beyond_a_hole():
    for seed in SEEDS:
        disk = new_disk(seed)
        file = put(disk, LOG, b"synced")
        file.write(6, [b"dropped"])
        disk.fail_syncs(times=1)
        with pytest.raises(OSError):
            file.datasync()

        file.write(13, [b"later"])
        file.datasync()
        disk.crash()

        assert read_file(disk, LOG) == b"synced" + bytes(7) + b"later"


def test_an_overwrite_after_a_failed_sync_becomes_durable():
    for seed in SEEDS:
        disk = new_disk(seed)
        file = put(disk, LOG, b"synced")
        file.write(6, [b"dropped"])
        disk.fail_syncs(times=1)
        with pytest.raises(OSError):
            file.datasync()

        file.write(10, [b"X"])
        file.datasync()
        disk.crash()

        assert read_file(disk, LOG) == b"synced" + bytes(4) + b"X"


def test_a_truncation_whose_sync_failed_is_undone_unless_a_later_size_is_synced():
    for seed in SEEDS:
        disk = new_disk(seed)
        file = put(disk, LOG, b"kept, cut")
        file.truncate(4)
        disk.fail_syncs(times=1)
        with pytest.raises(OSError):
            file.datasync()
        if seed % 2:
            file.write(4, [b"!"])
        file.datasync()

        disk.crash()

        assert read_file(disk, LOG) == (b"kept!" if seed % 2 else b"kept, cut")


@pytest.mark.parametrize("sync", [SimulatedDisk.sync_directory, SimulatedDisk.sync_everything])
def test_names_whose_sync_failed_are_lost_though_the_second_sync_succeeded(sync):
    for seed in SEEDS:
        disk = new_disk(seed)
        put(disk, LOG, b"content", synced=False).datasync()
        disk.fail_syncs(times=1)
        with pytest.raises(OSError):
            sync(disk, DATA)

        sync(disk, DATA)
        disk.crash()

        assert disk.list(DATA) == []


def test_a_failed_write_leaves_any_part_of_it():
    sizes = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        file = put(disk, LOG, b"")
        disk.fail_next_write(errno.EIO)
        with pytest.raises(OSError) as error:
            file.write(0, [b"12345", b"67890"])
        assert error.value.errno == errno.EIO
        assert file.read(0, 10) == b"1234567890"[: file.size()]
        sizes.add(file.size())
        file.write(0, [b"12345", b"67890"])
        assert file.size() == 10
    assert sizes == set(range(11))


def test_writes_fail_until_the_disk_is_healed():
    disk = new_disk()
    file = put(disk, LOG, b"content")
    disk.fail_writes(errno.EIO)
    disk.fail_reads(errno.EIO)
    for _ in range(3):
        with pytest.raises(OSError):
            file.write(0, [b"x"])
        with pytest.raises(OSError):
            file.read(0, 1)
    assert file.read_cached(1, 6) == b"ontent"

    disk.heal()

    file.write(0, [b"x"])
    assert file.read(0, 7) == b"xontent"


def test_a_full_disk_takes_what_fits_and_then_says_so():
    disk = new_disk(capacity_bytes=1000)
    put(disk, LOG, b"a" * 600)
    file = disk.open(DATA / "other", create=True)
    assert disk.free_bytes(DATA) == 400

    with pytest.raises(OSError) as error:
        file.write(0, [b"b" * 300, b"c" * 300])

    assert error.value.errno == errno.ENOSPC
    assert file.read(0, 600) == b"b" * 300 + b"c" * 100
    assert disk.free_bytes(DATA) == 0
    file.write(0, [b"d" * 400])  # no new bytes are needed
    disk.fail_writes(errno.EIO, times=10)
    for _ in range(11):  # a device that fails has no more room than one that does not
        with pytest.raises(OSError):
            file.write(450, [b"e" * 100])
    assert file.size() == 400


def test_space_comes_back_by_removing_truncating_replacing_or_a_larger_disk():
    disk = new_disk(capacity_bytes=1000)
    log = put(disk, LOG, b"a" * 600)
    put(disk, DATA / "other", b"b" * 400)
    free = [disk.free_bytes(DATA)]
    log.truncate(500)
    free.append(disk.free_bytes(DATA))
    log.close()
    disk.rename(DATA / "other", LOG)
    free.append(disk.free_bytes(DATA))
    disk.remove(LOG)
    free.append(disk.free_bytes(DATA))
    disk.capacity_bytes = 5000
    free.append(disk.free_bytes(DATA))
    put(disk, LOG, b"c" * 900)
    disk.crash()
    free.append(disk.free_bytes(DATA))

    assert free == [0, 100, 600, 1000, 5000, 4100]


@pytest.mark.parametrize("end", ["close", "forget", "kill", "crash"])
def test_a_removed_file_uses_space_until_the_last_who_has_it_open_is_gone(end):
    disk = new_disk(capacity_bytes=1000)
    put(disk, LOG, b"a" * 600).close()
    first, second = disk.open(LOG), disk.open(LOG)
    disk.remove(LOG)
    disk.sync_everything(DATA)
    free = [disk.free_bytes(DATA)]
    first.write(600, [b"b" * 100])
    free.append(disk.free_bytes(DATA))
    first.close()
    first.close()
    free.append(disk.free_bytes(DATA))

    match end:
        case "close":
            second.close()
        case "forget":
            del second
        case "kill":
            disk.kill()
        case "crash":
            disk.crash()
    free.append(disk.free_bytes(DATA))

    assert free == [400, 300, 300, 1000]


def test_a_replaced_file_uses_space_while_it_is_open():
    disk = new_disk(capacity_bytes=1000)
    old = put(disk, LOG, b"a" * 600)
    replace_file(disk, LOG, b"b" * 300)
    assert (disk.free_bytes(DATA), old.read(0, 1), read_file(disk, LOG)[:1]) == (100, b"a", b"b")

    old.close()

    assert disk.free_bytes(DATA) == 700


def test_all_files_with_a_name_use_space_and_no_others():
    for seed in SEEDS:
        contents, (_, _, free_bytes) = play(seed)

        assert free_bytes == max(0, 20_000 - sum(len(c or b"") for c in contents.values()))


def test_a_flipped_bit_is_seen_at_once_and_after_a_crash():
    disk = new_disk()
    put(disk, LOG, b"abc")

    disk.flip_bit(LOG, 1, 0)

    assert read_file(disk, LOG) == b"acc"
    disk.crash()
    assert read_file(disk, LOG) == b"acc"


def test_a_misdirected_write_lands_on_other_sectors_and_leaves_zeros_in_its_place():
    landed = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        file = put(disk, LOG, b"s" * 2000)
        disk.misdirect_next_write()
        file.write(2000, [b"m" * 200])
        file.write(2200, [b"n"])
        content = read_file(disk, LOG)
        at = content.index(b"m" * 200)
        landed.add(at)
        assert content[2000:] == bytes(200) + b"n"
        assert content[:at] + content[at + 200 : 2000] == b"s" * 1800
    assert landed == {2000 - 512, 2000 - 1024, 2000 - 1536}


def test_a_misdirected_overwrite_spares_its_own_place():
    landed = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        file = put(disk, LOG, b"s" * 2048)
        disk.misdirect_next_write()
        file.write(600, [b"mm"])
        landed.add(read_file(disk, LOG).index(b"mm"))
    assert landed == {600 - 512, 600 + 512, 600 + 1024}


def test_a_misdirected_write_without_another_place_is_lost():
    disk = new_disk()
    disk.misdirect_next_write()

    file = put(disk, LOG, b"content")

    assert read_file(disk, LOG) == bytes(7)
    file.write(0, [b"content"])
    assert read_file(disk, LOG) == b"content"


def test_a_cached_read_misses_as_often_as_it_is_told_to():
    disk = new_disk()
    file = put(disk, LOG, b"content")
    assert all(file.read_cached(0, 7) == b"content" for _ in range(100))
    assert file.read_cached(0, 8) is None

    disk.cache_miss = 0.5

    answers = [file.read_cached(0, 7) for _ in range(100)]
    assert set(answers) == {None, b"content"}


# Determinism.


def play(seed: int) -> tuple[dict[str, bytes | None], tuple[object, object, int]]:
    """A random life of a disk, faults and crashes included; returns all that can be seen of it."""
    actions = random.Random(seed)
    disk = new_disk(seed, capacity_bytes=20_000, cache_miss=0.1)
    errors = []
    for _ in range(150):
        path = DATA / actions.choice("ab") / actions.choice("cd")
        other = DATA / actions.choice("ab") / actions.choice("cd")
        size = actions.randrange(2000)
        calls: list[Callable[[], object]] = [
            *4 * [partial(put, disk, path, actions.randbytes(size), synced=False)],
            lambda: disk.open(path).truncate(size),  # noqa: B023
            lambda: disk.open(path).datasync(),  # noqa: B023
            partial(disk.make_directory, path.parent),
            partial(disk.rename, path, other),
            partial(disk.remove, path),
            partial(disk.remove_tree, path.parent),
            partial(disk.sync_directory, path.parent),
            partial(disk.sync_everything, DATA),
            disk.write_back,
            disk.fail_next_write,
            disk.misdirect_next_write,
            partial(disk.fail_syncs, times=1),
            disk.crash,
            disk.kill,
            partial(disk.crash_after, 5),
        ]
        try:
            actions.choice(calls)()
        except OSError as error:
            errors.append(error.errno)
        except SimulatedCrash:
            disk.crash()
    return tree(disk, DATA), (errors, disk.counts, disk.free_bytes(DATA))


def test_the_same_seed_and_calls_give_the_same_bytes():
    lives = [play(seed) for seed in range(50)]

    assert [play(seed) for seed in range(50)] == lives
    assert len({str(life) for life in lives}) == len(lives)


# The same as the real one, as long as nothing fails.


def random_step(choices: random.Random) -> tuple[Any, ...]:
    """An operation and its arguments, on so few names that most of them meet something."""

    def path() -> str:
        return "/".join(choices.choices("ab", k=choices.randint(1, 3)))

    handle = choices.randrange(10)
    position, size = choices.randrange(3000), choices.randrange(600)
    steps: dict[tuple[Any, ...], int] = {
        ("open", path(), choices.random() < 0.8): 4,
        ("lock", path()): 1,
        ("make_directory", path()): 4,
        ("rename", path(), path()): 6,
        ("remove", path()): 1,
        ("remove_tree", path()): 1,
        ("sync_directory", path()): 1,
        ("exists", path()): 1,
        ("list", path()): 1,
        ("is_directory", path()): 1,
        ("write", handle, position, (choices.randbytes(size), b"", choices.randbytes(9))): 6,
        ("write", handle, position, (b"",)): 1,
        ("read", handle, position, size): 3,
        ("truncate", handle, position): 2,
        ("size", handle): 1,
        ("datasync", handle): 1,
        ("close", handle): 1,
    }
    return choices.choices([*steps], weights=[*steps.values()])[0]


class Player:
    """Plays steps on one disk, below `root`; answers with values or the number of the error."""

    def __init__(self, disk: Disk, root: Path) -> None:
        self.disk = disk
        self.root = root
        self.files: list[File] = []

    def play(self, name: str, *arguments: Any) -> object:
        try:
            return self._play(name, *arguments)
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        except ValueError:
            return "EBADF"  # what Python makes of the number of a closed file, in some calls

    def _play(self, name: str, *arguments: Any) -> object:
        if name == "open":
            path, create = arguments
            self.files.append(self.disk.open(self.root / path, create=create))
            return "opened"
        if name == "lock":
            self.files.append(self.disk.lock(self.root / arguments[0]))
            return "locked"
        if hasattr(self.disk, name):
            return getattr(self.disk, name)(*(self.root / path for path in arguments))
        if not self.files:
            return "no file"
        handle, *rest = arguments
        return getattr(self.files[handle % len(self.files)], name)(*rest)


@pytest.mark.parametrize("seed", range(30))
def test_without_faults_it_behaves_like_the_real_disk(tmp_path, seed):
    root = Path(tmp_path)
    simulated = SimulatedDisk(random.Random(seed))
    simulated.make_directory(root)
    ours, real = Player(simulated, root), Player(SystemDisk(), root)
    choices = random.Random(seed)

    for _ in range(200):
        step = random_step(choices)
        assert ours.play(*step) == real.play(*step), step

    assert tree(simulated, root) == tree(SystemDisk(), root)


@pytest.mark.parametrize("question", ["sync_everything", "free_bytes"])
def test_a_missing_directory_is_an_error_as_on_the_real_disk(tmp_path, question):
    for disk in (new_disk(), SystemDisk()):
        with pytest.raises(FileNotFoundError):
            getattr(disk, question)(Path(tmp_path) / "missing")


def test_whatever_was_done_and_synced_as_a_whole_survives():
    for seed in SEEDS:
        disk = new_disk(seed)
        player = Player(disk, DATA)
        choices = random.Random(seed)
        for _ in range(50):
            player.play(*random_step(choices))
            if choices.random() < 0.2:
                disk.write_back()
        before = tree(disk, DATA)

        disk.sync_everything(DATA)
        disk.crash()

        assert tree(disk, DATA) == before


def test_no_crash_leaves_a_file_under_two_names():
    for seed in SEEDS:
        disk = new_disk(seed)
        player = Player(disk, DATA)
        choices = random.Random(seed)
        for _ in range(100):
            step = random_step(choices)
            if step[0] in ("open", "make_directory", "rename", "remove", "sync_directory"):
                player.play(*step)
            if choices.random() < 0.1:
                disk.write_back()
        disk.crash()

        for path in [path for path, content in tree(disk, DATA).items() if content == b""]:
            disk.open(Path(path)).write(0, [path.encode()])  # seen under another name, too?
        contents = tree(disk, DATA)
        assert all(content in (None, path.encode()) for path, content in contents.items())


def test_a_full_disk_may_refuse_names_too():
    disk = new_disk(capacity_bytes=10)
    file = disk.open(Path("/there"), create=True)
    file.write(0, [b"0123456789"])
    disk.names_need_room = True

    for refused in (
        lambda: disk.open(Path("/new"), create=True),
        lambda: disk.make_directory(Path("/directory")),
        lambda: disk.rename(Path("/there"), Path("/elsewhere")),
    ):
        with pytest.raises(OSError) as caught:
            refused()
        assert caught.value.errno == errno.ENOSPC
    assert disk.list(Path("/")) == ["data", "there"]

    disk.remove(Path("/there"))
    file.close()
    disk.open(Path("/new"), create=True)


def test_looks_fail_before_a_byte_is_read():
    disk = new_disk()
    file = disk.open(Path("/there"), create=True)
    disk.fail_looks(times=3)

    for look in (lambda: disk.open(Path("/there")), file.size, lambda: disk.list(Path("/"))):
        with pytest.raises(OSError) as caught:
            look()
        assert caught.value.errno == errno.EIO

    assert file.size() == 0


def test_faults_spare_whoever_looks_from_outside_and_are_not_used_up():
    disk = new_disk(cache_miss=1.0)
    put(disk, LOG, PATTERN)
    file, counts = disk.open(LOG), disk.counts.copy()
    disk.fail_looks(times=1)
    disk.fail_reads(times=1)
    disk.crash_after(1)

    with disk.spared():
        assert disk.list(DATA) == ["log"]
        assert read_file(disk, LOG) == PATTERN
        assert file.read_cached(0, len(PATTERN)) == PATTERN

    assert disk.counts == counts
    with pytest.raises(OSError):
        disk.list(DATA)
    with pytest.raises(OSError):
        file.read(0, 1)
    with pytest.raises(SimulatedCrash):
        file.write(0, [b"x"])


def test_a_disk_whose_process_dies_can_be_looked_at_from_outside():
    disk = new_disk()
    put(disk, LOG, PATTERN)
    disk.die()

    with disk.spared():
        assert read_file(disk, LOG) == PATTERN
    with pytest.raises(SimulatedCrash):
        disk.open(LOG)


def test_without_a_descriptor_nothing_is_opened_listed_or_made_durable_by_its_name():
    disk = new_disk()
    kept = put(disk, LOG, b"old")
    disk.descriptors_max = disk.open_files

    for refused in (
        lambda: disk.open(LOG),
        lambda: disk.open(DATA / "new", create=True),
        lambda: disk.list(DATA),
        lambda: disk.sync_directory(DATA),
        lambda: disk.sync_everything(Path("/")),
        lambda: disk.remove_tree(DATA),
    ):
        with pytest.raises(OSError) as caught:
            refused()
        assert caught.value.errno == errno.EMFILE
    assert not disk.exists(DATA / "new")
    kept.write(0, [b"new"])
    kept.datasync()
    disk.sync_everything(DATA)  # this process has done so before, and keeps it open
    kept.close()
    assert read_file(disk, LOG) == b"new"


def test_a_process_that_dies_gives_its_descriptors_back():
    disk = new_disk()
    files = [disk.open(LOG, create=True) for _ in range(5)]
    assert disk.open_files == 6

    disk.kill()
    for file in files:
        file.close()

    assert disk.open_files == 0


def test_an_interrupted_operation_has_done_nothing():
    disk = new_disk()
    file = put(disk, LOG, b"old")
    file.write(0, [b"mid"])

    for interrupted in (
        lambda: disk.open(LOG),
        lambda: disk.open(DATA / "new", create=True),
        lambda: file.read(0, 3),
        lambda: file.write(0, [b"new"]),
        file.datasync,
        lambda: disk.sync_directory(DATA),
        lambda: disk.sync_everything(DATA),
    ):
        disk.interrupt(times=1)
        with pytest.raises(InterruptedError):
            interrupted()

    assert (disk.list(DATA), file.read(0, 3)) == (["log"], b"mid")
    file.datasync()
    disk.crash()
    assert read_file(disk, LOG) == b"mid"
