"""Names in order, as many come and go."""

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from tidelog.queues import names
from tidelog.queues.names import Names


@given(st.sets(st.integers(0, 60)), st.lists(st.integers(0, 60)), st.integers(-1, 61))
def test_names_are_in_order_whatever_comes_and_goes(begun, toggled, after):
    before, names._BLOCK = names._BLOCK, 3
    try:
        there, found = set(begun), Names(begun)
        for name in toggled:
            if name in there:
                there.remove(name)
                found.remove(name)
            else:
                there.add(name)
                found.add(name)
            assert all(found._blocks)
            assert max(map(len, found._blocks), default=0) <= 6
            assert found._lasts == [block[-1] for block in found._blocks]
        assert list(found) == sorted(there)
        assert list(found.beyond(after)) == sorted(name for name in there if name > after)
    finally:
        names._BLOCK = before


def test_one_that_comes_or_goes_moves_few_others():
    found = Names(range(0, 100_000, 2))
    for name in range(1, 20_000, 2):
        found.add(name)
    for name in range(50_000, 70_000, 2):
        found.remove(name)

    assert max(map(len, found._blocks)) <= 2 * names._BLOCK
    assert list(islice(found.beyond(49_998), 2)) == [70_000, 70_002]
