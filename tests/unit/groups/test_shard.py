from dataclasses import replace
from uuid import UUID

import pytest

from tests.unit.groups.desk import RANGE, WAITS, ShardDesk, subscription
from tidelog.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    IllegalGeneration,
    InvalidCommitOffsetSize,
    InvalidGroupId,
    MemberIdRequired,
    MessageTooLarge,
    NonEmptyGroup,
    NotCoordinator,
    NotEnoughReplicas,
    OffsetMetadataTooLarge,
    StorageError,
    UnknownMemberId,
    UnstableOffsetCommit,
)
from tidelog.groups.events import (
    Commit,
    Heartbeat,
    Joined,
    Leave,
    Leaver,
    Left,
    OffsetsDone,
    OffsetToCommit,
    Sync,
    Synced,
)
from tidelog.groups.limits import Limits
from tidelog.groups.records import GroupWritten, MemberWritten, OffsetWritten, decode
from tidelog.groups.shard import Shard
from tidelog.model import TopicPartition
from tidelog.shards.effects import Answer
from tidelog.wire.names import partition_for

ORDERS = TopicPartition("orders", 0)
ORDERS_1 = TopicPartition("orders", 1)
PAYMENTS = TopicPartition("payments", 0)
DAY = 24 * 60 * 60
PATIENT = Limits(session_timeout_max_ms=20 * DAY * 1000)


def stable(desk, group_id="g", **fields):
    """A group with one member, stable; returns the member's id."""
    joined = desk.answers[desk.join(group_id, **fields)]
    assert isinstance(joined, Joined), joined
    shares = {joined.member_id: b"all"}
    desk.sync(group_id, joined.member_id, joined.generation, assignments=shares)
    desk.store()
    return joined.member_id


def states(desk):
    return {group.id: group.state.value for group in desk.shard.groups()}


# Placement.


@pytest.mark.parametrize(
    ("group_id", "hashed"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", 0),  # hashes to the least 32-bit number, which has no absolute
        ("Aa", 2112),
        ("BB", 2112),
        ("é", 233),
        ("💧", 1772554),  # a surrogate pair: 31 * 0xD83D + 0xDCA7
    ],
)
def test_a_group_is_where_every_kafka_client_looks_for_it(group_id, hashed):
    assert partition_for(group_id, 2**31) == hashed
    assert partition_for(group_id, 50) == hashed % 50


# Loading.


def test_nothing_is_served_before_the_log_is_read():
    shard, desk = Shard(Limits()), ShardDesk()
    at = desk.at()
    answers = [
        *shard.join("g", desk._join_event(""), at),
        *shard.sync("g", Sync(reply=1, member_id="m", generation=1), at),
        *shard.leave("g", Leave(reply=2, members=()), at),
        *shard.commit("g", Commit(reply=3, offsets={}), at),
        *shard.delete_group("g", 4, at),
        *shard.delete_offsets("g", [ORDERS], 5, at),
    ]

    assert len(answers) == 6
    for answer in answers:
        assert isinstance(answer, Answer)
        assert isinstance(answer.result, CoordinatorLoadInProgress)
    for read in (shard.groups, lambda: shard.describe("g"), lambda: shard.fetch_offsets("g", None)):
        with pytest.raises(CoordinatorLoadInProgress):
            read()
    assert shard.expire(at) == shard.topics_deleted({"orders"}, {}, at) == shard.tick(at) == []


def test_heartbeats_are_fine_while_the_log_is_read():
    shard, desk = Shard(Limits()), ShardDesk()
    event = Heartbeat(reply="beat", member_id="m", generation=1)

    assert shard.heartbeat("g", event, desk.at()) == [Answer(to="beat", result=None)]


def test_a_group_survives_a_restart_with_its_members():
    desk = ShardDesk()
    member = stable(desk)

    desk = desk.restart()

    assert desk.heartbeat("g", member, 1) is None
    synced = desk.answers[desk.sync("g", member, 1)]
    assert isinstance(synced, Synced)
    assert synced.assignment == b"all"


def test_members_that_do_not_come_back_after_a_restart_are_out():
    desk = ShardDesk()
    stable(desk)
    desk = desk.restart()

    desk.pass_time(9)
    assert states(desk) == {"g": "Stable"}
    desk.pass_time(1)
    assert states(desk) == {"g": "Empty"}


def test_a_generation_that_was_not_stored_is_gone_after_a_restart():
    desk = ShardDesk()
    joined = desk.answers[desk.join("g")]
    desk.sync("g", joined.member_id, 1)

    desk = desk.restart()

    assert states(desk) == {}
    assert isinstance(desk.heartbeat("g", joined.member_id, 1), UnknownMemberId)


# Who asks for what is not there.


def test_members_of_a_group_that_does_not_exist_are_unknown():
    desk = ShardDesk()
    left = desk.leave("g", Leaver("m"), Leaver("", "one"))

    assert isinstance(desk.answers[desk.join("g", "m")], UnknownMemberId)
    assert isinstance(desk.answers[desk.sync("g", "m", 1)], UnknownMemberId)
    assert isinstance(desk.heartbeat("g", "m", 1), UnknownMemberId)
    assert isinstance(left, Left)
    assert [type(error) for _, error in left.members] == [UnknownMemberId, UnknownMemberId]
    assert desk.shard.describe("g") is None
    assert desk.shard.fetch_offsets("g", [ORDERS]) == {ORDERS: None}


@pytest.mark.parametrize("group_id", ["", "g" * 40_000])
def test_a_group_needs_a_name_that_can_be_stored(group_id):
    desk = ShardDesk()

    assert isinstance(desk.answers[desk.join(group_id)], InvalidGroupId)
    assert isinstance(desk.answers[desk.sync(group_id, "m", 1)], InvalidGroupId)
    assert isinstance(desk.heartbeat(group_id, "m", 1), InvalidGroupId)
    assert isinstance(desk.leave(group_id, Leaver("m")), InvalidGroupId)


def test_the_group_without_a_name_keeps_offsets():
    desk = ShardDesk()
    desk.commit("", {ORDERS: 5})
    desk.store()

    assert desk.offsets("") == {"orders-0": 5}


def test_a_group_that_nobody_came_to_is_forgotten():
    desk = ShardDesk()
    promised = desk.answers[desk.join("g", wants_id_first=True)]
    assert isinstance(promised, MemberIdRequired)
    assert states(desk) == {"g": "Empty"}

    desk.pass_time(10)

    assert states(desk) == {}
    assert desk.shard.next_deadline() is None


def test_a_refused_join_founds_no_group():
    desk = ShardDesk()
    desk.join("g", session_timeout_ms=1)

    assert states(desk) == {}


# Committing.


def test_an_offset_counts_once_it_is_stored():
    desk = ShardDesk()

    token = desk.commit("g", {ORDERS: 5, PAYMENTS: OffsetToCommit(offset=6, metadata="note")})
    assert desk.answers[token] is WAITS
    assert desk.offsets("g") == {}
    desk.store()

    assert desk.answers[token] == OffsetsDone()
    assert desk.offsets("g") == {"orders-0": 5, "payments-0": 6}
    found = desk.shard.fetch_offsets("g", [PAYMENTS])[PAYMENTS]
    assert getattr(found, "metadata", None) == "note"
    assert desk.restart().offsets("g") == desk.offsets("g")


def test_who_asks_for_stable_offsets_is_sent_back_while_a_commit_is_under_way():
    desk = ShardDesk()
    desk.commit("g", {ORDERS: 5})
    desk.store()
    desk.commit("g", {ORDERS: 6})

    found = desk.shard.fetch_offsets("g", [ORDERS, PAYMENTS], require_stable=True)

    assert isinstance(found[ORDERS], UnstableOffsetCommit)
    assert found[PAYMENTS] is None
    assert desk.offsets("g") == {"orders-0": 5}


def test_outcomes_may_come_in_any_order():
    desk = ShardDesk()
    tokens = [desk.commit("g", {ORDERS: offset}) for offset in (1, 2, 3)]

    desk.store(1)
    assert [desk.answers[token] for token in tokens] == [OffsetsDone(), OffsetsDone(), WAITS]
    assert desk.offsets("g") == {"orders-0": 2}
    desk.do(desk.shard.stored(0, desk.at()))
    assert desk.offsets("g") == {"orders-0": 2}
    desk.store(2)
    assert desk.offsets("g") == {"orders-0": 3}


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (NotEnoughReplicas(in_sync=1, needed=2), CoordinatorNotAvailable),
        (StorageError("full"), NotCoordinator),
        (MessageTooLarge(size=2, size_max=1), InvalidCommitOffsetSize),
    ],
)
def test_a_commit_that_fails_changes_nothing(failure, told):
    desk = ShardDesk()
    desk.commit("g", {ORDERS: 1})
    desk.store()
    failing = desk.commit("g", {ORDERS: 2})
    later = desk.commit("g", {PAYMENTS: 3})

    desk.fail_store(failure)

    assert type(desk.answers[failing]) is told
    desk.store()
    assert desk.answers[later] == OffsetsDone()
    assert desk.offsets("g") == {"orders-0": 1, "payments-0": 3}


def test_a_group_whose_only_commit_failed_is_forgotten():
    desk = ShardDesk()
    desk.commit("g", {ORDERS: 1})

    desk.fail_store(StorageError("full"))

    assert states(desk) == {}


def test_metadata_that_is_too_long_is_refused_alone():
    desk = ShardDesk()
    long = OffsetToCommit(offset=1, metadata="x" * 4097)

    token = desk.commit("g", {ORDERS: long, PAYMENTS: 2})
    desk.store()

    assert [type(error) for error in desk.answers[token].refused.values()] == [OffsetMetadataTooLarge]
    assert desk.offsets("g") == {"payments-0": 2}


def test_a_commit_of_which_all_is_refused_is_answered_and_founds_no_group():
    desk = ShardDesk()
    megabyte = OffsetToCommit(offset=1, metadata="x" * 2**20)

    token = desk.commit("g", {ORDERS: megabyte})

    assert set(desk.answers[token].refused) == {ORDERS}
    assert states(desk) == {}


def test_commits_by_strangers_are_refused():
    desk = ShardDesk()
    member = stable(desk)

    assert isinstance(desk.answers[desk.commit("g", {ORDERS: 1})], UnknownMemberId)
    for generation, known, error in ((3, False, IllegalGeneration), (3, True, GroupIdNotFound)):
        token = desk.commit(
            "elsewhere", {ORDERS: 1}, member_id=member, generation=generation, knows_group_not_found=known
        )
        assert isinstance(desk.answers[token], error)
    stale = desk.commit("g", {ORDERS: 1}, member_id=member, generation=0)
    assert isinstance(desk.answers[stale], IllegalGeneration)
    fresh = desk.commit("g", {ORDERS: 1}, member_id=member, generation=1)
    desk.store()
    assert desk.answers[fresh] == OffsetsDone()


# Deleting.


def test_a_group_with_members_is_not_deleted():
    desk = ShardDesk()
    stable(desk)

    assert isinstance(desk.answers[desk.delete_group("g")], NonEmptyGroup)
    assert isinstance(desk.answers[desk.delete_group("elsewhere")], GroupIdNotFound)


def test_a_deleted_group_is_gone_with_its_offsets_also_after_a_restart():
    desk = ShardDesk()
    member = stable(desk)
    desk.commit("g", {ORDERS: 1}, member_id=member, generation=1)
    desk.store()
    desk.leave("g", Leaver(member))
    desk.commit("g", {PAYMENTS: 2})  # still on its way when the group goes

    token = desk.delete_group("g")
    assert isinstance(desk.answers[desk.delete_group("g")], GroupIdNotFound)
    assert isinstance(desk.answers[desk.join("g")], CoordinatorNotAvailable)
    desk.store()

    assert desk.answers[token] is None
    assert states(desk) == states(desk.restart()) == {}
    assert {record.key for record in desk.log if record.value} == {
        record.key for record in desk.log if record.value is None
    }


@pytest.mark.parametrize("end", ["delete_group", "expire"])
@pytest.mark.parametrize("instance_id", [None, "static"])
def test_a_member_of_a_removed_group_is_nobody_in_the_next_one_of_that_name(end, instance_id):
    desk = ShardDesk()
    zombie = stable(desk)
    desk.leave("g", Leaver(zombie))
    desk.store()
    if end == "delete_group":
        desk.delete_group("g")
    else:
        desk.expire()
    desk.store()
    assert states(desk) == {}
    desk = desk.restart()
    assert isinstance(desk.heartbeat("g", zombie, 1), UnknownMemberId)

    member = stable(desk, instance_id=instance_id)

    assert [group.generation for group in desk.shard.groups()] == [1], "as the zombie's"
    assert member != zombie
    for at in (desk, desk.restart()):
        tokens = [
            at.commit("g", {ORDERS: 5}, member_id=zombie, generation=1),
            at.commit_in_transaction("g", {ORDERS: 5}, member_id=zombie, generation=1),
            at.sync("g", zombie, 1, assignments={zombie: b"all"}),
            at.join("g", zombie),
        ]
        heard = [at.answers[token] for token in tokens]
        heard += [at.heartbeat("g", zombie, 1), at.leave("g", Leaver(zombie)).members[0][1]]
        assert [type(answer) for answer in heard] == [UnknownMemberId] * 6
        assert not at.in_flight
        assert at.offsets("g") == {}
        assert at.heartbeat("g", member, 1) is None


def test_a_deletion_that_fails_leaves_the_group_as_it_was():
    desk = ShardDesk()
    desk.commit("g", {ORDERS: 1})
    desk.store()
    token = desk.delete_group("g")

    desk.fail_store(StorageError("full"))

    assert isinstance(desk.answers[token], NotCoordinator)
    assert desk.offsets("g") == {"orders-0": 1}
    assert isinstance(desk.answers[desk.join("g")], Joined)


def test_a_large_deletion_is_cut_into_writes_and_answered_after_the_last():
    desk = ShardDesk()
    for first in range(0, 3000, 1000):
        offsets = {TopicPartition("t" * 200, first + number): 1 for number in range(1000)}
        desk.commit("g", offsets)
        desk.store()

    token = desk.delete_group("g")
    assert len(desk.in_flight) == 3
    desk.store(min(desk.in_flight))
    assert desk.answers[token] is WAITS
    desk.store()

    assert desk.answers[token] is None
    assert states(desk) == {}


def test_a_group_that_was_only_partly_deleted_keeps_the_rest():
    desk = ShardDesk()
    offsets = {TopicPartition("t" * 200, number): 1 for number in range(2000)}
    desk.commit("g", offsets)
    desk.store()
    token = desk.delete_group("g")

    desk.fail_store(StorageError("full"))
    desk.store()

    assert isinstance(desk.answers[token], NotCoordinator)
    assert len(desk.offsets("g")) > 1000
    assert desk.restart().offsets("g") == desk.offsets("g")


def test_offsets_of_topics_that_are_consumed_stay():
    desk = ShardDesk()
    member = stable(desk)
    desk.commit("g", {ORDERS: 1, PAYMENTS: 2}, member_id=member, generation=1)
    desk.store()

    token = desk.delete_offsets("g", ORDERS, ORDERS_1, PAYMENTS)
    desk.store()

    refused = desk.answers[token].refused
    assert {place: type(error) for place, error in refused.items()} == {
        ORDERS: GroupSubscribedToTopic,
        ORDERS_1: GroupSubscribedToTopic,
    }
    assert desk.offsets("g") == desk.restart().offsets("g") == {"orders-0": 1}


def test_offsets_of_members_whose_topics_are_unknown_stay():
    desk = ShardDesk()
    stable(desk, "connect", protocol_type="connect", protocols=(("x", b"?"),))
    stable(desk, "broken", protocols=(("range", b"?"),))

    assert isinstance(desk.answers[desk.delete_offsets("connect", ORDERS)], NonEmptyGroup)
    token = desk.delete_offsets("broken", ORDERS)
    assert isinstance(desk.answers[token].refused[ORDERS], GroupSubscribedToTopic)


def test_deleting_an_offset_that_is_not_there_is_done_at_once():
    desk = ShardDesk()
    desk.commit("g", {ORDERS: 1})
    desk.store()

    assert desk.answers[desk.delete_offsets("g", PAYMENTS)] == OffsetsDone()
    assert isinstance(desk.answers[desk.delete_offsets("elsewhere", ORDERS)], GroupIdNotFound)


def test_a_commit_on_its_way_is_deleted_too():
    desk = ShardDesk()
    desk.commit("g", {ORDERS: 1})
    desk.delete_offsets("g", ORDERS)
    desk.store()

    assert desk.offsets("g") == {}
    assert states(desk) == states(desk.restart()) == {}


def test_offsets_go_with_their_topic():
    desk = ShardDesk()
    member = stable(desk)
    desk.commit("g", {ORDERS: 1}, member_id=member, generation=1)
    desk.commit("other", {ORDERS_1: 1, PAYMENTS: 1})
    assert desk.shard.topics() == {"orders", "payments"}

    desk.do(desk.shard.topics_deleted({"orders"}, {}, desk.at()))
    desk.store()

    assert desk.offsets("g") == {}
    assert desk.offsets("other") == {"payments-0": 1}
    assert states(desk)["g"] == "Stable"


OLD, NEW = UUID(int=1), UUID(int=2)


def of(topic_id: UUID | None, offset: int = 1) -> OffsetToCommit:
    return OffsetToCommit(offset=offset, topic_id=topic_id)


@pytest.mark.parametrize("where", ["stored", "in flight", "pending"])
@pytest.mark.parametrize(
    ("committed", "now", "stays"),
    [
        (OLD, {"orders": OLD}, True),
        (OLD, {"orders": NEW}, False),
        (OLD, {}, False),
        (None, {"orders": NEW}, True),
        (None, {}, False),
    ],
)
def test_a_coordinator_that_comes_keeps_offsets_of_topics_that_are_there(where, committed, now, stays):
    desk = ShardDesk()
    if where == "pending":
        desk.commit_in_transaction("g", {ORDERS: of(committed)})
    else:
        desk.commit("g", {ORDERS: of(committed)})
    if where != "in flight":
        desk.store()
        desk = desk.restart()

    desk.do(desk.shard.topics_found(now, desk.at()))
    desk.end_transaction()
    desk.store_all()

    kept = {"orders-0": 1} if stays else {}
    assert desk.offsets("g") == desk.restart().offsets("g") == kept


def test_what_was_committed_of_a_new_topic_outlives_the_news_of_the_old_ones_end():
    desk = ShardDesk()
    desk.commit("g", {ORDERS: of(OLD, 1000), ORDERS_1: of(OLD, 7)})
    desk.commit("g", {ORDERS: of(NEW, 3)})
    desk.store()

    desk.do(desk.shard.topics_deleted({"orders"}, {"orders": NEW}, desk.at()))
    desk.store()

    assert desk.offsets("g") == {"orders-0": 3}


def test_a_tombstone_on_its_way_is_not_written_again():
    desk = ShardDesk()
    desk.commit("g", {ORDERS: of(OLD)})
    desk.store()

    desk.do(desk.shard.topics_deleted({"orders"}, {}, desk.at()))
    desk.do(desk.shard.topics_found({}, desk.at()))

    assert len(desk.in_flight) == 1


# Expiry.


def test_offsets_of_a_consumer_without_a_group_expire_after_their_commit():
    desk = ShardDesk()
    desk.commit("g", {ORDERS: 1})
    desk.store()
    desk.pass_time(3 * DAY)
    desk.commit("g", {PAYMENTS: 1})
    desk.store()

    desk.pass_time(4 * DAY)
    desk.expire()
    desk.store()
    assert desk.offsets("g") == {"payments-0": 1}
    desk.pass_time(3 * DAY)
    desk.expire()
    desk.store()

    assert states(desk) == states(desk.restart()) == {}


def test_offsets_of_a_group_expire_after_its_last_member_left():
    desk = ShardDesk(PATIENT)
    member = stable(desk, session_timeout_ms=20 * DAY * 1000)
    desk.commit("g", {ORDERS: 1}, member_id=member, generation=1)
    desk.store()
    desk.pass_time(19 * DAY)
    desk.expire()
    assert desk.in_flight == {}, "its topic is consumed"

    desk.leave("g", Leaver(member))
    desk.store()
    desk.pass_time(7 * DAY - 1)
    desk.expire()
    assert desk.in_flight == {}
    desk.pass_time(1)
    desk.expire()
    assert states(desk) == {"g": "Dead"}
    desk.store()

    assert states(desk) == states(desk.restart()) == {}


def test_offsets_of_topics_that_a_living_group_no_longer_consumes_expire():
    desk = ShardDesk(PATIENT)
    member = stable(desk, session_timeout_ms=20 * DAY * 1000)
    desk.commit("g", {ORDERS: 1, PAYMENTS: 1}, member_id=member, generation=1)
    desk.store()

    desk.pass_time(7 * DAY)
    desk.expire()
    desk.store()

    assert desk.offsets("g") == {"orders-0": 1}


def test_offsets_of_members_whose_topics_are_unknown_do_not_expire():
    desk = ShardDesk(PATIENT)
    member = stable(desk, session_timeout_ms=20 * DAY * 1000, protocol_type="connect")
    desk.commit("g", {PAYMENTS: 1}, member_id=member, generation=1)
    desk.store()

    desk.pass_time(8 * DAY)
    desk.expire()

    assert desk.in_flight == {}


def test_offsets_set_by_an_operator_are_as_new_as_they_are():
    desk = ShardDesk()
    member = stable(desk)
    desk.leave("g", Leaver(member))
    desk.store()
    desk.pass_time(6 * DAY)
    desk.commit("g", {ORDERS: 1})
    desk.store()

    desk.pass_time(2 * DAY)
    desk.expire()

    assert desk.in_flight == {}
    assert desk.offsets("g") == {"orders-0": 1}


def test_a_retention_that_a_client_has_set_counts_instead():
    desk = ShardDesk()
    desk.commit("g", {ORDERS: 1}, retention_ms=60_000)
    desk.store()
    desk = desk.restart()

    desk.pass_time(59)
    desk.expire()
    assert desk.in_flight == {}
    desk.pass_time(1)
    desk.expire()
    desk.store()

    assert states(desk) == {}


def test_a_clock_that_is_wrong_for_a_while_takes_nothing_from_a_group_without_members():
    desk = ShardDesk()
    desk.commit("g", {ORDERS: 1})
    desk.store()

    for minutes in range(60):
        desk.pass_time(60)
        at = desk.at()
        ahead_ms = 8 * DAY * 1000 if minutes < 50 else 0
        desk.do(desk.shard.expire(at._replace(wall_ms=at.wall_ms + ahead_ms)))

    assert desk.in_flight == {}
    assert desk.offsets("g") == {"orders-0": 1}
    desk.pass_time(7 * DAY)
    desk.expire()
    desk.store()
    assert states(desk) == {}


def test_nothing_expires_that_is_being_committed_and_nothing_twice():
    desk = ShardDesk()
    desk.commit("g", {ORDERS: 1, PAYMENTS: 1})
    desk.store()
    desk.pass_time(8 * DAY)
    desk.commit("g", {ORDERS: 2})

    desk.expire()
    desk.expire()

    appended = [decode(record) for records in desk.in_flight.values() for record in records]
    deleted = [each for each in appended if each is not None and each.value is None]
    assert [each.place for each in deleted if isinstance(each, OffsetWritten)] == [PAYMENTS]
    desk.store()
    assert desk.offsets("g") == {"orders-0": 2}


def test_an_empty_group_without_offsets_goes_at_the_next_check():
    desk = ShardDesk()
    desk.leave("g", Leaver(stable(desk)))
    desk.store()
    assert states(desk) == {"g": "Empty"}

    desk.expire()
    desk.store()

    assert decode(desk.log[-1]) == GroupWritten(group_id="g", value=None)
    assert states(desk) == {}


def test_an_empty_group_stays_while_an_offset_is_on_its_way():
    desk = ShardDesk()
    desk.leave("g", Leaver(stable(desk)))
    desk.store()
    desk.commit("g", {ORDERS: 1})

    desk.expire()

    assert states(desk) == {"g": "Empty"}
    desk.store()
    assert desk.offsets("g") == desk.restart().offsets("g") == {"orders-0": 1}


# The end.


def test_everyone_who_waits_is_told_when_the_shard_moves():
    desk = ShardDesk()
    member = stable(desk)
    stable(desk, "deleted")
    desk.leave("deleted", *[Leaver(m.id) for m in desk.shard.groups()[1].roster])
    desk.store()
    tokens = [
        desk.join("g", protocols=(("range", subscription("more")), *RANGE)),
        desk.commit("g", {ORDERS: 1}, member_id=member, generation=1),
        desk.delete_group("deleted"),
    ]

    desk.do(desk.shard.unload())

    assert [type(desk.answers[token]) for token in tokens] == [NotCoordinator] * 3
    assert isinstance(desk.answers[desk.join("g")], NotCoordinator)
    assert isinstance(desk.heartbeat("g", member, 1), NotCoordinator)
    assert desk.shard.stored(max(desk.in_flight), desk.at()) == []
    assert desk.shard.next_deadline() is None


def test_joins_of_one_group_do_not_disturb_another():
    desk = ShardDesk()
    member = stable(desk, "calm")
    for _ in range(10):
        desk.join("busy")

    assert desk.heartbeat("calm", member, 1) is None


# Static members that restart.


def static(desk, count):
    """A stable group of static members; their ids."""
    tokens = [desk.join("g", instance_id=f"i{n}") for n in range(count)]
    while any(desk.answers[token] is WAITS for token in tokens):
        tokens = [
            desk.join("g", desk.answers[token].member_id, instance_id=f"i{n}")
            if isinstance(desk.answers[token], Joined)
            else token
            for n, token in enumerate(tokens)
        ]
    joined = [desk.answers[token] for token in tokens]
    shares = {one.member_id: f"share {n}".encode() for n, one in enumerate(joined)}
    for one in joined:
        desk.sync("g", one.member_id, one.generation, assignments=shares)
    desk.store()
    return [one.member_id for one in joined]


def members_of(desk):
    return {m.instance_id: (m.member_id, m.assignment) for m in desk.shard.describe("g").members}


def test_a_static_member_that_restarts_writes_itself_and_not_the_group():
    desk = ShardDesk()
    before = static(desk, 3)
    group_bytes = len(desk.log[-1].value or b"")
    written = len(desk.log)

    for number in (1, 0, 1):
        token = desk.join("g", instance_id=f"i{number}")
        desk.store()
        assert isinstance(desk.answers[token], Joined)

    assert all(len(record.value or b"") < group_bytes for record in desk.log[written:])
    after = members_of(desk)
    assert members_of(desk.restart()) == after
    assert [after[f"i{n}"][0] == before[n] for n in range(3)] == [False, False, True]
    assert [share for _, share in after.values()] == [b"share 2", b"share 0", b"share 1"]


def test_the_next_record_of_the_group_undoes_those_of_its_members():
    desk = ShardDesk()
    static(desk, 2)
    desk.join("g", instance_id="i1")
    desk.store()
    assert desk.shard._entries["g"].renamed == {"i1"}
    desk = desk.restart()
    assert desk.shard._entries["g"].renamed == {"i1"}

    desk.leave("g", Leaver("", "i0"), Leaver("", "i1"))
    desk.store()

    compacted = {record.key: record.value for record in desk.log}
    assert [value is None for value in compacted.values()] == [False, True]
    assert states(desk.restart()) == {"g": "Empty"}


def test_a_restart_of_an_earlier_generation_says_nothing():
    """The tombstone was lost: its write failed."""
    desk = ShardDesk()
    static(desk, 1)
    desk.join("g", instance_id="i0")
    desk.store()
    (renamed,) = [r for r in desk.log if isinstance(decode(r), MemberWritten)]
    joined = desk.answers[desk.join("g", members_of(desk)["i0"][0], instance_id="i0")]
    desk.sync("g", joined.member_id, joined.generation, assignments={joined.member_id: b"new"})
    desk.store()
    desk.log = [r for r in desk.log if r.key != renamed.key] + [replace(renamed, offset=desk.end)]

    assert members_of(desk.restart()) == {"i0": (joined.member_id, b"new")}
