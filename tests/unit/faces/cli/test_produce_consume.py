import json

import pytest

from tidelog.faces.cli.common import UserError
from tidelog.faces.cli.consume import parse_time


def test_lines_go_in_and_come_out_as_the_same_bytes(tidelog, broker):
    data = b"one\n\ntwo \xc3\xbc\r\n\ttabbed\nlast without end"

    produced = tidelog("produce", "orders", stdin=data)
    consumed = tidelog("consume", "orders", "--no-follow")

    assert produced.code == 0 and "5 records" in produced.err and produced.out == ""
    assert consumed.code == 0 and consumed.out.encode() == data + b"\n"


def test_the_summary_tells_programs_where_records_went(tidelog, broker):
    tidelog("topics", "create", "orders", "--partitions", 2)

    result = tidelog("produce", "orders", "--partition", 1, "--json", stdin=b"a\nb\n")

    summary = json.loads(result.out)
    assert (summary["topic"], summary["records"], summary["bytes"]) == ("orders", 2, 2)
    assert summary["partitions"] == [{"partition": 1, "records": 2, "first_offset": 0, "last_offset": 1}]


def test_keys_headers_values_and_tombstones_from_the_command_line(tidelog, broker):
    tidelog("produce", "users", "--key", "42", "--value", "a", "--value", "b", "--header", "h=x")
    tidelog("produce", "users", "--key", "42", "--tombstone")

    lines = tidelog("consume", "users", "--no-follow", "--json").out.splitlines()

    records = [json.loads(line) for line in lines]
    assert [(one["offset"], one["key"], one["value"]) for one in records] == [
        (0, "42", "a"),
        (1, "42", "b"),
        (2, "42", None),
    ]
    assert records[0]["headers"] == [{"key": "h", "value": "x"}]


def test_a_file_is_read_and_split_into_keys(tidelog, broker, tmp_path):
    file = tmp_path / "lines"
    file.write_bytes(b"a:1\nb:2\n")

    tidelog("produce", "orders", "--file", file, "--key-separator", ":")

    shown = tidelog("consume", "orders", "--no-follow", "--show-key", "--show-offset")
    assert shown.out == "0:0\ta\t1\n0:1\tb\t2\n"


def test_json_goes_from_topic_to_topic(tidelog, broker):
    tidelog("produce", "old", "--format", "hex", "--key", "ff00", stdin=b"00ff\n0a\n")

    lines = tidelog("consume", "old", "--no-follow", "--format", "json").out
    tidelog("produce", "new", "--format", "json", stdin=lines.encode())

    copied = tidelog("consume", "new", "--no-follow", "--format", "hex", "--show-key")
    assert copied.out == "ff00\t00ff\nff00\t0a\n"


def test_a_bad_line_is_named_and_what_came_before_it_is_stored(tidelog, broker):
    result = tidelog("produce", "orders", "--format", "hex", stdin=b"00\n01\nzz\n02\n")

    assert result.code == 1
    assert "line 3" in result.err and "2 records stored" in result.err
    assert broker.topics["orders"][0].end == 2


def test_a_record_that_the_broker_refuses_is_an_error(tidelog, broker):
    from tidelog.wire.apis import Api

    broker.errors[Api.PRODUCE].append(10)

    result = tidelog("produce", "orders", "--value", "large")

    assert result.code == 1 and "max.message.bytes" in result.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--value", "a", "--file", "b"], "exclude each other"),
        (["--tombstone"], "--key"),
        (["--key-separator", ""], "--key-separator"),
        (["--header", "novalue", "--value", "a"], "KEY=VALUE"),
        (["--partition", "9", "--value", "a"], "no partition 9"),
        (["--file", "/nowhere/lines"], "/nowhere/lines: No such file"),
    ],
)
def test_options_that_make_no_sense_are_explained(tidelog, broker, arguments, expected):
    result = tidelog("produce", "orders", *arguments)

    assert result.code in (1, 2)
    assert result.err.count("\n") == 1 and expected in result.err


@pytest.mark.parametrize("acks", ["all", "1", "0"])
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_acks_and_codec_arrives(tidelog, broker, acks, compression):
    result = tidelog("produce", "x", "--acks", acks, "--compression", compression, stdin=b"a\nb\n")

    assert result.code == 0
    assert broker.topics["x"][0].end == 2
    assert tidelog("consume", "x", "--no-follow").out == "a\nb\n"


@pytest.fixture
def ten(tidelog, broker):
    """A topic of one partition with the records 0 to 9."""
    tidelog("produce", "ten", stdin=b"".join(b"%d\n" % number for number in range(10)))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--no-follow"], "0123456789"),
        (["--from-beginning", "--max", "3"], "012"),
        (["--tail", "2", "--no-follow"], "89"),
        (["--tail", "0", "--no-follow"], ""),
        (["--tail", "99", "--max", "10"], "0123456789"),
        (["--offset", "7", "--no-follow"], "789"),
        (["--offset", "10", "--no-follow"], ""),
        (["--timestamp", "2100-01-01", "--no-follow"], ""),
        (["--from-beginning", "--timeout", "0.2"], "0123456789"),
    ],
)
def test_reading_begins_where_it_is_told_and_ends_by_itself(tidelog, ten, arguments, expected):
    result = tidelog("consume", "ten", *arguments)

    assert result.code == 0
    assert result.out.replace("\n", "") == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--offset", "11"], "holds offsets 0 to 10"),
        (["--partition", "3"], "no partition 3"),
        (["--offset", "1", "--tail", "1"], "keep one"),
        (["--timestamp", "yesterday"], "2025-01-31T12:00"),
        (["--max", "3", "--timeout", "0.2"], "only 0 of 3"),
    ],
)
def test_reading_that_cannot_be_done_is_a_failure(tidelog, ten, arguments, expected):
    result = tidelog("consume", "ten", *arguments)

    assert result.code in (1, 2)
    assert result.err.count("\n") == 1 and expected in result.err


def test_an_offset_needs_one_partition(tidelog, broker):
    tidelog("topics", "create", "orders", "--partitions", 2)

    assert "--partition" in tidelog("consume", "orders", "--offset", 0).err


def test_records_deleted_while_reading_are_reported_and_passed_over(tidelog, broker, ten, monkeypatch):
    log = broker.topics["ten"][0]
    monkeypatch.setattr("tidelog.faces.cli.consume.find_start", _start_at_zero_although_deleted(log))

    result = tidelog("consume", "ten", "--no-follow")

    assert result.code == 0
    assert "4 records were deleted" in result.err
    assert result.out.replace("\n", "").endswith("456789")


def _start_at_zero_although_deleted(log):
    async def find_start(client, plan):
        await client.topic(plan.topic)
        log.start = 4
        log.batches = [(4, end, batch) for _, end, batch in log.batches]
        return {0: 0}, {0: 10}

    return find_start


def test_times_are_read_as_milliseconds_or_dates():
    assert parse_time("1700000000000") == 1700000000000
    assert parse_time("1970-01-01T00:00:01") == 1000
    assert parse_time("1970-01-01T01:00:01+01:00") == 1000
    with pytest.raises(UserError):
        parse_time("soon")
