import pytest

from tidelog.log.tail import ENTRY_OVERHEAD_BYTES, Tail, TailBudget


def fill(tail: Tail, count: int, *, records: int = 1, size: int = 10) -> None:
    for _ in range(count):
        tail.append(tail.end, tail.end + records, tail.end * size, bytes([tail.end % 256]) * size)


def test_an_empty_tail_begins_where_it_ends():
    tail = Tail(100)

    assert (tail.start, tail.end, len(tail)) == (100, 100, 0)


def test_a_slice_begins_with_the_batch_that_holds_the_offset():
    tail = Tail(100)
    fill(tail, 3, records=10)

    buffers, size = tail.slice(115, 1000, limit=130, at_least_one=True)

    assert buffers == [bytes([110]) * 10, bytes([120]) * 10]
    assert size == 20


@pytest.mark.parametrize(("bytes_max", "count"), [(0, 0), (9, 0), (10, 1), (29, 2), (30, 3)])
def test_a_slice_stays_below_the_bytes_asked_for(bytes_max, count):
    tail = Tail(0)
    fill(tail, 3)

    buffers, size = tail.slice(0, bytes_max, limit=3, at_least_one=False)

    assert (len(buffers), size) == (count, 10 * count)


@pytest.mark.parametrize("bytes_max", [0, 9, 10, 19])
def test_the_first_batch_comes_however_large_it_is_but_no_second_one(bytes_max):
    tail = Tail(0)
    fill(tail, 3)

    assert tail.slice(0, bytes_max, limit=3, at_least_one=True)[1] == 10


def test_a_slice_ends_before_the_limit():
    tail = Tail(0)
    fill(tail, 5)

    assert tail.slice(1, 1000, limit=3, at_least_one=True)[1] == 20
    assert tail.slice(3, 1000, limit=3, at_least_one=True) == ([], 0)


def test_what_is_not_written_is_never_evicted():
    tail = Tail(0)
    fill(tail, 3)

    assert not tail.evict()

    tail.written(2)
    assert tail.evict() and tail.evict() and not tail.evict()
    assert (tail.start, tail.start_position) == (2, 20)
    assert tail.slice(2, 1000, limit=3, at_least_one=True) == ([bytes([2]) * 10], 10)


def test_a_batch_half_of_which_counts_as_written_stays():
    tail = Tail(0)
    fill(tail, 1, records=10)

    tail.written(9)

    assert not tail.evict()


def test_evicting_much_keeps_what_is_left_in_place():
    tail = Tail(0)
    fill(tail, 3000)
    tail.written(3000)

    for _ in range(2990):
        assert tail.evict()

    assert (len(tail), tail.start, tail.start_position) == (10, 2990, 29900)
    assert tail.slice(2995, 1000, limit=2996, at_least_one=True)[0] == [bytes([2995 % 256]) * 10]
    fill(tail, 5)
    assert tail.slice(2990, 10**6, limit=3005, at_least_one=True)[1] == 150


def test_a_cleared_tail_holds_nothing_and_lets_the_budget_go_on():
    tail = Tail(0)
    fill(tail, 2)

    tail.clear()

    assert len(tail) == 0
    assert tail.evict(), "the budget's entries for it are paid back"


# The budget.


def charge(budget: TailBudget, tail: Tail, size: int = 10, *, written: bool = True) -> None:
    fill(tail, 1, size=size)
    if written:
        tail.written(tail.end)
    budget.charge(tail, size)


def test_who_appended_first_is_evicted_first():
    cost = 10 + ENTRY_OVERHEAD_BYTES
    budget = TailBudget(3 * cost)
    one, other = Tail(0), Tail(0)
    charge(budget, one)
    charge(budget, other)
    charge(budget, one)

    charge(budget, other)
    assert (len(one), len(other)) == (1, 2)

    charge(budget, other)
    assert (len(one), len(other)) == (1, 2), "the second oldest is the other's"
    assert budget.bytes_used == 3 * cost


def test_the_budget_is_passed_rather_than_lose_what_is_not_written():
    cost = 10 + ENTRY_OVERHEAD_BYTES
    budget = TailBudget(cost)
    slow, quick = Tail(0), Tail(0)
    charge(budget, slow, written=False)
    charge(budget, quick)
    charge(budget, quick)

    assert (len(slow), len(quick)) == (1, 2)
    assert budget.bytes_used == 3 * cost

    slow.written(1)
    budget.evict()
    assert (len(slow), len(quick)) == (0, 1)
    assert budget.bytes_used == cost


def test_small_batches_cost_what_python_spends_on_them():
    budget = TailBudget(10_000)
    tail = Tail(0)

    for _ in range(1000):
        charge(budget, tail, size=1)

    assert len(tail) < 10_000 / ENTRY_OVERHEAD_BYTES
    assert budget.bytes_used <= 10_000


def test_the_memory_of_a_dropped_log_is_given_back():
    budget = TailBudget(3 * (10 + ENTRY_OVERHEAD_BYTES))
    dropped, kept = Tail(0), Tail(0)
    charge(budget, dropped)
    charge(budget, dropped)
    dropped.clear()

    for _ in range(5):
        charge(budget, kept)

    assert len(kept) == 3
    assert budget.bytes_used == budget.bytes_max


@pytest.mark.parametrize("count", [0, 1, 7, 600, 1000])
def test_what_was_replaced_is_dropped_and_the_rest_stays(count):
    tail = Tail(0)
    fill(tail, 1000, records=2)
    tail.written(2000)

    tail.drop_before(2 * count)

    assert (tail.start, tail.end, len(tail)) == (2 * count, 2000, 1000 - count)
    if count < 1000:
        buffers, _ = tail.slice(2 * count, 10, limit=2000, at_least_one=True)
        assert buffers == [bytes([2 * count % 256]) * 10]


def test_the_budget_takes_the_turn_of_a_dropped_batch_for_done():
    tail, budget = Tail(0), TailBudget(4 * (10 + ENTRY_OVERHEAD_BYTES))
    for _ in range(4):
        fill(tail, 1)
        budget.charge(tail, 10)
    tail.written(4)

    tail.drop_before(2)
    for _ in range(2):
        fill(tail, 1)
        budget.charge(tail, 10)

    assert (tail.start, tail.end) == (2, 6), "what is newer was not evicted in its place"
    fill(tail, 1)
    budget.charge(tail, 10)
    assert tail.start == 3
