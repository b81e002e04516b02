"""KIP-227's table, row by row."""

import random

import pytest

from tidelog.errors import FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch
from tidelog.kafka.fetch_sessions import Interest, Sessions

A, B, C = ("t", 0), ("t", 1), ("t", 2)


def sessions_of(count_max=10, partitions_max=10):
    return Sessions(count_max, partitions_max, random.Random(1))


def interest(key, offset=0):
    return Interest(key, offset, 1000, -1)


def resolve(sessions, session_id, epoch, *keys, forgotten=(), uses_ids=False):
    return sessions.resolve(session_id, epoch, [interest(k) for k in keys], forgotten, uses_ids=uses_ids)


def opened(sessions, *keys):
    session, _, _ = resolve(sessions, 0, 0, *keys)
    assert session is not None
    return session


def keys_of(interests):
    return [i.key for i in interests]


def test_a_full_fetch_without_a_session_opens_none():
    sessions = sessions_of()

    session, incremental, interests = resolve(sessions, 0, -1, A, B)

    assert (session, incremental, keys_of(interests)) == (None, False, [A, B])
    assert len(sessions) == 0


def test_a_full_fetch_opens_a_session_if_asked():
    sessions = sessions_of()

    session, incremental, interests = resolve(sessions, 0, 0, A, B)

    assert session is not None and session.id > 0
    assert (incremental, keys_of(interests)) == (False, [A, B])
    assert len(sessions) == 1


def test_a_new_session_in_place_of_an_old_one_ends_that():
    sessions = sessions_of()
    old = opened(sessions, A)

    new, incremental, interests = resolve(sessions, old.id, 0, B)

    assert new is not None and new is not old
    assert (incremental, keys_of(interests)) == (False, [B])
    assert len(sessions) == 1
    with pytest.raises(FetchSessionIdNotFound):
        resolve(sessions, old.id, 1)


def test_the_final_epoch_ends_a_session_with_a_full_fetch():
    sessions = sessions_of()
    old = opened(sessions, A)

    assert resolve(sessions, old.id, -1, B)[:2] == (None, False)

    assert len(sessions) == 0


def test_a_session_goes_on_with_changes_alone():
    sessions = sessions_of()
    session = opened(sessions, A, B)

    same, incremental, interests = resolve(sessions, session.id, 1)
    assert (same, incremental, keys_of(interests)) == (session, True, [A, B])
    _, _, interests = resolve(sessions, session.id, 2, C, forgotten=[A])
    assert keys_of(interests) == [B, C]


def test_a_known_partition_named_again_changes_only_where_it_is_read():
    sessions = sessions_of()
    session = opened(sessions, A)
    session.interests[A].told_watermark = 5

    newer = Interest(A, 7, 50, 3)
    _, _, (known,) = sessions.resolve(session.id, 1, [newer], (), uses_ids=False)

    assert (known.offset, known.bytes_max, known.epoch) == (7, 50, 3)
    assert known.told_watermark == 5


@pytest.mark.parametrize("epoch", [2, 3, 2**31 - 1, -2])
def test_any_epoch_but_the_next_is_refused(epoch):
    sessions = sessions_of()
    session = opened(sessions, A)

    with pytest.raises(InvalidFetchSessionEpoch):
        resolve(sessions, session.id, epoch)
    resolve(sessions, session.id, 1)
    with pytest.raises(InvalidFetchSessionEpoch):
        resolve(sessions, session.id, 1)


def test_the_epoch_after_the_last_is_one():
    sessions = sessions_of()
    session = opened(sessions, A)
    session.epoch = 2**31 - 1

    resolve(sessions, session.id, 2**31 - 1)

    assert resolve(sessions, session.id, 1)[1]


@pytest.mark.parametrize("session_id", [0, 12345])
def test_an_unknown_session_is_refused(session_id):
    with pytest.raises(FetchSessionIdNotFound):
        resolve(sessions_of(), session_id, 1)


def test_names_and_ids_do_not_mix_in_a_session():
    sessions = sessions_of()
    session = opened(sessions, A)

    with pytest.raises(FetchSessionTopicIdError):
        resolve(sessions, session.id, 1, uses_ids=True)
    assert resolve(sessions, session.id, 1)[1]  # a refusal uses up no epoch


def test_the_least_recently_used_session_makes_room():
    sessions = sessions_of(count_max=2)
    first, second = opened(sessions, A), opened(sessions, A)
    resolve(sessions, first.id, 1)

    opened(sessions, A)

    assert len(sessions) == 2
    assert resolve(sessions, first.id, 2)[0] is first
    with pytest.raises(FetchSessionIdNotFound):
        resolve(sessions, second.id, 1)


@pytest.mark.parametrize(
    ("limits", "keys"), [({"count_max": 0}, (A,)), ({"partitions_max": 1}, (A, B)), ({}, ())]
)
def test_where_no_session_can_be_kept_the_fetch_is_served_without(limits, keys):
    session, incremental, interests = resolve(sessions_of(**limits), 0, 0, *keys)

    assert (session, incremental, keys_of(interests)) == (None, False, list(keys))


def test_a_partition_that_got_its_share_is_served_after_the_others():
    sessions = sessions_of()
    session = opened(sessions, A, B, C)

    session.serve_later(session.interests[A])

    assert keys_of(resolve(sessions, session.id, 1)[2]) == [B, C, A]


def test_a_partition_forgotten_meanwhile_does_not_come_back():
    sessions = sessions_of()
    session = opened(sessions, A, B)
    served = session.interests[A]
    resolve(sessions, session.id, 1, forgotten=[A])

    session.serve_later(served)

    assert keys_of(session.interests.values()) == [B]
