import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest

from tests.unit.log.hands import Hands
from tests.unit.log.logs import DIRECTORY, joined, make_batch, new_disk
from tidelog.config import TopicConfig
from tidelog.errors import (
    BrokerError,
    CorruptMessage,
    FencedLeaderEpoch,
    InvalidRecord,
    InvalidTimestamp,
    InvalidTransactionState,
    MessageTooLarge,
    NotLeader,
    OffsetNotAvailable,
    OutOfOrderSequence,
    RequestTimedOut,
    StorageError,
    StorageErrorAfterAppend,
    UnknownLeaderEpoch,
)
from tidelog.host import Host, Lane, Path
from tidelog.log.recovery import open_log
from tidelog.log.rounds import Rounds
from tidelog.log.tail import TailBudget
from tidelog.model import NO_TIMESTAMP, TopicPartition
from tidelog.partition.driver import Partition
from tidelog.records import (
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    crc_matches,
    decode_batch,
    read_header,
)
from tidelog.simulation.disk import SimulatedDisk
from tidelog.simulation.host import RefusingNetwork, SimulatedClock

ALL, LEADER, NONE = -1, 1, 0
LIFE = 7
LARGE = 100_000
"""Bytes of a batch whose write and sync are two steps."""


class Producer:
    """A waiter that notes what it is told."""

    def __init__(self, deadline: float = 10.0) -> None:
        self.deadline = deadline
        self.told: list[BrokerError | None] = []

    def settled(self, error: BrokerError | None) -> None:
        self.told.append(error)


class Stage:
    """One partition on a simulated disk, whose rounds happen when the test says so."""

    def __init__(
        self, *, in_sync: tuple[int, ...] = (1,), epoch: int = 3, seed: int = 0, **config: Any
    ) -> None:
        self.disk: SimulatedDisk = new_disk(seed)
        self.clock = SimulatedClock()
        self.hands = Hands()
        self.fatal: list[BaseException] = []
        host = Host(
            clock=self.clock,
            disk=self.disk,
            offload=self.hands,
            network=RefusingNetwork(),
            random=random.Random(seed),
        )
        state = open_log(
            self.disk, DIRECTORY, clean=False, durable_mark=0, start=0, index_interval_bytes=4096
        )
        self.partition = Partition(
            name=TopicPartition("tide", 0),
            topic_id=UUID(int=7),
            me=1,
            config=TopicConfig(**config),
            path=DIRECTORY,
            state=state,
            host=host,
            rounds=Rounds(host, DIRECTORY.parent, self.fatal.append),
            budget=TailBudget(10**6),
        )
        if in_sync:
            self.partition.lead(epoch, frozenset(in_sync))

    def batch(self, count: int = 1, **fields: Any) -> bytearray:
        return make_batch(count, **({"time_ms": self.clock.wall_ms()} | fields))

    def append(
        self, batch: bytearray | None = None, *, acks: int = ALL, producer: Producer | None = None
    ) -> tuple[int, int, bool]:
        batch = self.batch() if batch is None else batch
        return self.partition.appender.append(
            batch, acks=acks, waiter=producer or Producer(), pins_bytes=len(batch)
        )

    def read(self, offset: int = 0) -> bytes:
        log = self.partition.log
        return joined(self.disk, log.read(offset, 10**6, log.end))

    def squeeze(self, room: int) -> None:
        self.disk.capacity_bytes = 1 << 40
        self.disk.capacity_bytes -= self.disk.free_bytes(DIRECTORY) - room


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


# Acknowledgements.


def test_all_is_answered_once_the_batch_is_durable():
    async def main() -> None:
        stage, producer = Stage(), Producer()

        *_, done = stage.append(stage.batch(size=LARGE), producer=producer)
        assert not done
        await stage.hands.work(Lane.WRITE)
        assert producer.told == []
        await stage.hands.work(Lane.SYNC)

        assert producer.told == [None]
        assert stage.partition.high_watermark == 1

    run(main)


def test_one_is_answered_once_the_leader_has_written_the_batch():
    async def main() -> None:
        stage, producer = Stage(), Producer()

        *_, done = stage.append(acks=LEADER, producer=producer)
        assert not done
        await stage.hands.work(Lane.WRITE)

        assert producer.told == [None]
        assert stage.partition.high_watermark == 0

    run(main)


def test_nobody_waits_with_zero():
    async def main() -> None:
        stage, producer = Stage(), Producer()

        *_, done = stage.append(acks=NONE, producer=producer)
        await stage.hands.work_off()

        assert done
        assert producer.told == []
        assert stage.partition.high_watermark == 1

    run(main)


def test_without_sync_all_is_answered_once_the_batch_is_written():
    async def main() -> None:
        stage, producer = Stage(durability="replicated"), Producer()
        stage.append(producer=producer)

        await stage.hands.work(Lane.WRITE)

        assert producer.told == [None]
        assert (stage.partition.high_watermark, stage.partition.log.synced_end) == (1, 0)

    run(main)


def test_a_record_counts_only_once_all_before_it_is_synced_from_when_the_topic_demands_it():
    async def main() -> None:
        stage, early, late = Stage(durability="replicated"), Producer(), Producer()
        stage.append(producer=early)
        await stage.hands.work(Lane.WRITE)
        assert (early.told, stage.partition.log.synced_end) == ([None], 0)

        stage.partition.configure(TopicConfig())
        stage.append(stage.batch(size=LARGE), producer=late)
        await stage.hands.work(Lane.WRITE)
        assert (late.told, stage.partition.high_watermark) == ([], 1)
        await stage.hands.work_off()

        assert (late.told, stage.partition.log.synced_end) == ([None], 2)

    run(main)


def test_what_is_only_written_counts_no_more_from_when_the_topic_demands_syncs():
    """Followers hear of the setting at their own time, and tell until then what they have written."""

    async def main() -> None:
        stage, producer = Stage(in_sync=(1, 2), durability="replicated"), Producer()
        leader = stage.partition.leading()
        leader.fetched(2, LIFE, 0, 0, 0.0)
        stage.append()
        await stage.hands.work(Lane.WRITE)
        stage.partition.follower_holds(2, leader.epoch, 1, LIFE, is_synced=False)
        assert stage.partition.high_watermark == 1, "in the memory of both"

        stage.partition.configure(TopicConfig())
        stage.append(producer=producer)
        await stage.hands.work_off()
        stage.partition.follower_holds(2, leader.epoch, 2, LIFE, is_synced=False)
        assert (producer.told, stage.partition.high_watermark) == ([], 1)
        stage.partition.follower_holds(2, leader.epoch, 2, LIFE, is_synced=True)

        assert (producer.told, stage.partition.high_watermark) == ([None], 2)

    run(main)


def test_what_was_told_as_written_before_syncs_were_demanded_commits_nothing():
    async def main() -> None:
        stage, producer = Stage(in_sync=(1, 2, 3), durability="replicated"), Producer()
        leader = stage.partition.leading()
        for node in (2, 3):
            leader.fetched(node, LIFE, 0, 0, 0.0)
        stage.append(producer=producer)
        await stage.hands.work(Lane.WRITE)
        stage.partition.follower_holds(2, leader.epoch, 1, LIFE, is_synced=False)

        stage.partition.configure(TopicConfig())
        stage.partition.follower_holds(3, leader.epoch, 1, LIFE, is_synced=True)
        assert producer.told == [], "neither 1 nor 2 has synced it"
        await stage.hands.work_off()
        assert producer.told == [], "2 has not synced it"
        stage.partition.follower_holds(2, leader.epoch, 1, LIFE, is_synced=True)

        assert producer.told == [None]

    run(main)


def test_what_followers_had_synced_before_syncs_were_demanded_counts_on():
    """They have no reason to tell it again."""

    async def main() -> None:
        stage, producer = Stage(in_sync=(1, 2), durability="replicated"), Producer()
        leader = stage.partition.leading()
        leader.fetched(2, LIFE, 0, 0, 0.0)
        stage.append(producer=producer)
        stage.partition.follower_holds(2, leader.epoch, 1, LIFE, is_synced=True)

        stage.partition.configure(TopicConfig())
        await stage.hands.work_off()

        assert producer.told == [None]

    run(main)


def test_with_followers_all_waits_for_them_too():
    async def main() -> None:
        stage, producer = Stage(in_sync=(1, 2)), Producer()
        stage.append(producer=producer)
        await stage.hands.work_off()
        assert producer.told == []

        leader = stage.partition.leading()
        settled = leader.holds(2, 1)

        assert settled.waiters == [producer] and settled.advanced

    run(main)


def test_batches_lie_one_after_the_other_in_the_leaders_epoch():
    async def main() -> None:
        stage = Stage(epoch=3)

        offsets = [stage.append(stage.batch(count))[0] for count in (2, 3, 1)]

        assert offsets == [0, 2, 5]
        header = read_header(stage.read(2))
        assert (header.base_offset, header.leader_epoch) == (2, 3)

    run(main)


def test_a_request_may_be_reused_once_its_small_batches_are_appended():
    async def main() -> None:
        stage = Stage()
        batch = stage.batch(3)
        stage.append(batch)
        before = stage.read()

        batch[:] = bytes(len(batch))

        assert stage.read() == before

    run(main)


# Idempotent producers.


@pytest.mark.parametrize("producer_id", [0, 5])
def test_a_repeated_batch_gets_its_first_offset_and_is_not_stored_again(producer_id):
    async def main() -> None:
        stage = Stage()
        sent = stage.batch(2, producer_id=producer_id, producer_epoch=0, base_sequence=0)
        stage.append()
        first, _, _ = stage.append(bytearray(sent))
        await stage.hands.work_off()

        again, _, done = stage.append(bytearray(sent))

        assert (first, again, done) == (1, 1, True)
        assert stage.partition.log.end == 3

    run(main)


def test_a_repeat_of_a_batch_in_flight_waits_for_its_commit():
    async def main() -> None:
        stage, first, second = Stage(), Producer(), Producer()
        sent = stage.batch(2, producer_id=5, producer_epoch=0, base_sequence=0)
        stage.append(bytearray(sent), producer=first)

        *_, done = stage.append(bytearray(sent), producer=second)
        assert not done
        await stage.hands.work_off()

        assert first.told == second.told == [None]

    run(main)


def test_a_gap_in_the_sequence_is_refused_and_stores_nothing():
    async def main() -> None:
        stage = Stage()
        stage.append(stage.batch(2, producer_id=5, producer_epoch=0, base_sequence=0))

        with pytest.raises(OutOfOrderSequence):
            stage.append(stage.batch(1, producer_id=5, producer_epoch=0, base_sequence=3))

        assert stage.partition.log.end == 2

    run(main)


# What is refused.


def refuses(error: type[BrokerError], batch: Callable[[Stage], bytearray], **config: Any) -> None:
    async def main() -> None:
        stage = Stage(**config)
        with pytest.raises(error):
            stage.append(batch(stage))
        assert stage.partition.log.end == 0
        assert stage.append()[0] == 0, "the next one is none the worse"

    run(main)


def test_a_batch_above_the_limit_is_refused():
    size = len(make_batch(size=100))
    refuses(MessageTooLarge, lambda stage: stage.batch(size=101), max_message_bytes=size)


def test_a_batch_at_the_limit_is_taken():
    async def main() -> None:
        stage = Stage(max_message_bytes=len(make_batch(size=100)))
        assert stage.append(stage.batch(size=100))[0] == 0

    run(main)


def test_control_batches_are_refused():
    refuses(InvalidRecord, lambda stage: stage.batch(attributes=CONTROL))


def test_a_batch_of_a_transaction_is_taken_only_with_its_id():
    refuses(
        InvalidTransactionState,
        lambda stage: stage.batch(attributes=TRANSACTIONAL, producer_id=1, producer_epoch=0, base_sequence=0),
    )


def test_a_batch_of_a_transaction_names_its_producer():
    refuses(InvalidRecord, lambda stage: stage.batch(attributes=TRANSACTIONAL))


def test_a_damaged_batch_is_refused():
    def damaged(stage: Stage) -> bytearray:
        batch = stage.batch()
        batch[-1] ^= 1
        return batch

    refuses(CorruptMessage, damaged)


# Time.


def test_records_keep_their_producers_time():
    async def main() -> None:
        stage = Stage()
        _, append_time, _ = stage.append(stage.batch(time_ms=1234))

        assert append_time == NO_TIMESTAMP
        assert decode_batch(stage.read())[0].timestamp_ms == 1234

    run(main)


def test_records_get_the_brokers_time_if_the_topic_says_so():
    async def main() -> None:
        stage = Stage(message_timestamp_type="LogAppendTime")
        now_ms = stage.clock.wall_ms()
        _, append_time, _ = stage.append(stage.batch(2, time_ms=1234))
        stored = stage.read()
        header = read_header(stored)

        assert append_time == now_ms
        assert crc_matches(stored, header)
        assert header.attributes & LOG_APPEND_TIME
        assert [record.timestamp_ms for record in decode_batch(stored)] == [now_ms, now_ms]
        assert stage.partition.log.active.max_timestamp_ms == now_ms

    run(main)


def test_a_repeated_batch_is_answered_with_the_time_that_was_stored():
    async def main() -> None:
        stage = Stage(message_timestamp_type="LogAppendTime")
        fields = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
        first = stage.append(stage.batch(**fields))
        stage.clock.advance(60)

        again = stage.append(stage.batch(**fields))

        assert again[:2] == first[:2]
        assert decode_batch(stage.read())[0].timestamp_ms == first[1]

    run(main)


@pytest.mark.parametrize("type", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize(
    ("attribute", "error"), [(LOG_APPEND_TIME, InvalidTimestamp), (DELETE_HORIZON, InvalidRecord)]
)
def test_a_producer_cannot_say_what_only_brokers_know(attribute, error, type):
    async def main() -> None:
        stage = Stage(message_timestamp_type=type)

        with pytest.raises(error):
            stage.append(stage.batch(2, attributes=attribute))

        assert stage.partition.log.end == 0

    run(main)


@pytest.mark.parametrize(("ahead_ms", "taken"), [(1000, True), (1001, False), (-500, True), (-501, False)])
def test_times_too_far_from_the_brokers_clock_are_refused(ahead_ms, taken):
    async def main() -> None:
        stage = Stage(message_timestamp_after_max_ms=1000, message_timestamp_before_max_ms=500)
        batch = stage.batch(time_ms=stage.clock.wall_ms() + ahead_ms)

        if taken:
            stage.append(batch)
        else:
            with pytest.raises(InvalidTimestamp, match=r"message\.timestamp\.(after|before)"):
                stage.append(batch)

    run(main)


def test_the_brokers_own_time_is_never_too_far():
    async def main() -> None:
        stage = Stage(
            message_timestamp_type="LogAppendTime",
            message_timestamp_after_max_ms=0,
            message_timestamp_before_max_ms=0,
        )
        stage.append(stage.batch(time_ms=5))

    run(main)


# Leading.


def test_who_does_not_lead_takes_nothing():
    async def main() -> None:
        stage = Stage(in_sync=())

        with pytest.raises(NotLeader):
            stage.append()
        with pytest.raises(NotLeader):
            stage.partition.visible_end()

    run(main)


def test_a_client_of_another_epoch_is_told_which_way_it_is_wrong():
    async def main() -> None:
        partition = Stage(epoch=3).partition

        assert partition.leading(3) is partition.leading(-1)
        with pytest.raises(FencedLeaderEpoch):
            partition.leading(2)
        with pytest.raises(UnknownLeaderEpoch):
            partition.leading(4)

    run(main)


def test_who_resigns_tells_everybody_who_waits():
    async def main() -> None:
        stage, patient, quick = Stage(), Producer(), Producer()
        woken: list[int] = []
        stage.partition.watch(lambda: woken.append(1))
        stage.append(producer=patient)
        stage.append(acks=LEADER, producer=quick)
        error = StorageError("the node is stopping")

        stage.partition.resign(error)
        await stage.hands.work_off()

        assert patient.told == quick.told == [error]
        assert woken == [1]
        with pytest.raises(NotLeader):
            stage.append()

    run(main)


def test_the_watermark_outlives_its_leader():
    async def main() -> None:
        stage = Stage()
        stage.append()
        await stage.hands.work_off()

        stage.partition.resign(StorageError("the node is stopping"))

        assert stage.partition.high_watermark == 1

    run(main)


def test_a_new_leader_shows_no_watermark_until_it_knows_it():
    async def main() -> None:
        stage = Stage()
        stage.append()
        await stage.hands.work_off()

        stage.partition.lead(4, frozenset({1, 2}))
        with pytest.raises(OffsetNotAvailable):
            stage.partition.visible_end()

        stage.partition.leading().holds(2, 1)
        assert stage.partition.visible_end() == 1

    run(main)


def test_watchers_hear_of_every_rise_until_they_leave():
    async def main() -> None:
        stage = Stage()
        seen: list[int] = []

        def watch() -> None:
            seen.append(stage.partition.high_watermark)

        stage.partition.watch(watch)
        for _ in range(2):
            stage.append()
            await stage.hands.work_off()
        stage.partition.unwatch(watch)
        stage.append()
        await stage.hands.work_off()

        assert seen == [1, 2]

    run(main)


def test_who_waits_too_long_is_told_and_the_record_still_commits():
    async def main() -> None:
        stage, hasty, patient = Stage(), Producer(deadline=5.0), Producer(deadline=50.0)
        stage.append(producer=hasty)
        stage.append(producer=patient)

        stage.partition.expire_waits(4.9)
        assert hasty.told == []
        stage.partition.expire_waits(5.0)
        assert [type(error) for error in hasty.told] == [RequestTimedOut]
        await stage.hands.work_off()

        assert len(hasty.told) == 1
        assert patient.told == [None]
        assert stage.partition.high_watermark == 2

    run(main)


# A full disk.


def test_a_full_disk_refuses_what_does_not_fit_and_keeps_what_does():
    async def main() -> None:
        stage, early, late = Stage(), Producer(), Producer()
        stage.append(stage.batch(size=LARGE), producer=early)
        await stage.hands.work(Lane.WRITE)  # written, not synced
        stage.squeeze(200)
        stage.append(stage.batch(size=500), producer=late)
        await stage.hands.work(Lane.WRITE)

        assert [type(error) for error in late.told] == [StorageError]
        with pytest.raises(StorageError, match="the disk is full"):
            stage.append()
        await stage.hands.work_off()

        assert early.told == [None]
        assert (stage.partition.log.end, stage.partition.high_watermark) == (1, 1)
        assert stage.fatal == []

    run(main)


def test_a_process_that_can_open_no_more_files_is_not_said_to_have_a_full_disk():
    async def main() -> None:
        stage, late = Stage(), Producer()
        short: list[OSError] = []
        stage.partition.on_short = short.append

        def refuse(operation: str, path: Path) -> None:
            raise OSError(errno.EMFILE, "Too many open files", str(path))

        stage.disk.on_operation = refuse
        stage.append(stage.batch(size=LARGE), producer=late)
        await stage.hands.work(Lane.WRITE)

        with pytest.raises(StorageError, match=r"files can be opened .*ulimit -n") as told:
            stage.append()
        assert "space" not in str(told.value)
        assert [type(error) for error in late.told] == [StorageError]
        assert [error.errno for error in short] == [errno.EMFILE]

    run(main)


def test_what_followers_may_hold_is_not_said_to_have_failed_when_the_disk_is_full():
    async def main() -> None:
        stage, late = Stage(), Producer()
        stage.partition.resign(NotLeader(leader=None))
        stage.partition.lead(1, (1, 2), replicas=(1, 2))
        stage.squeeze(200)
        stage.append(stage.batch(size=500), producer=late)

        await stage.hands.work_off()

        assert [type(error) for error in late.told] == [StorageErrorAfterAppend]

    run(main)


def test_what_came_while_the_disk_ran_full_is_refused_and_not_written():
    async def main() -> None:
        stage, late = Stage(), Producer()
        stage.append()
        await stage.hands.work_off()
        size = stage.partition.log.size
        stage.squeeze(200)
        stage.append(stage.batch(size=500))
        await asyncio.sleep(0)  # its round has begun
        stage.append(stage.batch(size=10), producer=late)  # would fit

        await stage.hands.work_off()

        assert [type(error) for error in late.told] == [StorageError]
        assert stage.disk.open(stage.partition.log.active.path()).size() == size
        assert (stage.partition.log.end, stage.partition.high_watermark) == (1, 1)

    run(main)


def test_writes_are_taken_again_once_there_is_room():
    async def main() -> None:
        stage = Stage()
        stage.append()
        await stage.hands.work_off()
        stage.squeeze(200)
        lost = stage.batch(size=500, producer_id=5, producer_epoch=0, base_sequence=0)
        stage.append(bytearray(lost))
        await stage.hands.work_off()
        partition = stage.partition

        partition.retry_full_disk(10**6)
        assert partition.log.refusal is not None, "that is not enough room"
        partition.retry_full_disk(1 << 30)
        stage.disk.capacity_bytes = None
        assert not partition.disk_full

        producer = Producer()
        assert stage.append(bytearray(lost), producer=producer)[0] == 1, "it was not stored before"
        await stage.hands.work_off()
        assert producer.told == [None]

    run(main)


def test_nothing_is_taken_while_the_log_is_being_opened_again():
    async def main() -> None:
        stage = Stage()
        stage.squeeze(200)
        stage.append(stage.batch(size=500))
        await stage.hands.work(Lane.WRITE)
        stage.disk.capacity_bytes = None

        stage.partition.retry_full_disk(1 << 30)

        with pytest.raises(StorageError):
            stage.append()
        await stage.hands.work_off()
        stage.partition.retry_full_disk(1 << 30)
        assert stage.append()[0] == 0

    run(main)


def test_a_disk_that_fails_while_the_log_is_opened_again_is_fatal():
    async def main() -> None:
        stage = Stage()
        stage.append()
        await stage.hands.work_off()
        stage.squeeze(200)
        stage.append(stage.batch(size=500))
        await stage.hands.work(Lane.WRITE)
        stage.disk.fail_syncs(errno.EIO)

        await stage.hands.work_off()

        assert [error.errno for error in stage.fatal if isinstance(error, OSError)] == [errno.EIO]

    run(main)


def test_room_does_not_mend_damage_found_meanwhile():
    async def main() -> None:
        stage = Stage()
        for _ in range(2):
            stage.append()
            await stage.hands.work_off()
        stage.squeeze(200)
        stage.append(stage.batch(size=500))
        await stage.hands.work(Lane.WRITE)
        stage.disk.flip_bit(stage.partition.log.active.path(), 70, 1)
        await stage.hands.work_off()

        stage.disk.capacity_bytes = None
        stage.partition.retry_full_disk(1 << 30)

        with pytest.raises(StorageError, match="damaged"):
            stage.append()
        assert stage.partition.high_watermark == 2

    run(main)
