import pytest

from tidelog.schemas.framing import frame, frame_indexes, unframe, unframe_indexes
from tidelog.schemas.problems import NotFramed


def test_a_frame_is_a_zero_the_id_and_the_value():
    assert frame(258, b"x") == b"\x00\x00\x00\x01\x02x"
    assert unframe(frame(258, b"x")) == (258, b"x")


@pytest.mark.parametrize("data", [b"", b"\x00\x00", b'{"a": 1}'])
def test_what_names_no_schema_is_said_to_have_none(data):
    with pytest.raises(NotFramed, match="without a schema registry"):
        unframe(data)


@pytest.mark.parametrize("indexes", [(0,), (1,), (0, 0), (3, 200, 1)])
def test_indexes_come_back(indexes):
    assert unframe_indexes(frame_indexes(indexes) + b"rest") == (indexes, b"rest")


def test_the_first_message_is_one_byte_and_cut_indexes_are_told():
    assert frame_indexes((0,)) == b"\0"
    with pytest.raises(NotFramed, match="cut off"):
        unframe_indexes(b"\x04\x02")
