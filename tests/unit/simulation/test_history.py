"""Each anomaly is found in the smallest history that has it, and not in the nearest that has not.

Then the same in the large: a correct log has none, and one that is planted in it is found.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tidelog.simulation import history_check as checker
from tidelog.simulation.history import History, Operation, Poll, Read, Send, dump, load
from tidelog.simulation.history_check import Anomaly, check

ORDERS, RETURNS = "orders-0", "returns-0"


def rules(anomalies: list[Anomaly]) -> set[str]:
    return {anomaly.rule for anomaly in anomalies}


def send(
    history: History, *values: bytes, at: int | None, process: str = "producer", to: str = ORDERS
) -> None:
    history.begin_send(process, to, values).ok(at)


def poll(history: History, *records: tuple[int, bytes], process: str = "consumer") -> None:
    history.begin_poll(process).ok([(ORDERS, offset, value) for offset, value in records])


def of_three() -> History:
    """Acknowledged and nothing more: a, b and c at 0, 1 and 2."""
    history = History()
    for offset, value in enumerate((b"a", b"b", b"c")):
        send(history, value, at=offset)
    return history


ALL_THREE = ((0, b"a"), (1, b"b"), (2, b"c"))


# What is where.


def test_a_history_without_faults_has_no_anomaly():
    history = of_three()
    poll(history, *ALL_THREE)

    assert check(history, final_reads=["consumer"]) == []


def test_an_empty_history_has_no_anomaly():
    assert check(History()) == []


@pytest.mark.parametrize(("read", "expected"), [(b"a", set()), (b"b", {"inconsistent offsets"})])
def test_an_offset_that_was_read_with_two_values_is_found(read, expected):
    history = History()
    history.begin_send("one", ORDERS, [b"a"]).info()
    history.begin_send("two", ORDERS, [b"b"]).info()
    poll(history, (0, b"a"), process="left")
    poll(history, (0, read), process="right")

    assert rules(check(history)) == expected


@pytest.mark.parametrize(("at", "expected"), [(1, set()), (0, {"inconsistent offsets"})])
def test_an_offset_that_was_acknowledged_to_two_is_found(at, expected):
    history = History()
    one = history.begin_send("one", ORDERS, [b"a"])
    two = history.begin_send("two", ORDERS, [b"b"])
    one.ok(0)
    two.ok(at)

    assert rules(check(history)) == expected


def test_an_offset_that_was_acknowledged_and_then_read_with_another_value_is_found():
    history = of_three()
    history.begin_send("other", ORDERS, [b"x"]).info()
    poll(history, (0, b"a"), (1, b"x"), (2, b"c"))

    (inconsistent,) = [a for a in check(history) if a.rule == checker.INCONSISTENT_OFFSETS]

    assert inconsistent.partition == ORDERS
    assert "1 holds" in inconsistent.facts
    assert any("producer" in line for line in inconsistent.evidence)
    assert any("consumer" in line and "read at 1" in line for line in inconsistent.evidence)


@pytest.mark.parametrize(("second", "expected"), [(b"b", set()), (b"a", {"duplicate"})])
def test_a_value_that_was_read_at_two_offsets_is_found(second, expected):
    history = History()
    history.begin_send("producer", ORDERS, [b"a"]).info()
    history.begin_send("producer", ORDERS, [b"b"]).info()
    poll(history, (0, b"a"), (1, second))

    assert rules(check(history)) == expected


@pytest.mark.parametrize(("offset", "expected"), [(0, set()), (1, {"duplicate"})])
def test_a_value_that_was_not_read_where_it_was_acknowledged_is_found(offset, expected):
    history = History()
    send(history, b"a", at=0)
    poll(history, (offset, b"a"))

    assert rules(check(history)) == expected


def test_the_same_value_in_two_partitions_is_no_duplicate():
    history = History()
    send(history, b"a", at=0)
    send(history, b"a", at=5, to=RETURNS)

    assert check(history) == []


@pytest.mark.parametrize(("outcome", "expected"), [("info", set()), ("fail", {"aborted read"})])
def test_what_failed_and_was_read_is_found(outcome, expected):
    history = History()
    sending = history.begin_send("producer", ORDERS, [b"a"])
    sending.fail() if outcome == "fail" else sending.info()
    poll(history, (0, b"a"))

    assert rules(check(history)) == expected


@pytest.mark.parametrize(("value", "expected"), [(b"a", set()), (b"rot", {"phantom read"})])
def test_what_was_read_and_sent_by_nobody_is_found(value, expected):
    history = History()
    history.begin_send("producer", ORDERS, [b"a"]).info()
    poll(history, (0, value))

    assert rules(check(history)) == expected


@pytest.mark.parametrize(
    ("offsets", "expected"), [((0, 1, 2), set()), ((0, 1), set()), ((1, 2), {"lost write"})]
)
def test_what_is_acknowledged_below_the_highest_read_and_read_by_nobody_is_found(offsets, expected):
    history = of_three()
    poll(history, *(ALL_THREE[offset] for offset in offsets))

    assert rules(check(history)) == expected


def test_what_is_lost_is_not_missed_below_the_start_of_the_log():
    history = of_three()
    poll(history, *ALL_THREE[1:], process="consumer")

    assert check(history, log_starts={ORDERS: 1}, final_reads=["consumer"]) == []


def test_a_batch_of_which_nobody_heard_again_is_committed_once_any_of_it_is_read():
    history = History()
    history.begin_send("producer", ORDERS, [b"a", b"b", b"c"]).info()
    poll(history, (7, b"a"), (9, b"c"))

    assert rules(check(history)) == {checker.LOST_WRITE, checker.SKIPPING_POLL}


def test_a_batch_of_which_nobody_heard_again_may_be_gone():
    history = History()
    history.begin_send("producer", ORDERS, [b"a", b"b"]).info()
    history.begin_send("producer", ORDERS, [b"c", b"d"])  # and never told how it ended
    send(history, b"e", at=0)
    poll(history, (0, b"e"))

    assert check(history, final_reads=["consumer"]) == []


def test_what_was_never_told_how_it_ended_may_be_there():
    history = History()
    history.begin_send("producer", ORDERS, [b"a"])
    poll(history, (0, b"a"))

    assert check(history) == []


@pytest.mark.parametrize(("count", "expected"), [(3, set()), (2, {"unseen"})])
def test_what_is_acknowledged_and_not_seen_after_healing_is_found(count, expected):
    history = of_three()
    poll(history, *ALL_THREE[:count], process="reader")

    assert rules(check(history, final_reads=["reader"])) == expected
    assert check(history) == []


def test_after_healing_everyone_sees_everything():
    history = of_three()
    poll(history, *ALL_THREE, process="left")
    poll(history, *ALL_THREE[:2], process="right")

    (unseen,) = check(history, final_reads=["left", "right"])

    assert unseen.rule == checker.UNSEEN
    assert "b'c' at 2" in unseen.facts
    assert "right" in unseen.facts


def test_what_was_acknowledged_without_an_offset_has_to_be_seen_too():
    history = History()
    send(history, b"a", at=None)
    poll(history, process="reader")

    assert rules(check(history, final_reads=["reader"])) == {checker.UNSEEN}


# The order in which one process reads.


@pytest.mark.parametrize(
    ("polls", "expected"),
    [
        ([(0, 1, 2)], set()),
        ([(0, 2)], {"skipping poll"}),
        ([(0,), (1,), (2,)], set()),
        ([(0,), (2,)], {"skipping poll"}),
        ([(0, 2, 1)], {"skipping poll", "non-monotonic poll"}),
        ([(0, 1, 1, 2)], {"non-monotonic poll"}),
        ([(0, 1), (1, 2)], {"non-monotonic poll"}),
        ([(1, 2)], set()),
    ],
)
def test_a_process_reads_everything_once_and_in_order(polls, expected):
    history = of_three()
    poll(history, *ALL_THREE, process="another")
    for offsets in polls:
        poll(history, *(ALL_THREE[offset] for offset in offsets))

    assert rules(check(history)) == expected


@pytest.mark.parametrize(
    ("assigned", "expected"),
    [
        ([[ORDERS]], {"non-monotonic poll"}),
        ([[ORDERS, RETURNS]], {"non-monotonic poll"}),
        ([[RETURNS], [ORDERS]], set()),
        ([[], [ORDERS]], set()),
    ],
)
def test_a_process_keeps_its_place_only_while_the_partition_stays_assigned(assigned, expected):
    history = of_three()
    poll(history, *ALL_THREE)
    for partitions in assigned:
        history.begin_assign("consumer", partitions).ok()
    poll(history, *ALL_THREE)

    assert rules(check(history)) == expected


@pytest.mark.parametrize(("outcome", "expected"), [("info", set()), ("fail", {"skipping poll"})])
def test_an_assignment_that_failed_changes_nothing_and_one_in_doubt_may(outcome, expected):
    history = of_three()
    poll(history, *ALL_THREE, process="another")
    poll(history, ALL_THREE[0])
    assigning = history.begin_assign("consumer", [])
    assigning.fail() if outcome == "fail" else assigning.info()
    poll(history, ALL_THREE[2])

    assert rules(check(history)) == expected


def test_a_gap_in_which_nothing_is_committed_is_no_skip():
    history = History()
    history.begin_send("another", ORDERS, [b"b"]).fail()
    send(history, b"a", at=0)
    send(history, b"c", at=5)
    poll(history, (0, b"a"), (5, b"c"))

    assert check(history) == []


def test_a_poll_may_pass_over_what_was_retired():
    history = of_three()
    poll(history, *ALL_THREE, process="another")
    poll(history, ALL_THREE[0])
    poll(history, ALL_THREE[2])

    assert rules(check(history, log_starts={ORDERS: 1})) == {checker.SKIPPING_POLL}
    assert check(history, log_starts={ORDERS: 2}) == []


# The order in which offsets are given out.


@pytest.mark.parametrize(("offsets", "expected"), [((0, 1), set()), ((1, 0), {"non-monotonic send"})])
def test_what_a_process_sends_later_lies_later(offsets, expected):
    history = History()
    first = history.begin_send("producer", ORDERS, [b"a"])
    second = history.begin_send("producer", ORDERS, [b"b"])
    first.ok(offsets[0])
    second.ok(offsets[1])

    assert rules(check(history)) == expected


def test_what_two_processes_send_at_once_may_lie_in_either_order():
    history = History()
    first = history.begin_send("one", ORDERS, [b"a"])
    second = history.begin_send("two", ORDERS, [b"b"])
    first.ok(1)
    second.ok(0)

    assert check(history) == []


@pytest.mark.parametrize(("offset", "expected"), [(7, set()), (4, {"acknowledged offset is stale"})])
def test_an_offset_below_one_that_was_acknowledged_before_is_found(offset, expected):
    history = History()
    send(history, b"a", b"b", at=5, process="one")
    send(history, b"c", at=offset, process="two")

    assert rules(check(history)) == expected


def test_the_whole_batch_was_acknowledged_before():
    history = History()
    history.begin_send("one", ORDERS, [b"a", b"b"]).ok(5)
    history.begin_send("two", ORDERS, [b"c"]).info()
    poll(history, (5, b"a"), (6, b"c"))

    assert checker.STALE_OFFSET in rules(check(history))


@pytest.mark.parametrize(("offset", "expected"), [(8, set()), (9, set()), (7, {"group offset regressed"})])
def test_a_committed_offset_that_falls_is_found(offset, expected):
    history = History()
    history.begin_commit("one", "readers", {ORDERS: 8}).ok()
    history.begin_commit("two", "readers").ok({ORDERS: offset})

    assert rules(check(history)) == expected


def test_a_committed_offset_that_vanishes_is_found():
    history = History()
    history.begin_commit("one", "readers", {ORDERS: 0}).ok()
    history.begin_commit("two", "readers").ok({ORDERS: -1})

    (anomaly,) = check(history)

    assert anomaly.rule == checker.GROUP_REGRESSED
    assert anomaly.partition == ORDERS


def test_offsets_committed_at_once_by_other_groups_or_in_doubt_do_not_count():
    history = History()
    slow = history.begin_commit("one", "readers", {ORDERS: 5})
    history.begin_commit("two", "readers", {ORDERS: 8}).ok()
    slow.ok()
    history.begin_commit("three", "others", {ORDERS: 1}).ok()
    history.begin_commit("one", "readers", {ORDERS: 99}).info()
    history.begin_commit("two", "readers").ok({ORDERS: 8})

    assert check(history) == []


# Transactions.


def transact(history: History, process: str, *, reads: Iterable[bytes], writes: Iterable[bytes]) -> None:
    """A value is its own offset, and its partition is its own."""
    txn = history.begin_txn(process)
    txn.poll([(value.decode(), 0, value) for value in reads])
    for value in writes:
        txn.send(value.decode(), [value], 0)
    txn.ok()


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        ({"one": [], "two": [b"a"], "three": [b"b"]}, set()),
        ({"one": [b"c"], "two": [b"a"], "three": [b"b"]}, {"write-read cycle"}),
        ({"one": [b"b"], "two": [b"a"], "three": []}, {"write-read cycle"}),
        ({"one": [b"a"], "two": [], "three": []}, {"write-read cycle"}),
    ],
)
def test_transactions_that_read_each_other_in_a_circle_are_found(reads, expected):
    history = History()
    for process, value in (("one", b"a"), ("two", b"b"), ("three", b"c")):
        transact(history, process, reads=reads[process], writes=[value])

    assert rules(check(history)) == expected


def test_a_cycle_is_told_from_beginning_to_end():
    history = History()
    transact(history, "one", reads=[b"b"], writes=[b"a"])
    transact(history, "two", reads=[b"a"], writes=[b"b"])

    (cycle,) = check(history)

    assert cycle.facts.count("txn of one") + cycle.facts.count("txn of two") == 3
    assert "b'a'" in cycle.facts
    assert "b'b'" in cycle.facts


def test_a_long_chain_of_transactions_is_no_cycle():
    history = History()
    for number in range(5_000):
        before = [] if number == 0 else [b"%d" % (number - 1)]
        transact(history, "one", reads=before, writes=[b"%d" % number])

    assert check(history) == []


@pytest.mark.parametrize(("offsets", "expected"), [((0, 1), set()), ((1, 0), {"non-monotonic send"})])
def test_what_a_transaction_sends_later_lies_later(offsets, expected):
    history = History()
    txn = history.begin_txn("one")
    for value, offset in zip((b"a", b"b"), offsets, strict=True):
        txn.send(ORDERS, [value], offset)
    txn.ok()

    assert rules(check(history)) == expected


def test_what_an_aborted_transaction_wrote_must_not_be_read():
    history = History()
    txn = history.begin_txn("one")
    txn.send(ORDERS, [b"a"], 0)
    txn.fail()
    poll(history, (0, b"a"))

    assert rules(check(history)) == {checker.ABORTED_READ}


def test_a_transaction_in_doubt_is_committed_in_every_partition_or_in_none():
    history = History()
    txn = history.begin_txn("one")
    txn.send(ORDERS, [b"a"], 0)
    txn.send(RETURNS, [b"b"], 0)
    txn.info()
    assert check(history, final_reads=["reader"]) == []

    poll(history, (0, b"a"), process="reader")

    (unseen,) = check(history, final_reads=["reader"])
    assert unseen.rule == checker.UNSEEN
    assert unseen.partition == RETURNS


def test_what_an_aborted_transaction_polled_is_polled_again():
    history = of_three()
    poll(history, ALL_THREE[0])
    txn = history.begin_txn("consumer")
    txn.poll([(ORDERS, *record) for record in ALL_THREE[1:]])
    txn.fail()
    poll(history, *ALL_THREE)

    assert check(history) == []


# The copies.

SAME = [(0, b"first"), (5, b"second"), (9, b"third")]


@pytest.mark.parametrize(
    ("copy", "fact"),
    [
        (SAME, None),
        ([*SAME, (12, b"not yet committed")], None),
        ([*SAME[:2], (9, b"above the watermark")], None),
        ([SAME[0], (5, b"secant")], "the batch at 5 parts at byte 3"),
        ([SAME[0], (5, b"seconds")], "the batch at 5 parts at byte 6"),
        ([SAME[0]], "node 1 goes on with 5, node 2 with nothing"),
        ([SAME[1]], "node 1 goes on with 0, node 2 with 5"),
        ([], "node 1 goes on with 0, node 2 with nothing"),
        ([SAME[0], *SAME], "node 1 goes on with 5, node 2 with 0"),
    ],
)
def test_copies_are_the_same_bytes_below_the_watermark(copy, fact):
    replicas = {ORDERS: {1: SAME, 2: copy, 3: SAME}}

    anomalies = check(History(), replicas=replicas, watermarks={ORDERS: 9})

    assert rules(anomalies) == (set() if fact is None else {checker.REPLICAS_DIFFER})
    assert fact is None or fact in anomalies[0].facts


def test_copies_are_the_same_to_the_end_without_a_watermark():
    replicas = {ORDERS: {1: SAME, 2: SAME[:2]}}

    assert rules(check(History(), replicas=replicas)) == {checker.REPLICAS_DIFFER}


def test_copies_may_begin_anywhere_below_the_start_of_the_log():
    replicas = {ORDERS: {1: SAME, 2: SAME[1:]}}

    assert check(History(), replicas=replicas, log_starts={ORDERS: 5}) == []


# The recorder and the report.


def test_an_operation_is_over_only_once():
    history = History()
    sending = history.begin_send("producer", ORDERS, [b"a"])
    sending.ok(0)

    with pytest.raises(AssertionError):
        sending.info()


def test_a_workload_that_sends_a_value_twice_is_refused():
    history = History()
    history.begin_send("producer", ORDERS, [b"a"]).info()
    send(history, b"a", at=0)

    with pytest.raises(ValueError, match="b'a' was sent twice"):
        check(history)


def test_histories_with_one_clock_are_checked_together():
    now = iter(range(100)).__next__
    producers, consumers = History(now), History(now)
    send(producers, b"a", at=5, process="one")
    send(producers, b"b", at=4, process="two")
    poll(consumers, (4, b"b"), (5, b"a"))
    together = History()

    together.extend(consumers)
    together.extend(producers)

    assert rules(check(together)) == {checker.STALE_OFFSET}


def test_a_disaster_is_counted_and_not_listed():
    history = History()
    for number in range(1000):
        history.begin_send("producer", ORDERS, [b"%d" % number]).fail()
    poll(history, *((number, b"%d" % number) for number in range(1000)))

    anomalies = check(history)

    assert len(anomalies) == 21
    assert anomalies[-1].facts == "and 980 more"


def test_an_anomaly_tells_who_said_what_and_when():
    history = of_three()
    poll(history, *ALL_THREE[1:])

    (lost,) = check(history)

    assert str(lost) == (
        "lost write: orders-0: b'a' at 0, below 2, were read by nobody\n"
        "    b'a', at 0: send of producer (ok, 0..1)"
    )


def test_a_history_is_the_same_after_it_was_kept():
    history = of_three()
    history.begin_send("producer", ORDERS, [bytes(range(256)), b"\n"]).info()
    history.begin_assign("consumer", [ORDERS, RETURNS]).ok()
    poll(history, *ALL_THREE)
    poll(history, (5, b"e"), (4, b"d"))
    history.begin_poll("consumer").fail()
    history.begin_commit("consumer", "readers", {ORDERS: 3}).ok()
    txn = history.begin_txn("two")
    txn.send(RETURNS, [b"x"], 0)
    txn.poll([(ORDERS, 0, b"a")])
    txn.info()
    history.begin_send("producer", ORDERS, [b"pending"])

    lines = list(dump(history))

    assert all(line.count("\n") == 1 and line.endswith("\n") for line in lines)
    assert list(load(lines)) == list(history)
    assert check(load(lines)) == check(history)


# In the large.

PARTITIONS = ("a", "b")


def record_a_correct_log(random: Random, steps: int) -> History:
    """Three producers and two consumers of a log that does nothing wrong, and loses answers."""
    history = History()
    logs: dict[str, dict[int, bytes]] = {name: {} for name in PARTITIONS}
    ends = dict.fromkeys(PARTITIONS, 0)
    begun: dict[str, tuple] = {}
    lingering: list[tuple[str, list[bytes]]] = []
    positions: dict[str, dict[str, int]] = {f"consumer-{n}": {} for n in range(2)}
    group = dict.fromkeys(PARTITIONS, 0)
    values = 0

    def append(partition: str, batch: list[bytes]) -> int:
        base = ends[partition] + (random.random() < 0.2)  # a marker takes an offset
        logs[partition].update(enumerate(batch, base))
        ends[partition] = base + len(batch)
        return base

    def read(partition: str, position: int, end: int) -> list[tuple[str, int, bytes]]:
        log = logs[partition]
        return [(partition, offset, log[offset]) for offset in range(position, end) if offset in log]

    for _ in range(steps):
        producer = f"producer-{random.randrange(3)}"
        consumer = f"consumer-{random.randrange(2)}"
        partition = random.choice(PARTITIONS)
        match random.choice(["send", "send", "late", "poll", "poll", "assign", "commit"]):
            case "send" if producer not in begun:
                batch = [b"%d" % (values + n) for n in range(random.randint(1, 3))]
                values += len(batch)
                begun[producer] = (history.begin_send(producer, partition, batch), partition, batch)
            case "send":
                sending, partition, batch = begun.pop(producer)
                match random.choice(["ok", "ok", "unknown", "lost", "late", "fail"]):
                    case "ok":
                        sending.ok(append(partition, batch))
                    case "unknown":
                        append(partition, batch)
                        sending.ok(None)
                    case "lost":
                        append(partition, batch)
                        sending.info()
                    case "late":
                        sending.info()
                        lingering.append((partition, batch))
                    case "fail":
                        sending.fail()
            case "late" if lingering:
                append(*lingering.pop(0))
            case "poll":
                polling = history.begin_poll(consumer)
                records = []
                for name, position in positions[consumer].items():
                    end = random.randint(position, max(position, ends[name]))
                    records += read(name, position, end)
                    positions[consumer][name] = end
                polling.ok(records)
            case "assign":
                assigned = [name for name in PARTITIONS if random.random() < 0.7]
                old = positions[consumer]
                positions[consumer] = {name: old.get(name, 0) for name in assigned}
                history.begin_assign(consumer, assigned).ok()
            case "commit":
                group[partition] = random.randint(group[partition], ends[partition])
                history.begin_commit(consumer, "readers", group).ok()
    for name in PARTITIONS:
        for position in range(0, ends[name], 4):
            records = read(name, position, min(position + 4, ends[name]))
            history.begin_poll("reader").ok(records)
    return history


def ok_sends(operations: list[Operation]) -> list[Send]:
    """Acknowledged with an offset, lowest first, of one partition."""
    sends = [o for o in operations if isinstance(o, Send) and o.type == "ok"]
    assume(sends)
    partition = sends[0].partition
    found = [s for s in sends if s.partition == partition and s.offset is not None]
    return sorted(found, key=lambda send: send.offset or 0)


def without(operations: list[Operation], partition: str, value: bytes, process: str = ""):
    """As if the polls (of one process) had not returned a value."""

    def strip(read: Read) -> Read:
        if read.partition != partition:
            return read
        pairs = [p for p in zip(read.offsets, read.values, strict=True) if p[1] != value]
        return replace(read, offsets=tuple(offset for offset, _ in pairs), values=tuple(v for _, v in pairs))

    for operation in operations:
        if isinstance(operation, Poll) and process in ("", operation.process):
            yield replace(operation, reads=tuple(strip(read) for read in operation.reads))
        else:
            yield operation


def later(operations: list[Operation], add: Callable[[History], None]) -> list[Operation]:
    history = History(iter(range(10**6, 10**7)).__next__)
    history.extend(operations)
    add(history)
    return list(history)


def plant(rule: str, operations: list[Operation], random: Random) -> list[Operation]:
    sends = ok_sends(operations)
    assume(len(sends) >= 3)
    low, middle, high = (sends[n] for n in sorted(random.sample(range(len(sends)), 3)))
    partition, low_offset, high_offset = low.partition, low.offset or 0, high.offset or 0
    match rule:
        case checker.INCONSISTENT_OFFSETS:
            return [replace(o, offset=high_offset) if o is low else o for o in operations]
        case checker.DUPLICATE:
            record = (partition, high_offset + 10**6, low.values[0])
            return later(operations, lambda h: h.begin_poll("another").ok([record]))
        case checker.ABORTED_READ:
            return [replace(o, type="fail", offset=None) if o is low else o for o in operations]
        case checker.PHANTOM_READ:
            record = (partition, low_offset, b"rot")
            return later(operations, lambda h: h.begin_poll("another").ok([record]))
        case checker.LOST_WRITE:
            return list(without(operations, partition, middle.values[0]))
        case checker.UNSEEN:
            return list(without(operations, partition, high.values[-1], "reader"))
        case checker.SKIPPING_POLL:
            return list(without(operations, partition, middle.values[0], "reader"))
        case checker.NON_MONOTONIC_POLL:
            record = (partition, low_offset, low.values[0])
            return later(operations, lambda h: h.begin_poll("reader").ok([record]))
        case checker.NON_MONOTONIC_SEND | checker.STALE_OFFSET:
            moved = replace(low, process=high.process, invoked=10**6, completed=10**6 + 1)
            return [moved if o is low else o for o in operations]
        case checker.GROUP_REGRESSED:
            below = random.randrange(high_offset)

            def regress(history: History) -> None:
                for offset in (high_offset, below):
                    history.begin_commit("one", "another", {partition: offset}).ok()

            return later(operations, regress)
    raise AssertionError(rule)


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(0, 100))
def test_a_correct_log_has_no_anomaly(random, steps):
    history = record_a_correct_log(random, steps)

    assert check(history, final_reads=["reader"]) == []
    assert list(load(dump(history))) == list(history)


@pytest.mark.parametrize(
    "rule",
    [
        checker.INCONSISTENT_OFFSETS,
        checker.DUPLICATE,
        checker.ABORTED_READ,
        checker.PHANTOM_READ,
        checker.LOST_WRITE,
        checker.UNSEEN,
        checker.SKIPPING_POLL,
        checker.NON_MONOTONIC_POLL,
        checker.NON_MONOTONIC_SEND,
        checker.STALE_OFFSET,
        checker.GROUP_REGRESSED,
    ],
)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_an_anomaly_that_is_planted_in_a_correct_log_is_found(rule, seed):
    random = Random(seed)
    operations = list(record_a_correct_log(random, steps=200))

    planted = plant(rule, operations, random)

    assert rule in rules(check(planted, final_reads=["reader"]))
