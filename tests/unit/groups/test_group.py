"""Every event in every state; who may join, and what static members may do."""

from typing import Any

import pytest

from tests.unit.groups.desk import RANGE, WAITS, GroupDesk, subscription
from tidelog.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    InconsistentGroupProtocol,
    InvalidRequest,
    InvalidSessionTimeout,
    MemberIdRequired,
    NotCoordinator,
    StorageError,
    UnknownMemberId,
)
from tidelog.groups.events import Leaver, NewAssignment
from tidelog.groups.group import Group
from tidelog.groups.limits import Limits
from tidelog.groups.records import GroupRecord
from tidelog.groups.state import State
from tidelog.shards.effects import Answer

OTHER = (("range", subscription("orders", "payments")),)
BOTH = (("sticky", b"s"), ("range", b"r"))
STATIC: dict[str, Any] = {"instance_id": "one"}


# Every event in every state.


class Case:
    """A group in a state, with a leader, a follower and a static member, where it has members."""

    def __init__(self, state: State) -> None:
        self.desk = desk = GroupDesk()
        self.leader, self.follower, self.static = "leader", "follower", "static"
        if state is State.DEAD:
            desk.group.die()
        elif state is not State.EMPTY:
            self.leader, self.follower, self.static = desk.stable({}, {}, STATIC)
            if state is State.PREPARING:
                desk.join(self.follower, protocols=OTHER)
            elif state is State.COMPLETING:
                desk.join(self.leader)
                desk.join(self.follower)
                desk.join(self.static, **STATIC)
        assert desk.group.state is state

    def of(self, token):
        return self.desk.answers[token]

    def join_as_promised(self):
        answer = self.of(self.desk.join(wants_id_first=True))
        if not isinstance(answer, MemberIdRequired):
            return answer
        return self.of(self.desk.join(answer.member_id, wants_id_first=True))

    def leave(self, leaver):
        answer = self.desk.leave(leaver)
        return answer[0] if isinstance(answer, list) else answer

    def report(self, *, failed):
        stale = NewAssignment(
            record=GroupRecord(
                protocol_type="consumer",
                generation=0,
                protocol="range",
                leader=None,
                state_since_ms=0,
                members=(),
            )
        )
        group, at = self.desk.group, self.desk.at()
        self.desk.do(
            group.store_failed(stale, StorageError("full"), at) if failed else group.stored(stale, at)
        )


EVENTS = {
    "join, without an id": lambda c: c.of(c.desk.join()),
    "join, asking for an id": lambda c: c.of(c.desk.join(wants_id_first=True)),
    "join, with a promised id": lambda c: c.join_as_promised(),
    "join, with an unknown id": lambda c: c.of(c.desk.join("stranger")),
    "join, of another type": lambda c: c.of(c.desk.join(protocol_type="connect")),
    "join, of the leader": lambda c: c.of(c.desk.join(c.leader)),
    "join, of a follower": lambda c: c.of(c.desk.join(c.follower)),
    "join, of a changed follower": lambda c: c.of(c.desk.join(c.follower, protocols=BOTH + OTHER)),
    "join, of a restarted static": lambda c: c.of(c.desk.join(**STATIC)),
    "join, of a fenced static": lambda c: c.of(c.desk.join("old", **STATIC)),
    "sync, of the leader": lambda c: c.of(c.desk.sync(c.leader)),
    "sync, of a follower": lambda c: c.of(c.desk.sync(c.follower)),
    "sync, of an old generation": lambda c: c.of(c.desk.sync(c.follower, generation=0)),
    "sync, of another protocol": lambda c: c.of(c.desk.sync(c.follower, protocol="sticky")),
    "sync, of a fenced static": lambda c: c.of(c.desk.sync("old", **STATIC)),
    "heartbeat": lambda c: c.desk.heartbeat(c.follower),
    "heartbeat, of an old generation": lambda c: c.desk.heartbeat(c.follower, generation=0),
    "heartbeat, of a fenced static": lambda c: c.desk.heartbeat("old", **STATIC),
    "leave, of a follower": lambda c: c.leave(Leaver(c.follower)),
    "leave, of a static by name": lambda c: c.leave(Leaver("", "one")),
    "leave, of a stranger": lambda c: c.leave(Leaver("stranger")),
    "commit, of a member": lambda c: c.desk.commit(c.follower, c.desk.group.generation),
    "commit, of an old generation": lambda c: c.desk.commit(c.follower, 0),
    "commit, of nobody": lambda c: c.desk.commit(),
    "a session's silence": lambda c: c.desk.pass_time(10),
    "stored, too late": lambda c: c.report(failed=False),
    "store_failed, too late": lambda c: c.report(failed=True),
}

# Where a cell names no state, the group stays as it is.
TABLE = """
event                           | Empty                | Preparing           | Completing                   | Stable             | Dead
join, without an id             | Joined, Completing   | waits               | waits, Preparing             | waits, Preparing   | CoordinatorNotAvailable
join, asking for an id          | MemberIdRequired     | MemberIdRequired    | MemberIdRequired             | MemberIdRequired   | CoordinatorNotAvailable
join, with a promised id        | Joined, Completing   | waits               | waits, Preparing             | waits, Preparing   | CoordinatorNotAvailable
join, with an unknown id        | UnknownMemberId      | UnknownMemberId     | UnknownMemberId              | UnknownMemberId    | CoordinatorNotAvailable
join, of another type           | Joined, Completing   | InconsistentGroupProtocol | InconsistentGroupProtocol | InconsistentGroupProtocol | CoordinatorNotAvailable
join, of the leader             | UnknownMemberId      | waits               | Joined                       | waits, Preparing   | CoordinatorNotAvailable
join, of a follower             | UnknownMemberId      | waits               | Joined                       | Joined             | CoordinatorNotAvailable
join, of a changed follower     | UnknownMemberId      | waits               | waits, Preparing             | waits, Preparing   | CoordinatorNotAvailable
join, of a restarted static     | Joined, Completing   | waits               | waits, Preparing             | waits              | CoordinatorNotAvailable
join, of a fenced static        | UnknownMemberId      | FencedInstanceId    | FencedInstanceId             | FencedInstanceId   | CoordinatorNotAvailable
sync, of the leader             | UnknownMemberId      | RebalanceInProgress | waits                        | Synced             | CoordinatorNotAvailable
sync, of a follower             | UnknownMemberId      | RebalanceInProgress | waits                        | Synced             | CoordinatorNotAvailable
sync, of an old generation      | UnknownMemberId      | IllegalGeneration   | IllegalGeneration            | IllegalGeneration  | CoordinatorNotAvailable
sync, of another protocol       | UnknownMemberId      | InconsistentGroupProtocol | InconsistentGroupProtocol | InconsistentGroupProtocol | CoordinatorNotAvailable
sync, of a fenced static        | UnknownMemberId      | FencedInstanceId    | FencedInstanceId             | FencedInstanceId   | CoordinatorNotAvailable
heartbeat                       | UnknownMemberId      | RebalanceInProgress | fine                         | fine               | CoordinatorNotAvailable
heartbeat, of an old generation | UnknownMemberId      | IllegalGeneration   | IllegalGeneration            | IllegalGeneration  | CoordinatorNotAvailable
heartbeat, of a fenced static   | UnknownMemberId      | FencedInstanceId    | FencedInstanceId             | FencedInstanceId   | CoordinatorNotAvailable
leave, of a follower            | UnknownMemberId      | fine                | fine, Preparing              | fine, Preparing    | CoordinatorNotAvailable
leave, of a static by name      | UnknownMemberId      | fine                | fine, Preparing              | fine, Preparing    | CoordinatorNotAvailable
leave, of a stranger            | UnknownMemberId      | UnknownMemberId     | UnknownMemberId              | UnknownMemberId    | CoordinatorNotAvailable
commit, of a member             | UnknownMemberId      | fine                | RebalanceInProgress          | fine               | CoordinatorNotAvailable
commit, of an old generation    | UnknownMemberId      | IllegalGeneration   | IllegalGeneration            | IllegalGeneration  | CoordinatorNotAvailable
commit, of nobody               | fine                 | UnknownMemberId     | UnknownMemberId              | UnknownMemberId    | CoordinatorNotAvailable
a session's silence             | fine                 | fine, Completing    | fine, Empty                  | fine, Empty        | fine
stored, too late                | fine                 | fine                | fine                         | fine               | fine
store_failed, too late          | fine                 | fine                | fine                         | fine               | fine
"""  # noqa: E501
STATES = {
    "Empty": State.EMPTY,
    "Preparing": State.PREPARING,
    "Completing": State.COMPLETING,
    "Stable": State.STABLE,
    "Dead": State.DEAD,
}


def cells():
    lines = TABLE.strip().splitlines()
    header, *rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    assert [row[0] for row in rows] == list(EVENTS), "every event has its row"
    for event, *outcomes in rows:
        for state, outcome in zip(header[1:], outcomes, strict=True):
            answer, _, after = outcome.partition(", ")
            yield pytest.param(state, event, answer, after or state, id=f"{state}: {event}")


@pytest.mark.parametrize(("state", "event", "answer", "after"), cells())
def test_every_event_in_every_state(state, event, answer, after):
    case = Case(STATES[state])

    result = EVENTS[event](case)

    named = {None: "fine", WAITS: "waits"}
    name = named[result] if result in (None, WAITS) else type(result).__name__
    assert (name, case.desk.group.state) == (answer, STATES[after])


# Who may join.


def test_the_protocol_that_most_like_best_wins_among_those_that_all_speak():
    desk = GroupDesk()
    protocols = [("a", b""), ("b", b""), ("c", b"")]
    (leader,) = desk.stable({"protocols": tuple(protocols)})
    tokens = [desk.join(protocols=(("b", b""), ("a", b""))) for _ in range(2)]

    desk.join(leader, protocols=tuple(protocols))

    assert desk.joined(tokens[0]).protocol == "b"


def test_a_protocol_that_is_named_twice_counts_once():
    desk = GroupDesk()

    joined = desk.joined(desk.join(protocols=(("a", b"1"), ("a", b"2"))))

    assert joined.members[0].metadata == b"1"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"session_timeout_ms": 5_999}, InvalidSessionTimeout),
        ({"session_timeout_ms": 1_800_001}, InvalidSessionTimeout),
        ({"protocol_type": ""}, InconsistentGroupProtocol),
        ({"protocols": ()}, InconsistentGroupProtocol),
        ({"instance_id": "i" * 32_767}, InvalidRequest),
        ({"client_id": "c" * 32_767}, InvalidRequest),
        ({"protocols": (("p" * 40_000, b""),)}, InvalidRequest),
    ],
)
def test_a_join_that_makes_no_sense_is_refused(fields, error):
    desk = GroupDesk()

    assert type(desk.answers[desk.join(**fields)]) is error
    assert desk.group.is_vacant


def test_a_client_of_version_0_has_its_session_timeout_to_join_again():
    desk = GroupDesk()

    desk.join(rebalance_timeout_ms=-1, session_timeout_ms=7_000)

    assert desk.group.roster.rebalance_timeout_ms == 7_000


@pytest.mark.parametrize("timeout_ms", [0, 1])
def test_a_rebalance_timeout_of_nothing_does_not_hang_the_coordinator(timeout_ms):
    desk = GroupDesk()
    leader, _ = desk.stable(
        {"rebalance_timeout_ms": timeout_ms}, {**STATIC, "rebalance_timeout_ms": timeout_ms}
    )

    desk.leave(leader)
    desk.pass_time(0.01)

    assert desk.group.state is State.PREPARING


def test_a_full_group_turns_newcomers_away_and_keeps_its_members():
    desk = GroupDesk(group_size_max=2)
    leader, static = desk.stable({}, STATIC)

    assert isinstance(desk.answers[desk.join()], GroupMaxSizeReached)
    assert desk.group.state is State.STABLE
    token = desk.join(**STATIC)
    desk.store()
    assert desk.joined(token).member_id != static, "a restarted member does not need a new place"
    assert desk.answers[desk.join(leader)] is WAITS


def test_a_group_above_a_lowered_limit_loses_those_who_rejoin_last():
    desk = GroupDesk()
    ids = desk.stable({}, {}, {})
    group = Group.restored("g", desk.group.durable(), Limits(group_size_max=2))
    desk = GroupDesk(group)
    desk.do(group.start(desk.at()))
    assert group.state is State.PREPARING

    tokens = [desk.join(member_id) for member_id in ids]

    assert isinstance(desk.answers[tokens[2]], GroupMaxSizeReached)
    assert [desk.joined(token).generation for token in tokens[:2]] == [3, 3]


def test_members_may_say_only_so_much_of_themselves():
    desk = GroupDesk(group_bytes_max=3000)
    long = (("range", b"x" * 1000),)
    leader, second = desk.stable({"protocols": long}, {"protocols": long})

    for fields in ({"protocols": long}, {"protocols": long, "wants_id_first": True}):
        assert isinstance(desk.answers[desk.join(**fields)], GroupMaxSizeReached)
    too_long = (("range", b"x" * 2000),)
    assert isinstance(desk.answers[desk.join(second, protocols=too_long)], GroupMaxSizeReached)
    assert desk.group.state is State.STABLE, "nobody else is disturbed"

    assert desk.answers[desk.join(second, protocols=(("range", b"x" * 1500),))] is WAITS
    desk.leave(second)
    assert desk.joined(desk.join(leader, protocols=long)).generation == 3


def test_ids_that_are_only_promised_count_too():
    desk = GroupDesk(group_bytes_max=1000)

    tokens = [desk.join(client_id="c" * 100, wants_id_first=True) for _ in range(20)]

    promised = [isinstance(desk.answers[token], MemberIdRequired) for token in tokens]
    assert promised == sorted(promised, reverse=True)
    assert 0 < sum(promised) <= 10
    assert isinstance(desk.answers[tokens[-1]], GroupMaxSizeReached)
    desk.pass_time(11)
    assert desk.group.is_vacant
    assert isinstance(desk.answers[desk.join(wants_id_first=True)], MemberIdRequired)


# Static members.


def test_a_static_member_restarts_without_a_rebalance():
    desk = GroupDesk()
    leader, static = desk.stable({}, STATIC)

    token = desk.join(**STATIC, client_host="/10.0.0.2")
    assert desk.answers[token] is WAITS, "its new id is stored first"
    desk.store()

    joined = desk.joined(token)
    assert joined.member_id != static
    assert (joined.generation, joined.leader, joined.skip_assignment) == (2, leader, False)
    assert desk.synced(desk.sync(joined.member_id, **STATIC)).assignment == b"for 1"
    assert desk.heartbeat(leader) is None
    assert isinstance(desk.heartbeat(static, **STATIC), FencedInstanceId)
    assert isinstance(desk.commit(static, 2, **STATIC), FencedInstanceId)


def test_a_static_leader_restarts_and_has_nothing_to_assign():
    desk = GroupDesk()
    desk.stable(STATIC, {})

    token = desk.join(**STATIC)
    desk.store()

    joined = desk.joined(token)
    assert joined.leader == joined.member_id
    assert joined.skip_assignment
    assert len(joined.members) == 2
    assert desk.synced(desk.sync(joined.member_id)).assignment == b"for 0"


def test_a_static_leader_of_an_old_version_is_not_told_that_it_leads():
    desk = GroupDesk()
    old, _ = desk.stable(STATIC, {})

    token = desk.join(**STATIC, can_skip_assignment=False)
    desk.store()

    joined = desk.joined(token)
    assert (joined.leader, joined.members, joined.skip_assignment) == (old, (), False)


@pytest.mark.parametrize("protocols", [OTHER, (("range", subscription()),), (("range", b"garbage"),)])
def test_a_static_member_with_other_topics_rebalances(protocols):
    desk = GroupDesk()
    desk.stable({}, STATIC)

    desk.join(**STATIC, protocols=protocols)

    assert desk.group.state is State.PREPARING
    assert desk.stores == []


def test_a_static_member_that_owns_other_partitions_does_not_rebalance():
    desk = GroupDesk()
    desk.stable({}, STATIC)

    desk.join(**STATIC, protocols=(("range", RANGE[0][1] + b"and more"),))

    assert desk.group.state is State.STABLE


def test_a_static_member_by_which_another_protocol_wins_rebalances():
    desk = GroupDesk()
    both = (("range", b""), ("sticky", b""))
    desk.stable({**STATIC, "protocols": both, "protocol_type": "x"})

    token = desk.join(**STATIC, protocols=both[::-1], protocol_type="x")

    assert desk.joined(token).protocol == "sticky"
    assert desk.group.state is State.COMPLETING


def test_a_static_member_whose_restart_cannot_be_stored_is_as_before():
    desk = GroupDesk()
    _, static = desk.stable({}, STATIC)
    before = desk.group.durable()
    token = desk.join(**STATIC, session_timeout_ms=7_000)

    desk.fail_store(StorageError("full"))

    assert isinstance(desk.answers[token], NotCoordinator)
    assert desk.group.durable() == before
    assert desk.heartbeat(static, **STATIC) is None


def test_a_rebalance_that_begins_while_a_restart_is_stored_answers_for_both():
    desk = GroupDesk()
    leader, _ = desk.stable({}, STATIC)
    token = desk.join(**STATIC)
    desk.join(leader)

    assert desk.joined(token).generation == 3
    desk.store()
    assert desk.group.state is State.COMPLETING


def test_two_processes_of_one_name_fence_each_other_and_the_last_one_stays():
    desk = GroupDesk()
    desk.stable({}, STATIC)
    first = desk.join(**STATIC)
    second = desk.join(**STATIC)

    assert isinstance(desk.answers[first], FencedInstanceId)
    desk.store()
    assert desk.heartbeat(desk.joined(second).member_id, **STATIC) is None


def test_a_static_member_that_restarts_before_it_synced_may_still_sync():
    desk = GroupDesk()
    leader, static = desk.stable({}, STATIC)
    desk.join(leader)
    desk.join(static, **STATIC)
    desk.sync(leader, assignments={static: b"mine"})
    desk.store()

    token = desk.join(**STATIC)
    desk.store()
    member_id = desk.joined(token).member_id
    assert desk.synced(desk.sync(member_id, **STATIC)).assignment == b"mine"
    for _ in range(10):
        desk.pass_time(5)
        assert desk.heartbeat(leader) is desk.heartbeat(member_id) is None


def test_one_request_removes_many_and_says_which_it_could_not():
    desk = GroupDesk()
    leader, static = desk.stable({}, STATIC)

    errors = desk.leave(Leaver("", "one"), Leaver("", "two"), Leaver("", None), Leaver(leader, "one"), leader)

    assert errors[0] is None
    assert [type(error) for error in errors[1:4]] == [UnknownMemberId] * 3
    assert errors[4] is None
    assert desk.group.state is State.EMPTY
    assert static not in desk.group.roster


def test_a_leaver_of_another_name_is_fenced():
    desk = GroupDesk()
    leader, _ = desk.stable({}, STATIC)

    (error,) = desk.leave(Leaver(leader, "one"))

    assert isinstance(error, FencedInstanceId)
    assert desk.group.state is State.STABLE


# What is removed is answered.


def test_a_waiting_member_that_an_operator_removes_is_told():
    desk = GroupDesk()
    leader, static = desk.stable({}, STATIC)
    desk.join(leader)
    desk.join(static, **STATIC)
    token = desk.sync(static, **STATIC)

    desk.leave(Leaver("", "one"))

    assert isinstance(desk.answers[token], UnknownMemberId)


def test_everyone_who_waits_is_told_when_the_group_moves():
    desk = GroupDesk()
    leader, _ = desk.stable({}, {})
    token = desk.join(leader)

    (answer,) = desk.group.unload(NotCoordinator("moved"))

    assert isinstance(answer, Answer)
    assert answer.to == token
    assert desk.group.state is State.DEAD


# Views.


def test_an_operator_sees_metadata_only_of_a_stable_group():
    desk = GroupDesk()
    leader, _ = desk.stable({}, {})
    stable = desk.group.view()
    desk.join(leader)
    rebalancing = desk.group.view()

    assert (stable.state, stable.protocol_type, stable.protocol) == ("Stable", "consumer", "range")
    assert [member.assignment for member in stable.members] == [b"for 0", b"for 1"]
    assert stable.members[0].metadata == RANGE[0][1]
    assert (rebalancing.state, rebalancing.protocol) == ("PreparingRebalance", "")
    assert rebalancing.members[0].metadata == b""
    assert "joins again" in rebalancing.reason
