"""A disk in memory that keeps only what it promised.

Rule 1: a change is visible at once and durable only once it was synced: `datasync` for the bytes
        and the size of a file, `sync_directory` for the names in it, `sync_everything` for both.
Rule 2: what was synced survives every crash, unless a fault below was planted. Of the rest any
        part may survive, in any order: nobody may rely on what ext4 happens to keep.
Rule 3: every choice comes from the generator given, and nothing iterates a set: the same seed and
        the same calls give the same bytes.
Rule 4: faults strike the process that uses the disk. The world, which checks and harms it from
        outside, does so under `spared`: no fault strikes there, and none is used up.

| fault                | what happens                                                              |
|----------------------|---------------------------------------------------------------------------|
| crash                | power loss: unsynced sectors stay old, become new or tear; any size since |
|                      | the last sync; unsynced names apply or not; open files are dead           |
| kill                 | the process dies: the page cache lives on; open files are dead            |
| crash_after          | `SimulatedCrash` at the n-th change from now; a write stops half-way      |
| write_back           | the kernel flushes a random part on its own, as it may at any time        |
| fail_writes          | a random part is written, then the error                                  |
| fail_syncs           | the error; the dirty pages count as clean and are *not* durable, so the   |
|                      | next sync "succeeds" and the crash after it loses them; some leave memory |
|                      | at once or later, and readers see the old bytes                           |
| fail_reads           | the error; pages in memory (`read_cached`) still read well                |
| fail_looks           | the error, of opening what is there, of sizes and of lists                |
| interrupt            | EINTR from opening, reading, writing or syncing: nothing was done         |
| descriptors_max      | EMFILE for one open file more, and for lists and syncs of directories     |
| capacity_bytes       | what fits is written, then ENOSPC; may be changed at any time             |
| names_need_room      | ENOSPC, too, for new and changed names while not a byte is free           |
| flip_bit             | rot, in memory and on the device                                          |
| misdirect_next_write | the bytes land on other sectors of the file; zeros where they should be   |
| cache_miss           | the chance that `read_cached` finds nothing in memory                     |
| on_operation         | a hook before each operation may raise, or plant a fault for this one     |
| die                  | every operation raises `SimulatedCrash` until `crash` or `kill`           |

A file without a name uses its bytes until the last who has it open closes it, or dies. It is closed
when the last reference goes, too; the simulator's loop collects garbage at the same events in every
run of a seed, so that one seed has one history.

Simplified: a file uses as many bytes as it is long, holes too; names cost nothing, though a full
disk may refuse them. A sync never says ENOSPC, by the protocol (`host.File.datasync`).
"""

import errno
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import TypeAlias

from tidelog.host import Bytes, Path
from tidelog.simulation.inode import Inode

_ROOT = Path("/")
_FREE_WITHOUT_LIMIT_BYTES = 1 << 50
_EVICT_CHANCE = 0.2
_HARMLESS = ("open", "read", "read_cached")  # all other operations change something


class SimulatedCrash(BaseException):
    """The machine stopped inside an operation; the test unwinds, then calls `crash` or `kill`.

    Not an Exception, so that the code under test cannot handle its own death.
    """


class _Directory:
    """Names of files and directories: `names` as readers see them, `durable` on the device.

    Invariant: the two are equal except for the names in `pending`.
    """

    __slots__ = ("durable", "names", "pending")

    def __init__(self) -> None:
        self.names: dict[str, _Node] = {}
        self.durable: dict[str, _Node] = {}
        self.pending: dict[str, _Change] = {}  # by name, its newest unsynced change


_Node: TypeAlias = Inode | _Directory


@dataclass(slots=True, eq=False)
class _Change:
    """Names that change together: a rename is two, and applies whole or not at all.

    Invariant: it becomes durable only after every change in `after`; so no file gets two names,
    and none loses its only one because a later change overtook an earlier.
    """

    number: int
    entries: Sequence[tuple[_Directory, str, _Node | None]]
    after: Sequence["_Change"]
    lost: bool = False  # its sync failed: durable only if a later change needs it


class SimulatedFile:
    """An open file. OSError EBADF once closed; OSError EIO once its process died.

    EIO and not an assertion: tasks of the dead process may still unwind through their clean-up.
    """

    __slots__ = ("_disk", "_incarnation", "_inode", "_path", "_unlocks")

    def __init__(self, disk: "SimulatedDisk", inode: Inode, path: Path) -> None:
        self._disk = disk
        self._inode: Inode | None = inode
        self._path = path  # as it was opened; a rename does not change it
        self._incarnation = disk.incarnation
        self._unlocks = False
        disk._opens[inode] = disk._opens.get(inode, 0) + 1
        disk.open_files += 1

    def size(self) -> int:
        size = len(self._alive().cached)
        self._disk._fail("look", self._path)
        return size

    def read(self, position: int, size: int) -> bytes:
        inode = self._alive(position)
        self._disk._start("read", self._path)
        self._disk._fail("interrupt", self._path)
        self._disk._fail("read", self._path)
        self._disk._evict(inode)
        return bytes(inode.cached[position : position + size])

    def read_cached(self, position: int, size: int) -> bytes | None:
        inode = self._alive(position)
        self._disk._start("read_cached", self._path)
        if position + size > len(inode.cached):
            return None  # like the system's: an answer is never short
        if self._disk._misses_cache():
            return None
        return bytes(inode.cached[position : position + size])

    def read_device(self, position: int, size: int) -> bytes:
        inode, disk = self._alive(position), self._disk
        if inode.lost and not disk._is_spared:  # to the kernel they are clean, and it forgets them
            inode.drop_lost(disk._random, disk._sector_bytes, position, position + size)
        return self.read(position, size)

    def write(self, position: int, buffers: Sequence[Bytes]) -> None:
        inode = self._alive(position)
        data = buffers[0] if len(buffers) == 1 else b"".join(buffers)
        self._disk._write(inode, self._path, position, data)

    def truncate(self, size: int) -> None:
        inode = self._alive(size)
        self._disk._start("truncate", self._path)
        self._disk._resize(inode, size)

    def datasync(self) -> None:
        inode = self._alive()
        self._disk._start("datasync", self._path)
        self._disk._sync([inode], [], self._path)

    def lock(self) -> None:
        """Held until `close` or the death of the process, not until the last reference goes.

        The garbage collector comes at a time of its own, and one seed would have two histories.
        """
        inode = self._alive()
        if inode.locked_in == self._incarnation:
            raise _error(errno.EAGAIN, self._path)
        inode.locked_in = self._incarnation
        self._unlocks = True

    def close(self) -> None:
        if self._unlocks and self._inode and self._inode.locked_in == self._incarnation:
            self._inode.locked_in = None
        self._let_go()

    def __del__(self) -> None:
        self._let_go()

    def _let_go(self) -> None:
        inode, self._inode = self._inode, None
        if inode is not None and self._incarnation == self._disk.incarnation:
            self._disk._close(inode)

    def _alive(self, position: int = 0) -> Inode:
        assert position >= 0  # the system's pwritev would take -1 for a position of its own
        if self._inode is None:
            raise _error(errno.EBADF, self._path)
        if self._incarnation != self._disk.incarnation:
            raise _error(errno.EIO, self._path)
        return self._inode


class SimulatedDisk:
    """One node's file system; it outlives the processes that use it.

    `counts` says how often each operation was started: open, read, read_cached and the changes:
    create, write, truncate, datasync, rename, remove, make_directory, remove_directory,
    sync_directory, sync_everything. Questions (size, exists, list, ...) are not operations.
    Planted failures stay over crashes, as a bad device would, until `heal`.

    Invariant: after `crash` there is nothing unsynced.
    Owned by one thread.
    """

    def __init__(
        self,
        random: random.Random,
        *,
        capacity_bytes: int | None = None,
        sector_bytes: int = 512,
        cache_miss: float = 0.0,
        on_operation: Callable[[str, Path], None] | None = None,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.cache_miss = cache_miss
        self.names_need_room = False
        self.descriptors_max: int | None = None
        self.open_files = 0  # of the process that runs
        self.on_operation = on_operation
        self.on_crash: Callable[[], None] | None = None  # told when `crash_after` comes true
        self.counts: Counter[str] = Counter()
        self.incarnation = 0  # of the process that may use the open files
        self._random = random
        self._sector_bytes = sector_bytes
        self._root = _Directory()
        self._used_bytes = 0  # sum of the sizes of files that have a name or are open
        # Dictionaries for their order: a set of objects iterates by address.
        self._opens: dict[Inode, int] = {}
        self._unlinked: dict[Inode, None] = {}  # those that are open and have no name
        self._roots: dict[Path, None] = {}  # synced whole by this process, which keeps them open
        self._lost: dict[Inode, None] = {}
        self._unsynced: dict[Inode, None] = {}
        self._changes: dict[int, _Change] = {}
        self._changes_made = 0
        self._failures: dict[str, Iterator[int]] = {}  # by read, write, sync: the codes to come
        self._misdirect = False
        self._crash_after: int | None = None
        self._crashing = False  # SimulatedCrash was raised: every operation raises it again
        self._is_spared = False

    def __repr__(self) -> str:
        return (
            f"<SimulatedDisk {self._used_bytes} of {self.capacity_bytes} bytes used, unsynced:"
            f" {len(self._unsynced)} files, {len(self._changes)} changes of names>"
        )

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    # The protocol.

    def open(self, path: Path, *, create: bool = False) -> SimulatedFile:
        node = self._find(path)
        if isinstance(node, _Directory):
            raise _error(errno.EISDIR, path)
        if node is None:
            directory = self._directory(path.parent)
            if not create:
                raise _error(errno.ENOENT, path)
            self._start("create", path)
            self._take_descriptor(path)
            self._take_name(path)
            node = Inode()
            self._change([(directory, path.name, node)])
        else:
            self._start("open", path)
            self._take_descriptor(path)
            self._fail("look", path)
        return SimulatedFile(self, node, path)

    def exists(self, path: Path) -> bool:
        try:
            return self._find(path) is not None
        except NotADirectoryError:
            return False

    def list(self, path: Path) -> list[str]:
        self._take_descriptor(path)
        self._fail("look", path)
        try:
            return sorted(self._directory(path).names)
        except FileNotFoundError:
            return []

    def is_directory(self, path: Path) -> bool:
        return self.exists(path) and isinstance(self._find(path), _Directory)

    def make_directory(self, path: Path) -> None:
        node = self._find(path)
        if isinstance(node, Inode):
            raise _error(errno.EEXIST, path)
        if node is None:
            self.make_directory(path.parent)
            self._start("make_directory", path)
            self._take_name(path)
            self._change([(self._directory(path.parent), path.name, _Directory())])

    def rename(self, source: Path, target: Path) -> None:
        if not (source.is_absolute() and target.is_absolute()):
            source, target = _ROOT / source, _ROOT / target
        source_directory = self._directory(source.parent)
        target_directory = self._directory(target.parent)
        node = source_directory.names.get(source.name)
        replaced = target_directory.names.get(target.name)
        if node is None:
            raise _error(errno.ENOENT, source)
        if target.parts[: len(source.parts)] == source.parts != target.parts:
            raise _error(errno.EINVAL, target)
        if source.parts[: len(target.parts)] == target.parts != source.parts:
            raise _error(errno.ENOTEMPTY, target)
        if node is replaced:
            return
        if isinstance(replaced, _Directory) and isinstance(node, Inode):
            raise _error(errno.EISDIR, target)
        if isinstance(replaced, Inode) and isinstance(node, _Directory):
            raise _error(errno.ENOTDIR, target)
        if isinstance(replaced, _Directory) and replaced.names:
            raise _error(errno.ENOTEMPTY, target)
        self._start("rename", source)
        self._take_name(target)
        self._change(
            [(source_directory, source.name, None), (target_directory, target.name, node)],
            # else the file could lose its old name and get one that nobody can reach
            after=self._pending_on_the_way(target),
        )

    def remove(self, path: Path) -> None:
        node = self._find(path)
        if isinstance(node, _Directory):
            raise _error(errno.EISDIR, path)
        if node is not None:
            self._start("remove", path)
            self._change([(self._directory(path.parent), path.name, None)])

    def remove_tree(self, path: Path) -> None:
        directory = self._directory(path)
        self._take_descriptor(path)
        for name, node in sorted(directory.names.items()):
            if isinstance(node, _Directory):
                self.remove_tree(path / name)
            else:
                self.remove(path / name)
        self._start("remove_directory", path)
        self._change([(self._directory(path.parent), path.name, None)])

    def sync_directory(self, path: Path) -> None:
        directory = self._directory(path)
        self._start("sync_directory", path)
        self._take_descriptor(path)
        self._sync([], directory.pending.values(), path)

    def sync_everything(self, path: Path) -> None:
        self._directory(path)
        self._start("sync_everything", path)
        if path not in self._roots:
            self._take_descriptor(path)
            self._roots[path] = None
            self.open_files += 1
        self._sync(self._unsynced, self._changes.values(), path)

    def free_bytes(self, path: Path) -> int:
        if self._find(path) is None:
            raise _error(errno.ENOENT, path)
        return self._free_bytes()

    def total_bytes(self, path: Path) -> int:
        if self._find(path) is None:
            raise _error(errno.ENOENT, path)
        return self.capacity_bytes or _FREE_WITHOUT_LIMIT_BYTES

    def lock(self, path: Path) -> SimulatedFile:
        file = self.open(path, create=True)
        file.lock()
        return file

    # From outside.

    @contextmanager
    def spared(self) -> Iterator[None]:
        """Let no fault strike inside, and count nothing: the caller is not the disk's process."""
        before, self._is_spared = self._is_spared, True
        try:
            yield
        finally:
            self._is_spared = before

    # Deaths.

    def crash(self) -> None:
        """Lose power: what was synced stays, of the rest a random part; open files are dead."""
        self.write_back()
        self._unsynced.clear()
        self._changes.clear()
        self._used_bytes = 0
        self._unlinked.clear()
        self._lost.clear()
        self._forget_cache(self._root)
        self.kill()

    def kill(self) -> None:
        """The process dies, the machine does not: the page cache stays; open files are dead."""
        self.incarnation += 1
        self._crashing = False
        self._crash_after = None
        for inode in self._unlinked:
            self._used_bytes -= len(inode.cached)
        self._unlinked.clear()
        self._opens.clear()
        self._roots.clear()
        self.open_files = 0
        for inode in self._lost:  # nobody reads for a while, and others need the memory
            inode.drop_lost(self._random, self._sector_bytes)

    def die(self) -> None:
        """Let nothing change any more: whoever unwinds now is dead. `crash` or `kill` follows."""
        self._crashing = True

    def crash_after(self, operations: int) -> None:
        """Raise `SimulatedCrash` at the n-th change from now, the next being the first.

        A write stops half-way. For all others half done looks, after a crash, like not begun.
        """
        assert operations > 0
        self._crash_after = operations

    def write_back(self) -> None:
        """Let a random part of what is unsynced become durable, as the kernel may at any time."""
        for inode in self._unsynced:
            inode.write_back(self._random, self._sector_bytes)
        chance = self._random.choice((0.0, 0.5, 1.0, self._random.random()))
        for change in [*self._changes.values()]:
            if not change.lost and self._random.random() < chance:
                self._commit([change])

    # Faults.

    def fail_writes(self, code: int = errno.EIO, *, times: int | None = None) -> None:
        """Fail the next `times` writes, or all until `heal`, after writing a random part."""
        self._failures["write"] = _repeat(code, times)

    def fail_next_write(self, code: int = errno.EIO) -> None:
        self.fail_writes(code, times=1)

    def fail_syncs(self, code: int = errno.EIO, *, times: int | None = None) -> None:
        """Fail syncs of all three kinds, and drop what they should have made durable."""
        self._failures["sync"] = _repeat(code, times)

    def fail_reads(self, code: int = errno.EIO, *, times: int | None = None) -> None:
        self._failures["read"] = _repeat(code, times)

    def fail_looks(self, code: int = errno.EIO, *, times: int | None = None) -> None:
        """Fail to open what is there, to tell a file's size, or to list a directory."""
        self._failures["look"] = _repeat(code, times)

    def interrupt(self, *, times: int | None = None) -> None:
        """Let the next opens, reads, writes and syncs do nothing but say EINTR."""
        self._failures["interrupt"] = _repeat(errno.EINTR, times)

    def misdirect_next_write(self) -> None:
        """Let the next write land on other sectors of its file, or nowhere if it has no others."""
        self._misdirect = True

    def heal(self) -> None:
        """Take back the failures planted. What they have done to the bytes stays."""
        self._failures.clear()
        self._misdirect = False
        self.names_need_room = False
        self.descriptors_max = None

    def flip_bit(self, path: Path, position: int, bit: int) -> None:
        """Rot one bit of a file, in memory and, if it got there, on the device."""
        node = self._find(path)
        assert isinstance(node, Inode), f"{path} is no file"
        node.cached[position] ^= 1 << bit
        if position < len(node.durable):
            node.durable[position] ^= 1 << bit

    # Inside an operation.

    def _start(self, operation: str, path: Path) -> None:
        """Count the operation, call the hook, and die here if this is the crash point."""
        if self._is_spared:
            return
        if self._crashing:
            raise SimulatedCrash(operation, path)
        self.counts[operation] += 1
        try:
            if self.on_operation is not None:
                self.on_operation(operation, path)
            if self._crash_after is not None and operation not in _HARMLESS:
                self._crash_after -= 1
                if self._crash_after == 0:
                    raise SimulatedCrash(operation, path)
        except SimulatedCrash:
            self._crashing = True
            if self.on_crash is not None:
                self.on_crash()
            raise

    def _fail(self, operation: str, path: Path) -> None:
        if self._is_spared:
            return
        code = next(self._failures.get(operation, iter(())), None)
        if code is not None:
            raise _error(code, path)

    def _misses_cache(self) -> bool:
        if self._is_spared or not self.cache_miss:
            return False
        return self._random.random() < self.cache_miss

    def _evict(self, inode: Inode) -> None:
        """Others need memory: pages that are lost may leave it between any two reads."""
        if inode.lost and not self._is_spared and self._random.random() < _EVICT_CHANCE:
            inode.drop_lost(self._random, self._sector_bytes)

    def _take_descriptor(self, path: Path) -> None:
        if self._is_spared:
            return
        if self.descriptors_max is not None and self.open_files >= self.descriptors_max:
            raise _error(errno.EMFILE, path)
        self._fail("interrupt", path)

    def _close(self, inode: Inode) -> None:
        self.open_files -= 1
        self._opens[inode] -= 1
        if self._opens[inode] == 0:
            del self._opens[inode]
            if inode in self._unlinked:
                del self._unlinked[inode]
                self._used_bytes -= len(inode.cached)

    def _take_name(self, path: Path) -> None:
        if self.names_need_room and self._free_bytes() == 0:
            raise _error(errno.ENOSPC, path)

    def _write(self, inode: Inode, path: Path, position: int, data: Bytes) -> None:
        was_crashing = self._crashing
        if not was_crashing:
            self._fail("interrupt", path)
        try:
            self._start("write", path)
            self._fail("write", path)
        except (SimulatedCrash, OSError):
            if not was_crashing:
                self._put(inode, position, data[: self._random.randint(0, len(data))])
            raise
        if self._put(inode, position, data) < len(data):
            raise _error(errno.ENOSPC, path)

    def _put(self, inode: Inode, position: int, data: Bytes) -> int:
        """Write what fits; return how many bytes that were."""
        room = len(inode.cached) + self._free_bytes() - position
        if len(data) > room:
            data = data[: max(0, room)]
        if not data:
            return 0  # as the system does: no bytes, no growth
        self._resize(inode, max(len(inode.cached), position + len(data)))
        if self._misdirect:
            self._misdirect = False
            own, inside = divmod(position, self._sector_bytes)
            others = (len(inode.cached) - len(data) - inside) // self._sector_bytes
            if others == 0:
                return len(data)
            sector = self._random.randrange(others)
            position = (sector + (sector >= own)) * self._sector_bytes + inside
        inode.put(position, data)
        return len(data)

    def _resize(self, inode: Inode, size: int) -> None:
        if inode.linked or inode in self._unlinked:
            self._used_bytes += size - len(inode.cached)
        inode.resize(size)
        self._unsynced[inode] = None

    def _free_bytes(self) -> int:
        if self.capacity_bytes is None:
            return _FREE_WITHOUT_LIMIT_BYTES
        return max(0, self.capacity_bytes - self._used_bytes)

    def _sync(self, inodes: Iterable[Inode], changes: Iterable[_Change], path: Path) -> None:
        inodes, changes = [*inodes], [*changes]
        self._fail("interrupt", path)
        try:
            self._fail("sync", path)
        except OSError:
            for change in changes:
                change.lost = True
            for inode in inodes:
                inode.lose()
                inode.drop_lost(self._random, self._sector_bytes)
                self._lost[inode] = None
            raise
        else:
            self._commit(change for change in changes if not change.lost)
            for inode in inodes:
                inode.sync()
        finally:
            for inode in inodes:
                self._unsynced.pop(inode, None)

    # Names.

    def _find(self, path: Path) -> _Node | None:
        node: _Node = self._root
        for name in path.parts:
            assert name != "..", path
            if name[0] == "/":
                continue
            if isinstance(node, Inode):
                raise _error(errno.ENOTDIR, path)
            child = node.names.get(name)
            if child is None:
                return None
            node = child
        return node

    def _directory(self, path: Path) -> _Directory:
        node = self._find(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, Inode):
            raise _error(errno.ENOTDIR, path)
        return node

    def _pending_on_the_way(self, path: Path) -> Sequence[_Change]:
        """The unsynced changes without which `path` cannot be reached."""
        found = []
        node: _Node = self._root
        for name in path.parts[1:-1]:
            assert isinstance(node, _Directory), path
            if name in node.pending:
                found.append(node.pending[name])
            node = node.names[name]
        return found

    def _change(
        self, entries: Sequence[tuple[_Directory, str, _Node | None]], after: Sequence[_Change] = ()
    ) -> None:
        """Give names their new nodes (None: no such name), for readers now and later durably."""
        after = [*after]
        nodes = [node for _, _, node in entries]
        for directory, name, _ in entries:
            after += [directory.pending[name]] if name in directory.pending else []
            gone = directory.names.get(name)
            if gone is None or gone in nodes:
                continue
            if isinstance(gone, _Directory):
                after += gone.pending.values()  # files that moved out must be out first
            else:
                gone.linked = False
                if gone in self._opens:
                    self._unlinked[gone] = None
                else:
                    self._used_bytes -= len(gone.cached)
        self._changes_made += 1
        change = _Change(self._changes_made, entries, after)
        self._changes[change.number] = change
        for directory, name, node in entries:
            _assign(directory.names, name, node)
            directory.pending[name] = change

    def _commit(self, changes: Iterable[_Change]) -> None:
        """Make names durable: `changes` and all that must come before them, in order."""
        found: dict[int, _Change] = {}
        waiting = [*changes]
        while waiting:
            change = waiting.pop()
            if change.number in self._changes and change.number not in found:
                found[change.number] = change
                waiting += change.after
        for number, change in sorted(found.items()):
            del self._changes[number]
            change.after = ()  # lets go of a history that may be long
            for directory, name, node in change.entries:
                _assign(directory.durable, name, node)
                if directory.pending[name] is change:
                    del directory.pending[name]

    def _forget_cache(self, directory: _Directory) -> None:
        directory.names = dict(directory.durable)
        directory.pending.clear()
        for node in directory.names.values():
            if isinstance(node, _Directory):
                self._forget_cache(node)
            else:
                node.cached = bytearray(node.durable)
                node.lost.clear()
                node.call_clean()
                node.linked = True
                self._used_bytes += len(node.cached)


def _assign(names: dict[str, _Node], name: str, node: _Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


def _repeat(code: int, times: int | None) -> Iterator[int]:
    return repeat(code) if times is None else repeat(code, times)


def _error(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))
