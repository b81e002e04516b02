"""Whoever names a leader says where it is, and whoever hears it keeps that."""

import msgspec
import pytest

from tests.support.raft import One, key, voter, voters
from tidelog.model import Endpoint
from tidelog.raft.messages import (
    Answer,
    BeginEpoch,
    ElectionState,
    EndEpoch,
    EpochAnswer,
    Fetch,
    FetchAnswer,
    Reply,
    Request,
    Unanswered,
    Vote,
    VoteAnswer,
)
from tidelog.raft.state import Role

STRANGER = Endpoint(host="far", port=4)
"""Where node 4 is, of which no set of voters tells."""

MOVED = Endpoint(host="elsewhere", port=5)

PREVOTE = Vote(epoch=6, candidate=key(3), voter=key(1), last_epoch=-1, end=0, pre=True)
FETCH = Fetch(epoch=5, replica=key(3), offset=0, last_epoch=-1, synced_end=0, high_watermark=0)


def no(*, epoch: int = 5, endpoint: Endpoint | None = STRANGER) -> VoteAnswer:
    """A voter's refusal, which names node 4 as the leader."""
    return VoteAnswer(epoch=epoch, leader=4, endpoint=endpoint, granted=False, pre=True)


def prospective() -> tuple[One, dict[int, Vote]]:
    """A voter that asks nodes 2 and 3 whether they would elect it, and its questions."""
    one = One(state=ElectionState(epoch=5))
    one.wait(0.5)
    asked = dict(one.sent(Vote))
    assert list(asked) == [2, 3]
    return one, asked


def follower_of_stranger() -> One:
    """A follower of node 4, which neither its set of voters nor its contacts know."""
    one, asked = prospective()
    one.answer(2, asked[2], no())
    one.answer(3, asked[3], no())
    one.wait(0.0)
    assert (one.role(), one.raft.leader) == (Role.FOLLOWER, 4)
    return one


# Naming.


@pytest.mark.parametrize(
    "request_",
    [PREVOTE, FETCH, EndEpoch(epoch=4, leader=3), BeginEpoch(epoch=4, leader=voter(3))],
    ids=lambda request: type(request).__name__,
)
def test_a_follower_says_where_its_leader_is(request_: Request):
    by_itself = One(state=ElectionState(epoch=5), nodes=[1, 3])
    by_itself.ask(2, BeginEpoch(epoch=5, leader=voter(2)))
    by_the_set = One(state=ElectionState(epoch=5, leader=2))
    by_hearsay = follower_of_stranger()

    assert by_itself.ask(3, request_).endpoint == voter(2).endpoint
    if not isinstance(request_, Vote):  # it has not heard from this leader, so it says yes
        assert by_the_set.ask(3, request_).endpoint == voter(2).endpoint
        assert by_hearsay.ask(3, request_).endpoint == STRANGER


def test_a_leader_says_where_it_is_also_if_no_set_names_it():
    one = One()
    one.elect()
    one.append(voters=voters(2, 3))

    accepted = one.fetch(2, offset=1)
    refused = one.ask(3, msgspec.structs.replace(PREVOTE, epoch=2))

    assert (accepted.accepted, accepted.endpoint) == (True, voter(1).endpoint)
    assert (refused.granted, refused.endpoint) == (False, voter(1).endpoint)


def test_a_deposed_leader_says_where_its_successor_is_to_those_who_wait():
    one = One(nodes=[1, 2, 3, 5])
    one.wait(0.5)
    one.grant(pre=True, by=[2, 3])
    one.grant(pre=False, by=[2, 3])
    begin = dict(one.sent(BeginEpoch))[2]
    one.open_epoch()
    assert one.fetch(3, offset=1) is None, "it waits"

    one.answer(2, begin, EpochAnswer(epoch=9, leader=4, endpoint=STRANGER))

    [reply] = one.found(Reply)
    assert isinstance(reply.answer, FetchAnswer)
    assert (reply.answer.leader, reply.answer.endpoint) == (4, STRANGER)


def test_who_knows_no_leader_says_nowhere():
    one = One(state=ElectionState(epoch=5))

    assert one.raft.leader_endpoint is None
    assert one.ask(3, FETCH).endpoint is None


# Hearing.


def test_a_voter_that_lost_a_ballot_knows_where_the_leader_is_that_it_was_told_of():
    one = follower_of_stranger()

    assert one.raft.leader_endpoint == STRANGER


@pytest.mark.parametrize("silent", [2, 3])
def test_a_voter_that_knows_less_takes_nothing_away(silent: int):
    one, asked = prospective()

    for node in (2, 3):
        one.answer(node, asked[node], no(endpoint=None if node == silent else STRANGER))

    assert one.raft.leader_endpoint == STRANGER


def test_a_greater_epoch_comes_with_where_its_leader_is():
    one, asked = prospective()

    one.answer(2, asked[2], no(epoch=8))

    assert (one.raft.epoch, one.raft.leader_endpoint) == (8, STRANGER)


def test_an_observer_that_asks_around_hears_where_the_leader_is():
    one = One(9, nodes=[1, 2, 3], state=ElectionState(epoch=5))
    one.wait(1.0)
    to, fetch = one.sent(Fetch)[-1]

    one.answer(to, fetch, FetchAnswer(epoch=5, leader=4, endpoint=STRANGER, accepted=False))

    assert (one.raft.leader, one.raft.leader_endpoint) == (4, STRANGER)


def test_hearsay_is_no_sign_of_the_leaders_life():
    one = follower_of_stranger()

    assert one.ask(3, PREVOTE).granted


def test_what_the_leader_says_itself_takes_the_place_of_hearsay():
    by_begin, by_answer = follower_of_stranger(), follower_of_stranger()

    moved = msgspec.structs.replace(voter(4), host=MOVED.host, port=MOVED.port)
    by_begin.ask(4, BeginEpoch(epoch=5, leader=moved))
    [(_, fetch)] = by_answer.sent(Fetch)
    by_answer.answer(4, fetch, FetchAnswer(epoch=5, leader=4, endpoint=MOVED))

    assert by_begin.raft.leader_endpoint == MOVED
    assert by_answer.raft.leader_endpoint == MOVED


def test_another_leader_of_the_same_epoch_does_not_move_this_one():
    one = follower_of_stranger()

    one.ask(3, BeginEpoch(epoch=5, leader=voter(3)))

    assert (one.raft.leader, one.raft.leader_endpoint) == (4, STRANGER)


def test_a_leader_that_says_nothing_is_where_it_was():
    one = follower_of_stranger()
    [(_, fetch)] = one.sent(Fetch)

    one.answer(4, fetch, FetchAnswer(epoch=5, leader=4))

    assert one.raft.leader_endpoint == STRANGER


def test_a_leader_that_is_lost_is_nowhere():
    one = follower_of_stranger()
    [(_, fetch)] = one.sent(Fetch)

    one.step(Unanswered(4, fetch, is_down=True))

    assert one.raft.leader_endpoint is None


# Peers that say nothing of it.


@pytest.mark.parametrize(
    "answer",
    [no(), EpochAnswer(epoch=5, leader=4, endpoint=STRANGER), FetchAnswer(epoch=5, leader=4)],
    ids=lambda answer: type(answer).__name__,
)
def test_an_answer_that_does_not_say_where_is_understood(answer: Answer):
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(answer))
    fields.pop("endpoint", None)

    understood = msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=type(answer))

    assert understood == msgspec.structs.replace(answer, endpoint=None)
