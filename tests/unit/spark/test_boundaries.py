"""Chains and guesses must give what following the lengths one by one gives."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.mutate import mutate
from tidelog.spark import boundaries
from tidelog.spark.boundaries import BrokenBatch, record_starts
from tidelog.spark.varints import Numbers, Octets, read_varint

LIKE_RECORDS = b"\x0e\0\0\0\x01\x02a\0" * 30
"""A payload that looks like records wherever one looks."""


def record(body: bytes) -> bytes:
    """A record as far as boundaries go: a length, a zero, and anything."""
    raw = 2 * (len(body) + 6)
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw]) + bytes(6) + body


class Batches:
    """Batches side by side, with other bytes between them."""

    def __init__(self, batches: list[list[bytes]]) -> None:
        data = bytearray()
        self.begins: list[int] = []
        self.ends: list[int] = []
        self.counts = [len(records) for records in batches]
        self.starts: list[int] = []
        for records in batches:
            data += b"\x07" * 61
            self.begins.append(len(data))
            for one in records:
                self.starts.append(len(data))
                data += one
            self.ends.append(len(data))
        self.data = bytes(data)

    def found(self, data: bytes | None = None) -> Numbers:
        return record_starts(data or self.data, self.begins, self.ends, self.counts)


def random_records(random: Random, count: int, sizes: tuple[int, ...]) -> list[bytes]:
    return [record(random.randbytes(random.choice(sizes))) for _ in range(count)]


@pytest.mark.parametrize("sizes", [(0,), (100,), (3, 57, 58, 140), (0, 9_000), (70_000,)])
@pytest.mark.parametrize("counts", [(1,), (7, 1, 30), (2500,), (300, 40, 1, 900), (3,) * 50])
def test_every_record_is_found(sizes: tuple[int, ...], counts: tuple[int, ...]) -> None:
    if sum(counts) * max(sizes) > 20_000_000:
        counts = counts[:1] if counts[0] < 300 else (300,)
    random = Random(1)
    batches = Batches([random_records(random, count, sizes) for count in counts])

    assert batches.found().tolist() == batches.starts


@pytest.mark.parametrize("seed", range(5))
def test_payloads_that_look_like_records_deceive_nobody(seed: int) -> None:
    random = Random(seed)
    bodies = [LIKE_RECORDS[random.randrange(9) :][: random.randrange(230)] for _ in range(3000)]
    batches = Batches([[record(body) for body in bodies], [record(b"x")] * 90])

    assert batches.found().tolist() == batches.starts


def test_wrong_guesses_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the guesses are, even if they lie in the middle of records or follow each other."""
    random = Random(3)
    batches = Batches([random_records(random, n, (60, 130)) for n in (2000, 900, 1100)])

    def guess(view: Octets, near: Numbers, end: Numbers, width: int) -> Numbers:
        right = np.array(random.sample(batches.starts, 40))
        return np.unique(np.concatenate([near, near + 1, right]))

    monkeypatch.setattr(boundaries, "_guess", guess)

    assert batches.found().tolist() == batches.starts


@pytest.mark.parametrize("counts", [(2, 3), (2000, 40, 900)])
def test_a_wrong_count_is_told_with_its_batch(counts: tuple[int, ...]) -> None:
    random = Random(1)
    batches = Batches([random_records(random, count, (20, 80)) for count in counts])
    for wrong in (-1, 1, 10**6):
        batches.counts = [counts[0], counts[1] + wrong, *counts[2:]]

        with pytest.raises(BrokenBatch) as broken:
            batches.found()

        assert broken.value.index == 1


def test_a_batch_that_ends_inside_of_a_record_is_broken() -> None:
    random = Random(1)
    for count in (3, 3000):
        batches = Batches([random_records(random, count, (50,))] * 2)
        batches.ends[1] -= 1

        with pytest.raises(BrokenBatch) as broken:
            batches.found()

        assert broken.value.index == 1


def one_by_one(batches: Batches, data: bytes) -> list[int] | None:
    """The starts; None if they do not fill the batches."""
    starts: list[int] = []
    for begin, end, count in zip(batches.begins, batches.ends, batches.counts, strict=True):
        at = begin
        for _ in range(count):
            if at >= end:
                return None
            starts.append(at)
            try:
                size, at = read_varint(data, at)
            except IndexError:
                return None
            at += max(size, 0)
        if at != end:
            return None
    return starts


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_damage_is_found_by_all_ways_or_by_none(seed: int) -> None:
    random = Random(seed)
    count = random.choice((1, 5, 400, 2600))
    sizes = random.choice(((0,), (20, 40), (100,), (300, 900)))
    batches = Batches([random_records(random, count, sizes) for _ in range(random.choice((1, 3)))])
    data = (mutate(random, batches.data) + bytes(len(batches.data)))[: len(batches.data)]

    expected = one_by_one(batches, data)

    if expected is None:
        with pytest.raises(BrokenBatch):
            batches.found(data)
    else:
        assert batches.found(data).tolist() == expected
