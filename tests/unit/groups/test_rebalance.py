"""The stories that groups go through, from generation to generation."""

from typing import Any

import pytest

from tests.unit.groups.desk import WAITS, GroupDesk, subscription
from tidelog.errors import (
    BrokerError,
    CoordinatorNotAvailable,
    MemberIdRequired,
    MessageTooLarge,
    NotCoordinator,
    NotEnoughReplicas,
    RebalanceInProgress,
    StorageError,
    UnknownMemberId,
)
from tidelog.groups.events import Emptied, NewAssignment
from tidelog.groups.state import State

OTHER = (("range", subscription("orders", "payments")),)
STATIC: dict[str, Any] = {"instance_id": "one"}


def test_two_members_join_sync_live_and_leave():
    desk = GroupDesk()
    first = desk.joined(desk.join())
    assert (first.generation, first.leader, len(first.members)) == (1, first.member_id, 1)
    desk.sync(first.member_id, assignments={first.member_id: b"all"})
    desk.store()

    second = desk.join()
    assert isinstance(desk.heartbeat(first.member_id), RebalanceInProgress)
    again = desk.join(first.member_id)
    one, two = desk.joined(again), desk.joined(second)
    assert one.generation == two.generation == 2
    assert one.leader == two.leader == first.member_id
    assert [member.member_id for member in one.members] == [one.member_id, two.member_id]
    assert two.members == ()

    waiting = desk.sync(two.member_id)
    leading = desk.sync(one.member_id, assignments={one.member_id: b"1", two.member_id: b"2"})
    assert desk.answers[waiting] is WAITS
    assert desk.answers[leading] is WAITS
    desk.store()
    assert desk.synced(leading).assignment == b"1"
    assert desk.synced(waiting).assignment == b"2"
    assert desk.heartbeat(one.member_id) is None

    assert desk.leave(one.member_id) == [None]
    rejoined = desk.joined(desk.join(two.member_id))
    assert (rejoined.generation, rejoined.leader) == (3, two.member_id)
    assert desk.leave(two.member_id) == [None]
    assert desk.group.state is State.EMPTY
    assert isinstance(desk.stores[-1], Emptied)
    assert desk.stores[-1].record.generation == desk.group.generation == 4


def test_nobody_hears_of_an_assignment_before_it_is_stored():
    desk = GroupDesk()
    member = desk.joined(desk.join()).member_id

    token = desk.sync(member, assignments={member: b"all"})

    assert desk.answers[token] is WAITS
    assert desk.group.state is State.COMPLETING
    (change,) = desk.stores
    assert isinstance(change, NewAssignment)
    assert change.record.members[0].assignment == b"all"


def test_a_leader_that_syncs_twice_is_stored_once():
    desk = GroupDesk()
    member = desk.joined(desk.join()).member_id
    first = desk.sync(member, assignments={member: b"first"})

    second = desk.sync(member, assignments={member: b"second"})

    assert len(desk.stores) == 1
    assert isinstance(desk.answers[first], RebalanceInProgress)
    desk.store()
    assert desk.synced(second).assignment == b"first"


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (NotEnoughReplicas(in_sync=1, needed=2), CoordinatorNotAvailable),
        (StorageError("full"), NotCoordinator),
        (MessageTooLarge(size=2, size_max=1), BrokerError),
    ],
)
def test_an_assignment_that_cannot_be_stored_is_told_and_tried_again(failure, told):
    desk = GroupDesk()
    leader, follower = desk.stable({}, {})
    desk.join(leader)
    desk.join(follower)
    tokens = [desk.sync(follower), desk.sync(leader)]

    desk.fail_store(failure)

    assert [type(desk.answers[token]) for token in tokens] == [told, told]
    assert desk.group.state is State.PREPARING
    desk.join(leader)
    assert desk.joined(desk.join(follower)).generation == desk.group.generation


def test_an_assignment_that_is_stored_after_somebody_joined_is_not_handed_out():
    desk = GroupDesk()
    member = desk.joined(desk.join()).member_id
    token = desk.sync(member, assignments={member: b"all"})
    desk.join()
    assert isinstance(desk.answers[token], RebalanceInProgress)

    desk.store()

    assert desk.group.state is State.PREPARING


def test_a_leader_that_fails_during_sync_is_replaced():
    desk = GroupDesk()
    leader, follower = desk.stable({}, {})
    desk.join(leader)
    desk.join(follower)
    waiting = desk.sync(follower)

    desk.pass_time(10)

    assert isinstance(desk.answers[waiting], RebalanceInProgress)
    joined = desk.joined(desk.join(follower))
    assert (joined.leader, len(joined.members)) == (follower, 1)


def test_the_rebalance_timeout_removes_the_slow():
    desk = GroupDesk()
    leader, follower = desk.stable({"session_timeout_ms": 60_000}, {"session_timeout_ms": 60_000})
    desk.leave("nobody")
    token = desk.join(follower, protocols=OTHER, session_timeout_ms=60_000)
    desk.pass_time(29)
    assert desk.answers[token] is WAITS

    desk.pass_time(1)

    assert (desk.joined(token).leader, len(desk.joined(token).members)) == (follower, 1)
    assert isinstance(desk.heartbeat(leader), UnknownMemberId)


def test_a_static_member_that_is_slow_stays_and_keeps_its_share():
    desk = GroupDesk()
    leader, static = desk.stable({}, {**STATIC, "session_timeout_ms": 60_000})

    token = desk.join(leader)
    desk.pass_time(30)

    assert [member.member_id for member in desk.joined(token).members] == [leader, static]


def test_static_members_of_whom_none_joins_are_waited_for_until_their_sessions_end():
    desk = GroupDesk()
    leader, static = desk.stable({"session_timeout_ms": 6_000}, {**STATIC, "session_timeout_ms": 100_000})

    desk.leave(leader)
    desk.pass_time(99)
    assert static in desk.group.roster

    desk.pass_time(31)
    assert desk.group.state is State.EMPTY


def test_a_member_that_does_not_sync_is_removed():
    desk = GroupDesk()
    leader, follower = desk.stable({}, {})
    desk.join(leader)
    desk.join(follower)
    desk.sync(leader)
    desk.store()
    assert desk.group.state is State.STABLE
    for _ in range(6):
        desk.heartbeat(leader)
        desk.heartbeat(follower)
        desk.pass_time(5)

    assert isinstance(desk.heartbeat(follower), UnknownMemberId)
    assert isinstance(desk.heartbeat(leader), RebalanceInProgress)


def test_who_has_an_id_promised_is_waited_for_until_its_session_would_end():
    desk = GroupDesk()
    (member,) = desk.stable({})
    refused = desk.answers[desk.join(wants_id_first=True)]
    assert isinstance(refused, MemberIdRequired)

    token = desk.join(member)
    assert desk.answers[token] is WAITS, "the promised one may come any moment"
    desk.pass_time(10)

    assert len(desk.joined(token).members) == 1
    late = desk.answers[desk.join(refused.member_id)]
    assert isinstance(late, UnknownMemberId)


def test_a_promised_id_that_is_given_back_holds_up_nobody():
    desk = GroupDesk()
    (member,) = desk.stable({})
    promised = desk.answers[desk.join(wants_id_first=True)].member_id
    token = desk.join(member)

    assert desk.leave(promised) == [None]

    assert desk.joined(token).generation == 2


def test_a_promised_id_given_back_does_not_disturb_a_stable_group():
    desk = GroupDesk()
    desk.stable({})
    promised = desk.answers[desk.join(wants_id_first=True)].member_id

    assert desk.leave(promised) == [None]

    assert desk.group.state is State.STABLE


def test_a_new_member_that_waits_too_long_is_removed():
    desk = GroupDesk(new_member_join_timeout_ms=20_000)
    desk.stable({"session_timeout_ms": 60_000})
    token = desk.join()

    desk.pass_time(20)

    assert isinstance(desk.answers[token], UnknownMemberId)


def test_a_member_that_the_group_keeps_waiting_is_not_silent():
    desk = GroupDesk()
    leader, follower = desk.stable({"session_timeout_ms": 25_000}, {})
    token = desk.join(follower, protocols=OTHER)

    desk.pass_time(24)  # its own session of 10 s has ended twice

    assert desk.answers[token] is WAITS
    assert leader in desk.group.roster


def test_a_commit_is_a_sign_of_life():
    desk = GroupDesk()
    (member,) = desk.stable({})

    for _ in range(5):
        desk.pass_time(9)
        assert desk.commit(member, 1) is None

    assert desk.heartbeat(member) is None


def test_who_joins_again_before_the_answer_waits_once():
    desk = GroupDesk()
    leader, follower = desk.stable({}, {})
    first = desk.join(follower, protocols=OTHER)

    second = desk.join(follower, protocols=OTHER)

    assert isinstance(desk.answers[first], RebalanceInProgress)
    desk.join(leader)
    assert desk.joined(second).generation == 3


def test_a_thousand_members_join_in_one_generation():
    desk = GroupDesk()
    (leader,) = desk.stable({})
    desk.checks = False
    tokens = [desk.join() for _ in range(999)]

    tokens.append(desk.join(leader))

    joined = [desk.joined(token) for token in tokens]
    assert {answer.generation for answer in joined} == {2}
    assert sum(bool(answer.members) for answer in joined) == 1
    assert len(joined[-1].members) == 1000
    ids = [answer.member_id for answer in joined]
    shares = {member_id: member_id.encode() for member_id in ids}
    for member_id in ids:
        desk.sync(member_id, assignments=shares)
    desk.store()
    desk.group.assert_invariants()
    assert desk.group.state is State.STABLE
    assert {member.assignment.decode() for member in desk.group.roster} == set(ids)
    for _ in range(20):
        desk.pass_time(5)
        assert all(desk.heartbeat(member_id) is None for member_id in ids)


def test_the_initial_delay_gathers_members_and_grows_with_each_up_to_the_timeout():
    desk = GroupDesk(initial_rebalance_delay_ms=3_000)
    first = desk.join(rebalance_timeout_ms=8_000)
    desk.pass_time(2)
    second = desk.join(rebalance_timeout_ms=8_000)
    desk.pass_time(2)
    assert desk.answers[first] is WAITS

    desk.pass_time(2)

    assert desk.joined(first).generation == desk.joined(second).generation == 1
    assert len(desk.joined(first).members) == 2


def test_the_initial_delay_ends_with_the_rebalance_timeout():
    desk = GroupDesk(initial_rebalance_delay_ms=3_000)
    first = desk.join(rebalance_timeout_ms=8_000)
    for _ in range(7):
        desk.pass_time(1)
        desk.join(rebalance_timeout_ms=8_000)
    assert desk.answers[first] is WAITS

    desk.pass_time(1)

    assert len(desk.joined(first).members) == 8
