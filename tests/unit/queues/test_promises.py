"""What queues promise, whatever happens on the way: each of these was broken once."""

import pytest

from tests.unit.queues.desk import WAITS, Desk, receipts
from tidelog.errors import (
    BrokerError,
    CoordinatorLoadInProgress,
    IdempotencyKeyReused,
    OutcomeUnknown,
    QueueFull,
    StorageError,
    UnknownQueue,
)
from tidelog.queues.events import (
    Declared,
    Dropped,
    Given,
    Published,
    Reached,
    Received,
    Remembered,
    Request,
    Settled,
    Swept,
)
from tidelog.queues.limits import DELETED_MAX, SWEPT_MAX, Limits
from tidelog.queues.message import DEAD, MAIN
from tidelog.queues.records import About
from tidelog.queues.requests import Requests
from tidelog.simulation.queue_watch import compacted, picture

KEYED = About(key="k")


def left_in(log):
    """What compaction leaves of a log, but for the sequences that messages have had."""
    return [one for one in compacted(log, tombstones=False) if one.key != b"S"]


# Declarations and deletions.


def test_a_queue_that_is_declared_again_keeps_its_messages_over_compaction():
    desk = Desk()
    desk.declare()
    desk.publish(b"1", b"2", b"3")
    desk.declare(visibility_ms=5)

    desk = desk.compact_and_fail_over()

    assert desk.counts() == {"ready": 3}
    assert desk.shard.work_queue("q").settings.visibility_ms == 5


def test_a_queue_that_is_made_anew_has_nothing_of_the_one_before():
    desk = Desk()
    desk.declare()
    desk.publish(b"old")
    desk.holds = True
    desk.publish(b"on its way")
    desk.drop()
    desk.store()  # and the deletion of what was in it is on its way
    lost = desk.log
    desk = Desk(log=compacted(lost), now=desk.now)
    desk.declare()
    desk.publish(b"new")

    for log in (desk.log, compacted(desk.log), compacted(desk.log, tombstones=False)):
        after = desk.fail_over(log)
        assert after.counts() == {"ready": 1}
        assert not any(record.value == b"on its way" for record in compacted(after.log))


def test_a_deletion_ends_what_is_on_its_way():
    desk = Desk()
    desk.declare()
    desk.publish(b"1", b"2")
    desk.holds = True
    desk.publish(b"3")
    desk.receive()
    desk.drop()
    desk.holds = False
    desk.store()

    assert left_in(desk.log) == [], "nothing of the queue is left in the log"
    assert isinstance(desk.publish(b"4"), UnknownQueue)


def test_a_queue_that_is_being_deleted_begins_nothing():
    desk = Desk()
    desk.declare(visibility_ms=100, max_deliveries=1)
    desk.publish(b"1")
    desk.receive()
    desk.holds = True
    desk.drop()
    writes = len(desk.in_flight)

    desk.pass_time(10)

    assert isinstance(desk.publish(b"2"), CoordinatorLoadInProgress)
    assert isinstance(desk.declare(), CoordinatorLoadInProgress)
    assert len(desk.in_flight) == writes


def test_a_queue_whose_deletion_fails_goes_on():
    desk = Desk()
    desk.declare()
    desk.publish(b"1")
    desk.holds = True
    desk.receive(lane=DEAD, wait=5)
    waiter = desk.last
    desk.drop()
    desk.fail(StorageError("no"))
    desk.holds = False

    assert desk.answers[waiter] is WAITS
    assert len(desk.receive().given) == 1


def test_a_deletion_tells_those_who_wait_and_disturbs_no_other_queue():
    desk = Desk()
    desk.declare("a", visibility_ms=500, max_deliveries=1)
    desk.declare("b", visibility_ms=500, max_deliveries=1)
    desk.publish(b"x", name="b")
    desk.receive(name="b")
    desk.receive(name="a", wait=0.5, key="once")
    waiter = desk.last

    desk.drop("a")
    desk.pass_time(1)

    assert isinstance(desk.answers[waiter], UnknownQueue)
    assert desk.counts(DEAD, "b") == {"ready": 1}
    desk.declare("a")
    desk.publish(b"x", name="a")
    assert len(desk.receive(name="a", key="once").given) == 1


def test_a_queue_of_any_size_is_deleted_piece_by_piece_also_by_another_leader():
    desk = Desk()
    desk.declare(messages_max=10_000)
    desk.publish(*[b"1"] * (3 * DELETED_MAX))
    desk.receive(100)
    desk.holds = True

    assert desk.drop() is WAITS
    desk.store()
    desk.store()
    first = desk.log
    desk = Desk(log=compacted(first), now=desk.now)

    assert left_in(desk.log) == []


def dropped_with_its_message_left() -> Desk:
    """A queue is deleted, and the deletion of what was in it has failed."""
    desk = Desk()
    desk.declare()
    desk.publish(b"old")
    desk.holds = True
    desk.drop()
    desk.store()
    desk.fail(StorageError("the disk was full"))
    desk.holds = False
    return desk


def test_what_is_left_of_a_deleted_queue_is_not_its_successor_s():
    desk = dropped_with_its_message_left()
    desk.declare()
    desk.publish(b"new")

    for log in (desk.log, compacted(desk.log), compacted(desk.log, tombstones=False)):
        assert desk.fail_over(log).counts() == {"ready": 1}


def test_what_is_left_of_a_deleted_queue_is_deleted_in_the_end():
    desk = dropped_with_its_message_left()

    desk.pass_time(2)

    assert left_in(desk.log) == []


def test_two_declarations_on_their_way_make_one_queue():
    desk = Desk()
    desk.holds = True
    desk.declare()
    desk.declare()
    first, second = list(desk.answers)
    desk.store()
    desk.holds = False
    desk.publish(b"1")

    assert desk.answers[first] == Declared(True)
    assert desk.answers[second] == Declared(False)
    assert desk.compact_and_fail_over().counts() == {"ready": 1}


def test_the_order_is_not_changed_under_messages_that_are_on_their_way():
    desk = Desk()
    desk.declare(is_ordered=True)
    desk.holds = True
    desk.publish(b"A", b"B", about=KEYED)

    assert isinstance(desk.declare(is_ordered=False), QueueFull)

    desk.holds = False
    desk.store()
    desk.settle("ack", *receipts(desk.receive()))
    assert len(desk.receive().given) == 1


def test_the_order_is_not_changed_back_under_messages_that_are_on_their_way():
    desk = Desk()
    desk.declare()
    desk.holds = True
    desk.declare(is_ordered=True)
    desk.publish(b"A", b"B", about=KEYED)

    assert isinstance(desk.declare(is_ordered=False), QueueFull)


# Requests that come again.


def test_a_publish_is_known_again_after_its_messages_are_done_and_compacted_away():
    desk = Desk()
    desk.declare()
    first = desk.publish(b"pay", key="p")
    desk.settle("ack", *receipts(desk.receive()))

    desk = desk.compact_and_fail_over()

    assert desk.publish(b"pay", key="p") == first
    assert desk.receive() == Received()


def test_a_request_is_forgotten_when_its_time_is_over_and_the_log_forgets_it_too():
    desk = Desk(limits=Limits(request_window_ms=60_000))
    desk.declare()
    first = desk.publish(b"pay", key="p")
    desk.pass_time(59)
    assert desk.publish(b"pay", key="p") == first

    desk.pass_time(10)

    assert not desk.shard.books.requests.known
    kept = [(record.key or b"")[:1] for record in compacted(desk.log) if record.value is not None]
    assert b"R" not in kept
    assert desk.publish(b"pay", key="p") != first


def test_a_deletion_that_is_repeated_leaves_the_successor_alone():
    desk = Desk()
    desk.declare()
    assert desk.drop(key="d") == Dropped()
    desk.declare()
    desk.publish(b"precious")

    for after in (desk, desk.compact_and_fail_over()):
        assert after.drop(key="d") == Dropped()
        assert after.counts() == {"ready": 1}


REFUSED = {
    "drop": lambda desk: desk.drop(key="once"),
    "purge": lambda desk: desk.sweep(key="once"),
    "redrive": lambda desk: desk.sweep(DEAD, deletes=False, key="once"),
    "delete": lambda desk: desk.delete(0, key="once"),
}


@pytest.mark.parametrize("ask", REFUSED.values(), ids=REFUSED)
def test_what_found_no_queue_is_not_done_to_one_that_is_made_since(ask):
    desk = Desk()

    assert isinstance(ask(desk), UnknownQueue)

    for _ in range(2):
        desk.declare(max_deliveries=1, visibility_ms=1000)
        desk.create()
        desk.publish(b"dies", b"stays")
        desk.receive()
        desk.pass_time(5)
        dead = desk.counts(DEAD)
        assert isinstance(ask(desk), UnknownQueue)
        assert 0 in desk.shard.pointer_queues
        assert desk.counts(DEAD) == dead
        desk = desk.compact_and_fail_over()
    desk.pass_time(700)
    assert not isinstance(ask(desk), BrokerError), "it is forgotten, as others are"


def test_a_refusal_that_is_not_stored_is_not_told():
    desk = Desk()
    desk.holds = True
    assert desk.drop(key="once") is WAITS
    token = desk.last
    assert isinstance(desk.drop(key="once"), CoordinatorLoadInProgress)
    desk.fail(StorageError("full"))
    assert isinstance(desk.answers[token], StorageError)
    desk.holds = False
    desk.declare()

    assert desk.drop(key="once") == Dropped()


@pytest.mark.parametrize("wait", [0.0, 2.0])
def test_a_late_copy_of_a_receive_that_found_nothing_takes_no_message(wait):
    desk = Desk()
    desk.declare()
    desk.receive(wait=wait, key="once")
    token = desk.last
    desk.pass_time(5)
    assert desk.answers[token] == Received()
    desk.publish(b"1")

    assert desk.receive(key="once") == Received()

    assert desk.counts() == {"ready": 1}
    assert receipts(desk.receive(key="other"))


@pytest.mark.parametrize("lane", [MAIN, DEAD])
def test_a_sweep_that_is_repeated_leaves_what_came_since(lane):
    desk = Desk()
    desk.declare(max_deliveries=1)

    def fill():
        desk.publish(b"1")
        if lane == DEAD:
            desk.settle("nack", *receipts(desk.receive()))

    fill()
    assert desk.sweep(lane, deletes=lane == MAIN, key="s") == Swept(1)
    if lane == DEAD:
        desk.sweep()
    fill()

    desk = desk.compact_and_fail_over()

    assert desk.sweep(lane, deletes=lane == MAIN, key="s") == Swept(1)
    assert desk.counts(lane) == {"ready": 1}


def test_a_sweep_that_found_nothing_finds_nothing_when_it_is_repeated():
    desk = Desk()
    desk.declare()
    assert desk.sweep(key="s") == Swept(0)
    desk.publish(b"1")

    assert desk.compact_and_fail_over().sweep(key="s") == Swept(0)


def test_a_sweep_that_another_leader_began_goes_on_and_takes_no_more():
    desk = Desk()
    desk.declare(messages_max=10_000)
    desk.publish(*[b"1"] * (2 * SWEPT_MAX + 5))
    desk.holds = True
    desk.sweep(key="s")
    desk.store()
    stored = desk.log
    desk = Desk(log=compacted(stored), now=desk.now)
    assert desk.counts() == {"ready": SWEPT_MAX + 5}
    desk.publish(b"later")

    assert desk.sweep(key="s") == Swept(2 * SWEPT_MAX + 5)
    assert desk.counts() == {"ready": 1}


def _die_after_the_first_piece(desk):
    """The leader dies when one write of what was asked for is stored; another one leads."""
    for write in sorted(desk.in_flight):
        desk.log += desk.in_flight.pop(write)
    return desk.fail_over()


@pytest.mark.parametrize("fails_over_again", [False, True])
def test_a_redrive_that_another_leader_began_leaves_what_died_since(fails_over_again):
    desk = Desk()
    desk.declare(max_deliveries=1, visibility_ms=1000)
    desk.publish(*[b"x"] * 400)
    for _ in range(4):
        desk.receive(100)
    desk.pass_time(5)
    desk.holds = True
    desk.sweep(DEAD, deletes=False, key="redrive")
    desk = _die_after_the_first_piece(desk)
    for _ in range(3):  # what came back is tried, and dies again
        desk.receive(100)
    desk.pass_time(5)
    desk.publish(b"new")
    desk.receive()
    desk.pass_time(5)
    assert desk.counts(DEAD) == {"ready": 401}
    if fails_over_again:
        desk = desk.fail_over(compacted(desk.log, tombstones=False))

    assert desk.sweep(DEAD, deletes=False, key="redrive") == Swept(400)

    assert desk.counts() == {"ready": 100}
    assert desk.counts(DEAD) == {"ready": 301}


def test_a_purge_that_another_leader_began_leaves_what_was_brought_back_since():
    desk = Desk()
    desk.declare(max_deliveries=1, visibility_ms=1000)
    desk.publish(*[b"x"] * 10)
    desk.receive(10)
    desk.pass_time(5)
    desk.publish(*[b"x"] * (SWEPT_MAX + 5))
    desk.holds = True
    desk.sweep(key="purge")
    desk = _die_after_the_first_piece(desk)
    desk.sweep(DEAD, deletes=False)

    assert desk.sweep(key="purge") == Swept(SWEPT_MAX + 5)

    assert desk.counts() == {"ready": 10}


def test_a_sweep_takes_what_died_before_it_though_nothing_was_published_between():
    desk = Desk()
    desk.declare(max_deliveries=1, visibility_ms=1000)
    desk.publish(b"1")
    for _ in range(3):
        desk.receive()
        desk.pass_time(5)
        assert desk.counts(DEAD) == {"ready": 1}
        desk = desk.fail_over(compacted(desk.log, tombstones=False))
        assert desk.sweep(DEAD, deletes=False) == Swept(1)


def test_a_repeated_purge_leaves_what_came_since_though_tombstones_are_gone():
    desk = Desk()
    desk.declare()
    desk.publish(*[b"old"] * (SWEPT_MAX + 1))
    desk.holds = True
    desk.sweep(key="purge")
    desk = _die_after_the_first_piece(desk)
    desk.settle("ack", *receipts(desk.receive(10)))
    no_sequences = [one for one in desk.log if one.key != b"S"]  # as an earlier version writes it
    for log in (desk.log, no_sequences):
        after = desk.fail_over(compacted(log, tombstones=False))
        after.publish(b"new")

        assert after.sweep(key="purge") == Swept(SWEPT_MAX)

        assert after.counts() == {"ready": 1}


def test_no_sequence_is_given_out_again_when_all_else_is_compacted_away():
    desk = Desk(limits=Limits(request_window_ms=1000))
    desk.declare()
    desk.holds = True
    desk.publish(b"1", b"2")
    desk.publish(b"3")  # which cannot count on the write before it
    desk.fail(StorageError("full"))
    desk.holds = False
    desk.store()
    desk.settle("ack", *receipts(desk.receive(10)))
    desk.drop()
    used = desk.shard.work.next_sequence
    for _ in range(3):
        desk = desk.fail_over(compacted(desk.log, tombstones=False))
        assert desk.shard.work.next_sequence >= used
        desk.declare()
        desk.publish(b"4")
        desk.settle("ack", *receipts(desk.receive(10)))
        desk.drop()
        used = desk.shard.work.next_sequence
    assert left_in(desk.log) == []


def test_publishes_seldom_tell_the_log_of_sequences():
    desk = Desk()
    desk.declare()
    for _ in range(10):
        desk.publish(b"1", key="publish")
        desk.publish(b"1")

    assert sum(record.key == b"S" for record in desk.log) == 1
    assert desk.publish(b"1", key="publish") == Published(1, 1)


def test_a_key_that_was_used_is_refused_for_another_request():
    desk = Desk()
    desk.declare()
    first = desk.publish(b"1", key="p", body="one")
    got = desk.receive(2, key="r", body="two")
    desk.settle("ack", *receipts(got), key="s", body="two")

    for after in (desk, desk.compact_and_fail_over()):
        assert after.publish(b"1", key="p", body="one") == first
        assert isinstance(after.publish(b"2", key="p", body="other"), IdempotencyKeyReused)
        assert isinstance(after.receive(key="r", body="other"), IdempotencyKeyReused)
        assert isinstance(after.settle("ack", "1-1", key="s", body="x"), IdempotencyKeyReused)
        assert isinstance(after.drop(key="p"), IdempotencyKeyReused)


def test_a_key_that_is_under_way_is_refused_for_another_request():
    desk = Desk()
    desk.declare()
    desk.holds = True
    desk.publish(b"1", key="p", body="one")

    assert isinstance(desk.publish(b"1", key="p", body="one"), CoordinatorLoadInProgress)
    assert isinstance(desk.publish(b"2", key="p", body="other"), IdempotencyKeyReused)


def test_of_receipts_that_are_settled_again_each_has_the_fate_that_it_had():
    desk = Desk()
    desk.declare()
    desk.publish(b"1", b"2")
    got = receipts(desk.receive(2))
    told = desk.settle("ack", *got, "77-1", key="s")
    assert told == Settled("ddu")

    assert desk.compact_and_fail_over().settle("ack", *got, "77-1", key="s") == told


def test_requests_take_bounded_memory_and_the_oldest_go():
    desk = Desk(limits=Limits(requests_bytes_max=100_000))
    desk.declare()
    for number in range(1000):
        desk.publish(b"1", key=f"p{number}")
        desk.pass_time(0.001)

    requests = desk.shard.books.requests
    assert requests.bytes <= 100_000
    assert isinstance(desk.publish(b"1", key="p999"), Published)
    assert set(requests.known) == set(desk.compact_and_fail_over().shard.books.requests.known)


def test_a_request_that_goes_on_is_not_forgotten():
    requests = Requests(10.0, bytes_max=1000)
    going, done = Request(b"going", b""), Request(b"done", b"")
    requests.begin(going, 0.0)
    requests.stored(going.key, Remembered(b"", Swept(300, until=9)), 0, 0.0, ends=False)
    requests.stored(done.key, Remembered(b"", Swept(1)), 1, 0.0)

    assert requests.forget(20.0, 100) == [done.key]


def test_a_late_copy_of_a_read_that_found_nothing_moves_no_pointer():
    desk = Desk()
    queue = desk.create().queue_id
    assert desk.read(queue, key="r1") == Reached(None)
    added = desk.add(queue)

    assert desk.read(queue, key="r1") == Reached(None)
    assert desk.read(queue, key="r2") == Reached(added.offset)


def test_a_late_copy_of_a_repeated_read_moves_no_pointer_after_a_failover():
    """The reader's second attempt was answered with nothing; the first one comes after that."""
    desk = Desk()
    queue = desk.create().queue_id
    assert desk.read(queue, key="r1", is_repeat=True) == Reached(None)
    desk = desk.compact_and_fail_over()
    added = desk.add(queue)

    assert desk.read(queue, key="r1") == Reached(None)
    assert desk.read(queue, key="r2") == Reached(added.offset)


def test_a_read_that_finds_nothing_is_written_only_if_it_is_repeated():
    desk = Desk()
    queue = desk.create().queue_id
    written = len(desk.log)

    desk.read(queue, key="r1")
    desk.read(queue, is_repeat=True)  # without a key nobody knows it again
    assert len(desk.log) == written

    desk.read(queue, key="r2", is_repeat=True)
    assert len(desk.log) == written + 1


def test_a_repeated_read_that_could_not_be_noted_may_be_asked_again():
    desk = Desk()
    queue = desk.create().queue_id
    desk.holds = True
    assert desk.read(queue, key="r1", is_repeat=True) == WAITS
    desk.fail(OutcomeUnknown("the disk is full"))
    desk.holds = False

    assert desk.read(queue, key="r1", is_repeat=True) == Reached(None)


# Owners.


def test_a_repeated_receive_returns_only_what_is_still_its_own():
    desk = Desk()
    desk.declare(visibility_ms=1000)
    desk.publish(b"1", b"2", b"3")
    got = desk.receive(3, key="r")
    desk.settle("ack", receipts(got)[0])
    desk.settle("nack", receipts(got)[1], ms=5000)

    assert desk.receive(3, key="r") == Received((got.given[2],))

    desk.pass_time(2)
    assert desk.receive(3, key="r") == Received(), "their time is over"
    (other,) = desk.receive(key="other").given
    assert other == Given(got.given[2].offset, 2)
    assert desk.receive(3, key="r") == Received()


def test_a_repeated_receive_does_not_return_what_is_dead():
    desk = Desk()
    desk.declare(max_deliveries=1)
    desk.publish(b"1")
    desk.settle("nack", *receipts(desk.receive(key="r")))

    assert desk.counts(DEAD) == {"ready": 1}
    assert desk.receive(key="r") == Received()


def test_what_is_on_its_way_counts_for_how_many_messages_a_queue_holds():
    desk = Desk()
    desk.declare(messages_max=10)
    desk.holds = True
    desk.publish(*[b"1"] * 9)

    assert isinstance(desk.publish(b"1", b"2"), QueueFull)

    desk.fail(StorageError("no"))
    assert desk.publish(*[b"1"] * 10) is WAITS


def test_one_answer_holds_so_many_bytes_but_one_message_of_any_size():
    desk = Desk(limits=Limits(receive_bytes_max=100))
    desk.declare()
    desk.publish(b"x" * 500, b"y" * 60, b"z" * 40, b"1")

    assert len(desk.receive(10).given) == 1
    assert len(desk.receive(10).given) == 2
    assert len(desk.receive(10).given) == 1


# Order by key.


def dead_first_of_two() -> tuple[Desk, int, int]:
    desk = Desk()
    desk.declare(is_ordered=True, max_deliveries=1)
    first, second = desk.publish(b"A", b"B", about=KEYED).offsets
    (receipt,) = receipts(desk.receive(10))
    desk.settle("nack", receipt)
    return desk, first, second


def test_what_comes_back_is_given_out_before_what_was_published_after_it():
    desk, first, second = dead_first_of_two()
    desk.sweep(DEAD, deletes=False)

    got = desk.receive(10)
    assert [one.offset for one in got.given] == [first]
    desk.settle("ack", *receipts(got))
    assert [one.offset for one in desk.receive(10).given] == [second]


def test_what_comes_back_waits_for_what_is_out_of_its_key():
    desk, first, second = dead_first_of_two()
    got = desk.receive(10)
    assert [one.offset for one in got.given] == [second]
    desk.sweep(DEAD, deletes=False)

    assert desk.receive(10) == Received()
    desk.settle("ack", *receipts(got))
    assert [one.offset for one in desk.receive(10).given] == [first]


def test_the_order_of_a_key_is_kept_over_a_failover():
    desk, first, _ = dead_first_of_two()
    desk.sweep(DEAD, deletes=False)

    desk = desk.compact_and_fail_over()

    assert [one.offset for one in desk.receive(10).given] == [first]


def test_an_ordered_queue_is_purged_in_large_writes():
    desk = Desk()
    desk.declare(is_ordered=True, messages_max=10_000)
    desk.publish(*[b"1"] * SWEPT_MAX, about=KEYED)
    desk.publish(b"other", b"none")
    writes = desk.shard.books.ledger._next

    assert desk.sweep() == Swept(SWEPT_MAX + 2)
    assert desk.shard.books.ledger._next - writes == 2
    assert desk.counts() == {}


def test_a_delayed_message_holds_those_of_its_key_back():
    desk = Desk()
    desk.declare(is_ordered=True)
    desk.publish(b"later", about=About(key="k", delay_ms=5000))
    desk.publish(b"now", about=KEYED)
    assert desk.receive(10) == Received()

    desk.pass_time(6)

    assert len(desk.receive(10).given) == 1


# Pointers.


def test_a_read_that_failed_lets_the_next_one_of_its_client_have_its_message():
    desk = Desk()
    queue = desk.create().queue_id
    first, second = desk.add(queue).offset, desk.add(queue).offset
    desk.holds = True
    desk.read(queue)
    one = desk.last
    desk.read(queue)
    two = desk.last
    desk.fail(BrokerError("the disk was full"))
    desk.store()
    desk.holds = False

    assert isinstance(desk.answers[one], BrokerError)
    assert desk.answers[two] == Reached(first)
    assert desk.compact_and_fail_over().read(queue) == Reached(second)


def test_clients_that_read_nothing_for_long_are_forgotten():
    desk = Desk(limits=Limits(pointer_retention_ms=60_000))
    queue = desk.create().queue_id
    added = desk.add(queue)
    desk.read(queue, "gone")
    desk.pass_time(50)
    desk.add(queue)
    desk.read(queue, "here")

    desk.pass_time(30)

    assert list(desk.shard.pointer_queues[queue].pointers) == ["here"]
    after = desk.compact_and_fail_over()
    assert list(after.shard.pointer_queues[queue].pointers) == ["here"]
    assert after.read(queue, "gone") == Reached(added.offset)


def test_a_queue_with_pointers_is_deleted_with_all_that_is_in_it_and_its_id_is_nobody_s():
    desk = Desk()
    kept, queue = desk.create().queue_id, desk.create().queue_id
    desk.add(queue)
    desk.read(queue)
    desk.add(kept)

    assert desk.delete(queue, key="d") == Dropped()

    assert isinstance(desk.read(queue), UnknownQueue)
    alive = [record.key or b"" for record in compacted(desk.log) if record.value is not None]
    assert not any(key[:1] in b"MPQ" and key[8] == queue for key in alive)
    after = desk.fail_over(compacted(desk.log, tombstones=False))
    assert after.delete(queue, key="d") == Dropped()
    assert after.create().queue_id > queue
    assert picture(after.shard)["pointers"][kept] == picture(desk.shard)["pointers"][kept]


# Receipts.


@pytest.mark.parametrize("kind", ["ack", "nack", "extend"])
def test_a_receipt_in_another_spelling_is_nobody_s_and_freezes_no_message(kind):
    desk = Desk()
    desk.declare(visibility_ms=1000)
    desk.publish(b"1", b"2")
    (receipt,) = receipts(desk.receive())
    other_digits = receipt.translate({ord("0") + digit: 0x660 + digit for digit in range(10)})
    spellings = ("0" + receipt, receipt.replace("-", "-0"), other_digits, receipt + "-", receipt)

    answer = desk.settle(kind, *spellings, receipt, ms=10)

    assert answer == Settled("uuuud")
    desk.pass_time(10)
    assert desk.counts() == {"ready": 1 if kind == "ack" else 2}


def test_a_settle_that_cannot_be_written_leaves_its_message_as_it_was():
    desk = Desk()
    desk.declare(visibility_ms=1000)
    desk.publish(b"1")
    (receipt,) = receipts(desk.receive())

    with pytest.raises(OverflowError):
        desk.settle("extend", receipt, ms=2**70)

    assert desk.settle("ack", receipt) == Settled("d")
