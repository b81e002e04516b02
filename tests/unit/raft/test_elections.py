"""The promises of voting: who asks, who says yes, and what is written down first."""

import pytest

from tests.support.raft import One, key, voter
from tidelog.model import NO_EPOCH, NO_NODE
from tidelog.raft.messages import (
    Answered,
    BeginEpoch,
    ElectionState,
    EndEpoch,
    EpochAnswer,
    Fetch,
    FetchAnswer,
    Follow,
    Lead,
    Persist,
    Reply,
    Resign,
    Send,
    Ticked,
    Unanswered,
    Vote,
    VoteAnswer,
)
from tidelog.raft.state import Role


def vote(
    candidate: int = 2,
    *,
    epoch: int = 1,
    last_epoch: int = NO_EPOCH,
    end: int = 0,
    pre: bool = False,
    of: int = 1,
    directory: str = "a",
) -> Vote:
    return Vote(
        epoch=epoch,
        candidate=key(candidate),
        voter=key(of, directory),
        last_epoch=last_epoch,
        end=end,
        pre=pre,
    )


def test_a_single_voter_leads_at_once():
    one = One(nodes=[1])

    effects = one.step(Ticked())

    state = ElectionState(epoch=1, voted=key(1), leader=1)
    assert effects == [Persist(state), Follow(1, None), Lead(1, one.raft.voters)]
    assert one.role() is Role.LEADER


def test_a_single_voter_that_restarts_leads_a_new_epoch_at_once():
    state = ElectionState(epoch=4, voted=key(1), leader=1)
    one = One(nodes=[1], state=state, epochs=[(4, 0)], end=3)

    one.step(Ticked())

    assert one.raft.epoch == 5
    assert one.raft.is_leader


def test_a_voter_asks_whether_it_would_be_elected_before_it_raises_the_epoch():
    one = One()

    one.wait(1.0)

    assert one.role() is Role.PROSPECTIVE
    assert one.raft.epoch == 0
    assert not one.found(Persist)
    assert [(to, request.pre, request.epoch) for to, request in one.sent(Vote)] == [
        (2, True, 1),
        (3, True, 1),
    ]


def test_a_candidate_persists_its_own_vote_before_it_asks_for_others():
    one = One()
    one.wait(0.5)

    effects = one.grant(pre=True, by=[2])

    kinds = [type(effect) for effect in effects]
    assert kinds.index(Persist) < kinds.index(Send)
    assert one.found(Persist) == [Persist(ElectionState(epoch=1, voted=key(1)))]


def test_a_majority_makes_a_leader_which_makes_itself_known():
    one = One(nodes=[1, 2, 3, 4, 5])
    one.wait(0.5)
    one.grant(pre=True, by=[2, 3])
    asked = one.effects

    one.grant(pre=False, by=[2])
    assert one.role() is Role.CANDIDATE
    one.effects = asked
    one.grant(pre=False, by=[4])

    assert one.raft.is_leader
    assert [to for to, _ in one.sent(BeginEpoch)] == [2, 3, 4, 5]


def test_a_vote_is_persisted_before_it_is_given():
    one = One()

    answer = one.ask(2, vote())

    assert answer == VoteAnswer(epoch=1, leader=NO_NODE, granted=True, pre=False)
    kinds = [type(effect) for effect in one.effects]
    assert kinds.index(Persist) < kinds.index(Reply)


def test_one_vote_in_an_epoch_survives_a_restart():
    first = One()
    first.ask(2, vote(2))
    again = One(state=first.raft.state)

    assert not again.ask(3, vote(3)).granted
    assert again.ask(2, vote(2)).granted, "the same question gets the same answer"
    assert again.ask(3, vote(3, epoch=2)).granted


@pytest.mark.parametrize(("last_epoch", "end"), [(1, 5), (1, 90), (3, 9), (NO_EPOCH, 0)])
def test_a_log_that_lacks_something_gets_no_vote(last_epoch, end):
    one = One(state=ElectionState(epoch=3), epochs=[(1, 0), (3, 6)], end=10)

    assert not one.ask(2, vote(epoch=4, last_epoch=last_epoch, end=end)).granted
    assert one.raft.state == ElectionState(epoch=4), "the epoch is news all the same"


def test_a_vote_meant_for_another_disk_is_refused_and_changes_nothing():
    one = One(directory="b", nodes=[1, 2, 3])

    assert not one.ask(2, vote(epoch=7, directory="a")).granted
    assert one.raft.state == ElectionState()


def test_a_voter_elects_a_candidate_that_its_own_set_does_not_name():
    one = One(nodes=[1, 2, 3])

    assert one.ask(4, vote(4)).granted


def test_a_node_asked_by_name_votes_even_if_its_own_set_leaves_it_out():
    one = One(4, nodes=[1, 2, 3])

    assert one.role() is Role.OBSERVER
    assert one.ask(1, vote(1, of=4)).granted


def test_a_prevote_changes_nothing():
    one = One(state=ElectionState(epoch=2))

    answer = one.ask(2, vote(epoch=9, pre=True))

    assert answer == VoteAnswer(epoch=2, leader=NO_NODE, granted=True, pre=True)
    assert one.raft.state == ElectionState(epoch=2)
    assert not one.found(Persist)


def test_no_prevote_while_the_leader_is_alive():
    one = One()
    one.ask(2, BeginEpoch(epoch=1, leader=voter(2)))
    [(_, fetch)] = one.sent(Fetch)
    one.now += 1.0
    one.answer(2, fetch, FetchAnswer(epoch=1, leader=2))

    one.now += 1.9
    refused = one.ask(3, vote(3, epoch=2, pre=True))
    at = voter(2).endpoint
    assert refused == VoteAnswer(epoch=1, leader=2, endpoint=at, granted=False, pre=True)

    one.now += 0.2
    assert one.ask(3, vote(3, epoch=2, pre=True)).granted


def test_a_leader_gives_no_prevote():
    one = One()
    one.elect()

    answer = one.ask(3, vote(3, epoch=2, last_epoch=1, end=99, pre=True))

    at = voter(1).endpoint
    assert answer == VoteAnswer(epoch=1, leader=1, endpoint=at, granted=False, pre=True)


def test_a_prospective_that_meets_the_leader_follows_it():
    one = One(state=ElectionState(epoch=3))
    one.wait(0.5)
    request = dict(one.sent(Vote))[2]

    one.answer(2, request, VoteAnswer(epoch=3, leader=2, granted=False, pre=True))

    assert one.role() is Role.FOLLOWER
    assert one.raft.leader == 2


def test_a_prospective_follows_hearsay_only_once_it_has_lost():
    one = One(state=ElectionState(epoch=3))
    one.wait(0.5)
    asked = dict(one.sent(Vote))

    one.answer(2, asked[2], VoteAnswer(epoch=3, leader=3, granted=False, pre=True))
    assert one.role() is Role.PROSPECTIVE
    one.step(Unanswered(3, asked[3], is_down=True))

    assert one.raft.leader == 3


def test_a_greater_epoch_in_an_answer_ends_a_campaign():
    one = One()
    one.wait(0.5)
    request = dict(one.sent(Vote))[2]

    one.answer(2, request, VoteAnswer(epoch=6, leader=3, granted=False, pre=True))

    assert one.raft.epoch == 6
    assert one.raft.leader == 3
    assert one.effects[0] == Persist(ElectionState(epoch=6, leader=3))


def test_a_voter_that_does_not_answer_is_asked_again_later_each_time():
    one = One()
    one.wait(0.5)
    waits = []
    for _ in range(3):
        request = dict(one.sent(Vote))[2]
        one.step(Unanswered(2, request))
        waits.append(one.raft.deadline - one.now)
        one.wait(waits[-1])

    assert waits == sorted(waits)
    assert waits[0] > 0.02 and waits[-1] > 2 * waits[0]


def test_a_leader_that_restarts_has_resigned_its_epoch():
    state = ElectionState(epoch=4, voted=key(1), leader=1)
    one = One(state=state, epochs=[(4, 0)], end=3)

    one.step(Ticked())

    assert one.role() is Role.RESIGNED
    assert [to for to, _ in one.sent(EndEpoch)] == [2, 3]
    assert not one.ask(2, vote(2, epoch=4, last_epoch=2, end=9)).granted
    refused = one.ask(
        3, Fetch(epoch=4, replica=key(3), offset=3, last_epoch=4, synced_end=3, high_watermark=0)
    )
    assert refused == FetchAnswer(epoch=4, leader=NO_NODE, accepted=False)


def test_a_follower_that_restarts_asks_the_leader_it_knew():
    one = One(state=ElectionState(epoch=4, leader=3))

    one.step(Ticked())

    assert [to for to, _ in one.sent(Fetch)] == [3]
    assert one.ask(2, vote(2, epoch=5, pre=True)).granted, "it has not heard from that leader yet"


def test_a_closed_connection_makes_a_follower_campaign_without_a_timeout():
    one = One()
    one.ask(2, BeginEpoch(epoch=1, leader=voter(2)))
    [(_, fetch)] = one.sent(Fetch)
    one.answer(2, fetch, FetchAnswer(epoch=1, leader=2))
    one.wait(0.05)
    [(_, fetch)] = one.sent(Fetch)

    one.step(Unanswered(2, fetch, is_down=True))
    one.wait(0.1)

    assert one.role() is Role.PROSPECTIVE
    assert [to for to, _ in one.sent(Vote)] == [2, 3]


def test_a_leader_that_others_still_see_is_not_asked_about_in_a_tight_loop():
    one = One(nodes=[1, 2, 3])
    one.ask(2, BeginEpoch(epoch=1, leader=voter(2)))
    rounds = 0
    until = one.now + 10.0
    while one.now < until:
        for to, fetch in one.sent(Fetch):
            one.step(Unanswered(to, fetch, is_down=True))
        votes = one.sent(Vote)
        for to, request in votes:
            rounds += to == 3
            if to == 3:
                no = VoteAnswer(epoch=1, leader=2, granted=False, pre=True)
                one.answer(3, request, no)
            else:
                one.step(Unanswered(2, request, is_down=True))
        one.wait(max(0.0, one.raft.deadline - one.now))

    assert 5 < rounds < 25


def test_a_follower_campaigns_when_its_leader_is_silent():
    one = One()
    one.ask(2, BeginEpoch(epoch=1, leader=voter(2)))

    one.wait(1.9)
    assert one.role() is Role.FOLLOWER
    one.wait(0.2)

    assert one.role() is Role.PROSPECTIVE


def test_the_first_successor_stands_at_once_and_the_others_wait():
    first, second = One(3), One(2)
    for one in (first, second):
        one.ask(1, BeginEpoch(epoch=1, leader=voter(1)))
        one.ask(1, EndEpoch(epoch=1, leader=1, successors=(3, 2)))

    assert first.role() is Role.CANDIDATE
    assert first.raft.epoch == 2
    assert second.role() is Role.UNATTACHED
    assert 0.1 <= second.raft.deadline - second.now <= 0.2


def test_an_end_of_an_epoch_counts_only_from_its_leader():
    one = One()
    one.ask(2, BeginEpoch(epoch=1, leader=voter(2)))

    one.ask(3, EndEpoch(epoch=1, leader=3, successors=(1,)))
    one.ask(3, EndEpoch(epoch=1, leader=2, successors=(1,)))

    assert one.raft.leader == 2


def test_a_second_leader_of_an_epoch_is_not_believed():
    one = One()
    one.ask(2, BeginEpoch(epoch=1, leader=voter(2)))

    one.ask(3, BeginEpoch(epoch=1, leader=voter(3)))

    assert one.raft.leader == 2


def test_resigning_tells_the_voters_who_holds_the_most():
    one = One()
    one.elect()
    one.append(4)
    one.fetch(2, offset=2)
    one.fetch(3, offset=5)

    one.step(Resign())

    assert one.role() is Role.RESIGNED
    end = EndEpoch(epoch=1, leader=1, successors=(3, 2))
    assert one.sent(EndEpoch) == [(2, end), (3, end)]
    assert Follow(1, None) in one.effects


def test_who_resigned_tells_everybody_until_they_heard():
    one = One()
    one.elect()
    one.step(Resign())
    [(_, end), _] = one.sent(EndEpoch)
    one.step(Answered(2, end, EpochAnswer(epoch=1, leader=NO_NODE)))
    one.step(Unanswered(3, end))

    one.wait(0.3)

    assert {to for to, _ in one.sent(EndEpoch)} == {3}


def test_an_observer_asks_around_and_never_campaigns():
    one = One(9, nodes=[1, 2, 3])

    effects = one.wait(10.0)

    sends = [e for e in effects if isinstance(e, Send)]
    assert all(isinstance(e.request, Fetch) for e in sends)
    assert {e.to for e in sends} == {1, 2, 3}
    assert one.raft.epoch == 0
    assert len(sends) < 40


def test_an_observer_follows_whom_it_is_told_of():
    one = One(9, nodes=[1, 2, 3])
    one.wait(1.0)
    to, fetch = one.sent(Fetch)[-1]

    one.answer(to, fetch, FetchAnswer(epoch=4, leader=2, accepted=False))
    one.wait(0.0)

    assert one.role() is Role.OBSERVER
    assert one.raft.leader == 2


def test_an_observer_without_voters_asks_its_contacts():
    one = One(9, nodes=[], contacts=[5, 6])

    effects = one.wait(5.0)

    assert {e.to for e in effects if isinstance(e, Send)} == {5, 6}
