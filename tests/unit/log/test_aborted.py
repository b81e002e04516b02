import pytest

from tidelog.log.aborted import AbortedIndex, AbortedIndexDamaged, AbortedLookup, AbortedTransaction

ENTRIES = [
    AbortedTransaction(5, 10, 14, 3),  # something open since 3 goes on
    AbortedTransaction(6, 12, 20, 3),
    AbortedTransaction(5, 15, 21, 22),
    AbortedTransaction(7, 30, 40, 41),
]


def index_of(*entries: AbortedTransaction) -> AbortedIndex:
    index = AbortedIndex()
    for entry in entries:
        index.add(entry)
    return index


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 10, []),
        (0, 11, [(5, 10)]),
        (14, 15, [(5, 10), (6, 12)]),
        (15, 16, [(6, 12), (5, 15)]),
        (21, 22, [(5, 15)]),
        (22, 30, []),
        (40, 41, [(7, 30)]),
        (41, 99, []),
        (0, 99, [(5, 10), (6, 12), (5, 15), (7, 30)]),
    ],
)
def test_a_range_finds_what_touches_it_in_the_order_of_markers(start, end, expected):
    assert index_of(*ENTRIES).find(start, end) == expected


def test_a_search_ends_where_nothing_older_was_open():
    late = AbortedTransaction(9, 0, 50, 51)  # could not be: 22 was stable at offset 21
    index = index_of(*ENTRIES[:3], late)

    assert (9, 0) not in index.find(15, 22)
    assert (9, 0) in index.find(15, 23)


def test_entries_go_by_their_markers():
    index = index_of(*ENTRIES)

    index.drop_before(20)
    assert list(index) == ENTRIES[1:]
    index.remove({21, 14})
    assert list(index) == [ENTRIES[1], ENTRIES[3]]


def test_a_part_is_a_copy():
    index = index_of(*ENTRIES)

    part = index.between(20, 40)
    assert list(part) == ENTRIES[1:3]
    index.remove({20})

    assert list(part) == ENTRIES[1:3]
    part.extend(index_of(ENTRIES[3]))
    assert list(part) == ENTRIES[1:]


def test_an_index_reads_back():
    index = index_of(*ENTRIES)

    assert AbortedIndex.decode(index.encode(), start=14, end=41) == index
    assert AbortedIndex.decode(b"", start=14, end=41) == AbortedIndex()


@pytest.mark.parametrize(
    "entries",
    [
        [AbortedTransaction(-1, 10, 14, 15)],
        [AbortedTransaction(5, -1, 14, 15)],
        [AbortedTransaction(5, 14, 14, 15)],
        [AbortedTransaction(5, 10, 14, 16)],
        [AbortedTransaction(5, 2, 9, 10)],
        [AbortedTransaction(5, 2, 100, 10)],
        [AbortedTransaction(5, 10, 14, 15), AbortedTransaction(6, 10, 14, 15)],
        [AbortedTransaction(5, 10, 14, 15), AbortedTransaction(6, 10, 16, 11)],
    ],
)
def test_an_index_that_cannot_be_is_not_believed(entries):
    data = index_of(*entries).encode()

    with pytest.raises(AbortedIndexDamaged):
        AbortedIndex.decode(data, start=10, end=100)


def test_an_index_that_is_cut_off_or_newer_is_not_believed():
    data = index_of(*ENTRIES).encode()

    with pytest.raises(AbortedIndexDamaged, match="not whole entries"):
        AbortedIndex.decode(data[:-3], start=0, end=100)
    with pytest.raises(AbortedIndexDamaged):
        AbortedIndex.decode(b"\0\1" + data[2:], start=0, end=100)


@pytest.mark.parametrize(
    ("producer", "offset", "is_aborted"),
    [
        (5, 9, False),
        (5, 10, True),
        (5, 13, True),
        (5, 14, False),
        (5, 15, True),
        (5, 22, False),
        (6, 13, True),
        (6, 10, False),
        (8, 13, False),
    ],
)
def test_a_batch_is_aborted_between_its_producers_first_batch_and_marker(producer, offset, is_aborted):
    assert AbortedLookup(index_of(*ENTRIES)).holds(producer, offset) == is_aborted
