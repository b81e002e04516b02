"""The promises of the log: what is committed, what is fetched, what is truncated."""

import pytest

from tests.support.raft import One, key, voter, voters
from tidelog.model import NO_EPOCH, NO_NODE
from tidelog.raft.messages import (
    Append,
    Appended,
    BeginEpoch,
    Commit,
    ElectionState,
    EndEpoch,
    EpochAnswer,
    Fetch,
    FetchAnswer,
    Follow,
    GetSnapshot,
    Gone,
    Persist,
    Reply,
    Send,
    SnapshotFailed,
    SnapshotId,
    SnapshotInstalled,
    SnapshotTaken,
    Synced,
    Truncate,
    Unanswered,
    VotersFound,
)
from tidelog.raft.state import Role


def leader(**kwargs) -> One:
    one = One(**kwargs)
    one.elect()
    return one


def follower(**kwargs) -> One:
    """Follows node 2, whose epoch is the next; its first fetch is under way."""
    one = One(**kwargs)
    one.ask(2, BeginEpoch(epoch=one.raft.epoch + 1, leader=voter(2)))
    return one


def under_way(one: One) -> Fetch:
    [(_, fetch)] = one.sent(Fetch)
    return fetch


def answered(one: One, **answer) -> None:
    one.answer(2, under_way(one), FetchAnswer(epoch=one.raft.epoch, leader=2, **answer))


# The watermark.


def test_the_watermark_is_what_a_majority_has_synced():
    one = leader()
    one.append(4)

    one.fetch(2, offset=5, synced_end=3)

    assert one.raft.high_watermark == 3
    assert Commit(3) in one.effects


def test_reading_far_promises_nothing():
    one = leader()
    one.append(4)

    one.fetch(2, offset=5, synced_end=0)
    one.fetch(3, offset=5, synced_end=0)

    assert one.raft.high_watermark == 0


def test_what_the_leader_has_not_synced_itself_is_committed_by_the_others():
    one = leader()
    one.step(Appended(end=5, epoch=1, start=1))

    one.fetch(2, offset=5)
    one.fetch(3, offset=5)

    assert one.raft.high_watermark == 5


def test_an_older_epochs_record_is_not_committed_by_counting():
    one = leader(state=ElectionState(epoch=2), epochs=[(2, 0)], end=4)

    one.fetch(2, offset=4)
    one.fetch(3, offset=4)
    assert one.raft.high_watermark == 0
    assert not one.raft.leads

    one.fetch(2, offset=5, last_epoch=3)
    assert one.raft.high_watermark == 5
    assert one.raft.leads


def test_a_late_fetch_does_not_lower_what_a_replica_holds():
    one = leader()
    one.append(4)
    one.fetch(2, offset=5)

    one.fetch(2, offset=1, synced_end=1)
    one.append(1)

    assert one.raft.high_watermark == 5


def test_a_fetch_of_another_epoch_counts_for_nothing():
    one = leader(state=ElectionState(epoch=3))
    one.append(4)

    answer = one.fetch(2, offset=5, epoch=3)

    at = voter(1).endpoint
    assert answer == FetchAnswer(epoch=4, leader=1, endpoint=at, accepted=False)
    assert one.raft.high_watermark == 0


def test_another_disk_in_a_voters_node_counts_for_nothing():
    one = leader()
    one.append(4)

    one.fetch(2, offset=5, directory="wiped")

    assert one.raft.high_watermark == 0


def test_a_single_voter_commits_what_it_syncs():
    one = One(nodes=[1])
    one.wait(0.0)
    one.open_epoch()

    assert one.append(3)[-1] == Commit(4)


# Parked fetches.


def test_a_fetch_waits_until_there_is_something_to_send():
    one = leader()
    assert one.fetch(2, offset=1, synced_end=0) is None

    effects = one.step(Appended(end=2, epoch=1, start=1))

    assert [e.answer for e in effects if isinstance(e, Reply)] == [
        FetchAnswer(epoch=1, leader=1, endpoint=voter(1).endpoint, high_watermark=0, offset=1)
    ]


def test_a_fetch_is_answered_when_the_watermark_passes_what_the_sender_knows():
    one = leader()
    one.fetch(2, offset=1, synced_end=0)

    one.fetch(3, offset=1, synced_end=1)

    assert [answer.high_watermark for answer in one.replies()] == [1, 1]


def test_a_fetch_waits_no_longer_than_its_time():
    one = leader()
    one.fetch(2, offset=1, watermark=9)

    assert not [e for e in one.wait(0.49) if isinstance(e, Reply)]
    assert [e for e in one.wait(0.02) if isinstance(e, Reply)]


def test_nobody_is_answered_after_going_away():
    one = leader()
    one.fetch(2, offset=1, watermark=9)

    one.step(Gone(one._token))

    assert not [e for e in one.wait(1.0) if isinstance(e, Reply)]


def test_a_replica_keeps_one_fetch_waiting_at_most():
    one = leader()
    for _ in range(5):
        one.fetch(2, offset=1, watermark=9)

    assert len([e for e in one.wait(0.6) if isinstance(e, Reply)]) == 1


def test_a_deposed_leader_refuses_those_who_wait():
    one = leader()
    one.fetch(2, offset=1, watermark=9)

    one.ask(3, BeginEpoch(epoch=8, leader=voter(3)))

    kinds = [type(effect) for effect in one.effects]
    assert kinds.index(Persist) < kinds.index(Reply)
    refused = one.replies()[0]
    assert (refused.epoch, refused.accepted) == (8, False)
    assert Follow(8, 3) in one.effects


# A leader and its voters.


def test_a_silent_voter_is_told_who_leads_until_it_fetches():
    one = leader()
    for _ in range(4):
        one.fetch(2, offset=1, watermark=9)
        one.wait(0.5)

    assert one.found(Send) == [Send(3, BeginEpoch(epoch=1, leader=voter(1)))]


def test_a_leader_without_a_majority_resigns():
    one = leader()
    one.wait(2.0)
    one.fetch(2, offset=1)

    one.wait(2.9)
    assert one.raft.is_leader
    one.wait(0.2)

    assert one.role() is Role.RESIGNED
    assert one.sent(EndEpoch)


def test_a_voter_that_knows_a_greater_epoch_deposes_the_leader():
    one = leader()
    request = BeginEpoch(epoch=1, leader=voter(1))

    one.answer(2, request, EpochAnswer(epoch=5, leader=NO_NODE))

    assert one.role() is Role.UNATTACHED
    assert one.raft.epoch == 5


def test_a_leader_tells_what_it_knows_of_every_copy():
    one = leader()
    one.append(4)
    one.fetch(2, offset=5)
    one.fetch(9, offset=2)

    by_key = {state.key: state for state in one.raft.replicas(one.now)}

    assert [(k.id, s.votes, s.end) for k, s in by_key.items()] == [
        (1, True, 5),
        (2, True, 5),
        (3, True, 0),
        (9, False, 2),
    ]
    assert by_key[key(2)].caught_up_at == one.now
    assert by_key[key(9)].caught_up_at is None
    assert by_key[key(3)].fetched_at is None


def test_an_observer_long_silent_is_forgotten():
    one = leader()
    one.fetch(9, offset=1, watermark=9)
    for _ in range(400):
        one.fetch(2, offset=1, watermark=9)
        one.wait(1.0)

    assert key(9) not in [state.key for state in one.raft.replicas(one.now)]


# A follower.


def test_a_follower_fetches_from_its_end_and_says_what_it_holds():
    one = follower(state=ElectionState(epoch=4), epochs=[(2, 0), (4, 3)], end=7, watermark=3)

    assert under_way(one) == Fetch(
        epoch=5, replica=key(1), offset=7, last_epoch=4, synced_end=7, high_watermark=3
    )


def test_a_follower_fetches_on_once_what_it_got_is_synced():
    one = follower()
    answered(one, data=b"records", high_watermark=1)
    assert one.effects == [Append(b"records")]

    one.step(Appended(end=2, epoch=1, start=0))
    assert one.effects == [Commit(1)]
    one.step(Synced(2))

    assert under_way(one).synced_end == 2


def test_a_slow_disk_does_not_silence_a_follower():
    one = follower()
    answered(one, data=b"records")
    one.step(Appended(end=2, epoch=1, start=0))

    one.wait(0.6)

    fetch = under_way(one)
    assert (fetch.offset, fetch.synced_end) == (2, 0)


def test_a_follower_never_has_two_fetches_under_way():
    one = follower()
    one.step(Synced(0))
    one.ask(2, BeginEpoch(epoch=1, leader=voter(2)))

    assert not [e for e in one.wait(1.9) if isinstance(e, Fetch)]


def test_a_follower_does_not_fetch_while_batches_are_on_their_way_to_the_disk():
    one = follower()
    answered(one, data=b"records")

    assert one.wait(5.0) == []
    assert one.role() is Role.FOLLOWER


def test_nobody_stands_while_batches_are_on_their_way_to_the_disk():
    one = follower()
    answered(one, data=b"records")

    one.ask(2, EndEpoch(epoch=1, leader=2, successors=(1,)))
    one.wait(3.0)
    assert one.role() is Role.UNATTACHED
    one.step(Appended(end=2, epoch=1, start=0))
    one.wait(2.0)

    assert one.role() is Role.PROSPECTIVE


def test_nothing_is_decided_in_the_middle_of_an_append():
    """Batches of two epochs, the second with another set of voters, come as three events."""
    one = follower(nodes=[1, 2], state=ElectionState(epoch=4))
    answered(one, data=b"records", offset=0)
    one.now += 9.0

    assert one.step(Appended(end=2, epoch=3, start=0)) == []
    assert one.step(VotersFound(1, voters(1))) == []
    assert one.step(Appended(end=3, epoch=5, start=2)) == []
    one.step(VotersFound(2, voters(1, 2)))
    one.wait(0.0)

    assert under_way(one).offset == 3


def test_an_append_that_failed_is_asked_for_again_later():
    one = follower()
    answered(one, data=b"records")

    one.step(Appended(end=0, epoch=1, start=0))
    assert one.wait(0.02) == []
    one.wait(0.1)

    assert under_way(one).offset == 0


def test_a_follower_commits_no_more_than_it_holds():
    one = follower(epochs=[(0, 0)], end=3)

    answered(one, high_watermark=50)

    assert one.raft.high_watermark == 3


def test_a_leader_that_does_not_wait_is_not_asked_in_a_tight_loop():
    one = follower()
    count = 0
    for _ in range(200):
        if one.sent(Fetch):
            count += 1
            answered(one)
        else:
            one.wait(0.01)

    assert count < 50


def test_an_unanswered_fetch_is_repeated_later():
    one = follower()
    fetch = under_way(one)

    one.step(Unanswered(2, fetch))
    assert not one.sent(Fetch)
    one.wait(0.1)

    assert under_way(one) == fetch


def test_a_leader_that_no_longer_leads_is_left():
    one = follower()

    one.answer(2, under_way(one), FetchAnswer(epoch=1, leader=NO_NODE, accepted=False))
    assert one.role() is Role.UNATTACHED
    one.wait(0.2)

    assert one.role() is Role.PROSPECTIVE


def test_an_answer_to_an_earlier_fetch_is_ignored():
    one = follower()
    fetch = under_way(one)
    old = Fetch(epoch=0, replica=key(1), offset=0, last_epoch=-1, synced_end=0, high_watermark=0)

    one.answer(2, old, FetchAnswer(epoch=1, leader=2, data=b"stale", offset=0))
    assert one.effects == []
    one.answer(3, fetch, FetchAnswer(epoch=1, leader=2, data=b"stale", offset=0))

    assert one.effects == []


# Divergence.


@pytest.mark.parametrize(
    ("offset", "last_epoch", "expected"),
    [
        (8, 3, None),
        (6, 1, None),  # before our epoch 3 began: the same epoch, not past its end
        (8, 1, (1, 6)),
        (8, 2, (1, 6)),
        (20, 3, (3, 10)),
        (20, 9, (4, 11)),
        (5, 0, (0, 2)),
    ],
)
def test_a_diverging_log_is_told_the_largest_common_epoch_and_its_end(offset, last_epoch, expected):
    one = leader(state=ElectionState(epoch=3), epochs=[(0, 0), (1, 2), (3, 6)], end=10)
    one.fetch(2, offset=11)

    answer = one.fetch(3, offset=offset, last_epoch=last_epoch, watermark=99)

    assert (answer.diverging if answer else None) == expected


def test_a_diverging_fetch_counts_for_nothing():
    one = leader(state=ElectionState(epoch=3), epochs=[(1, 0)], end=4)

    one.fetch(2, offset=9, last_epoch=2)

    assert one.raft.high_watermark == 0


def test_a_follower_truncates_to_where_the_histories_part():
    one = follower(state=ElectionState(epoch=6), epochs=[(1, 0), (4, 5), (6, 8)], end=10)

    answered(one, diverging=(4, 7))

    assert one.effects[0] == Truncate(7)
    fetch = under_way(one)
    assert (fetch.offset, fetch.last_epoch, fetch.synced_end) == (7, 4, 7)


def test_a_follower_truncates_to_its_own_end_of_the_common_epoch():
    one = follower(state=ElectionState(epoch=6), epochs=[(1, 0), (4, 5), (6, 8)], end=10)

    answered(one, diverging=(5, 9))

    assert one.found(Truncate) == [Truncate(8)]


def test_what_is_committed_is_not_truncated_whatever_a_leader_says():
    one = follower(state=ElectionState(epoch=6), epochs=[(1, 0), (6, 8)], end=10, watermark=9)

    answered(one, diverging=(1, 8))

    assert not one.found(Truncate)
    assert "committed" in str(one.raft.complaint)


# Snapshots.


def test_a_follower_behind_the_start_of_the_log_gets_the_snapshot():
    snapshot = SnapshotId(8, 2)
    one = leader(state=ElectionState(epoch=3), epochs=[(2, 6), (3, 9)], start=6, end=10, snapshot=snapshot)

    assert one.fetch(2, offset=3, last_epoch=1).snapshot == snapshot
    assert one.fetch(3, offset=0, last_epoch=NO_EPOCH).snapshot == snapshot
    assert one.fetch(3, offset=6, last_epoch=2).snapshot == snapshot, "nobody knows what was at 5"
    assert one.fetch(2, offset=8, last_epoch=2).snapshot is None


def test_a_log_that_was_cut_remembers_the_epoch_before_its_start():
    one = leader(nodes=[1, 2, 3], state=ElectionState(epoch=3), epochs=[(2, 0), (3, 6)], end=10)
    one.fetch(2, offset=11)
    one.step(SnapshotTaken(SnapshotId(9, 3), 6))

    assert one.fetch(3, offset=6, last_epoch=2).snapshot is None
    assert one.fetch(3, offset=6, last_epoch=1).snapshot == SnapshotId(9, 3)


def test_a_follower_fetches_a_snapshot_and_goes_on_from_its_end():
    one = follower()
    answered(one, snapshot=SnapshotId(8, 0))
    assert one.effects == [GetSnapshot(2, 1, SnapshotId(8, 0))]

    one.step(SnapshotInstalled(SnapshotId(8, 0), voters(1, 2, 3)))

    assert one.found(Commit) == [Commit(8)]
    fetch = under_way(one)
    assert (fetch.offset, fetch.last_epoch, fetch.synced_end) == (8, 0, 8)


def test_a_follower_stays_in_touch_while_a_snapshot_arrives():
    one = follower()
    answered(one, snapshot=SnapshotId(8, 0))

    for _ in range(20):
        one.wait(0.51)
        answered(one, snapshot=SnapshotId(8, 0))
        assert not one.found(GetSnapshot)

    assert one.role() is Role.FOLLOWER


def test_a_snapshot_that_could_not_be_fetched_is_asked_for_again():
    one = follower()
    answered(one, snapshot=SnapshotId(8, 0))
    one.step(SnapshotFailed())
    assert not one.sent(Fetch)

    one.wait(0.1)
    answered(one, snapshot=SnapshotId(9, 0))

    assert one.found(GetSnapshot) == [GetSnapshot(2, 1, SnapshotId(9, 0))]


def test_a_snapshot_older_than_what_is_committed_is_not_installed():
    one = follower(epochs=[(0, 0)], end=9, watermark=9)

    answered(one, snapshot=SnapshotId(8, 0))

    assert not one.found(GetSnapshot)
    assert one.raft.complaint


def test_the_set_of_voters_in_a_snapshot_counts():
    one = follower()
    answered(one, snapshot=SnapshotId(8, 0))

    one.step(SnapshotInstalled(SnapshotId(8, 0), voters(2, 3, 4)))

    assert one.role() is Role.OBSERVER


# Voters in the log.


def test_the_newest_set_counts_at_once_and_a_truncated_one_no_more():
    one = follower(epochs=[(0, 0)], end=4)
    answered(one, data=b"x", offset=4)
    one.step(Appended(end=5, epoch=1, start=4))
    one.step(VotersFound(4, voters(2, 3)))
    assert one.raft.voters == voters(2, 3)
    one.step(Synced(5))

    one.ask(3, BeginEpoch(epoch=2, leader=voter(3)))
    one.answer(3, under_way(one), FetchAnswer(epoch=2, leader=3, diverging=(0, 4)))

    assert one.raft.voters == voters(1, 2, 3)


def test_who_is_left_out_is_an_observer_once_that_is_committed():
    one = follower(epochs=[(0, 0)], end=4)
    answered(one, data=b"x", offset=4)
    one.step(Appended(end=5, epoch=1, start=4))
    one.step(VotersFound(4, voters(2, 3)))
    one.step(Synced(5))
    assert one.role() is Role.FOLLOWER

    answered(one, high_watermark=5)

    assert one.role() is Role.OBSERVER


def test_who_alone_holds_the_set_that_leaves_it_out_can_still_lead():
    """Node 2 has only the old set and a shorter log; without node 1 nobody could ever win."""
    one = One(
        nodes=[1, 2],
        state=ElectionState(epoch=1, leader=1, voted=key(1)),
        epochs=[(1, 0)],
        end=5,
        history=[(4, voters(2))],
    )

    one.elect()
    assert one.raft.voters == voters(2)
    one.fetch(2, offset=6)

    assert one.raft.high_watermark == 6
    assert one.role() is Role.RESIGNED
