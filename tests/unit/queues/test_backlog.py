"""Rows of numbers: taken in order, removed anywhere."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from tidelog.queues.backlog import Backlog, Row

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 2**33), st.sampled_from((0, 7, 2**64 - 1))),
        st.tuples(st.just("pop"), st.just(0), st.just(0)),
        st.tuples(st.just("pop below"), st.integers(0, 2**34), st.just(0)),
        st.tuples(st.just("remove"), st.integers(0, 40), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS)
def test_a_backlog_holds_what_was_put_into_it_in_order(steps):
    backlog, model = Backlog(), OrderedDict()
    sequence = offset = 0
    for what, number, key in steps:
        match what:
            case "append":
                sequence, offset = sequence + number, offset + 2 * number
                row = Row(sequence, offset, 10**12 + number, number % 2**32, key)
                backlog.append(row)
                model[sequence] = row
            case "pop":
                expected = model.popitem(last=False)[1] if model else None
                found = backlog.pop()
                assert (found and found[:2]) == (expected and expected[:2])
            case "pop below":
                oldest = next(iter(model), None)
                expected = model.pop(oldest) if oldest is not None and oldest < number else None
                found = backlog.pop_below(number)
                assert (found and found[:2]) == (expected and expected[:2])
            case _:
                known = list(model)
                wanted = known[number % len(known)] if known and number % 3 else number
                removed = backlog.remove(wanted)
                assert (removed is None) == (model.pop(wanted, None) is None)
        first = backlog.first()
        assert len(backlog) == len(model)
        assert (None if first is None else first.sequence) == next(iter(model), None)
    rows = [(row.sequence, row.offset, row.size, row.key) for row in backlog]
    assert rows == [(row.sequence, row.offset, row.size, row.key) for row in model.values()]


def test_many_rows_are_kept_in_segments_that_are_freed():
    backlog = Backlog()
    for number in range(20_000):
        backlog.append(Row(number, 3 * number, number, 5))

    for number in range(5_000, 15_000):
        assert backlog.remove(number) == Row(number, 3 * number, number, 5)

    assert len(backlog) == 10_000
    assert len(backlog._segments) <= 5
    taken = [backlog.pop() for _ in range(10_000)]
    assert [row and row.sequence for row in taken] == [*range(5_000), *range(15_000, 20_000)]
    assert backlog.pop() is None
