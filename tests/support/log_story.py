"""One log through many lives on a disk that loses power, and what must be there after each start.

A story plays leaders, clients, the cleaner, retention and the operator against one partition's log,
all in one thread, so that a crash may come at any change of the disk. `Model` knows every batch
that the log was given, and what follows from that. A seed decides everything.

Invariants, checked after every start:

1. The log is a prefix of what was appended, byte for byte, and holds all that was synced.
2. Its start is the one that was noted.
3. The epoch history is the fold of the batches: no epoch without records, none missing.
4. The producers' state, the aborted transactions and the last stable offset are folds, too.
5. Offsets by time are what a look at every record finds.
6. A retry is answered with what was stored, and nothing is stored that only brokers may say.
7. Retention deletes what is too old, and leaves no segment wholly below the start.
8. Nothing lies beside the segments that is not theirs; their indexes point at batches.
9. A compacted log keeps the latest value of every key, and no record has changed.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tidelog.config import TopicConfig
from tidelog.errors import InvalidTimestamp
from tidelog.host import Host, Path, read_file
from tidelog.log.closing import close_logs
from tidelog.log.compaction import Cleaned, Compaction
from tidelog.log.epochs import OFFSET_MAX, EpochHistory
from tidelog.log.index import OFFSET_ENTRY
from tidelog.log.log import Log, LogState
from tidelog.log.producers import ProducerStates
from tidelog.log.recovery import open_log
from tidelog.log.retention import has_deleted_segments, load_ages, new_start, remove_segments
from tidelog.log.scan import Before
from tidelog.log.search import Found, TimeSearch
from tidelog.log.segment import walk
from tidelog.log.swap import commit_swap, discard_cleaned, finish_swap
from tidelog.log.tail import TailBudget
from tidelog.log.transactions import Transactions, fold
from tidelog.log.truncation import cut_end, end_after_cut, remove_all
from tidelog.model import NO_TIMESTAMP, Offset, TopicPartition
from tidelog.partition.driver import Partition
from tidelog.records import (
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Codec,
    Marker,
    Record,
    decode_batch,
    encode_batch,
    iterate_batches,
    read_header,
    seal_batch,
    stamp,
)
from tidelog.simulation.disk import SimulatedCrash, SimulatedDisk
from tidelog.simulation.host import RefusingNetwork, SimulatedClock

DIRECTORY = Path("/data/tide-0")
DECADE_MS = 3650 * 86_400_000
NEVER = 10**9
"""Changes of the disk."""


LIVES = ("do_anything", "do_anything", "be_cut", "lose_an_epoch", "delete", "compact")


class _NoRounds:
    """The story writes and syncs by itself."""

    def mark(self, member: object) -> None: ...
    def sync(self, member: object) -> None: ...


class _Client:
    deadline = float("inf")

    def settled(self, error: object) -> None: ...


@dataclass
class Model:
    """What the log was given: every batch of its history, also those deleted at its start."""

    batches: list[bytes] = field(default_factory=list)
    begin: Offset = 0
    """Where the history begins: a log that began anew has none before."""
    start: Offset = 0
    durable: Offset = 0
    """Everything below it was synced, and nothing has cut it since."""
    watermark: Offset = 0
    compacted_to: Offset = 0
    is_lossy: bool = False
    """Whether records were cut that had taken the place of older ones, compacted away."""

    @property
    def end(self) -> Offset:
        return read_header(self.batches[-1]).next_offset if self.batches else self.begin

    def cut(self, end: Offset) -> None:
        while self.batches and read_header(self.batches[-1]).next_offset > end:
            self.batches.pop()
        self.durable = min(self.durable, end)
        self.watermark = min(self.watermark, end)

    def epochs(self) -> EpochHistory:
        found, end = EpochHistory(), self.begin
        for batch in self.batches:
            header = read_header(batch)
            found.assign(header.leader_epoch, end)
            end = header.next_offset
        found.cut_start(self.start)
        return found

    def producers(self) -> tuple[ProducerStates, Transactions]:
        producers, transactions = ProducerStates(), Transactions()
        for batch in self.batches:
            fold(producers, transactions, read_header(batch), batch)
        return producers, transactions

    def times(self) -> list[tuple[Found, bool]]:
        """Every record that a search by time may find, and whether its batch can be read."""
        found = []
        for batch in self.batches:
            header = read_header(batch)
            if header.is_control or header.last_offset < self.start:
                continue
            offset, epoch = max(header.base_offset, self.start), header.leader_epoch
            try:
                records = decode_batch(batch)
            except Exception:
                found.append((Found(offset, header.max_timestamp, epoch), False))
            else:
                found += [
                    (Found(r.offset, r.timestamp_ms, epoch), True) for r in records if r.offset >= self.start
                ]
        return found


class LogStory:
    """A log, its disk, its model, and the chance that rules them."""

    def __init__(self, seed: int, lives_of: Sequence[str] = LIVES) -> None:
        """`lives_of`: what lives are about, of LIVES."""
        self.lives_of = lives_of
        self.random = choose = random.Random(f"{seed} log")
        self.disk = SimulatedDisk(random.Random(f"{seed} disk"), sector_bytes=choose.choice((32, 128, 512)))
        self.disk.make_directory(DIRECTORY)
        self.disk.sync_everything(DIRECTORY)
        self.clock = SimulatedClock()
        self.compacts = choose.random() < 0.25
        self.is_calm = choose.random() < 0.4
        """Whether one leader is followed all the time: its epoch is the only one."""
        self.config = TopicConfig(
            segment_bytes=choose.choice((200, 400, 1000, 5000, 5000)),
            index_interval_bytes=choose.choice((0, 100, 4096)),
            message_timestamp_type=choose.choice(("CreateTime", "CreateTime", "LogAppendTime")),
            cleanup_policy="compact" if self.compacts else "delete",
            retention_ms=3_600_000,
        )
        self.model = Model()
        self.mark: Offset = 0
        """The durable mark, as the checkpoint has it."""
        self.epoch = 0
        self.was_clean = False
        self.anew_at: Offset | None = None
        """Where the log should begin anew; a crash came first."""
        self.written: Offset = 0
        """What was written since the last power loss: a kill keeps it."""
        self.sent: list[bytes] = []
        self.values = 0
        self.lives = 0
        self.open_transactions: dict[int, None] = {}
        self.next_life: Callable[[], None] | None = None

    # Lives.

    def play(self, lives: int = 8) -> None:
        for _ in range(lives):
            self.start()
            self.check()
            self.live()
        self.start()
        self.check()

    def start(self) -> None:
        """Start from the files; a start may be interrupted, too."""
        self.lives += 1
        if self.random.random() < 0.2:
            self.disk.crash_after(self.random.randint(1, 12))
        state: LogState | None = None
        while state is None:
            try:
                state = self._open(clean=self.was_clean, mark=self.mark)
            except SimulatedCrash:
                self._die()
            self.was_clean = False
        self.disk.crash_after(NEVER)
        self._take(state)

    def _open(self, *, clean: bool, mark: Offset) -> LogState:
        if not clean:
            self.disk.sync_everything(DIRECTORY)  # as the data directory does before
        return open_log(
            self.disk,
            DIRECTORY,
            clean=clean,
            durable_mark=mark,
            start=self.model.start,
            index_interval_bytes=self.config.index_interval_bytes,
            has_gaps=self.compacts,
            watermark=self.model.watermark,
        )

    def _take(self, state: LogState) -> None:
        host = Host(
            clock=self.clock,
            disk=self.disk,
            offload=None,  # type: ignore[arg-type]
            network=RefusingNetwork(),
            random=self.random,
        )
        self.partition = Partition(
            name=TopicPartition("tide", 0),
            topic_id=UUID(int=7),
            me=1,
            config=self.config,
            path=DIRECTORY,
            state=state,
            host=host,
            rounds=_NoRounds(),  # type: ignore[arg-type]
            budget=TailBudget(self.random.choice((0, 1 << 20))),
        )

    @property
    def log(self) -> Log:
        return self.partition.log

    def live(self) -> None:
        """One process. Most do anything; some do what shows what the one before has left."""
        choose = self.random
        self._take_role()
        lives = [getattr(self, f"_{name}") for name in self.lives_of]
        life, self.next_life = self.next_life or choose.choice(lives), None
        try:
            if self.anew_at is not None:
                self._begin_anew(self.anew_at)
            life()
            if choose.random() < 0.3:
                self.stop()
        except SimulatedCrash:
            pass
        self._die()

    def _do_anything(self) -> None:
        choose = self.random
        if choose.random() < 0.6:
            self.disk.crash_after(choose.choice((3, 10, 30, 100)))
        doings = (
            (30, self.append),
            (14, self.write),
            (8, self.sync),
            (1, self.roll),
            (4, self.note),
            (3, self.cut),
            (1, self.begin_anew),
            (2, self.retain),
            (2, self.delete_records),
            (3, self.compact),
            (3, self.retry),
            (1, self.send_what_only_brokers_say),
            (4, self._take_role),
            (2, self.write_back),
        )
        weights = [weight for weight, _ in doings]
        for _ in range(choose.choice((3, 6, 15, 40))):
            choose.choices(doings, weights)[0][1]()

    def _be_cut(self) -> None:
        """A new leader lacks what this replica has; the power fails half-way."""
        self._grow()
        self.roll()
        self._grow()
        self.disk.crash_after(self.random.randint(2, 9))
        self.next_life = self._grow
        if self.random.random() < 0.2:
            self._begin_anew(self.log.end + 1)
        else:
            self.cut()

    def _delete(self) -> None:
        """Delete records, by hand and by age."""
        self._grow()
        self.note()
        if self.random.random() < 0.5 and not self.compacts:
            self._advance(self.model.watermark)
        else:
            self.retain()
        self.roll()
        self._grow()
        self.retain()

    def _compact(self) -> None:
        """Write some segments, and have them compacted."""
        for _ in range(self.random.randint(2, 4)):
            self._grow()
            self.roll()
        self._grow()
        self.note()
        self.compact()

    def _grow(self) -> None:
        """Follow a leader, and sync what it sends: hardly a file gets a name."""
        self._follow()
        for _ in range(self.random.randint(1, 6)):
            self.append()
        self.write()
        self.sync()

    def _lose_an_epoch(self) -> None:
        """Lead, and lose power before the first batch is synced."""
        self.write()
        self.sync()
        self._lead()
        self.append()
        self.write()
        self.next_life = self._grow
        raise SimulatedCrash

    def _die(self) -> None:
        """Lose power, or be killed: then the page cache lives on."""
        if self.random.random() < 0.6:
            self.disk.crash()
            self.written = 0
        else:
            self.disk.kill()

    def stop(self) -> None:
        """An orderly stop."""
        self.write()
        self.sync()
        close_logs(self.disk, DIRECTORY, [self.log])
        self.note()
        self.was_clean = True
        raise SimulatedCrash

    # What leaders and clients do.

    def _take_role(self) -> None:
        self._follow() if self.is_calm or self.random.random() < 0.5 else self._lead()

    def _lead(self) -> None:
        """In an epoch that nobody has led in."""
        self._resign()
        self.epoch = max(self.epoch, self.log.epochs.latest) + self.random.choice((1, 1, 2))
        self.partition.lead(self.epoch, (1,))

    def _follow(self) -> None:
        self._resign()
        self.epoch = max(self.epoch, self.log.epochs.latest)
        self.epoch += 0 if self.is_calm else self.random.choice((0, 0, 1))
        self.partition.follow(self.epoch, 2)

    def _resign(self) -> None:
        if self.partition.leader is not None:
            self.partition.resign(InvalidTimestamp("another leads"))

    def append(self) -> None:
        for _ in range(self.random.choice((1, 1, 2, 5))):
            if self.partition.leader is not None:
                self._append_as_leader()
            else:
                self._append_as_follower()

    def _append_as_leader(self) -> None:
        choose, log = self.random, self.log
        if self.open_transactions and choose.random() < 0.3:
            self._end_transaction(choose.choice(list(self.open_transactions)))
            return
        batch = self._batch(log.producers)
        sent, now_ms = bytes(batch), self.clock.wall_ms()
        offset, time_ms, _ = self.partition.appender.append(
            batch, acks=0, waiter=_Client(), pins_bytes=len(batch), is_transactional=True
        )
        self._took(offset)
        stored = read_header(self.model.batches[-1])
        if self.config.message_timestamp_type == "CreateTime":
            assert time_ms == NO_TIMESTAMP
            assert not stored.attributes & LOG_APPEND_TIME, "only a broker says so"
        else:
            assert time_ms == stored.max_timestamp == now_ms, "the time told is not the time stored"
        if stored.producer_id >= 0:
            self.sent.append(sent)
            if stored.is_transactional:
                self.open_transactions[stored.producer_id] = None

    def _append_as_follower(self) -> None:
        """Copy a batch of some leader, of this epoch or of one before."""
        log = self.log
        last = read_header(self.model.batches[-1]).leader_epoch if self.model.batches else 0
        least = max(log.epochs.latest, last)
        epoch = self.random.choice((least, least, self.random.randint(least, self.epoch)))
        batch = self._batch(log.producers, kinds=("plain", "idempotent"))
        stamp(batch, log.end, epoch)
        self.partition.append_fetched(memoryview(bytes(batch)), 1 << 20, has_gaps=False)
        self._took(log.end - read_header(batch).last_offset_delta - 1)

    def _end_transaction(self, producer: int) -> None:
        del self.open_transactions[producer]
        state = self.log.producers.get(producer)
        if state is None:
            return
        marker = Marker(commits=self.random.random() < 0.5, coordinator_epoch=0)
        offset, _ = self.partition.appender.append_marker(
            marker, producer_id=producer, producer_epoch=state.epoch, is_bumped=False, waiter=_Client()
        )
        self._took(offset)

    def _took(self, offset: Offset) -> None:
        """Remember the batch that now lies at `offset`."""
        found = self.log.read(offset, 1, self.log.end)
        data = found.load_unchecked(self.disk)
        ((header, batch),) = iterate_batches(bytes(data))
        assert header.base_offset == offset
        self.model.batches.append(bytes(batch))

    def _batch(
        self, producers: ProducerStates, kinds: Sequence[str] = ("plain", "idempotent", "idempotent", "txn")
    ) -> bytearray:
        choose = self.random
        self.clock.advance(choose.choice((0, 0.01, 1)))
        now_ms = self.clock.wall_ms()
        count = choose.choice((1, 1, 2, 3))
        fields: dict[str, Any] = {}
        kind = choose.choice(kinds)
        if kind != "plain" and not (self.compacts and kind == "txn"):
            producer = choose.randint(1, 3) + (10 if kind == "txn" else 0)
            state = producers.get(producer)
            epoch = state.epoch if state is not None else 0
            sequence = state.last_sequence + 1 if state is not None else choose.choice((0, 7))
            fields = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
            if kind == "txn":
                fields["attributes"] = TRANSACTIONAL
        elif choose.random() < 0.1 and not self.compacts:
            return self._bad_batch(now_ms)
        times = [now_ms - choose.choice((0, 0, 5, 5000)) for _ in range(count)]
        if choose.random() < 0.1:
            times = [NO_TIMESTAMP] * count
        records = []
        for time_ms in times:
            self.values += 1
            value: bytes | None = f"{self.values}".encode()
            if self.compacts and choose.random() < 0.2:
                value = None
            key = f"k{choose.randrange(8)}".encode()
            records.append(Record(key=key, value=value, timestamp_ms=time_ms))
        codec = choose.choice((Codec.NONE, Codec.NONE, Codec.LZ4))
        return encode_batch(records, codec=codec, **fields)

    def _bad_batch(self, now_ms: int) -> bytearray:
        """Records that cannot be read, or a header that claims more than its record bears out."""
        body = bytes(encode_batch([Record(value=b"v", timestamp_ms=now_ms)])[HEADER_BYTES:])
        is_garbage = self.random.random() < 0.5
        return seal_batch(
            b"\x01" * 30 if is_garbage else body,
            count=1,
            attributes=0,
            base_timestamp=now_ms,
            max_timestamp=now_ms + (0 if is_garbage else 3000),
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
        )

    def retry(self) -> None:
        """Send a batch again: the answer tells of the one that is stored."""
        if self.partition.leader is None or not self.sent:
            return
        batch = bytearray(self.random.choice(self.sent[-3:]))
        sent = read_header(batch)
        state = self.log.producers.get(sent.producer_id)
        known = () if state is None else state.batches
        if not any(
            (b.last_sequence, b.offset_delta) == (sent.last_sequence, sent.last_offset_delta) for b in known
        ):
            return  # cut, or too long ago
        self.clock.advance(5)
        before = self.log.end
        offset, time_ms, _ = self.partition.appender.append(
            batch, acks=0, waiter=_Client(), pins_bytes=len(batch), is_transactional=True
        )
        assert self.log.end == before, "a retry was written"
        stored = [h for h in map(read_header, self.model.batches) if h.base_offset == offset]
        assert [h.producer_id for h in stored] == [sent.producer_id], "it is not there"
        if self.config.message_timestamp_type == "LogAppendTime":
            assert time_ms == stored[0].max_timestamp, "a retry is told a time never stored"

    def send_what_only_brokers_say(self) -> None:
        if self.partition.leader is None:
            return
        record = Record(key=b"k", value=b"v", timestamp_ms=self.clock.wall_ms())
        batch = encode_batch([record], attributes=LOG_APPEND_TIME)
        try:
            offset, _, _ = self.partition.appender.append(
                batch, acks=0, waiter=_Client(), pins_bytes=len(batch)
            )
        except InvalidTimestamp:
            return
        self._took(offset)
        stored = read_header(self.model.batches[-1])
        is_create = self.config.message_timestamp_type == "CreateTime"
        assert not (is_create and stored.attributes & LOG_APPEND_TIME), "only a broker says so"

    # What the disk's threads do.

    def write(self) -> None:
        job = self.log.take_writes()
        if job is not None:
            self.log.wrote(job, job.perform(self.disk).end)
            self.written = self.log.written_end

    def sync(self) -> None:
        targets, end = self.log.begin_sync()
        for target in targets:
            if isinstance(target, Path):
                self.disk.sync_directory(target)
            else:
                target.datasync()
        self.log.synced(end)
        self.model.durable = max(self.model.durable, end)

    def write_back(self) -> None:
        self.disk.write_back()

    def roll(self) -> None:
        if self.log.active.size:
            self.log.roll()

    def note(self) -> None:
        """The checkpoints; and what is synced is committed."""
        self.mark = max(self.mark, self.log.synced_end)
        self.model.watermark = max(self.model.watermark, self.log.synced_end)

    # What changes the files.

    def cut(self) -> None:
        """Another leader's history differs; it may lack what was committed."""
        model = self.model
        least = model.watermark if self.random.random() < 0.7 else 0
        ends = [model.begin, *(read_header(batch).next_offset for batch in model.batches)]
        ends = [end for end in ends if end >= max(least, model.start)] or [self.log.end]
        end = self.random.choice(ends)
        self.log.drop_writes()
        epochs = EpochHistory(self.log.epochs)
        epochs.cut_end(end)
        log_end, promised_end = self.log.end, self.log.promised_end
        self.written = min(self.written, end)
        model.durable, model.watermark = min(model.durable, end), min(model.watermark, end)
        if end < model.compacted_to:
            model.is_lossy, model.durable = True, 0  # what ends there may be compacted away
            model.compacted_to, self.written = end, 0
        if self.random.random() < 0.3:
            self.disk.crash_after(self.random.randint(1, 12))
        end_left = end_after_cut(self.disk, DIRECTORY, end, log_end)
        self.mark = min(self.mark, end_left)
        cut_end(self.disk, DIRECTORY, end, epochs, log_end)
        self._reopen(min(promised_end, end_left), end)
        assert self.log.damaged_at is None, "nothing is rotten"
        assert self.log.end <= end, "what was cut is there again"

    def _reopen(self, mark: Offset, end_max: Offset) -> None:
        self._take(self._opened_again(mark, end_max))
        self.settle()
        self.check()
        self._take_role()

    def _opened_again(self, mark: Offset, end_max: Offset = OFFSET_MAX) -> LogState:
        """As a partition does it that has changed its log's files."""
        log = self.log
        before = Before(synced_end=log.synced_end, end_max=min(end_max, log.end), epochs=log.epochs)
        return open_log(
            self.disk,
            DIRECTORY,
            clean=False,
            durable_mark=mark,
            start=self.model.start,
            index_interval_bytes=self.config.index_interval_bytes,
            has_gaps=self.compacts,
            before=before,
            watermark=self.model.watermark,
        )

    def begin_anew(self) -> None:
        """Nothing of this log is in the leader's."""
        if self.random.random() < 0.3:
            self._begin_anew(self.log.end + self.random.randint(1, 20))

    def _begin_anew(self, start: Offset) -> None:
        self.log.drop_writes()
        self.mark = self.written = 0
        self.anew_at, model = start, self.model
        model.start, model.durable, model.watermark = start, 0, 0
        remove_all(self.disk, DIRECTORY, EpochHistory())
        self._take(self._opened_again(0))
        self.settle()
        assert self.log.start == self.log.end == start, "it begins elsewhere"
        self._take_role()

    def delete_records(self) -> None:
        """Up to any committed offset; a log that is compacted deletes nothing by offset."""
        if not self.compacts:
            start = self.random.randint(0, self.model.watermark)
            self._advance(max(start, self.model.start))

    def retain(self) -> None:
        """Retention; sometimes all is too old."""
        if self.compacts:
            return
        log, model = self.log, self.model
        now_ms = self.clock.wall_ms() + self.random.choice((0, 3_600_000, DECADE_MS))
        load_ages(self.disk, log.segments[:-1])
        start = new_start(log, self.config, model.watermark, now_ms)
        if now_ms > self.clock.wall_ms() + DECADE_MS - 1:
            assert start >= self._all_that_is_old(), "retention is stuck"
        assert start <= max(model.watermark, model.start)
        if start == log.end and log.active.size and start > log.start:
            log.roll()
            self.write()
        if start > log.start or has_deleted_segments(log):
            self._advance(start)
        assert len(log.segments) < 2 or log.segments[1].base > log.start, "deleted files stay"

    def _all_that_is_old(self) -> Offset:
        """Where the log begins if every record that has a time is too old."""
        segments, log = self.log.segments, self.log
        timed = [h.base_offset for h in map(read_header, self.model.batches) if h.max_timestamp >= 0]
        start = log.start
        for at, segment in enumerate(segments):
            following = segments[at + 1].base if at + 1 < len(segments) else log.end
            if following > self.model.watermark or not timed or timed[-1] < segment.base:
                break
            start = max(start, following)
        return start

    def _advance(self, start: Offset) -> None:
        log = self.log
        gone = log.advance_start(start)
        self.write()  # a sealed segment's steps must not follow its removal
        self.model.start = start
        if gone:
            remove_segments(self.disk, gone, log.segments[0].base)
            log.removed(gone)

    def compact(self) -> None:
        """A pass of the cleaner; a full disk may stop it once a swap is decided."""
        log = self.log
        self.write()
        count = sum(segment.base <= self.model.watermark for segment in log.segments[1:])
        if not self.compacts or not count:
            return
        work = Compaction(
            disk=self.disk,
            segments=log.segments[:count],
            first_dirty=log.segments[0].base,
            limit=log.segments[count].base,
            producers=log.producers.last_offsets(),
            now_ms=self.clock.wall_ms(),
            delete_retention_ms=10**12,
            segment_bytes=self.config.segment_bytes,
            index_interval_bytes=self.config.index_interval_bytes,
            key_bytes_max=10**9,
        )
        self.model.compacted_to = max(self.model.compacted_to, log.segments[count].base)
        for _ in work.map_keys():
            pass
        for group in work.groups():
            done: list[Cleaned] = []
            for _ in work.clean(group, done.append):
                pass
            if not done:
                discard_cleaned(self.disk, DIRECTORY, group[0].base)
                continue
            new = done[0].segment
            commit_swap(self.disk, DIRECTORY, new.base)
            log.replace_segments(group, new, done[0].gone)
            if self.random.random() < 0.3:
                self.cut()  # the swap is decided; no other pass before the next start
                return
            finish_swap(self.disk, DIRECTORY, new.base, done[0].end)
            new.offsets = new.times = None

    # What must hold.

    def settle(self) -> None:
        """The log ends where its files do: what it was given beyond is gone."""
        model, log = self.model, self.log
        if self.anew_at is not None:
            if log.end == self.anew_at == log.start:
                self.model = Model(begin=log.end, start=log.end, durable=log.end)
                self.anew_at = None
                self.sent.clear()
                self.open_transactions.clear()
            else:
                assert log.start == log.end, "what was to go is shown again"
            return
        model.durable = max(model.durable, self.written)
        assert model.durable <= log.end <= model.end, (
            f"the log ends at {log.end}; synced to {model.durable}, appended to {model.end}"
        )
        model.cut(log.end)
        assert log.end == model.end, "it does not end with a batch"
        producers, _ = model.producers()
        self.open_transactions = {p: None for p, _ in producers.items() if producers.is_in_transaction(p)}

    def check(self) -> None:
        self.settle()
        model, log = self.model, self.log
        assert log.refusal is None, log.refusal
        self._check_names()
        if self.anew_at is not None:
            return
        assert log.start == model.start, f"it starts at {log.start}, not at {model.start}"
        if model.start < model.end:
            self._check_epochs()
        if self.compacts:
            self._check_compacted()
            return
        self._check_bytes()
        producers, transactions = model.producers()
        assert log.producers == producers, "the producers are not the fold of the log"
        assert log.aborted(log.start, log.end) == transactions.aborted.find(log.start, log.end)
        stable = max(transactions.last_stable(producers, model.watermark), 0)
        expected = stable if stable >= log.start else min(log.start, model.watermark)
        assert log.last_stable(model.watermark) == expected, "the last stable offset"
        self._check_times()

    def _check_epochs(self) -> None:
        found, truth = list(self.log.epochs), list(self.model.epochs())
        if not self.compacts:
            assert found == truth, f"epochs {found}, not {truth}"
            return
        for batch in self._batches():
            header = read_header(batch)
            if header.base_offset >= self.log.start:
                assert self.log.epochs.epoch_at(header.base_offset) == header.leader_epoch

    def _batches(self) -> list[bytes]:
        found: list[bytes] = []
        for segment in self.log.segments if self.log.end > self.log.segments[0].base else ():
            file = segment.open(self.disk)
            for header, at in walk(
                file, 0, file.size(), base=segment.base, check=True, has_gaps=self.compacts
            ):
                found.append(file.read(at, header.size))
        return found

    def _check_bytes(self) -> None:
        base = max(s.base for s in self.log.segments if s.base <= self.log.start)
        expected = [b for b in self.model.batches if read_header(b).base_offset >= base]
        found = [b for b in self._batches() if read_header(b).base_offset >= base]
        assert found == expected, "the files hold something else"

    def _check_times(self) -> None:
        search = TimeSearch.over(self.log, self.log.end)
        times = self.model.times()
        wanted = [
            self.random.choice(times)[0].timestamp_ms + self.random.choice((-1, 0, 1))
            for _ in range(3)
            if times
        ]
        for time_ms in wanted:
            first = next((found for found, _ in times if found.timestamp_ms >= time_ms), None)
            assert search.first_since(self.disk, time_ms) == first, f"first since {time_ms}"
        read = [found for found, is_read in times if is_read]
        newest = max(read, key=lambda f: (f.timestamp_ms, -f.offset), default=None)
        if newest is not None:
            assert search.newest(self.disk) == newest, "the newest record"

    def _check_compacted(self) -> None:
        written = {r.offset: r for batch in self.model.batches for r in decode_batch(batch)}
        found = {r.offset: r for b in self._batches() for r in decode_batch(b)}
        assert all(written.get(offset) == record for offset, record in found.items())
        if self.model.is_lossy:
            return
        assert _latest(found) == _latest(written), "the latest values differ"
        truth = self.model.producers()[0]
        for producer, state in truth.items():
            known = self.log.producers.get(producer)
            assert known is not None, "a producer is forgotten"
            assert (known.epoch, known.last_sequence) == (state.epoch, state.last_sequence)

    def _check_names(self) -> None:
        bases = [segment.base for segment in self.log.segments]
        for name in self.disk.list(DIRECTORY):
            stem, _, kind = name.partition(".")
            assert not kind.endswith(("swap", "cleaned", "tmp")), name
            if stem.isdecimal() and kind == "snapshot":
                assert int(stem) <= self.log.end, f"{name} is of a history that is gone"
            elif stem.isdecimal():
                assert int(stem) in bases, f"{name} belongs to no segment"
        for segment in self.log.segments[:-1]:
            file = segment.open(self.disk)
            batches = {at: header for header, at in walk(file, 0, file.size())}
            path = segment.path(".index")
            if self.disk.exists(path):
                for relative, at in OFFSET_ENTRY.iter_unpack(read_file(self.disk, path)):
                    assert batches[at].last_offset == segment.base + relative, "an index misleads"


def _latest(records: dict[Offset, Record]) -> dict[bytes | None, bytes]:
    values = {record.key: record.value for _, record in sorted(records.items())}
    return {key: value for key, value in values.items() if value is not None}
