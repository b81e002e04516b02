import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.spark.varints import NOWHERE, read_varint, read_varints, write_varints

EDGES = [0, 1, -1, 63, 64, -64, -65, 8191, 8192, 2**31 - 1, -(2**31), 2**53, -(2**54), 2**54 - 1]
SMALL = st.sampled_from(EDGES) | st.integers(-(2**54), 2**54 - 1)
ANY = SMALL | st.sampled_from([2**63 - 1, -(2**63)]) | st.integers(-(2**63), 2**63 - 1)


def varint(value: int) -> bytes:
    """By the book: zigzag, then seven bits in each byte, the low ones first."""
    raw = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw])


@settings(deadline=None)
@given(values=st.lists(ANY, min_size=1, max_size=40), gap=st.integers(0, 3))
def test_numbers_are_read_wherever_they_lie(values: list[int], gap: int) -> None:
    data, at = bytearray(), []
    for value in values:
        at.append(len(data))
        data += varint(value) + b"\xff" * gap
    after = [begin + len(varint(value)) for begin, value in zip(at, values, strict=True)]

    found, behind = read_varints(np.frombuffer(bytes(data), np.uint8), np.array(at))

    assert found.tolist() == values
    assert behind.tolist() == after
    assert [read_varint(bytes(data), place) for place in at] == list(zip(values, after, strict=True))


@settings(deadline=None)
@given(values=st.lists(SMALL, min_size=1, max_size=40))
def test_numbers_are_written_into_the_low_bytes_of_words(values: list[int]) -> None:
    words, widths = write_varints(np.array(values, np.int64))

    written = [int(word).to_bytes(8, "little")[:width] for word, width in zip(words, widths, strict=True)]
    assert written == [varint(value) for value in values]
    assert all(int(word) >> 8 * int(width) == 0 for word, width in zip(words, widths, strict=True))


def test_a_number_of_over_64_bits_ends_nowhere() -> None:
    for data in (b"\xff" * 12, varint(2**63 - 1)[:-1] + b"\x03"):
        _, behind = read_varints(np.frombuffer(data, np.uint8), np.array([0]))

        assert behind.tolist() == [NOWHERE]
    with pytest.raises(IndexError):
        read_varint(b"\xff" * 12, 0)


def test_reading_beyond_the_end_leads_there_and_does_not_raise() -> None:
    data = np.frombuffer(b"\x02\x80", np.uint8)

    found, behind = read_varints(data, np.array([0, 1, 2, 900]))

    assert found[0] == 1
    assert behind[0] == 1
    assert (behind[1:] > 2).all()
    with pytest.raises(IndexError):
        read_varint(b"\x02\x80", 1)
