"""Offsets that are committed inside transactions."""

import pytest

from tests.unit.groups.desk import WAITS, ShardDesk
from tests.unit.groups.test_shard import DAY, ORDERS, ORDERS_1, PAYMENTS, stable, states
from tidelog.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    FencedInstanceId,
    IllegalGeneration,
    InvalidGroupId,
    InvalidProducerEpoch,
    NotCoordinator,
    OffsetMetadataTooLarge,
    StorageError,
    UnknownMemberId,
    UnstableOffsetCommit,
)
from tidelog.groups.events import Leaver, OffsetsDone, OffsetToCommit, TransactionalCommit
from tidelog.groups.limits import Limits
from tidelog.groups.shard import Shard
from tidelog.groups.state import State
from tidelog.shards.effects import Answer, Append, Writer


def pending(desk):
    """What is undecided, by group, producer and partition."""
    return {
        group_id: {
            producer_id: {str(place): noted.value.offset for place, noted in held.items()}
            for producer_id, held in entry.offsets.pending.items()
        }
        for group_id, entry in desk.shard._entries.items()
        if entry.offsets.pending
    }


def is_unstable(desk, place=ORDERS, group_id="g"):
    found = desk.shard.fetch_offsets(group_id, [place], require_stable=True)
    return isinstance(found[place], UnstableOffsetCommit)


# One transaction.


def test_an_offset_counts_once_its_transaction_is_committed():
    desk = ShardDesk()
    desk.commit("g", {ORDERS: 1})
    desk.store()

    token = desk.commit_in_transaction("g", {ORDERS: 5, PAYMENTS: OffsetToCommit(offset=6)})
    assert desk.answers[token] is WAITS
    desk.store()
    assert desk.answers[token] == OffsetsDone()
    assert desk.offsets("g") == {"orders-0": 1}
    desk.end_transaction()
    desk.store()

    assert desk.offsets("g") == desk.restart().offsets("g") == {"orders-0": 5, "payments-0": 6}
    assert pending(desk) == {}


def test_an_offset_of_an_aborted_transaction_never_counts():
    desk = ShardDesk()
    desk.commit("g", {ORDERS: 1})
    desk.commit_in_transaction("g", {ORDERS: 5, PAYMENTS: 6})
    desk.commit_in_transaction("new", {ORDERS: 5})
    desk.end_transaction(commits=False)
    desk.store()

    assert desk.offsets("g") == desk.restart().offsets("g") == {"orders-0": 1}
    assert pending(desk) == pending(desk.restart()) == {}
    assert states(desk) == states(desk.restart()) == {"g": "Empty"}


def test_the_write_says_in_whose_transaction_it_is():
    desk = ShardDesk()
    event = TransactionalCommit(reply=None, writer=Writer(9, 3), offsets={ORDERS: OffsetToCommit(offset=1)})

    (append,) = desk.shard.commit_in_transaction("g", event, desk.at())

    assert isinstance(append, Append)
    assert append.writer == Writer(9, 3)
    assert len(append.records) == 1


def test_a_plain_commit_is_in_no_transaction():
    desk = ShardDesk()
    desk.commit("g", {ORDERS: 1})

    assert desk.writers == {}


def test_who_asks_for_stable_offsets_waits_for_the_end_of_the_transaction():
    desk = ShardDesk()
    desk.commit("g", {ORDERS: 1})
    desk.store()
    assert not is_unstable(desk)

    desk.commit_in_transaction("g", {ORDERS: 5, PAYMENTS: 6})
    assert is_unstable(desk), "in flight"
    desk.store()
    assert is_unstable(desk), "pending"
    assert is_unstable(desk, PAYMENTS), "with nothing before it"
    assert not is_unstable(desk, ORDERS_1)
    assert is_unstable(desk.restart()), "also after a restart"
    assert desk.offsets("g") == {"orders-0": 1}, "others get the last stable one"
    desk.end_transaction()
    assert is_unstable(desk), "the marker is not committed yet"
    desk.store()

    assert not is_unstable(desk)
    assert not is_unstable(desk, PAYMENTS)


def test_the_last_offset_of_a_transaction_counts():
    desk = ShardDesk()
    desk.commit_in_transaction("g", {ORDERS: 9})
    desk.commit_in_transaction("g", {ORDERS: 5})
    desk.end_transaction()
    desk.store()

    assert desk.offsets("g") == desk.restart().offsets("g") == {"orders-0": 5}


def test_a_transaction_may_concern_many_groups():
    desk = ShardDesk()
    for number, group_id in enumerate(("g", "h", "i")):
        desk.commit_in_transaction(group_id, {ORDERS: number})
    desk.store()
    desk.end_transaction()
    desk.store()

    assert [desk.offsets(group_id) for group_id in "ghi"] == [
        {"orders-0": 0},
        {"orders-0": 1},
        {"orders-0": 2},
    ]


def test_transactions_of_other_producers_are_not_touched():
    desk = ShardDesk()
    desk.commit_in_transaction("g", {ORDERS: 5}, producer_id=7)
    desk.commit_in_transaction("g", {ORDERS: 6, PAYMENTS: 6}, producer_id=8)
    desk.end_transaction(7)
    desk.store()

    assert desk.offsets("g") == {"orders-0": 5}
    assert pending(desk) == pending(desk.restart()) == {"g": {8: {"orders-0": 6, "payments-0": 6}}}
    assert is_unstable(desk)


def test_a_marker_of_a_producer_that_wrote_nothing_changes_nothing():
    desk = ShardDesk()
    desk.commit("g", {ORDERS: 1})
    desk.end_transaction(7)
    desk.end_transaction(8, commits=False)
    desk.store()

    assert desk.offsets("g") == desk.restart().offsets("g") == {"orders-0": 1}


def test_the_next_transaction_of_a_producer_is_its_own():
    desk = ShardDesk()
    desk.commit_in_transaction("g", {ORDERS: 1})
    desk.end_transaction()
    desk.commit_in_transaction("g", {ORDERS: 2})
    desk.end_transaction(commits=False)
    desk.commit_in_transaction("g", {ORDERS: 3})
    desk.store()

    assert desk.offsets("g") == desk.restart().offsets("g") == {"orders-0": 1}
    assert pending(desk) == {"g": {7: {"orders-0": 3}}}


# Who wins.


PLAIN, IN, OTHER = "plain", 7, 8


@pytest.mark.parametrize(
    ("story", "stands"),
    [
        # What was written later wins, whenever it was decided.
        ([(PLAIN, 1), (IN, 2), ("commit", IN)], 2),
        ([(IN, 2), (PLAIN, 1), ("commit", IN)], 1),
        ([(IN, 2), ("commit", IN), (PLAIN, 1)], 1),
        ([(IN, 2), (PLAIN, 1), ("abort", IN)], 1),
        ([(PLAIN, 1), (IN, 2), ("abort", IN)], 1),
        ([(IN, 2), (OTHER, 3), ("commit", OTHER), ("commit", IN)], 3),
        ([(IN, 2), (OTHER, 3), ("commit", IN), ("commit", OTHER)], 3),
        ([(IN, 2), (OTHER, 3), ("commit", IN), ("abort", OTHER)], 2),
        ([(IN, 2), (OTHER, 3), (IN, 4), ("commit", OTHER), ("commit", IN)], 4),
        # A deletion ends what came before it, and nothing else.
        ([(PLAIN, 1), ("delete", 0)], None),
        ([(IN, 2), ("delete", 0), ("commit", IN)], None),
        ([(PLAIN, 1), (IN, 2), ("delete", 0), ("commit", IN)], None),
        ([(IN, 2), ("delete", 0), (IN, 3), ("commit", IN)], 3),
        ([(IN, 2), (OTHER, 3), ("delete", 0), ("commit", IN), ("commit", OTHER)], None),
        ([(IN, 2), (OTHER, 3), ("delete", 0), (PLAIN, 1), ("commit", OTHER)], 1),
    ],
)
@pytest.mark.parametrize("together", [False, True])
def test_what_was_written_later_stands(story, stands, together):
    desk = ShardDesk()
    desk.commit("g", {PAYMENTS: 0})  # so that there is a group to delete from
    desk.store()

    for what, value in story:
        match what:
            case "plain":
                desk.commit("g", {ORDERS: value})
            case "commit" | "abort":
                desk.end_transaction(value, commits=what == "commit")
            case "delete":
                desk.delete_offsets("g", ORDERS)
            case _:
                desk.commit_in_transaction("g", {ORDERS: value}, producer_id=what)
        if not together:
            desk.store()
    desk.store()

    assert desk.offsets("g").get("orders-0") == stands
    assert desk.restart().offsets("g") == desk.offsets("g")
    assert pending(desk.restart()) == pending(desk)


# Reports.


def test_a_marker_settles_what_stands_before_it_and_nothing_after():
    desk = ShardDesk()
    before = desk.commit_in_transaction("g", {ORDERS: 1})
    marker = desk.end_transaction()
    after = desk.commit_in_transaction("g", {PAYMENTS: 2})

    desk.do(desk.shard.completed(7, True, desk.at(), marker))

    assert desk.answers[before] == OffsetsDone()
    assert desk.answers[after] is WAITS
    assert desk.offsets("g") == {"orders-0": 1}
    desk.do(desk.shard.stored(0, desk.at()))
    assert desk.offsets("g") == {"orders-0": 1}, "reported once more"


def test_a_marker_that_is_reported_again_decides_nothing_that_came_later():
    desk = ShardDesk()
    desk.commit_in_transaction("g", {ORDERS: 1})
    marker = desk.end_transaction()
    desk.commit_in_transaction("g", {ORDERS: 2})
    desk.store()

    desk.do(desk.shard.completed(7, True, desk.at(), marker))

    assert desk.offsets("g") == {"orders-0": 1}
    assert pending(desk) == {"g": {7: {"orders-0": 2}}}
    desk.end_transaction()
    desk.store()
    assert desk.offsets("g") == {"orders-0": 2}


@pytest.mark.parametrize("is_read_too", [False, True])
def test_a_marker_that_comes_while_the_log_is_read_counts_once_it_is_read(is_read_too):
    desk = ShardDesk()
    desk.commit_in_transaction("g", {ORDERS: 1})
    desk.store()
    again = desk.restart()
    again.shard = Shard(again.limits)
    if is_read_too:
        again.markers[again.end] = 7, True

    assert again.shard.completed(7, True, again.at(), again.end) == []
    again.read()
    again.do(again.shard.loaded(again.at()))

    assert again.offsets("g") == {"orders-0": 1}
    assert pending(again) == {}


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (StorageError("full"), NotCoordinator),
        (InvalidProducerEpoch(producer_id=7, epoch=0, current=1), InvalidProducerEpoch),
    ],
)
def test_a_transactional_commit_that_fails_changes_nothing(failure, told):
    desk = ShardDesk()
    desk.commit("g", {ORDERS: 1})
    desk.store()
    token = desk.commit_in_transaction("g", {ORDERS: 2})
    founding = desk.commit_in_transaction("new", {ORDERS: 2})

    desk.fail_store(failure)
    desk.fail_store(failure)

    assert type(desk.answers[token]) is type(desk.answers[founding]) is told
    assert not is_unstable(desk)
    assert states(desk) == {"g": "Empty"}
    desk.end_transaction()
    desk.store()
    assert desk.offsets("g") == {"orders-0": 1}


def test_metadata_that_is_too_long_is_refused_alone():
    desk = ShardDesk()
    long = OffsetToCommit(offset=1, metadata="x" * 4097)

    token = desk.commit_in_transaction("g", {ORDERS: long, PAYMENTS: 2})
    desk.end_transaction()
    desk.store()

    assert [type(e) for e in desk.answers[token].refused.values()] == [OffsetMetadataTooLarge]
    assert desk.offsets("g") == {"payments-0": 2}


# Who may.


def in_state(desk, state):
    """A group "g" in this state, with a member if it has one; returns the member's id."""
    match state:
        case None:
            return "stranger"
        case State.EMPTY:
            member = stable(desk)
            desk.leave("g", Leaver(member))
            desk.store()
            return member
        case State.STABLE:
            return stable(desk)
        case State.COMPLETING:
            return desk.answers[desk.join("g")].member_id
        case State.PREPARING:
            member = stable(desk)
            desk.join("g")
            return member
        case State.DEAD:
            desk.commit("g", {PAYMENTS: 1})
            desk.store()
            desk.delete_group("g")
            return "stranger"


NOBODY, MEMBER, STALE, STRANGER, UNNAMED = "nobody", "member", "stale", "stranger", "unnamed"


@pytest.mark.parametrize(
    ("state", "who", "told"),
    [
        (None, NOBODY, None),
        (None, MEMBER, IllegalGeneration),
        (None, UNNAMED, None),
        (State.EMPTY, NOBODY, None),
        (State.EMPTY, MEMBER, UnknownMemberId),
        (State.EMPTY, UNNAMED, None),
        (State.PREPARING, NOBODY, None),
        (State.PREPARING, MEMBER, None),
        (State.PREPARING, STALE, IllegalGeneration),
        (State.PREPARING, STRANGER, UnknownMemberId),
        (State.PREPARING, UNNAMED, IllegalGeneration),
        (State.COMPLETING, NOBODY, None),
        (State.COMPLETING, MEMBER, None),
        (State.COMPLETING, STALE, IllegalGeneration),
        (State.COMPLETING, STRANGER, UnknownMemberId),
        (State.COMPLETING, UNNAMED, IllegalGeneration),
        (State.STABLE, NOBODY, None),
        (State.STABLE, MEMBER, None),
        (State.STABLE, STALE, IllegalGeneration),
        (State.STABLE, STRANGER, UnknownMemberId),
        (State.STABLE, UNNAMED, IllegalGeneration),
        (State.DEAD, NOBODY, CoordinatorNotAvailable),
        (State.DEAD, MEMBER, CoordinatorNotAvailable),
    ],
)
def test_who_may_commit_in_which_state(state, who, told):
    desk = ShardDesk()
    member = in_state(desk, state)
    assert state is None or states(desk) == {"g": state.value}
    fields = {
        NOBODY: {},
        MEMBER: {"member_id": member, "generation": 1},
        STALE: {"member_id": member, "generation": 0},
        STRANGER: {"member_id": "stranger", "generation": 1},
        UNNAMED: {"member_id": member, "generation": -1},
    }[who]

    token = desk.commit_in_transaction("g", {ORDERS: 1}, **fields)
    desk.store()

    assert type(desk.answers[token]) is (told or OffsetsDone)


def test_a_static_member_that_was_replaced_is_fenced():
    desk = ShardDesk()
    old = stable(desk, instance_id="one")
    desk.join("g", instance_id="one")
    desk.store()

    replaced = desk.commit_in_transaction("g", {ORDERS: 1}, member_id=old, instance_id="one", generation=1)
    unknown = desk.commit_in_transaction("g", {ORDERS: 1}, member_id=old, instance_id="two", generation=1)

    assert isinstance(desk.answers[replaced], FencedInstanceId)
    assert isinstance(desk.answers[unknown], UnknownMemberId)


def test_a_transactional_commit_is_no_sign_of_life():
    desk = ShardDesk()
    member = stable(desk)
    desk.pass_time(9)
    desk.commit_in_transaction("g", {ORDERS: 1}, member_id=member, generation=1)
    desk.pass_time(1)

    assert isinstance(desk.heartbeat("g", member, 1), UnknownMemberId)


@pytest.mark.parametrize("group_id", ["", "g" * 40_000])
def test_a_group_needs_a_name(group_id):
    desk = ShardDesk()

    token = desk.commit_in_transaction(group_id, {ORDERS: 1})

    assert isinstance(desk.answers[token], InvalidGroupId)


def test_nothing_is_taken_before_the_log_is_read_or_after_the_shard_has_moved():
    shard, desk = Shard(Limits()), ShardDesk()
    event = TransactionalCommit(reply="early", writer=Writer(7, 0), offsets={})
    (answer,) = shard.commit_in_transaction("g", event, desk.at())
    assert isinstance(answer, Answer)
    assert isinstance(answer.result, CoordinatorLoadInProgress)

    waiting = desk.commit_in_transaction("g", {ORDERS: 1})
    marker = desk.end_transaction()
    desk.do(desk.shard.unload())
    late = desk.commit_in_transaction("g", {ORDERS: 1})

    assert isinstance(desk.answers[waiting], NotCoordinator)
    assert isinstance(desk.answers[late], NotCoordinator)
    assert desk.shard.completed(7, True, desk.at(), marker) == []


# What keeps a group, and what ends it.


def test_nothing_expires_that_is_undecided_nor_its_group():
    desk = ShardDesk()
    desk.leave("joined", Leaver(stable(desk, "joined")))
    desk.commit("g", {ORDERS: 1})
    desk.commit_in_transaction("g", {ORDERS: 2})
    desk.commit_in_transaction("joined", {ORDERS: 2})
    desk.store()

    desk.pass_time(8 * DAY)
    desk.expire()
    assert desk.in_flight == {}
    desk.end_transaction(commits=False)
    desk.store()
    desk.expire()
    desk.store()

    assert states(desk) == states(desk.restart()) == {}


def test_a_group_that_goes_takes_what_is_undecided_with_it():
    desk = ShardDesk()
    desk.commit("g", {ORDERS: 1})
    desk.commit_in_transaction("g", {PAYMENTS: 2})
    desk.store()
    desk.commit_in_transaction("g", {ORDERS_1: 3})  # still in flight

    token = desk.delete_group("g")
    desk.store()
    assert desk.answers[token] is None
    assert states(desk) == states(desk.restart()) == {}
    desk.end_transaction()
    desk.store()

    assert states(desk) == states(desk.restart()) == {}
    assert {record.key for record in desk.log if record.value} <= {
        record.key for record in desk.log if record.value is None
    }


def test_undecided_offsets_go_with_their_topic():
    desk = ShardDesk()
    desk.commit_in_transaction("g", {ORDERS: 1, PAYMENTS: 2})
    desk.store()
    assert desk.shard.topics() == {"orders", "payments"}

    desk.do(desk.shard.topics_deleted({"orders"}, {}, desk.at()))
    desk.store()
    assert pending(desk) == {"g": {7: {"payments-0": 2}}}
    desk.end_transaction()
    desk.store()

    assert desk.offsets("g") == desk.restart().offsets("g") == {"payments-0": 2}


def test_an_undecided_offset_can_be_deleted():
    desk = ShardDesk()
    desk.commit_in_transaction("g", {ORDERS: 1})
    desk.store()

    token = desk.delete_offsets("g", ORDERS)
    desk.store()

    assert desk.answers[token] == OffsetsDone()
    assert states(desk) == states(desk.restart()) == {}
