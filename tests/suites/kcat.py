"""kcat: what a shell user of librdkafka does."""

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.suites import tools
from tests.suites.checks import Context, Ran, command, run_checks
from tests.suites.report import Check

CODECS: Final = ("gzip", "snappy", "lz4", "zstd")
SETTINGS: Final = {"log.cleaner.backoff.ms": "100"}
"""Of the node, so that nobody waits long for a compaction."""


def version() -> str:
    text = command([tools.kcat(), "-V"]).out
    found = re.search(r"Version (\S+).*?librdkafka (\S+)", text, re.DOTALL)
    return f"{found[1]} (librdkafka {found[2]})" if found else "?"


def run(context: Context) -> Iterator[Check]:
    return run_checks(
        [
            metadata_lists_brokers_and_topics,
            a_topic_is_made_by_the_first_produce,
            keys_and_values_come_back_in_order,
            headers_come_back,
            null_keys_and_values_come_back_as_null,
            *_codec_checks(),
            every_acks_setting_delivers,
            an_idempotent_producer_delivers_once,
            a_large_message_comes_back,
            a_message_over_the_limit_is_refused,
            partitions_are_written_and_read_by_number,
            consuming_starts_at_any_offset,
            offsets_are_found_by_timestamp,
            consuming_between_timestamps,
            watermarks_are_queried,
            an_unknown_topic_is_an_error,
            a_compacted_topic_keeps_the_latest_of_every_key,
            a_compacted_topic_takes_no_message_without_a_key,
            a_group_resumes_where_it_stopped,
            two_group_members_share_the_partitions,
            a_group_member_that_is_killed_is_replaced,
        ],
        context.bootstrap,
    )


def _kcat(bootstrap: str, *words: str, given: str | bytes = b"", code: int | None = 0) -> Ran:
    return command([tools.kcat(), "-b", bootstrap, *words], given=given, code=code, seconds_max=60)


def _produce(bootstrap: str, topic: str, lines: list[str], *words: str) -> None:
    _kcat(bootstrap, "-P", "-t", topic, *words, given="".join(f"{line}\n" for line in lines))


def _consume(bootstrap: str, topic: str, *words: str) -> list[str]:
    return _kcat(bootstrap, "-C", "-q", "-e", "-t", topic, *words).lines


def _make_topic(bootstrap: str, topic: str, partitions: int, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    configs = {key.replace("_", "."): value for key, value in config.items()}
    new = NewTopic(topic, partitions, 1, config=configs)
    for made in admin.create_topics([new]).values():
        made.result(10)


def metadata_lists_brokers_and_topics(bootstrap: str) -> None:
    _make_topic(bootstrap, "listed", 3)
    listing = json.loads(_kcat(bootstrap, "-L", "-J").out)
    assert [broker["name"] for broker in listing["brokers"]] == [bootstrap]
    topic = next(topic for topic in listing["topics"] if topic["topic"] == "listed")
    assert [p["partition"] for p in topic["partitions"]] == [0, 1, 2]
    assert all(p["leader"] == listing["brokers"][0]["id"] for p in topic["partitions"])
    assert listing["controllerid"] == listing["brokers"][0]["id"]


def a_topic_is_made_by_the_first_produce(bootstrap: str) -> None:
    _produce(bootstrap, "made-by-produce", ["one", "two"])
    assert _consume(bootstrap, "made-by-produce") == ["one", "two"]


def keys_and_values_come_back_in_order(bootstrap: str) -> None:
    lines = [f"key-{i % 7}:value-{i}" for i in range(10_000)]
    _produce(bootstrap, "keyed", lines, "-K:")
    assert _consume(bootstrap, "keyed", "-f", "%k:%s\n") == lines


def headers_come_back(bootstrap: str) -> None:
    _produce(bootstrap, "headers", ["body"], "-H", "trace=abc", "-H", "empty=", "-H", "trace=def")
    assert _consume(bootstrap, "headers", "-f", "%h|%s\n") == ["trace=abc,empty=,trace=def|body"]


def null_keys_and_values_come_back_as_null(bootstrap: str) -> None:
    _produce(bootstrap, "nulls", ["k:", ":v"], "-K:", "-Z")
    assert _consume(bootstrap, "nulls", "-f", "%K %S\n") == ["1 -1", "-1 1"]


def _codec_checks() -> list[Callable[[str], None]]:
    def check_of(codec: str) -> Callable[[str], None]:
        def check(bootstrap: str) -> None:
            lines = [f"{codec}-{i}-" + "x" * (i % 200) for i in range(3000)]
            _produce(bootstrap, f"codec-{codec}", lines, "-z", codec)
            assert _consume(bootstrap, f"codec-{codec}") == lines

        check.__name__ = f"{codec}_comes_back"
        return check

    return [check_of(codec) for codec in CODECS]


def every_acks_setting_delivers(bootstrap: str) -> None:
    for acks in ("0", "1", "all"):
        _produce(bootstrap, f"acks-{acks}", [f"{i}" for i in range(500)], "-X", f"acks={acks}")
        deadline = time.monotonic() + 10  # acks=0 is answered by nobody
        while True:
            got = _consume(bootstrap, f"acks-{acks}")
            if len(got) >= 500 or time.monotonic() > deadline:
                break
        assert got == [f"{i}" for i in range(500)], acks


def an_idempotent_producer_delivers_once(bootstrap: str) -> None:
    lines = [f"{i}" for i in range(5000)]
    _produce(bootstrap, "idempotent", lines, "-X", "enable.idempotence=true")
    assert _consume(bootstrap, "idempotent") == lines


def a_large_message_comes_back(bootstrap: str) -> None:
    large = "L" * 900_000
    _produce(bootstrap, "large", [large])
    assert _consume(bootstrap, "large") == [large]


def a_message_over_the_limit_is_refused(bootstrap: str) -> None:
    _make_topic(bootstrap, "over", 1)
    ran = _kcat(
        bootstrap, "-P", "-t", "over", "-X", "message.max.bytes=4000000", given="L" * 2_000_000 + "\n", code=1
    )
    assert "Message size too large" in ran.err, ran.err
    assert _consume(bootstrap, "over") == []


def partitions_are_written_and_read_by_number(bootstrap: str) -> None:
    _make_topic(bootstrap, "numbered", 3)
    for partition in range(3):
        _produce(bootstrap, "numbered", [f"p{partition}-{i}" for i in range(50)], f"-p{partition}")
    for partition in range(3):
        got = _consume(bootstrap, "numbered", f"-p{partition}", "-f", "%p %o %s\n")
        assert got == [f"{partition} {i} p{partition}-{i}" for i in range(50)]


def consuming_starts_at_any_offset(bootstrap: str) -> None:
    _produce(bootstrap, "seek", [f"{i}" for i in range(100)])
    assert _consume(bootstrap, "seek", "-p0", "-o", "90") == [f"{i}" for i in range(90, 100)]
    assert _consume(bootstrap, "seek", "-p0", "-o", "-5") == [f"{i}" for i in range(95, 100)]
    assert _consume(bootstrap, "seek", "-p0", "-o", "10", "-c3") == ["10", "11", "12"]
    assert _consume(bootstrap, "seek", "-p0", "-o", "end") == []


def _produce_with_gap(bootstrap: str, topic: str) -> int:
    """Five records, a pause, five more; a time in the pause, in ms."""
    _produce(bootstrap, topic, [f"old-{i}" for i in range(5)])
    time.sleep(0.2)
    between_ms = time.time_ns() // 1_000_000
    time.sleep(0.2)
    _produce(bootstrap, topic, [f"new-{i}" for i in range(5)])
    return between_ms


def offsets_are_found_by_timestamp(bootstrap: str) -> None:
    between_ms = _produce_with_gap(bootstrap, "timed")
    found = _kcat(bootstrap, "-Q", "-t", f"timed:0:{between_ms}").out
    assert found.split() == ["timed", "[0]", "offset", "5"], found
    found = _kcat(bootstrap, "-Q", "-t", "timed:0:1").out
    assert found.split()[-1] == "0", found
    found = _kcat(bootstrap, "-Q", "-t", f"timed:0:{between_ms + 3_600_000}").out
    assert found.split()[-1] == "-1", found


def consuming_between_timestamps(bootstrap: str) -> None:
    between_ms = _produce_with_gap(bootstrap, "between")
    new = _consume(bootstrap, "between", "-o", f"s@{between_ms}")
    assert new == [f"new-{i}" for i in range(5)]
    old = _consume(bootstrap, "between", "-o", "s@1", "-o", f"e@{between_ms}")
    assert old == [f"old-{i}" for i in range(5)]


def watermarks_are_queried(bootstrap: str) -> None:
    _produce(bootstrap, "marks", ["a", "b", "c"])
    assert _kcat(bootstrap, "-Q", "-t", "marks:0:-2").out.split()[-1] == "0"
    assert _kcat(bootstrap, "-Q", "-t", "marks:0:-1").out.split()[-1] == "3"


def an_unknown_topic_is_an_error(bootstrap: str) -> None:
    ran = _kcat(bootstrap, "-C", "-e", "-t", "nowhere", code=1)
    assert "Unknown topic or partition" in ran.err, ran.err


def a_compacted_topic_keeps_the_latest_of_every_key(bootstrap: str) -> None:
    _make_topic(
        bootstrap,
        "compacted",
        1,
        cleanup_policy="compact",
        max_compaction_lag_ms="500",
        min_cleanable_dirty_ratio="0.01",
        segment_ms="500",
    )
    _produce(bootstrap, "compacted", [f"key-{i % 7}:value-{i}" for i in range(1000)], "-K:")
    _produce(bootstrap, "compacted", ["key-0:"], "-K:", "-Z")
    latest = [f"{i} key-{i % 7} value-{i}" for i in range(993, 1000) if i % 7]
    latest.append("1000 key-0 NULL")
    deadline = time.monotonic() + 20
    while (got := _consume(bootstrap, "compacted", "-Z", "-f", "%o %k %s\n")) != latest:
        assert time.monotonic() < deadline, f"{len(got)} messages, from {got[:1]} to {got[-1:]}"
        time.sleep(0.2)
    assert _kcat(bootstrap, "-Q", "-t", "compacted:0:-1").out.split()[-1] == "1001"


def a_compacted_topic_takes_no_message_without_a_key(bootstrap: str) -> None:
    _make_topic(bootstrap, "keyless", 1, cleanup_policy="compact,delete")
    ran = _kcat(bootstrap, "-P", "-t", "keyless", given="no key\n", code=1)
    assert "failed to validate record" in ran.err, ran.err
    assert _consume(bootstrap, "keyless") == []


def _group(bootstrap: str, group: str, topic: str, count: int) -> list[str]:
    """Consume exactly `count` records as the group's only member."""
    return _kcat(bootstrap, "-q", "-X", "auto.offset.reset=earliest", f"-c{count}", "-G", group, topic).lines


def a_group_resumes_where_it_stopped(bootstrap: str) -> None:
    _produce(bootstrap, "resumed", [f"{i}" for i in range(100)])
    assert _group(bootstrap, "g-resumed", "resumed", 40) == [f"{i}" for i in range(40)]
    assert _group(bootstrap, "g-resumed", "resumed", 60) == [f"{i}" for i in range(40, 100)]
    _produce(bootstrap, "resumed", ["100", "101"])
    assert _group(bootstrap, "g-resumed", "resumed", 2) == ["100", "101"]
    assert _group(bootstrap, "g-other", "resumed", 102) == [f"{i}" for i in range(102)]


class _Member:
    """A kcat that consumes in a group until it is told to end."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.process = subprocess.Popen(
            [
                tools.kcat(),
                "-b",
                bootstrap,
                "-u",
                "-X",
                "auto.offset.reset=earliest",
                "-X",
                "session.timeout.ms=6000",
                "-X",
                "heartbeat.interval.ms=500",
                "-f",
                "%p %s\n",
                "-G",
                group,
                topic,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.read: list[str] = []

    def wait_until_assigned(self, partitions: int, seconds_max: float = 20.0) -> None:
        """Read standard error until the member says that it was given so many partitions."""
        assert self.process.stderr is not None
        deadline = time.monotonic() + seconds_max
        for line in self.process.stderr:
            if "assigned" in line and line.count("[") == partitions:
                return
            assert time.monotonic() < deadline, line
        raise AssertionError("kcat ended before it was assigned")

    def wait_until_read(self, count: int) -> None:
        """Read standard output until the member has printed so many records."""
        assert self.process.stdout is not None
        while len(self.read) < count:
            line = self.process.stdout.readline()
            assert line, "kcat ended before it had read everything"
            self.read.append(line.rstrip("\n"))

    def finish(self) -> list[str]:
        self.process.terminate()
        out, _ = self.process.communicate(timeout=20)
        return [*self.read, *out.splitlines()]


def two_group_members_share_the_partitions(bootstrap: str) -> None:
    _make_topic(bootstrap, "shared", 4)
    first = _Member(bootstrap, "g-shared", "shared")
    second = _Member(bootstrap, "g-shared", "shared")
    try:
        first.wait_until_assigned(2)
        second.wait_until_assigned(2)
        for partition in range(4):
            lines = [f"{partition}-{i}" for i in range(250)]
            _produce(bootstrap, "shared", lines, f"-p{partition}")
        first.wait_until_read(500)
        second.wait_until_read(500)
    finally:
        got = [first.finish(), second.finish()]
    assert sorted(got[0] + got[1]) == sorted(f"{p} {p}-{i}" for p in range(4) for i in range(250))
    assert [len({line.split()[0] for line in lines}) for lines in got] == [2, 2]


def a_group_member_that_is_killed_is_replaced(bootstrap: str) -> None:
    _make_topic(bootstrap, "orphaned", 2)
    doomed = _Member(bootstrap, "g-orphaned", "orphaned")
    doomed.wait_until_assigned(2)
    doomed.process.kill()
    doomed.process.communicate()
    _produce(bootstrap, "orphaned", ["a", "b"], "-p0")
    heir = _Member(bootstrap, "g-orphaned", "orphaned")
    try:
        heir.wait_until_assigned(2)
        heir.wait_until_read(2)
    finally:
        got = heir.finish()
    assert got == ["0 a", "0 b"]
