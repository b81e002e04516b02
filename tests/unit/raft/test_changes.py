"""The promises of changing who votes."""

import pytest

from tests.support.raft import One, key, voter, voters
from tidelog.errors import NotLeader
from tidelog.raft.changes import DuplicateVoter, VoterChangeRefused, VoterNotFound, VotersNotSettled
from tidelog.raft.messages import BeginEpoch, EndEpoch, Resign
from tidelog.raft.state import Role
from tidelog.raft.voters import Voter


def settled(**kwargs) -> One:
    """A leader whose first record is committed."""
    one = One(**kwargs)
    one.elect()
    one.fetch(2, offset=one.raft.log.end)
    assert one.raft.leads
    return one


def test_only_a_leader_changes_the_voters():
    one = One()
    one.ask(2, BeginEpoch(epoch=1, leader=voter(2)))

    with pytest.raises(NotLeader):
        one.raft.add_voter(voter(4), one.now)


def test_a_change_waits_for_the_first_record_of_the_epoch():
    one = One()
    one.elect()

    with pytest.raises(VotersNotSettled, match="just begun"):
        one.raft.remove_voter(key(3))


def test_a_change_waits_for_the_one_before_it():
    one = settled()
    smaller = one.raft.remove_voter(key(3))

    with pytest.raises(VotersNotSettled):
        one.raft.remove_voter(key(2))
    one.append(voters=smaller)
    with pytest.raises(VotersNotSettled):
        one.raft.remove_voter(key(2))
    one.fetch(2, offset=2)

    assert one.raft.remove_voter(key(2)) == voters(1)


def test_who_joins_has_caught_up_first():
    one = settled()
    one.append(5)
    with pytest.raises(VotersNotSettled, match="caught up"):
        one.raft.add_voter(voter(4), one.now)
    one.fetch(4, offset=2)
    with pytest.raises(VotersNotSettled, match="caught up"):
        one.raft.add_voter(voter(4), one.now)

    one.fetch(4, offset=6)

    assert one.raft.add_voter(voter(4), one.now) == voters(1, 2, 3, 4)


def test_who_caught_up_long_ago_has_not_caught_up():
    one = settled()
    one.fetch(4, offset=1)
    one.now += 2.1

    with pytest.raises(VotersNotSettled, match="caught up"):
        one.raft.add_voter(voter(4), one.now)


def test_a_voters_disk_is_exchanged_in_two_changes():
    """{1, 2, 3} and {1, 2, 3'} have majorities that share nobody."""
    one = settled()
    one.fetch(3, offset=1, directory="b")

    with pytest.raises(DuplicateVoter, match="remove that voter first"):
        one.raft.add_voter(voter(3, "b"), one.now)
    with pytest.raises(VoterNotFound):
        one.raft.remove_voter(key(3, "b"))


def test_a_voter_may_move_to_another_address():
    one = settled()
    moved = Voter(key(2), "elsewhere", 1)

    assert one.raft.add_voter(moved, one.now).get(2) == moved
    with pytest.raises(DuplicateVoter):
        one.raft.add_voter(voter(3), one.now)


def test_the_last_voter_stays():
    one = One(nodes=[1])
    one.wait(0.0)
    one.open_epoch()

    with pytest.raises(VoterChangeRefused, match="last voter"):
        one.raft.remove_voter(key(1))


def test_a_joined_voter_counts_before_the_change_is_committed():
    one = settled(nodes=[1, 2])
    one.fetch(4, offset=1, watermark=9)

    one.append(voters=one.raft.add_voter(voter(4), one.now))
    assert one.raft.high_watermark == 1, "two of three, not one of two"
    one.fetch(4, offset=2)

    assert one.raft.high_watermark == 2


def test_a_removed_leader_does_not_count_itself_and_resigns_after_the_commit():
    one = settled()
    one.append(voters=one.raft.remove_voter(key(1)))
    one.fetch(2, offset=2)
    assert one.raft.high_watermark == 1
    assert one.role() is Role.LEADER

    one.fetch(3, offset=2)

    assert one.raft.high_watermark == 2
    assert one.role() is Role.RESIGNED
    assert {to for to, _ in one.sent(EndEpoch)} == {2, 3}


def test_a_leader_that_resigned_may_propose_nothing():
    one = settled()
    one.step(Resign())

    with pytest.raises(NotLeader):
        one.raft.remove_voter(key(3))
