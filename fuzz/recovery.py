"""Logs whose files were flipped, cut, extended, doubled, zeroed, lost or joined by strangers.

What must hold: a start never fails, never changes a byte but by cutting the end of the newest
segment, never cuts an intact batch below the durable mark, never reports a batch whose checksum
is wrong as part of the newest segment, and a second start finds what the first one left.
"""

# case := msgpack of `Damage`

from collections.abc import Mapping
from random import Random
from typing import Any, Final

import msgspec

from fuzz.logs import CONFIG, DIRECTORY, WholeLog, open_directory, whole_log
from fuzz.mutate import mutate
from fuzz.runner import Broken
from tidelog.errors import BrokerError
from tidelog.host import read_file
from tidelog.log.log import Log, LogState
from tidelog.log.producers import ProducerStates
from tidelog.log.search import TimeSearch
from tidelog.log.tail import TailBudget
from tidelog.model import Offset
from tidelog.records import CRC_FROM, crc_matches, iterate_batches, read_header
from tidelog.simulation.disk import SimulatedDisk

LOGS: Final = 40
STRANGERS: Final = (
    "notes.snapshot",
    "notes.log",
    "5.log",
    "7.snapshot",
    "00000000000000000003.log.tmp",
    "00000000000000000001.snapshot",
    "0000000000000000000x.log",
    "\N{SUPERSCRIPT TWO}.log",
    ".log",
    ".snapshot",
    "-0000000000000000005.log",
)


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """A directory as a start finds it, and what it once held."""

    files: dict[str, bytes]
    clean: bool
    durable_mark: int
    start: int
    batches: list[bytes]
    only_active: bool
    """Nothing but the newest segment was touched."""


class RecoveryFuzzer:
    name = "recovery"

    def __init__(self) -> None:
        self._logs = [whole_log(Random(number), clean=number % 3 == 0) for number in range(LOGS)]

    def make(self, random: Random) -> bytes:
        number = random.randrange(LOGS)
        whole = self._logs[number]
        files = dict(whole.files)
        only_active = random.random() < 0.6
        for _ in range(1 if only_active else random.randint(1, 3)):
            name = whole.active if only_active or not files else random.choice(sorted(files))
            _damage(random, files, name, may_vanish=not only_active)
        return msgspec.msgpack.encode(
            Damage(
                files=files,
                clean=number % 3 == 0 and random.random() < 0.5,
                durable_mark=_any_mark(random, whole),
                start=_any_start(random, whole),
                batches=whole.batches,
                only_active=only_active,
            )
        )

    def check(self, case: bytes) -> int:
        damage = msgspec.msgpack.decode(case, type=Damage)
        disk = disk_with(damage.files)
        state = _open(disk, damage)
        _check_files(disk, damage, state)
        if state.end < damage.durable_mark and state.damaged_at is None:
            raise Broken(f"the log was durable up to {damage.durable_mark}, and ends at {state.end}")
        if not damage.clean and state.damaged_at is None:
            _check_active(disk, state)
            if damage.only_active and damage.start == 0:
                _check_producers(disk, damage, state)
        # Indexes are rewritten at a clean stop, which this is not; so their times may differ.
        first = _summary(state, times=not damage.clean)
        _check_readable(disk, damage, state)
        again = _open(disk, damage)
        second = _summary(again, times=not damage.clean)
        if again.discarded_bytes or second != first:
            raise Broken(f"the first start found {first}, the second {second}")
        return 1


def disk_with(files: Mapping[str, bytes]) -> SimulatedDisk:
    disk = SimulatedDisk(Random(0))
    disk.make_directory(DIRECTORY)
    for name, content in files.items():
        disk.open(DIRECTORY / name, create=True).write(0, [content])
    disk.sync_everything(DIRECTORY)
    return disk


def _damage(random: Random, files: dict[str, bytes], name: str, *, may_vanish: bool) -> None:
    if may_vanish and random.random() < 0.1:
        files.pop(name, None)
    elif may_vanish and random.random() < 0.15:
        files[random.choice(STRANGERS)] = random.choice((b"", b"junk", *files.values()))
    elif random.random() < 0.3 and name.endswith(".log"):
        files[name] = _flip_a_header(random, files.get(name, b""))
    else:
        files[name] = mutate(random, files.get(name, b""))


def _flip_a_header(random: Random, content: bytes) -> bytes:
    """Rot in the few bytes that say where a batch lies: not all of them are under its checksum."""
    data = bytearray(content)
    starts, at = [], 0
    for header, _ in iterate_batches(content):
        starts.append(at)
        at += header.size
    if starts:
        data[random.choice(starts) + random.randrange(CRC_FROM)] ^= 1 << random.randrange(8)
    return bytes(data)


def _any_mark(random: Random, whole: WholeLog) -> Offset:
    """Where a checkpoint may have said that the log was durable; it may be damaged itself."""
    ends = [read_header(batch).next_offset for batch in whole.batches]
    return random.choice(
        (0, whole.end, whole.end, random.choice(ends), random.choice(ends), whole.end // 2)
        + ((whole.end + 3, 2**63 - 1, -1) if random.random() < 0.1 else ())
    )


def _any_start(random: Random, whole: WholeLog) -> Offset:
    if random.random() < 0.8:
        return 0
    return random.choice((random.randint(0, whole.end), whole.end, whole.end + 7, 2**62))


def _open(disk: SimulatedDisk, damage: Damage) -> LogState:
    return open_directory(disk, clean=damage.clean, durable_mark=damage.durable_mark, start=damage.start)


def _summary(state: LogState, *, times: bool) -> Any:
    return {
        "start": state.start,
        "end": state.end,
        "damaged_at": state.damaged_at,
        "created": state.created,
        "epochs": list(state.epochs),
        "segments": [(s.base, s.size, times and s.max_timestamp_ms) for s in state.segments],
        "producers": _producers(state.producers),
    }


def _producers(states: ProducerStates) -> Any:
    return {key: (s.epoch, list(s.batches)) for key, s in states._states.items()}


def _check_files(disk: SimulatedDisk, damage: Damage, state: LogState) -> None:
    active = state.segments[-1].path().name
    for name, before in damage.files.items():
        if not name.endswith(".log"):
            continue
        if not disk.exists(DIRECTORY / name):
            ends = (read_header(batch).next_offset for batch in damage.batches if batch in before)
            durable = [end for end in ends if end <= damage.durable_mark]
            if max(durable, default=0) > state.start:
                raise Broken(f"{name} was removed, and holds durable records past {state.start}")
            continue  # a log whose files end before its start is empty at its start
        after = read_file(disk, DIRECTORY / name)
        if name != active or state.damaged_at is not None:
            if after != before:
                raise Broken(f"{name} was changed")
            continue
        if before[: len(after)] != after:
            raise Broken(f"{name} was changed, not only cut")
        for batch in damage.batches:
            header = read_header(batch)
            was_durable = header.next_offset <= damage.durable_mark
            if was_durable and batch in before[len(after) :] and batch not in after:
                raise Broken(
                    f"the intact batch at {header.base_offset} was cut, below the durable mark "
                    f"{damage.durable_mark}"
                )


def _check_active(disk: SimulatedDisk, state: LogState) -> None:
    active = state.segments[-1]
    if not disk.exists(active.path()):
        return
    data = read_file(disk, active.path())
    end, size = active.base, 0
    for header, batch in iterate_batches(data):
        if not crc_matches(batch, header):
            raise Broken(f"the batch at {header.base_offset} is damaged and reported as whole")
        if header.base_offset < end:
            raise Broken(f"offset {header.base_offset} comes after {end}")
        end = header.next_offset
        size += len(batch)
    if (end, size) != (state.end, len(data)) or active.size != size:
        raise Broken(f"the file ends at {end}, {len(data)} bytes; reported: {state.end}, {active}")


def _check_producers(disk: SimulatedDisk, damage: Damage, state: LogState) -> None:
    """The state of producers is what the surviving batches add up to."""
    expected = ProducerStates()
    for segment in state.segments:
        for header, batch in iterate_batches(read_file(disk, segment.path())[: segment.size]):
            if header.is_idempotent and crc_matches(batch, header):
                expected.note(header, header.base_offset)
    if _producers(expected) != _producers(state.producers):
        raise Broken(f"the log's producers are {_producers(expected)}, not {_producers(state.producers)}")


def _check_readable(disk: SimulatedDisk, damage: Damage, state: LogState) -> None:
    """Readers get whole batches or nothing; a search by time finds something or not."""
    log = Log(DIRECTORY, CONFIG, TailBudget(1 << 20), state)
    offset = log.start
    while offset < log.end:
        try:
            found = log.read(offset, 1000, log.end)
        except BrokerError:
            if state.damaged_at is None:
                raise
            break
        data = found.load_unchecked(disk)
        headers = [header for header, _ in iterate_batches(data)]
        if sum(header.size for header in headers) != len(data):
            raise Broken(f"a read at {offset} returned half a batch")
        following = max((header.next_offset for header in headers), default=offset)
        if following <= offset:
            if damage.only_active and not damage.clean and state.damaged_at is None:
                raise Broken(f"nothing can be read at {offset}, though the log ends at {log.end}")
            break
        offset = following
    search = TimeSearch.over(log, log.end)
    try:
        search.newest(disk)
        search.first_since(disk, 1)
    except BrokerError:
        pass
