"""The small files of a data directory: checkpoints, snapshots, indexes, names of the owner.

What must hold: each is read, or refused by the one error that its reader handles; what was read
can be written and read again; a whole directory starts, or is refused with words for people.
"""

# case := kind: one letter, content
# For the kind `d` the content is the msgpack of a directory's files by path.

import asyncio
import re
import struct
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

import msgspec

from fuzz.mutate import NUMBERS, mutate
from fuzz.runner import Broken
from fuzz.world import DATA, VirtualLoop, make_broker
from tidelog.broker.topics import create_topic
from tidelog.controller import records as metadata
from tidelog.controller.decisions import NewTopic
from tidelog.errors import TidelogError
from tidelog.host import Path, read_file
from tidelog.log.epochs import EpochHistory, EpochsDamaged
from tidelog.log.index import IndexDamaged, OffsetIndex, TimeIndex
from tidelog.log.producers import ProducerStates, SnapshotDamaged
from tidelog.simulation.disk import SimulatedDisk

SIZE_MAX: Final = 10**6


class FilesFuzzer:
    name = "files"

    def __init__(self) -> None:
        self.directory = _run(_whole_directory())
        """A good one, by path."""
        self._good: dict[bytes, list[bytes]] = {
            b"e": [_epochs(0), _epochs(5), _unchecked_epochs(1), _unchecked_epochs(5)],
            b"s": [b"".join(_files_named(self.directory, ".snapshot")), ProducerStates().encode()],
            b"i": [b"", struct.pack(">IIIIII", 5, 100, 9, 400, 12, 900)],
            b"t": [b"", struct.pack(">qIqIqI", -1, 0, 5, 3, 10**12, 9)],
            b"m": [metadata.encode(record) for record in _metadata_records()],
            b"d": [b""],
        }

    def make(self, random: Random) -> bytes:
        kind = random.choice(list(self._good))
        if kind == b"d":
            return kind + msgspec.msgpack.encode(self._damaged_directory(random))
        content = random.choice(self._good[kind])
        if kind == b"e" and random.random() < 0.5:
            return kind + _odd_numbers(random, content)
        return kind + mutate(random, content)

    def _damaged_directory(self, random: Random) -> dict[str, bytes]:
        files = dict(self.directory)
        for _ in range(random.randint(1, 2)):
            name = random.choice(sorted(files))
            match random.randrange(8):
                case 0:
                    del files[name]
                case 1 | 2:
                    files[name] = _odd_numbers(random, files[name])
                case _:
                    files[name] = mutate(random, files[name])
        return files

    def check(self, case: bytes) -> int:
        checks: dict[bytes, Callable[[bytes], None]] = {
            b"e": _check_epochs,
            b"s": _check_snapshot,
            b"i": _check_offset_index,
            b"t": _check_time_index,
            b"m": _check_metadata,
            b"d": _check_directory,
        }
        checks[case[:1]](case[1:])
        return 1


def _odd_numbers(random: Random, content: bytes) -> bytes:
    """Replace a number in a text by one from the edges, or past them."""
    found = list(re.finditer(rb"\d+", content))
    if not found:
        return content
    start, end = random.choice(found).span()
    number = random.choice((*NUMBERS, 2**64, 10**30))
    return content[:start] + str(number).encode() + content[end:]


def _epochs(count: int) -> bytes:
    return EpochHistory((epoch * 2, epoch * 100) for epoch in range(count)).encode()


def _unchecked_epochs(count: int) -> bytes:
    """The same as Kafka writes it: no checksum tells that a number is another one."""
    lines = [f"{epoch * 2} {epoch * 100}" for epoch in range(count)]
    return "".join(f"{line}\n" for line in ("0", str(count), *lines)).encode()


def _metadata_records() -> list[metadata.MetadataRecord]:
    return [
        metadata.NodeRegistered(node=1, incarnation="x"),
        metadata.TopicCreated(name="a", id="0" * 32, replicas=[[1], [1]], config={"a": "b"}),
        metadata.PartitionsAdded(topic="a", replicas=[[1]]),
        metadata.TopicDeleted(name="a"),
        metadata.ProducerIdsGranted(node=1, end=1000),
        metadata.AclAdded(
            principal="User:a",
            host="*",
            operation="Read",
            effect="Deny",
            kind="Topic",
            name="a",
            pattern="Prefixed",
        ),
    ]


def _check_epochs(data: bytes) -> None:
    try:
        history = EpochHistory.decode(data)
    except EpochsDamaged:
        return
    if list(EpochHistory.decode(history.encode())) != list(history):
        raise Broken("an epoch history changes when it is written")
    struct.pack(">i", history.latest + 1)  # the next leader's epoch must fit a batch
    for _, start in history:
        struct.pack(">q", start)


def _check_snapshot(data: bytes) -> None:
    try:
        states = ProducerStates.decode(data)
    except SnapshotDamaged:
        return
    if ProducerStates.decode(states.encode()) != states:
        raise Broken("a snapshot changes when it is written")


def _check_offset_index(data: bytes) -> None:
    try:
        index = OffsetIndex.decode(data, size_max=SIZE_MAX)
    except IndexDamaged:
        return
    if index.encode() != data:
        raise Broken("an index changes when it is written")
    if not 0 <= index.position_before(2**31) < SIZE_MAX or index.last_position() >= SIZE_MAX:
        raise Broken("an index points past its segment")


def _check_time_index(data: bytes) -> None:
    try:
        index = TimeIndex.decode(data)
    except IndexDamaged:
        return
    again = TimeIndex.decode(index.encode())
    if again.encode() != index.encode() or again.last() != index.last():
        raise Broken("a time index changes when it is written")
    index.offset_before(5)


def _check_metadata(data: bytes) -> None:
    try:
        record = metadata.decode(data)
    except ValueError:
        return
    if metadata.decode(metadata.encode(record)) != record:
        raise Broken("a metadata record changes when it is written")


# Whole directories.


def _run(episode: Any) -> Any:
    loop = VirtualLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(episode)


async def _whole_directory() -> dict[str, bytes]:
    """A node's directory with a topic or two, metadata in two segments, and a clean stop."""
    disk = SimulatedDisk(Random(1))
    broker = make_broker(1, disk)
    await broker.start()
    for name in ("orders", "payments"):
        await create_topic(broker, NewTopic(name=name, partitions=2, config={}))
        broker.member.log.log.roll()
    await broker.stop()
    return _files(disk, Path(DATA))


def _files(disk: SimulatedDisk, path: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in disk.list(path):
        child = path / name
        if disk.is_directory(child):
            found.update(_files(disk, child))
        else:
            found[str(child)] = read_file(disk, child)
    return found


def _files_named(files: Mapping[str, bytes], suffix: str) -> list[bytes]:
    return [content for name, content in files.items() if name.endswith(suffix)][:1]


def _check_directory(data: bytes) -> None:
    files = msgspec.msgpack.decode(data, type=dict[str, bytes])
    disk = SimulatedDisk(Random(1))
    for name, content in files.items():
        disk.make_directory(Path(name).parent)
        disk.open(Path(name), create=True).write(0, [content])
    _run(_start_and_stop(disk))


async def _start_and_stop(disk: SimulatedDisk) -> None:
    broker = make_broker(1, disk)
    try:
        await broker.start()
    except TidelogError as error:
        if not str(error):
            raise Broken(f"refused without a word: {error!r}") from error
        return
    await create_topic(broker, NewTopic(name="another", config={}))
    await broker.stop()
