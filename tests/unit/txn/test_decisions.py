"""One decision over many prepared producers: all of it, once, or nothing."""

from dataclasses import replace

import pytest

from tests.unit.txn.desk import WAITS, A, B, C, Desk
from tidelog.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionState,
    NotCoordinator,
    ProducerFenced,
    StorageError,
)
from tidelog.txn.events import Decided, GroupMember, Initialised
from tidelog.txn.records import PROOF_BYTES_MAX
from tidelog.txn.shard import QUERY_JUMP_MAX
from tidelog.txn.transitions import EPOCH_MAX
from tidelog.wire.batches_decided import Counting

GROUP = "spark.q"
FIRST, SECOND, THIRD = (f"{GROUP}.{slot}" for slot in range(3))
DAY = 24 * 60 * 60


def wrote(desk, name, *places):
    """A member has written its share, and its transaction is open."""
    return GroupMember(name, *desk.opened(name, *places))


def decided(desk):
    decision = desk.shard.decision(GROUP)
    return None if decision is None else decision.batch_id


def states(desk):
    return {view.transactional_id: view.state for view in desk.shard.transactions()}


def assert_nothing_happened(desk, before):
    assert desk.in_flight == {}
    assert desk.shard.transactions() == before
    assert decided(desk) is None


def test_the_decision_and_all_its_members_are_one_write():
    desk = Desk()
    members = [wrote(desk, FIRST, A, B), wrote(desk, SECOND, C)]

    token = desk.commit_group(GROUP, 4, *members)
    (records,) = desk.in_flight.values()
    assert len(records) == 3
    assert desk.answers[token] is WAITS
    assert decided(desk) is None
    assert desk.markers == []
    desk.store()

    assert desk.answers[token] == Decided(batch_id=4, is_new=True)
    assert decided(desk) == 4
    assert states(desk) == {FIRST: "PrepareCommit", SECOND: "PrepareCommit"}
    sent = [(m.transactional_id, m.epoch, m.commits, m.places) for m in desk.markers]
    assert sent == [(FIRST, 1, True, (A, B)), (SECOND, 1, True, (C,))]
    desk.settle()
    assert states(desk) == {FIRST: "CompleteCommit", SECOND: "CompleteCommit"}


@pytest.mark.parametrize("batch_id", [4, 3, 0])
def test_a_replayed_batch_is_recognised_and_changes_nothing(batch_id):
    desk = Desk()
    desk.commit_group(GROUP, 4, wrote(desk, FIRST, A))
    desk.settle()
    replayed = wrote(desk, FIRST, A)

    for after in (desk, desk.restart()):
        token = after.commit_group(GROUP, batch_id, replayed)
        assert after.answers[token] == Decided(batch_id=4, is_new=False)
        assert after.in_flight == {}
        assert states(after) == {FIRST: "Ongoing"}


@pytest.mark.parametrize("batch_id", [4, 3])
def test_a_replayed_batch_is_told_what_the_decided_one_was(batch_id):
    desk = Desk()
    token = desk.commit_group(GROUP, 4, wrote(desk, FIRST, A), proof=b"rows 1 to 4")
    desk.settle()
    assert desk.answers[token] == Decided(batch_id=4, is_new=True)

    for after in (desk, desk.restart()):
        assert after.shard.decisions()[GROUP].proof == b"rows 1 to 4"
        token = after.commit_group(GROUP, batch_id, proof=b"rows 1 to 6")
        assert after.answers[token] == Decided(4, is_new=False, proof=b"rows 1 to 4")


def test_a_proof_that_is_too_long_is_refused():
    desk = Desk()
    member = wrote(desk, FIRST, A)

    token = desk.commit_group(GROUP, 4, member, proof=bytes(PROOF_BYTES_MAX + 1))

    assert isinstance(desk.answers[token], InvalidRequest)
    assert desk.in_flight == {}
    token = desk.commit_group(GROUP, 4, member, proof=bytes(PROOF_BYTES_MAX))
    desk.store()
    assert desk.answers[token] == Decided(batch_id=4, is_new=True)


def test_a_decision_on_its_way_is_neither_seen_nor_overtaken():
    desk = Desk()
    first = desk.commit_group(GROUP, 4, wrote(desk, FIRST, A))

    again = desk.commit_group(GROUP, 4)
    later = desk.commit_group(GROUP, 5)

    assert decided(desk) is None
    for token in (again, later, desk.forget(GROUP)):
        assert isinstance(desk.answers[token], ConcurrentTransactions)
    desk.store()
    assert desk.answers[first] == Decided(batch_id=4, is_new=True)
    again = desk.commit_group(GROUP, 4)
    assert desk.answers[again] == Decided(batch_id=4, is_new=False)


def test_a_decision_that_was_not_stored_was_not_made():
    desk = Desk()
    members = [wrote(desk, FIRST, A), wrote(desk, SECOND, B)]
    before = desk.shard.transactions()
    token = desk.commit_group(GROUP, 4, *members)
    desk.fail_store(StorageError("full"))

    assert isinstance(desk.answers[token], NotCoordinator)
    assert_nothing_happened(desk, before)
    token = desk.commit_group(GROUP, 4, *members)
    desk.settle()
    assert desk.answers[token] == Decided(batch_id=4, is_new=True)


# Members that are not what the driver thinks.


def unknown(desk):
    return GroupMember(SECOND, 100, 0), InvalidProducerIdMapping


def with_a_stale_epoch(desk):
    member = wrote(desk, SECOND, B)
    desk.init(SECOND)
    desk.settle()
    wrote(desk, SECOND, B)
    return member, ProducerFenced


def with_an_epoch_that_is_too_high(desk):
    member = wrote(desk, SECOND, B)
    return member._replace(epoch=member.epoch + 1), ProducerFenced


def with_another_id(desk):
    return wrote(desk, SECOND, B)._replace(producer_id=5), ProducerFenced


def timed_out(desk):
    desk.at.seconds -= 61
    member = wrote(desk, SECOND, B)
    desk.pass_time(61)
    desk.settle()
    return member, ProducerFenced


def being_fenced(desk):
    member = wrote(desk, SECOND, B)
    desk.init(SECOND)
    return member, ConcurrentTransactions


def being_initialised(desk):
    member = GroupMember(SECOND, *desk.began(SECOND))
    desk.init(SECOND)
    return member, ConcurrentTransactions


def still_adding(desk):
    member = wrote(desk, SECOND, B)
    desk.add(SECOND, member[1:], C)
    return member, ConcurrentTransactions


def committed_by_itself(desk):
    member = wrote(desk, SECOND, B)
    desk.end(SECOND, member[1:])
    desk.settle()
    return member, InvalidTransactionState


def aborted_by_itself(desk):
    member = wrote(desk, SECOND, B)
    desk.end(SECOND, member[1:], commits=False)
    desk.settle()
    return member, InvalidTransactionState


@pytest.mark.parametrize(
    "arrange",
    [
        unknown,
        with_a_stale_epoch,
        with_an_epoch_that_is_too_high,
        with_another_id,
        timed_out,
        being_fenced,
        being_initialised,
        still_adding,
        committed_by_itself,
        aborted_by_itself,
    ],
)
@pytest.mark.parametrize("is_first", [False, True])
def test_one_member_at_fault_and_nothing_is_decided(arrange, is_first):
    desk = Desk()
    member, error = arrange(desk)
    in_flight = dict(desk.in_flight)
    good = GroupMember(FIRST, *desk.began(FIRST)) if not in_flight else None
    if good is not None:
        desk.add(FIRST, good[1:], A)
        desk.store()
    before = desk.shard.transactions()
    members = [each for each in (good, member) if each is not None]

    token = desk.commit_group(GROUP, 4, *(members[::-1] if is_first else members))

    assert type(desk.answers[token]) is error
    assert SECOND in str(desk.answers[token])
    assert desk.in_flight == in_flight
    assert desk.shard.transactions() == before
    assert decided(desk) is None


def test_a_member_that_wrote_nothing_is_passed_over():
    desk = Desk()
    idle = GroupMember(FIRST, *desk.began(FIRST))

    token = desk.commit_group(GROUP, 4, idle, wrote(desk, SECOND, B))
    desk.settle()

    assert desk.answers[token] == Decided(batch_id=4, is_new=True)
    assert states(desk) == {FIRST: "Empty", SECOND: "CompleteCommit"}


@pytest.mark.parametrize("idles", [True, False])
def test_a_batch_in_which_nothing_was_written_is_not_decided(idles):
    desk = Desk()
    open_member = wrote(desk, FIRST, A)
    members = [GroupMember(SECOND, *desk.began(SECOND))] if idles else []
    token = desk.commit_group(GROUP, 0, *members)

    assert isinstance(desk.answers[token], InvalidTransactionState)
    assert desk.in_flight == {}
    token = desk.commit_group(GROUP, 0, open_member)
    desk.store()
    assert desk.answers[token] == Decided(batch_id=0, is_new=True)


@pytest.mark.parametrize(
    ("batch_id", "fields"),
    [
        (5, {"after": 3}),
        (5, {"after": -1}),
        (5, {"after": 5}),
        (5, {"counting": Counting.APPLICATION}),
        (5, {"counting": Counting.ONCE}),
        (5 + QUERY_JUMP_MAX, {}),
        (2**63 - 1, {}),
    ],
)
def test_a_batch_that_does_not_follow_the_decisions_of_its_query_is_refused(batch_id, fields):
    desk = Desk()
    desk.commit_group(GROUP, 4, wrote(desk, FIRST, A), counting=Counting.QUERY)
    desk.settle()
    member = wrote(desk, FIRST, A)

    token = desk.commit_group(GROUP, batch_id, member, **{"counting": Counting.QUERY} | fields)

    assert isinstance(desk.answers[token], InvalidTransactionState)
    assert f"batch {batch_id}" in str(desk.answers[token])
    assert desk.in_flight == {}
    token = desk.commit_group(GROUP, 5, member, counting=Counting.QUERY)
    desk.store()
    assert desk.answers[token] == Decided(batch_id=5, is_new=True)


def test_a_query_skips_batches_without_rows_and_an_application_any_versions():
    desk = Desk()
    for group, counting, batch_id in [
        ("spark.q", Counting.QUERY, 4 + QUERY_JUMP_MAX),
        ("spark.app", Counting.APPLICATION, 2**62),
    ]:
        for number in (4, batch_id):
            member = wrote(desk, f"{group}.0", A)
            token = desk.commit_group(group, number, member, counting=counting)
            desk.settle()
            assert desk.answers[token] == Decided(batch_id=number, is_new=True)


def test_a_group_that_decided_before_counting_was_asked_for_takes_it_from_the_next_batch():
    desk = Desk()
    desk.commit_group(GROUP, 4, wrote(desk, FIRST, A))
    desk.settle()
    desk.shard._decisions[GROUP] = replace(desk.shard._decisions[GROUP], counting=None)

    token = desk.commit_group(GROUP, 5, wrote(desk, FIRST, A), counting=Counting.QUERY)
    desk.settle()

    assert desk.answers[token] == Decided(batch_id=5, is_new=True)
    assert desk.shard.decisions()[GROUP].counting is Counting.QUERY


@pytest.mark.parametrize(
    ("group", "batch_id", "names"),
    [
        ("orders", 1, []),
        ("spark.", 1, []),
        ("spark", 1, []),
        (GROUP, -1, []),
        (GROUP, 1, ["orders.0"]),
        (GROUP, 1, ["spark.other.0"]),
        (GROUP, 1, [f"{GROUP}.0.0"]),
        (GROUP, 1, [FIRST, FIRST]),
    ],
)
def test_a_group_is_made_of_its_own_members_each_once(group, batch_id, names):
    desk = Desk()
    wrote(desk, FIRST, A)
    members = [GroupMember(name, 100, 0) for name in names]

    token = desk.commit_group(group, batch_id, *members)

    assert isinstance(desk.answers[token], InvalidRequest)
    assert desk.in_flight == {}


# Zombies and concurrency.


def test_a_zombie_driver_cannot_decide_over_members_that_were_fenced():
    desk = Desk()
    zombies = [wrote(desk, FIRST, A), wrote(desk, SECOND, B)]
    desk.init(FIRST)  # the new driver's first task has begun, its second has not
    desk.settle()
    fresh = wrote(desk, FIRST, A)

    late = desk.commit_group(GROUP, 4, *zombies)
    assert isinstance(desk.answers[late], ProducerFenced)
    token = desk.commit_group(GROUP, 4, fresh)
    desk.settle()

    assert desk.answers[token] == Decided(batch_id=4, is_new=True)
    assert states(desk) == {FIRST: "CompleteCommit", SECOND: "CompleteAbort"}


def test_a_zombie_driver_with_an_old_batch_changes_nothing():
    desk = Desk()
    zombie = wrote(desk, FIRST, A)
    desk.commit_group(GROUP, 5, wrote(desk, SECOND, B))
    desk.settle()

    token = desk.commit_group(GROUP, 4, zombie)

    assert desk.answers[token] == Decided(batch_id=5, is_new=False)
    assert desk.in_flight == {}


def test_whoever_comes_between_members_and_decision_waits_for_the_commit():
    desk = Desk()
    member = wrote(desk, FIRST, A)
    desk.commit_group(GROUP, 4, member)

    before = desk.init(FIRST)
    desk.store()
    between = desk.init(FIRST)
    assert [type(desk.answers[token]) for token in (before, between)] == [ConcurrentTransactions] * 2
    assert desk.markers[0].commits
    desk.settle()

    assert states(desk) == {FIRST: "CompleteCommit"}
    assert desk.began(FIRST) == Initialised(100, 2)


def test_a_member_cannot_add_or_end_once_it_is_decided():
    desk = Desk()
    member = wrote(desk, FIRST, A)
    desk.commit_group(GROUP, 4, member)
    desk.settle()

    late = [
        desk.add(FIRST, member[1:], B),
        desk.end(FIRST, member[1:], commits=False),
        desk.end(FIRST, member[1:], commits=False, bumps=True),
        desk.end(FIRST, member[1:], bumps=True),
        desk.init(FIRST, producer_id=member.producer_id, epoch=member.epoch),
    ]

    assert [type(desk.answers[token]) for token in late] == [ProducerFenced] * 5


def test_what_the_decision_leaves_behind_is_aborted_in_the_same_write():
    desk = Desk()
    wrote(desk, SECOND, B)
    other = desk.opened("spark.other.0", C)
    desk.commit_group(GROUP, 4, wrote(desk, FIRST, A))
    assert len(desk.in_flight) == 1
    desk.store()

    assert states(desk) == {FIRST: "PrepareCommit", SECOND: "PrepareAbort", "spark.other.0": "Ongoing"}
    desk.settle()
    assert states(desk)[SECOND] == "CompleteAbort"
    assert desk.who(SECOND)[1] == 1
    assert desk.who("spark.other.0") == other


def test_partitions_on_their_way_are_swept_with_the_rest():
    desk = Desk()
    left = wrote(desk, SECOND, A)
    other = wrote(desk, FIRST, A)
    desk.add(SECOND, left[1:], B)
    desk.commit_group(GROUP, 4, other)
    desk.store()

    assert (A, B) in [markers.places for markers in desk.markers]


def test_after_a_crash_every_decided_member_is_rolled_forward():
    desk = Desk()
    members = [wrote(desk, name, A) for name in (FIRST, SECOND, THIRD)]
    desk.commit_group(GROUP, 4, *members)
    desk.log += [record for records in desk.in_flight.values() for record in records]

    desk = desk.restart()

    assert decided(desk) == 4
    assert {(m.transactional_id, m.commits) for m in desk.markers} == {
        (name, True) for name in (FIRST, SECOND, THIRD)
    }
    desk.settle()
    assert set(states(desk).values()) == {"CompleteCommit"}
    again = desk.commit_group(GROUP, 4, *members)
    assert desk.answers[again] == Decided(batch_id=4, is_new=False)


def test_after_a_crash_before_the_decision_nothing_of_it_is_there():
    desk = Desk()
    members = [wrote(desk, name, A) for name in (FIRST, SECOND)]
    desk.commit_group(GROUP, 4, *members)

    desk = desk.restart()

    assert decided(desk) is None
    assert set(states(desk).values()) == {"Ongoing"}
    token = desk.commit_group(GROUP, 4, *members)
    desk.settle()
    assert desk.answers[token] == Decided(batch_id=4, is_new=True)


def test_a_member_in_its_last_epoch_is_committed_and_then_needs_another_id():
    desk = Desk()
    member = wrote(desk, FIRST, A)
    transaction = desk.shard._transactions[FIRST]
    assert transaction.stored is not None
    object.__setattr__(transaction.stored, "epoch", EPOCH_MAX - 1)

    desk.commit_group(GROUP, 4, member._replace(epoch=EPOCH_MAX - 1))
    desk.settle()

    assert desk.who(FIRST) == (100, EPOCH_MAX)
    assert desk.shard.needs_fresh_id(FIRST)
    assert desk.began(FIRST, fresh_id=500) == (500, 0)


# Memory.


def test_decisions_outlive_the_ids_of_their_members():
    desk = Desk()
    desk.commit_group(GROUP, 4, wrote(desk, FIRST, A))
    desk.settle()
    desk.at.seconds += 8 * DAY
    desk.expire()
    desk.store()

    assert desk.shard.transactions() == []
    assert decided(desk) == decided(desk.restart()) == 4
    assert desk.shard._members == {}


@pytest.mark.parametrize(
    ("counting", "batch_id"), [(Counting.QUERY, 4), (Counting.APPLICATION, 4), (Counting.ONCE, 3)]
)
def test_what_may_be_asked_for_again_is_not_forgotten(counting, batch_id):
    desk = Desk()
    desk.commit_group(GROUP, 4, wrote(desk, FIRST, A), counting=counting)
    desk.settle()

    token = desk.forget(GROUP, batch_id)

    assert isinstance(desk.answers[token], InvalidTransactionState)
    assert decided(desk) == decided(desk.restart()) == 4


def test_a_group_is_forgotten_only_when_asked():
    desk = Desk()
    desk.commit_group(GROUP, 4, wrote(desk, FIRST, A), counting=Counting.ONCE)
    desk.settle()

    token = desk.forget(GROUP, 4)
    assert decided(desk) == 4
    desk.store()

    assert desk.answers[token] is None
    assert decided(desk) is decided(desk.restart()) is None
    assert desk.answers[desk.forget(GROUP)] is None


@pytest.mark.parametrize("counting", Counting)
def test_an_operator_resets_any_group_if_he_knows_its_newest_batch(counting):
    desk = Desk()
    desk.commit_group(GROUP, 4, wrote(desk, FIRST, A), counting=counting)
    desk.settle()

    token = desk.forget(GROUP, 3, is_reset=True)
    assert isinstance(desk.answers[token], InvalidTransactionState)
    token = desk.forget(GROUP, 4, is_reset=True)
    desk.store()

    assert desk.answers[token] is None
    assert decided(desk) is decided(desk.restart()) is None
    token = desk.commit_group(GROUP, 2, wrote(desk, FIRST, A), counting=Counting.QUERY)
    desk.store()
    assert desk.answers[token] == Decided(batch_id=2, is_new=True)
