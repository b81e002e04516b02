"""Which small files become one."""

from tidelog.spark.tables.tiers import FAN, SMALLEST_BYTES, Sized, adjacent_to_merge, tier, to_merge

SMALL, MEDIUM = SMALLEST_BYTES // 2, SMALLEST_BYTES * 2
FILE = 1000 * SMALLEST_BYTES


def sized(*sizes: int, group: str = "a") -> list[Sized[int]]:
    return [Sized(number, group, size) for number, size in enumerate(sizes)]


def test_a_tier_is_a_fan_wide() -> None:
    assert [tier(0), tier(SMALLEST_BYTES - 1), tier(SMALLEST_BYTES)] == [0, 0, 1]
    assert tier(SMALLEST_BYTES * FAN) == 2


def test_files_wait_for_as_many_of_their_size() -> None:
    assert to_merge(sized(*[SMALL] * (FAN - 1)), file_bytes=FILE) == []
    assert to_merge(sized(*[SMALL] * FAN), file_bytes=FILE) == [list(range(FAN))]


def test_a_large_file_is_not_written_again_for_small_ones() -> None:
    files = sized(MEDIUM, *[SMALL] * FAN, FILE)

    assert to_merge(files, file_bytes=FILE) == [list(range(1, FAN + 1))]


def test_groups_stay_apart() -> None:
    files = [*sized(*[SMALL] * 5, group="a"), *sized(*[SMALL] * 5, group="b")]

    assert to_merge(files, file_bytes=FILE) == []


def test_no_merged_file_is_larger_than_a_file_shall_be() -> None:
    merges = to_merge(sized(*[MEDIUM] * 20), file_bytes=5 * MEDIUM)

    assert [len(one) for one in merges] == [5, 5, 5]


def test_a_round_is_bounded_and_does_something() -> None:
    merges = to_merge(sized(*[MEDIUM] * 40), file_bytes=10 * MEDIUM, round_bytes=25 * MEDIUM)

    assert [len(one) for one in merges] == [10, 10]
    assert to_merge(sized(*[MEDIUM] * 10), file_bytes=FILE, round_bytes=1) == [list(range(10))]


def test_only_neighbours_are_put_together_where_order_counts() -> None:
    files = sized(*[SMALL] * 5, MEDIUM, *[SMALL] * FAN)

    assert adjacent_to_merge(files, file_bytes=FILE) == [list(range(6, 6 + FAN))]
    assert to_merge(files, file_bytes=FILE) == [[*range(5), *range(6, 6 + FAN)]]


def test_bytes_are_written_again_a_few_times_only_and_few_files_are_left() -> None:
    files: list[tuple[int, int]] = []
    written = 0
    for number in range(2000):
        files.append((number, SMALLEST_BYTES))
        merges = to_merge([Sized(one, "a", one[1]) for one in files], file_bytes=FILE)
        for some in merges:
            size = sum(one[1] for one in some)
            written += size
            files = [one for one in files if one not in some] + [(number, size)]

    assert written <= 4 * 2000 * SMALLEST_BYTES
    assert len(files) <= 4 * FAN
