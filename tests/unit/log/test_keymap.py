"""The newest record of each key, and what that says about offsets."""

import random
from hashlib import blake2b

import pytest

from tidelog.log.keymap import GONE, KEY_BYTES, STAYS, TOMBSTONE_STAYS, Fates, KeyMap


def test_map_takes_new_marks_of_known_keys_when_it_is_full():
    keys = KeyMap(2 * KEY_BYTES)
    assert keys.put([b"a", b"b"], [2, 4]) == 2

    assert keys.put([b"c"], [6]) == 0
    assert keys.put([b"a", b"b", b"c", b"a"], [8, 10, 12, 14]) == 2
    assert keys.newest([b"a", b"b", b"c"]) == [8, 10, None]


def test_later_marks_win_within_one_batch():
    keys = KeyMap(10**6)

    keys.put([b"a", b"b", b"a"], [2, 4, 6])

    assert keys.newest([b"a", b"b"]) == [6, 4]


def test_long_keys_are_told_apart_and_never_taken_for_a_short_one():
    keys = KeyMap(10**6)
    known = [b"", *(letter * size for letter in (b"x", b"y") for size in (1, 40, 41, 5000))]

    keys.put(known, range(9))

    assert keys.newest(known) == list(range(9))
    assert len(keys) == 9
    digests = [blake2b(b"x" * 5000, digest_size=size).digest() for size in range(1, 41)]
    assert not keys.knows_any(digests)
    assert keys.knows_any([*digests, b"x" * 5000])


def test_forgotten_map_is_empty():
    keys = KeyMap(10**9)
    keys.put([b"%d" % number for number in range(2500)], range(2500))

    keys.forget()

    assert len(keys) == 0


@pytest.mark.parametrize("window", [1, 3, 10, 1000])
def test_fates_are_the_same_whatever_the_window(window, monkeypatch):
    monkeypatch.setattr("tidelog.log.keymap.WINDOW", window)
    generator, keys = random.Random(window), KeyMap(10**6)
    expected = {}
    for offset in range(100, 400):
        key, is_tombstone = b"%d" % generator.randrange(150), generator.random() < 0.2
        keys.put([key], [2 * offset + is_tombstone])
        expected[key] = offset, TOMBSTONE_STAYS if is_tombstone else STAYS
    stays = dict(expected.values())
    fates = Fates(keys)

    for start in range(100, 400, 4):
        found = fates.of(start, start + 4)
        if window < 4:
            assert found is None
        else:
            assert list(found or b"") == [stays.get(at, GONE) for at in range(start, start + 4)]
