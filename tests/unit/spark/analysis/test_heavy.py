"""The heaviest keys, in bounded memory."""

import random
from collections import Counter

import pyarrow as pa

from tidelog.spark.analysis.heavy import HeavyKeys


def counted(heavy: HeavyKeys) -> dict[bytes, int]:
    table = heavy.counts()
    return dict(zip(table["key"].to_pylist(), table["count"].to_pylist(), strict=True))


def test_few_keys_are_counted_exactly():
    heavy = HeavyKeys()

    heavy.add(pa.array([b"a", b"b", None, b"a"], pa.binary()))
    heavy.add(pa.array([b"a", b""], pa.binary()))

    assert counted(heavy) == {b"a": 3, b"b": 1, b"": 1}
    assert (heavy.nulls, heavy.lowered) == (1, 0)


def test_many_keys_take_bounded_memory_and_counts_err_by_no_more_than_is_said():
    seed = random.Random(20261116)
    keys = [b"heavy-%d" % (n % 5) for n in range(20_000)] + [b"%d" % n for n in range(40_000)]
    seed.shuffle(keys)
    heavy = HeavyKeys(counters_max=100)

    for at in range(0, len(keys), 1000):
        heavy.add(pa.array(keys[at : at + 1000], pa.binary()))

    found, true = counted(heavy), Counter(keys)
    assert len(found) <= 100
    assert 0 < heavy.lowered < len(keys) / 100
    for key, count in true.most_common(5):
        assert count - heavy.lowered <= found[key] <= count
    assert all(found[key] <= true[key] for key in found)
