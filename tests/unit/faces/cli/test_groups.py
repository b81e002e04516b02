import struct

import pytest

from tidelog.faces.cli import groups
from tidelog.model import TopicPartition
from tidelog.wire.subscription import decode_assignment

COMMANDS = ["list", "describe", "reset", "delete", "delete-offsets"]


def assignment(*topics: tuple[bytes, list[int]], user_data: bytes = b"") -> bytes:
    data = struct.pack(">hi", 1, len(topics))
    for name, partitions in topics:
        data += struct.pack(">h", len(name)) + name
        data += struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return data + struct.pack(">i", len(user_data)) + user_data


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_examples(tidelog, command):
    result = tidelog("groups", command, "--help")

    assert result.code == 0
    assert f"tidelog groups {command}" in result.out and "Examples:" in result.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["reset", "g", "--to-latest"], "--topic"),
        (["reset", "g", "--topic", "t"], "--to-earliest"),
        (["reset", "g", "--topic", "t", "--to-latest", "--to-earliest"], "once"),
        (["reset", "g", "--topic", "t", "--to-offset", "0", "--shift", "0"], "once"),
        (["reset", "g", "--topic", "t", "--to-offset", "-1"], "--to-offset"),
        (["reset", "g", "--topic", "t", "--to-time", "soon"], "2025-01-31T12:00"),
        (["reset", "", "--topic", "t", "--to-latest"], "GROUP"),
        (["list", "--state", "Tired"], "Tired"),
        (["describe"], "GROUP"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_asks_nobody(tidelog, arguments, expected):
    result = tidelog("groups", *arguments, "--bootstrap", "127.0.0.1:1")

    assert result.code in (1, 2)
    assert result.err.count("\n") == 1 and expected in result.err
    assert result.out == ""


def test_an_assignment_is_read_and_what_follows_it_left_alone():
    data = assignment((b"b", [2, 0]), (b"a", [7]), user_data=b"sticky") + b"later versions"

    assert decode_assignment(data) == (TopicPartition("a", 7), TopicPartition("b", 0), TopicPartition("b", 2))


def test_no_assignment_is_an_empty_one():
    assert decode_assignment(b"") == ()


@pytest.mark.parametrize(
    "data",
    [
        b"\x00",
        b"\xff\xff\x00\x00\x00\x00",
        b"\x00\x01\x7f\xff\xff\xff",
        b"\x00\x01\xff\xff\xff\xff",
        b"\x00\x01\x00\x00\x00\x01\x00\x02\xff\xfe\x00\x00\x00\x00",
        assignment((b"a", [1, 2, 3]))[:-6],
    ],
)
def test_bytes_that_are_no_assignment_are_shown_by_their_size(data):
    assert decode_assignment(data) is None
    shown = {"assignment": None, "assignment_bytes": len(data)}
    assert groups._assigned(shown) == f"({len(data)} bytes)"
