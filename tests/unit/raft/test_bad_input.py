"""Whatever a peer sends is answered, refused or ignored; nothing raises, nothing is promised."""

import random
from collections.abc import Callable

import pytest

from tests.support.raft import One, key, voter
from tidelog.model import NO_EPOCH
from tidelog.raft.messages import (
    Answer,
    Answered,
    Append,
    Appended,
    Asked,
    BeginEpoch,
    ElectionState,
    EndEpoch,
    EpochAnswer,
    Event,
    Fetch,
    FetchAnswer,
    GetSnapshot,
    Reply,
    Request,
    Send,
    SnapshotFailed,
    SnapshotId,
    Ticked,
    Unanswered,
    Vote,
    VoteAnswer,
)

HUGE = 2**63 - 1


def unattached() -> One:
    return One(state=ElectionState(epoch=3), epochs=[(1, 0), (3, 4)], end=9, watermark=2)


def follower() -> One:
    one = unattached()
    one.ask(2, BeginEpoch(epoch=4, leader=voter(2)))
    return one


def candidate() -> One:
    one = unattached()
    one.wait(0.5)
    one.grant(pre=True, by=[2])
    return one


def leader() -> One:
    one = unattached()
    one.elect()
    return one


def observer() -> One:
    return One(9, state=ElectionState(epoch=3), epochs=[(1, 0), (3, 4)], end=9)


ROLES = [unattached, follower, candidate, leader, observer]


@pytest.mark.parametrize("make", ROLES, ids=lambda make: make.__name__)
def test_nothing_that_a_peer_sends_raises(make: Callable[[], One]):
    for seed in range(40):
        chance = random.Random(seed)
        one = make()
        sent: list[tuple[int, Request]] = []
        for token in range(100):
            one.now += chance.choice([0.0, 0.0, 0.1, 1.0])
            one.step(nonsense(chance, token, sent))
            sent += [(e.to, e.request) for e in one.found(Send)]
            for effect in one.effects:  # what a driver would do, and nothing that it would not
                if isinstance(effect, Append):
                    end = one.raft.log.end
                    one.step(Appended(end=end, epoch=one.raft.epoch, start=end))
                elif isinstance(effect, GetSnapshot):
                    one.step(SnapshotFailed())


def nonsense(chance: random.Random, token: int, sent: list[tuple[int, Request]]) -> Event:
    node = chance.choice([1, 2, 3, 3, 4, -7])
    if sent and chance.random() < 0.4:
        to, request = chance.choice(sent)
        if chance.random() < 0.2:
            return Unanswered(to, request, is_down=chance.random() < 0.5)
        return Answered(to, request, _answer(chance))
    if chance.random() < 0.1:
        return Ticked()
    return Asked(node, _request(chance, node), 1000 + token)


def _number(chance: random.Random) -> int:
    return chance.choice([-HUGE, -2, -1, 0, 1, 2, 3, 4, 4, 5, 5, 6, 8, 9, 10, 11, 2**31 - 1, HUGE])


def _epoch(chance: random.Random) -> int:
    return chance.choice([-1, 0, 3, 3, 4, 4, 4, 5, 2**31 - 2, 2**31 - 1, HUGE])


def _request(chance: random.Random, node: int) -> Request:
    who = key(node) if chance.random() < 0.9 else key(2, "other")
    kind = chance.randrange(4)
    if kind == 0:
        return Vote(
            epoch=_epoch(chance),
            candidate=who,
            voter=key(chance.choice([1, 1, 9, 2])),
            last_epoch=_number(chance),
            end=_number(chance),
            pre=chance.random() < 0.5,
        )
    if kind == 1:
        return BeginEpoch(epoch=_epoch(chance), leader=voter(node))
    if kind == 2:
        return EndEpoch(epoch=_epoch(chance), leader=node, successors=(node, 1))
    return Fetch(
        epoch=_epoch(chance),
        replica=who,
        offset=_number(chance),
        last_epoch=_number(chance),
        synced_end=_number(chance),
        high_watermark=_number(chance),
    )


def _answer(chance: random.Random) -> Answer:
    kind = chance.randrange(3)
    leader = chance.choice([-1, 1, 2, 3, 9])
    endpoint = chance.choice([None, voter(2).endpoint, voter(9).endpoint])
    if kind == 0:
        return VoteAnswer(
            epoch=_epoch(chance),
            leader=leader,
            endpoint=endpoint,
            granted=chance.random() < 0.5,
            pre=chance.random() < 0.5,
        )
    if kind == 1:
        return EpochAnswer(epoch=_epoch(chance), leader=leader, endpoint=endpoint)
    return FetchAnswer(
        epoch=_epoch(chance),
        leader=leader,
        endpoint=endpoint,
        accepted=chance.random() < 0.8,
        high_watermark=_number(chance),
        diverging=(_number(chance), _number(chance)) if chance.random() < 0.3 else None,
        snapshot=SnapshotId(_number(chance), _number(chance)) if chance.random() < 0.2 else None,
        offset=_number(chance),
        data=b"x" if chance.random() < 0.5 else b"",
    )


@pytest.mark.parametrize(
    "request_",
    [
        Vote(epoch=5, candidate=key(3), voter=key(1), last_epoch=3, end=99, pre=False),
        Vote(epoch=-1, candidate=key(2), voter=key(1), last_epoch=3, end=99, pre=False),
        Vote(epoch=2**31, candidate=key(2), voter=key(1), last_epoch=3, end=99, pre=False),
        Vote(epoch=5, candidate=key(2), voter=key(1), last_epoch=5, end=99, pre=False),
        BeginEpoch(epoch=5, leader=voter(3)),
        EndEpoch(epoch=5, leader=3),
        Fetch(epoch=5, replica=key(3), offset=0, last_epoch=-1, synced_end=0, high_watermark=0),
        Fetch(epoch=5, replica=key(2), offset=-1, last_epoch=-1, synced_end=0, high_watermark=0),
        Fetch(epoch=5, replica=key(2), offset=0, last_epoch=-1, synced_end=-1, high_watermark=0),
    ],
    ids=repr,
)
def test_a_request_that_makes_no_sense_changes_nothing(request_: Request):
    one = unattached()

    one.ask(2, request_)

    assert one.raft.state == ElectionState(epoch=3)
    assert len(one.found(Reply)) == 1


def test_a_fetch_beyond_the_end_counts_for_nothing_and_is_corrected():
    one = leader()

    answer = one.fetch(2, offset=HUGE, last_epoch=4)

    assert answer.diverging == (4, 10)
    assert one.raft.high_watermark == 2


def test_a_fetch_that_claims_more_synced_than_it_holds_counts_for_what_it_holds():
    one = leader()
    one.append(5)

    one.fetch(2, offset=11, synced_end=HUGE)

    assert one.raft.high_watermark == 11


def test_a_fetch_with_an_offset_but_no_epoch_is_corrected():
    one = leader()

    assert one.fetch(2, offset=5, last_epoch=NO_EPOCH).diverging == (NO_EPOCH, 0)
