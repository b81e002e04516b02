"""A fold over what the log has committed is what the coordinator knows, whatever happened."""

from random import Random

import pytest

from tests.unit.groups.desk import WAITS, ShardDesk, subscription
from tidelog.errors import MemberIdRequired, StorageError, UnstableOffsetCommit
from tidelog.groups.events import Joined, Leaver, Synced
from tidelog.groups.limits import Limits
from tidelog.groups.records import CommittedOffset, GroupRecord, OffsetWritten, decode
from tidelog.groups.state import State
from tidelog.model import TopicPartition

GROUPS = ["g", "h"]
PRODUCERS = [7, 8, 9]
PLACES = [TopicPartition(topic, number) for topic in ("orders", "payments") for number in range(3)]
PROTOCOLS = [
    (("range", subscription("orders")),),
    (("range", subscription("orders", "payments")),),
    (("sticky", subscription("orders")), ("range", subscription("orders"))),
]
LIMITS = Limits(offsets_retention_ms=120_000, group_size_max=5, initial_rebalance_delay_ms=500)


class Crowd:
    """Clients that do anything at any time, some of it sensible."""

    def __init__(self, seed: int, *, failing: bool) -> None:
        self.random = Random(seed)
        self.desk = ShardDesk(LIMITS)
        self.failing = failing
        self.ids: list[str] = ["stranger"]
        self.waiting: list[str] = []

    def step(self) -> None:
        random = self.random
        group_id = random.choice(GROUPS)
        actions = [self.join] * 6 + [self.sync] * 8 + [self.heartbeat] * 3 + [self.commit] * 6
        actions += [self.leave, self.delete, self.time, self.expire, self.settle, self.settle]
        actions += [self.commit_in_transaction] * 4 + [self.end_transaction] * 2
        random.choice(actions)(group_id)
        for token in self.waiting:
            answer = self.desk.answers[token]
            if isinstance(answer, Joined | MemberIdRequired):
                self.ids.append(answer.member_id)
        self.waiting = [token for token in self.waiting if self.desk.answers[token] is WAITS]

    def member(self) -> str:
        return self.random.choice(self.ids[-6:])

    def generation(self, group_id: str) -> int:
        view = self.desk.shard.describe(group_id)
        return (view.generation if view else 0) - (self.random.random() < 0.1)

    def join(self, group_id: str) -> None:
        random = self.random
        token = self.desk.join(
            group_id,
            random.choice(["", self.member(), self.member()]),
            instance_id=random.choice([None, None, "one", "two"]),
            protocols=random.choice(PROTOCOLS),
            wants_id_first=random.random() < 0.5,
            session_timeout_ms=random.choice([6_000, 20_000]),
        )
        self.waiting.append(token)

    def sync(self, group_id: str) -> None:
        shares = {each: self.random.randbytes(3) for each in self.ids[-6:]}
        self.desk.sync(group_id, self.member(), self.generation(group_id), assignments=shares)

    def heartbeat(self, group_id: str) -> None:
        self.desk.heartbeat(group_id, self.member(), self.generation(group_id))

    def commit(self, group_id: str) -> None:
        random = self.random
        known = random.random() < 0.7
        self.desk.commit(
            group_id,
            {place: random.randrange(100) for place in random.sample(PLACES, 2)},
            member_id=self.member() if known else "",
            generation=self.generation(group_id) if known else -1,
            retention_ms=random.choice([None, None, 30_000]),
        )

    def commit_in_transaction(self, group_id: str) -> None:
        random = self.random
        known = random.random() < 0.3
        self.desk.commit_in_transaction(
            group_id,
            {place: random.randrange(100) for place in random.sample(PLACES, 2)},
            producer_id=random.choice(PRODUCERS),
            member_id=self.member() if known else "",
            generation=self.generation(group_id) if known else -1,
        )

    def end_transaction(self, group_id: str) -> None:
        producer_id = self.random.choice(PRODUCERS)
        self.desk.end_transaction(producer_id, commits=self.random.random() < 0.7)

    def leave(self, group_id: str) -> None:
        self.desk.leave(group_id, Leaver(self.member()), Leaver("", "one"))

    def delete(self, group_id: str) -> None:
        match self.random.randrange(3):
            case 0:
                self.desk.delete_group(group_id)
            case 1:
                self.desk.delete_offsets(group_id, *self.random.sample(PLACES, 2))
            case 2:
                self.desk.do(self.desk.shard.topics_deleted({"payments"}, {}, self.desk.at()))

    def time(self, group_id: str) -> None:
        self.desk.pass_time(self.random.choice([0.1, 1, 5, 30]))

    def expire(self, group_id: str) -> None:
        self.desk.expire()

    def settle(self, group_id: str) -> None:
        if not self.desk.in_flight:
            return
        write = self.random.choice(sorted(self.desk.in_flight))
        if self.failing and self.random.random() < 0.2:
            self.desk.fail_store(StorageError("full"), write)
        else:
            self.desk.store(write)


def offsets_of(desk: ShardDesk) -> dict[str, object]:
    """What every group has committed, and what is undecided, with their places in the log."""
    return {
        group_id: (entry.offsets.committed, entry.offsets.pending)
        for group_id, entry in desk.shard._entries.items()
        if entry.offsets.committed or entry.offsets.pending
    }


def latest(desk: ShardDesk) -> dict[tuple[str, TopicPartition], CommittedOffset]:
    """What must be committed by the log, found without a shard: for each partition the last record
    that no open or aborted transaction has written, unless it was deleted since."""
    ends = sorted(desk.markers.items())
    found: dict[tuple[str, TopicPartition], CommittedOffset | None] = {}
    for record in desk.log:
        written = decode(record)
        if not isinstance(written, OffsetWritten):
            continue
        producer_id = desk.writers.get(record.offset)
        if producer_id is not None:
            mine = [commits for at, (who, commits) in ends if who == producer_id and at > record.offset]
            if not mine or not mine[0]:
                continue
        found[written.group_id, written.place] = written.value
    return {key: value for key, value in found.items() if value is not None}


def committed(desk: ShardDesk) -> dict[tuple[str, TopicPartition], object]:
    return {
        (group.id, place): value
        for group in desk.shard.groups()
        for place, value in desk.shard.fetch_offsets(group.id, None).items()
    }


def durable_groups(desk: ShardDesk) -> dict[str, GroupRecord]:
    """Each group that stands still as the log should have it, its members in no certain order."""
    return {
        group.id: GroupRecord(
            protocol_type=record.protocol_type,
            generation=record.generation,
            protocol=record.protocol,
            leader=record.leader,
            state_since_ms=record.state_since_ms,
            members=tuple(sorted(record.members, key=lambda member: member.member_id)),
        )
        for group in desk.shard.groups()
        if group.state in (State.STABLE, State.EMPTY) and group.protocol_type is not None
        for record in [group.durable()]
    }


@pytest.mark.parametrize("seed", range(40))
def test_a_fold_over_the_log_is_what_the_coordinator_knows(seed):
    crowd = Crowd(seed, failing=False)
    for _ in range(200):
        crowd.step()
        if crowd.random.random() < 0.05:
            assert offsets_of(crowd.desk.restart()) == offsets_of(crowd.desk)
            assert latest(crowd.desk) == committed(crowd.desk)
    crowd.desk.store_all()

    again = crowd.desk.restart()

    assert offsets_of(again) == offsets_of(crowd.desk)
    assert latest(crowd.desk) == committed(crowd.desk)
    live, folded = durable_groups(crowd.desk), durable_groups(again)
    stored = {group_id for group_id in live if crowd.desk.shard._entries[group_id].has_record}
    assert {group_id: folded.get(group_id) for group_id in stored} == {
        group_id: live[group_id] for group_id in stored
    }


@pytest.mark.parametrize("seed", range(20))
def test_failing_writes_change_nothing_that_can_be_read(seed):
    crowd = Crowd(seed, failing=True)
    for _ in range(200):
        crowd.step()
    crowd.desk.store_all()

    assert offsets_of(crowd.desk.restart()) == offsets_of(crowd.desk)
    assert latest(crowd.desk) == committed(crowd.desk)


@pytest.mark.parametrize("seed", range(10))
def test_nothing_stays_undecided_once_every_transaction_has_ended(seed):
    crowd = Crowd(seed, failing=True)
    for _ in range(200):
        crowd.step()

    for producer_id in PRODUCERS:
        crowd.desk.end_transaction(producer_id, commits=producer_id != PRODUCERS[0])
    crowd.desk.store_all()

    for group in crowd.desk.shard.groups():
        found = crowd.desk.shard.fetch_offsets(group.id, PLACES, require_stable=True)
        assert not any(isinstance(each, UnstableOffsetCommit) for each in found.values())
    assert crowd.desk.shard._transactions._open == {}


@pytest.mark.parametrize("seed", range(10))
def test_everyone_is_answered_in_the_end(seed):
    crowd = Crowd(seed, failing=True)
    for _ in range(200):
        crowd.step()

    for _ in range(50):
        crowd.desk.store_all()
        crowd.desk.pass_time(60)

    assert WAITS not in crowd.desk.answers.values()
    assert all(group.is_vacant for group in crowd.desk.shard.groups())


def test_a_deletion_and_later_commits_count_in_the_order_of_the_log():
    """The promise of `latest`, on one story: the model must be able to fail."""
    desk = ShardDesk(LIMITS)
    desk.commit_in_transaction("g", {PLACES[0]: 1}, producer_id=7)
    desk.commit("g", {PLACES[0]: 2})
    desk.end_transaction(7)
    desk.store()

    assert [value.offset for value in latest(desk).values()] == [2]


def test_the_crowd_does_sensible_things_too():
    kinds: set[type] = set()
    seen: set[State] = set()
    for seed in range(20):
        crowd = Crowd(seed, failing=False)
        for _ in range(200):
            crowd.step()
            seen |= {group.state for group in crowd.desk.shard.groups()}
        kinds |= {type(answer) for answer in crowd.desk.answers.values()}

    assert seen == set(State)
    assert {Joined, Synced} <= kinds
    assert len(kinds) >= 12
