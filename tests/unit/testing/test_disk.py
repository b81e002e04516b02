"""The disk of a node in a test does what the system's does, until it is told to fail."""

import asyncio
import errno
import threading
from collections.abc import Callable

import pytest

from tidelog.host import Path
from tidelog.testing.disk import DiskTrouble, DiskTroubles, NodeDisk, kinds_of
from tidelog.testing.lives import Life


def on_a_disk(tell: Callable[[NodeDisk], None]) -> None:
    async def run() -> None:
        life = Life("a node")
        try:
            tell(NodeDisk(life, DiskTroubles()))
        finally:
            await life.end()

    asyncio.run(run())


def trouble(*kinds: str, code: int = 0, seconds: float = 0.0) -> DiskTrouble:
    return DiskTrouble(kinds=kinds_of(kinds), code=code, seconds=seconds)


def test_what_is_written_is_read_by_the_next_life(tmp_path):
    path = Path(tmp_path / "file")

    def write(disk: NodeDisk) -> None:
        file = disk.open(path, create=True)
        file.write(0, [b"hello, ", b"disk"])
        file.datasync()
        disk.sync_directory(path.parent)
        disk.sync_everything(path.parent)

    def read(disk: NodeDisk) -> None:
        assert disk.open(path).read(0, 100) == b"hello, disk"

    on_a_disk(write)
    on_a_disk(read)


@pytest.mark.parametrize("kind", ["read", "write", "sync"])
def test_only_what_is_named_fails_and_only_until_it_is_healed(tmp_path, kind):
    def tell(disk: NodeDisk) -> None:
        file = disk.open(Path(tmp_path / "file"), create=True)
        work = {
            "read": lambda: file.read(0, 1),
            "write": lambda: file.write(0, [b"x"]),
            "sync": file.datasync,
        }
        failing = trouble(kind, code=errno.EIO)
        disk.troubles.add(failing)
        for name, one in work.items():
            if name == kind:
                with pytest.raises(OSError, match="as the test wants") as caught:
                    one()
                assert caught.value.errno == errno.EIO
            else:
                one()

        disk.troubles.remove(failing)
        work[kind]()

    on_a_disk(tell)


def test_a_full_disk_says_that_nothing_is_free(tmp_path):
    def tell(disk: NodeDisk) -> None:
        assert disk.free_bytes(Path(tmp_path)) > 0

        disk.troubles.add(trouble("write", code=errno.ENOSPC))

        assert disk.free_bytes(Path(tmp_path)) == 0

    on_a_disk(tell)


def test_a_disk_that_reads_slowly_is_not_read_on_the_event_loop(tmp_path):
    def tell(disk: NodeDisk) -> None:
        file = disk.open(Path(tmp_path / "file"), create=True)
        file.write(0, [b"x"])
        disk.troubles.add(trouble("read", seconds=0.001))

        assert file.read_cached(0, 1) is None
        assert file.read(0, 1) == b"x"

    on_a_disk(tell)


def test_who_waits_for_a_slow_disk_is_let_go_when_its_life_ends(tmp_path):
    async def run() -> None:
        life = Life("a node")
        disk = NodeDisk(life, DiskTroubles())
        file = disk.open(Path(tmp_path / "file"), create=True)
        disk.troubles.add(trouble("write", seconds=3600.0))
        waits = threading.Event()

        def write() -> None:
            waits.set()
            file.write(0, [b"too late"])

        writing = life.offload.run(write)
        assert waits.wait(10)
        await life.end()
        with pytest.raises(OSError, match="the node is gone"):
            await writing

    asyncio.run(run())
    assert (tmp_path / "file").read_bytes() == b""


def test_a_life_that_is_over_changes_nothing(tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("as it was")

    async def run() -> None:
        life = Life("a node")
        disk = NodeDisk(life, DiskTroubles())
        file = disk.open(Path(kept))
        await life.end()
        for change in (
            lambda: file.write(0, [b"x"]),
            lambda: disk.remove(Path(kept)),
            lambda: disk.remove_tree(Path(tmp_path)),
            lambda: disk.rename(Path(kept), Path(tmp_path / "moved")),
            lambda: disk.open(Path(tmp_path / "new"), create=True),
        ):
            with pytest.raises(OSError, match="the node is gone"):
                change()

    asyncio.run(run())
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert kept.read_text() == "as it was"


def test_a_kind_that_no_disk_knows_is_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match="no writing; only read, write, sync"):
        kinds_of(["writing"])
