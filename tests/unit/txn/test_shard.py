"""Transactional ids of one partition: stories of producers, zombies, timeouts and restarts."""

import pytest

from tests.unit.txn.desk import WAITS, WALL_MS, A, B, C, Clock, Desk
from tidelog.errors import (
    BrokerError,
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    MessageTooLarge,
    NotCoordinator,
    NotEnoughReplicas,
    ProducerFenced,
    StorageError,
)
from tidelog.shards.effects import Answer, Append
from tidelog.txn.events import (
    AddPartitions,
    CommitGroup,
    Ended,
    EndTransaction,
    ForgetDecision,
    GroupMember,
    Initialised,
    InitProducer,
    SendMarkers,
)
from tidelog.txn.limits import Limits
from tidelog.txn.records import State, TransactionRecord, TransactionWritten, encode
from tidelog.txn.shard import Shard
from tidelog.txn.transitions import EPOCH_MAX
from tidelog.wire.batches_decided import NO_BATCH, Counting

DAY = 24 * 60 * 60
USABLE_MAX = EPOCH_MAX - 1
FULL = StorageError("full")


def worn(epoch, state=State.EMPTY, **fields):
    """A log whose id `x` has come to `epoch`."""
    places = frozenset() if state is State.EMPTY else frozenset({A})
    record = TransactionRecord(
        producer_id=7,
        epoch=epoch,
        timeout_ms=60_000,
        state=state,
        places=places,
        updated_ms=WALL_MS + 1_000_000,
        started_ms=WALL_MS + 1_000_000,
        **fields,
    )
    return [encode(TransactionWritten(transactional_id="x", value=record), WALL_MS)]


# Serving.


def test_nothing_is_served_before_the_log_is_read():
    shard, at = Shard(Limits()), Desk().at()
    places = frozenset({A})
    answers = [
        *shard.init_producer("x", InitProducer(reply=1, timeout_ms=1, fresh_id=1), at),
        *shard.add_partitions("x", AddPartitions(reply=2, producer_id=1, epoch=0, places=places), at),
        *shard.end("x", EndTransaction(reply=3, producer_id=1, epoch=0, commits=True, bumps_epoch=False), at),
        *shard.abort("x", 4, at),
        *shard.commit_group(
            CommitGroup(
                reply=5, group="spark.q", batch_id=1, after=NO_BATCH, members=(), counting=Counting.QUERY
            ),
            at,
        ),
        *shard.forget(ForgetDecision(reply=6, group="spark.q", batch_id=1), at),
    ]

    assert len(answers) == 6
    for answer in answers:
        assert isinstance(answer, Answer)
        assert isinstance(answer.result, CoordinatorLoadInProgress)
    for read in (shard.transactions, shard.decisions, lambda: shard.decision("spark.q")):
        with pytest.raises(CoordinatorLoadInProgress):
            read()
    assert shard.marked("x", 1, 0, [A], at) == shard.expire(at) == shard.tick(at) == []
    assert not shard.needs_fresh_id("x")


def test_everyone_who_waits_is_told_when_the_shard_goes():
    desk = Desk()
    who = desk.opened("x", A)
    member = GroupMember("spark.q.0", *desk.opened("spark.q.0", A))
    desk.end("x", who)
    desk.store()
    waiting = [desk.add("x", who, B), desk.init("y"), desk.commit_group("spark.q", 1, member)]

    desk.do(desk.shard.unload())

    assert [type(desk.answers[token]) for token in waiting] == [NotCoordinator] * 3
    assert isinstance(desk.answers[desk.init("x")], NotCoordinator)
    assert desk.shard.next_deadline() is None


@pytest.mark.parametrize("timeout_ms", [-1, 0, 86_400_001])
def test_a_timeout_outside_of_the_limits_is_refused(timeout_ms):
    desk = Desk()

    assert isinstance(desk.answers[desk.init("x", timeout_ms=timeout_ms)], InvalidTransactionTimeout)
    assert desk.in_flight == {}


@pytest.mark.parametrize("name", ["", "x" * 32768])
def test_an_id_that_cannot_be_written_is_refused(name):
    desk = Desk()

    assert isinstance(desk.answers[desk.init(name)], InvalidRequest)


# What the log has not stored has not happened.


def test_nobody_hears_of_an_epoch_that_is_not_stored():
    desk = Desk()
    token = desk.init("x")

    assert desk.answers[token] is WAITS
    assert desk.shard.describe("x") is None
    desk.store()
    assert desk.answers[token] == Initialised(100, 0)


def test_nobody_writes_in_an_epoch_that_is_not_stored():
    desk = Desk()
    desk.init("x")

    guesses = [desk.add("x", (100, 0), A), desk.end("x", (100, 0), commits=False, bumps=True)]

    assert [type(desk.answers[token]) for token in guesses] == [ConcurrentTransactions] * 2
    assert len(desk.in_flight) == 1


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (FULL, NotCoordinator),
        (NotEnoughReplicas(in_sync=1, needed=2), CoordinatorNotAvailable),
        (MessageTooLarge(size=9, size_max=1), BrokerError),
    ],
)
def test_a_failed_write_changes_nothing(error, told):
    desk = Desk()
    who = desk.opened("x", A)
    before = desk.view("x")

    token = desk.end("x", who, bumps=True)
    desk.fail_store(error)

    assert type(desk.answers[token]) is told
    assert desk.view("x") == before
    assert desk.markers == []
    assert desk.end("x", who, bumps=True)
    desk.settle()
    assert desk.state("x") == "CompleteCommit"


def test_an_id_whose_first_write_failed_does_not_exist():
    desk = Desk()
    desk.init("x")
    desk.fail_store(FULL)

    assert desk.shard.transactions() == []
    assert desk.shard.needs_fresh_id("x")
    assert desk.shard._transactions == {}


def test_a_completion_that_cannot_be_written_is_tried_again():
    desk = Desk()
    who = desk.opened("x", A)
    desk.end("x", who)
    desk.store()
    desk.mark()
    desk.fail_store(FULL)
    desk.pass_time(0.4)
    assert desk.in_flight == {}  # not at once: it would fail again

    desk.pass_time(0.2)
    desk.store()

    assert desk.state("x") == "CompleteCommit"


def test_an_abort_by_timeout_that_cannot_be_written_is_tried_again():
    desk = Desk()
    desk.opened("x", A)
    desk.pass_time(61)
    desk.fail_store(FULL)
    desk.pass_time(0.4)
    assert desk.in_flight == {}

    desk.pass_time(0.2)
    desk.settle()

    assert desk.state("x") == "CompleteAbort"


# Partitions.


def test_partitions_join_while_others_are_on_their_way():
    desk = Desk()
    who = desk.began("x")
    tokens = [desk.add("x", who, place, implicit=True) for place in (A, B, C, A)]
    assert {desk.answers[token] for token in tokens} == {WAITS}

    desk.store()

    assert [desk.answers[token] for token in tokens] == [{A: None}, {B: None}, {C: None}, {A: None}]
    assert desk.view("x").places == (A, B, C)


def test_a_partition_whose_write_failed_is_marked_if_a_later_write_names_it():
    desk = Desk()
    who = desk.began("x")
    first, second = desk.add("x", who, A), desk.add("x", who, B)
    desk.fail_store(FULL, min(desk.in_flight))
    desk.store()

    assert isinstance(desk.answers[first], NotCoordinator)
    assert desk.answers[second] == {B: None}
    assert desk.view("x").places == (A, B)
    assert desk.restart().view("x").places == (A, B)


def test_the_next_transaction_waits_for_the_markers_of_the_last():
    desk = Desk()
    who = desk.opened("x", A)
    desk.end("x", who)
    desk.store()

    token = desk.add("x", who, B)
    assert desk.answers[token] is WAITS
    desk.mark()
    desk.store()

    assert desk.answers[token] == {B: None}
    assert desk.state("x") == "Ongoing"
    assert desk.view("x").places == (B,)
    states = [record.value[16] for record in desk.log if record.value is not None]
    assert states == [0, 1, 2, 4, 1]  # Empty, Ongoing, PrepareCommit, CompleteCommit, Ongoing


def test_it_does_not_wait_for_long():
    desk = Desk(Limits(completion_wait_ms=300))
    who = desk.opened("x", A)
    desk.end("x", who)
    desk.store()
    token = desk.add("x", who, B)

    desk.pass_time(0.2)
    assert desk.answers[token] is WAITS
    desk.pass_time(0.2)
    assert isinstance(desk.answers[token], ConcurrentTransactions)


def test_only_so_many_wait():
    desk = Desk(Limits(waiting_max=2))
    who = desk.opened("x", A)
    desk.end("x", who)
    desk.store()

    tokens = [desk.add("x", who, B) for _ in range(3)]

    assert [desk.answers[token] is WAITS for token in tokens] == [True, True, False]
    assert isinstance(desk.answers[tokens[2]], ConcurrentTransactions)


def test_a_verified_partition_of_the_last_transaction_is_not_one_of_the_next():
    desk = Desk()
    who = desk.opened("x", A)
    desk.end("x", who)
    desk.store()
    desk.mark()
    desk.add("x", who, B)

    late = desk.add("x", who, A, verify_only=True)

    assert desk.answers[late][A] is not None


# Markers.


def test_a_transaction_is_complete_when_every_partition_has_its_marker():
    desk = Desk()
    who = desk.opened("x", A, B, C)
    desk.end("x", who, commits=False)
    desk.store()
    (markers,) = desk.markers
    assert markers == SendMarkers(
        transactional_id="x", producer_id=100, epoch=0, commits=False, is_bumped=False, places=(A, B, C)
    )

    desk.mark(markers, A, B)
    assert desk.in_flight == {}
    assert desk.view("x").unmarked == (C,)
    desk.mark(markers, B, C)
    desk.store()

    assert desk.state("x") == "CompleteAbort"
    desk.mark(markers)  # late reports change nothing
    assert desk.in_flight == {}


def test_markers_of_another_epoch_complete_nothing():
    desk = Desk()
    who = desk.opened("x", A)
    desk.end("x", who, bumps=True)
    desk.store()

    desk.do(desk.shard.marked("x", 100, 0, [A], desk.at()))
    desk.do(desk.shard.marked("x", 99, 1, [A], desk.at()))

    assert desk.in_flight == {}


def test_a_marker_says_whether_its_epoch_is_the_next_one():
    desk = Desk()
    desk.end("same", desk.opened("same", A))
    desk.end("next", desk.opened("next", A), bumps=True)
    desk.opened("fenced", A)
    desk.abort("fenced")
    desk.store()

    for after in (desk, desk.restart()):
        bumped = {markers.transactional_id: markers.is_bumped for markers in after.markers}
        assert bumped == {"same": False, "next": True, "fenced": True}


def test_markers_go_out_again_after_a_restart():
    desk = Desk()
    desk.end("x", desk.opened("x", A, B))
    desk.end("y", desk.opened("y", C), commits=False, bumps=True)
    desk.opened("z", A)
    desk.store()
    sent = list(desk.markers)

    desk = desk.restart()

    assert desk.markers == sent
    assert len(sent) == 2


# Fencing.


def test_a_new_producer_aborts_what_the_old_one_has_open_and_fences_it():
    desk = Desk()
    old = desk.opened("x", A)

    first = desk.init("x")
    assert desk.answers[first] is WAITS
    desk.store()
    assert isinstance(desk.answers[first], ConcurrentTransactions)
    assert (desk.markers[0].commits, desk.markers[0].epoch) == (False, 1)
    desk.settle()
    new = desk.began("x")

    assert new == (100, 2)
    for late in (desk.end("x", old), desk.end("x", old, bumps=True), desk.add("x", old, A)):
        assert isinstance(desk.answers[late], ProducerFenced)


def test_a_fenced_producer_cannot_slip_back_into_the_epoch_that_fenced_it():
    desk = Desk()
    old = desk.opened("x", A)
    desk.init("x")
    desk.settle()

    for commits in (True, False):
        late = desk.end("x", old, commits=commits, bumps=True)
        assert isinstance(desk.answers[late], ProducerFenced)


def test_a_producer_goes_on_after_an_error_and_may_ask_twice():
    desk = Desk()
    who = desk.began("x")
    fields = {"producer_id": who.producer_id, "epoch": who.epoch}

    assert desk.began("x", **fields) == (100, 1)
    assert desk.began("x", **fields) == (100, 1)
    desk = desk.restart()
    assert desk.began("x", **fields) == (100, 1)
    assert desk.began("x") == (100, 2)
    assert isinstance(desk.answers[desk.init("x", **fields)], ProducerFenced)


def test_a_producer_that_goes_on_from_an_open_transaction_is_known_when_it_comes_back():
    desk = Desk()
    who = desk.opened("x", A)
    fields = {"producer_id": who.producer_id, "epoch": who.epoch}
    desk.init("x", **fields)
    desk.settle()

    assert desk.state("x") == "CompleteAbort"
    assert desk.began("x", **fields) == (100, 1)


def test_a_request_from_before_the_last_bump_does_not_fence_who_has_begun_since():
    desk = Desk()
    who = desk.opened("x", A)
    desk.end("x", who, bumps=True)
    desk.settle()
    desk.add("x", (100, 1), B)
    desk.store()

    late = desk.init("x", producer_id=100, epoch=0)

    assert isinstance(desk.answers[late], ProducerFenced)
    assert desk.state("x") == "Ongoing"


def test_a_producer_whose_id_was_forgotten_begins_anew():
    desk = Desk()

    assert desk.began("x", producer_id=5, epoch=9) == (100, 0)


# Ends.


@pytest.mark.parametrize("commits", [True, False])
def test_each_transaction_has_an_epoch_of_its_own_from_version_5_on(commits):
    desk = Desk()
    who = desk.opened("x", A)

    token = desk.end("x", who, commits=commits, bumps=True)
    desk.store()

    assert desk.answers[token] == Ended(100, 1)
    assert desk.markers[0].epoch == 1
    desk.settle()
    next_one = desk.answers[token]
    desk.add("x", next_one, B, implicit=True)
    desk.store()
    assert desk.view("x").epoch == 1
    assert isinstance(desk.answers[desk.add("x", who, B, implicit=True)], BrokerError)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("bumps", [False, True])
def test_an_end_that_is_repeated_gets_the_same_answer(bumps, restarts):
    desk = Desk()
    who = desk.opened("x", A)
    first = desk.end("x", who, bumps=bumps)
    desk.store()
    answer = desk.answers[first]

    for _ in range(2):
        desk = desk.restart() if restarts else desk
        assert desk.answers[desk.end("x", who, bumps=bumps)] == answer
        opposite = desk.end("x", who, commits=False, bumps=bumps)
        assert isinstance(desk.answers[opposite], InvalidTransactionState)
        desk.settle()


def test_an_abort_without_any_partition_bumps_the_epoch_in_one_write():
    desk = Desk()
    who = desk.began("x")
    token = desk.end("x", who, commits=False, bumps=True)
    desk.store()

    assert desk.answers[token] == Ended(100, 1)
    assert desk.state("x") == "CompleteAbort"
    assert desk.markers == []
    assert desk.in_flight == {}


# Epochs that are used up.


def test_a_transaction_in_the_last_epoch_ends_and_the_next_has_a_fresh_id():
    desk = Desk(log=worn(USABLE_MAX, State.ONGOING))
    assert desk.shard.needs_fresh_id("x")

    token = desk.end("x", (7, USABLE_MAX), bumps=True, fresh_id=8)
    desk.store()

    assert desk.answers[token] == Ended(8, 0)
    assert (desk.markers[0].producer_id, desk.markers[0].epoch) == (7, EPOCH_MAX)
    waiting = desk.add("x", (8, 0), B, implicit=True)
    assert desk.answers[waiting] is WAITS
    again = desk.end("x", (7, USABLE_MAX), bumps=True, fresh_id=9)
    assert desk.answers[again] == Ended(8, 0)
    desk.settle()
    assert desk.answers[waiting] == {B: None}
    assert desk.who("x") == (8, 0)
    assert not desk.shard.needs_fresh_id("x")


def test_an_end_in_the_last_epoch_is_recognised_after_its_completion():
    desk = Desk(log=worn(USABLE_MAX, State.ONGOING))
    desk.end("x", (7, USABLE_MAX), bumps=True, fresh_id=8)
    desk.settle()

    for after in (desk, desk.restart()):
        again = after.end("x", (7, USABLE_MAX), bumps=True)
        assert after.answers[again] == Ended(8, 0)


def test_without_a_fresh_id_the_request_is_sent_back():
    desk = Desk(log=worn(USABLE_MAX, State.ONGOING))

    token = desk.end("x", (7, USABLE_MAX), bumps=True)
    assert isinstance(desk.answers[token], ConcurrentTransactions)
    assert isinstance(desk.answers[desk.init("y", fresh_id=-1)], ConcurrentTransactions)
    assert desk.in_flight == {}


def test_a_new_producer_in_the_last_epoch_gets_a_fresh_id():
    desk = Desk(log=worn(USABLE_MAX))

    assert desk.began("x", fresh_id=8) == (8, 0)


def test_a_producer_that_goes_on_past_the_last_epoch_may_ask_twice():
    desk = Desk(log=worn(USABLE_MAX))
    fields = {"producer_id": 7, "epoch": USABLE_MAX}

    assert desk.began("x", fresh_id=8, **fields) == (8, 0)
    assert desk.began("x", fresh_id=9, **fields) == (8, 0)


def test_even_the_last_epoch_can_be_fenced():
    desk = Desk(log=worn(USABLE_MAX, State.ONGOING))
    desk.pass_time(61)
    desk.settle()

    assert desk.who("x") == (7, EPOCH_MAX)
    assert desk.began("x", fresh_id=8) == (8, 0)


def test_what_says_that_it_is_of_the_last_epoch_is_refused():
    desk = Desk(log=worn(USABLE_MAX, State.ONGOING))
    desk.pass_time(61)
    desk.settle()
    forged = (7, EPOCH_MAX)
    asked = [
        desk.add("x", forged),
        desk.end("x", forged, commits=False),
        desk.end("x", forged, commits=False, bumps=True, fresh_id=8),
        desk.init("x", producer_id=7, epoch=EPOCH_MAX, fresh_id=8),
    ]
    verified = desk.add("x", forged, verify_only=True)

    assert all(isinstance(desk.answers[token], ProducerFenced) for token in asked)
    assert isinstance(desk.answers[verified], InvalidProducerEpoch)
    assert desk.in_flight == {}
    assert desk.who("x") == forged
    assert desk.began("x", fresh_id=8) == (8, 0)


ENDS = {
    "timeout": lambda shard, at: shard.tick(at),
    "operator": lambda shard, at: shard.abort("x", "reply", at),
    "init": lambda shard, at: shard.init_producer(
        "x", InitProducer(reply="reply", timeout_ms=1, fresh_id=8), at
    ),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_what_a_log_of_before_has_open_in_the_last_epoch_is_ended_and_not_by_its_forger(end):
    shard, clock = Shard(Limits()), Clock()
    for record in worn(EPOCH_MAX, State.ONGOING):
        shard.replay(record)
    assert list(shard.loaded(clock())) == []
    assert shard.next_deadline() is not None
    (refused,) = shard.end(
        "x", EndTransaction(reply=1, producer_id=7, epoch=EPOCH_MAX, commits=True, bumps_epoch=False), clock()
    )
    assert isinstance(refused, Answer)
    assert isinstance(refused.result, ProducerFenced)
    clock.seconds += 61

    todo, markers = list(end(shard, clock())), []
    while todo:
        match todo.pop(0):
            case Append(write=write):
                todo += shard.stored(write, clock())
            case SendMarkers() as sent:
                markers.append(sent)
                todo += shard.marked("x", sent.producer_id, sent.epoch, sent.places, clock())

    assert [(one.epoch, one.commits) for one in markers] == [(EPOCH_MAX, False)]
    view = shard.describe("x")
    assert view is not None
    assert (view.state, view.epoch) == ("CompleteAbort", EPOCH_MAX)


# Time.


def test_a_transaction_times_out_by_its_start_and_not_by_its_last_partition():
    desk = Desk()
    who = desk.opened("x", A)
    started_ms = desk.view("x").started_ms
    desk.pass_time(59)
    desk.add("x", who, B)
    desk.store()
    assert desk.view("x").started_ms == started_ms

    desk.pass_time(2)
    desk.store()

    assert desk.state("x") == "PrepareAbort"
    assert (desk.markers[0].commits, desk.markers[0].epoch) == (False, 1)
    for bumps in (False, True):
        late = desk.end("x", who, bumps=bumps)
        assert isinstance(desk.answers[late], ProducerFenced)


def test_a_jump_of_the_wall_clock_ends_nothing():
    desk = Desk()
    desk.opened("x", A)
    desk.at.wall_offset_ms += 3_600_000

    desk.pass_time(59)
    assert desk.in_flight == {}


@pytest.mark.parametrize(("jump_ms", "left"), [(0, 40), (-3_600_000, 60), (3_600_000, 0)])
def test_after_a_restart_no_more_than_the_whole_timeout_is_left(jump_ms, left):
    desk = Desk()
    desk.opened("x", A)
    desk.pass_time(20)
    desk.at.wall_offset_ms += jump_ms
    desk = desk.restart()
    assert desk.shard.next_deadline() == desk.at.seconds + left

    desk.pass_time(left)
    desk.store()

    assert desk.state("x") == "PrepareAbort"


def test_an_id_that_nobody_uses_is_forgotten():
    desk = Desk()
    desk.began("x")
    desk.opened("y", A)
    desk.at.seconds += 6 * DAY
    desk.expire()
    assert desk.in_flight == {}

    desk.at.seconds += 1 * DAY
    desk.expire()
    desk.store()

    assert [view.transactional_id for view in desk.shard.transactions()] == ["y"]
    assert desk.restart().shard.describe("x") is None
    late = desk.add("x", (100, 0), A)
    assert isinstance(desk.answers[late], InvalidProducerIdMapping)


def test_an_id_is_not_forgotten_because_the_wall_clock_has_jumped():
    desk = Desk()
    desk.began("x")
    desk.at.wall_offset_ms += 30 * DAY * 1000

    desk.at.seconds += DAY / 2
    desk.expire()
    assert desk.in_flight == {}

    desk.at.wall_offset_ms -= 30 * DAY * 1000
    desk.at.seconds += DAY
    desk.expire()
    assert desk.in_flight == {}


# Operators.


def test_an_operator_aborts_what_hangs():
    desk = Desk()
    who = desk.opened("x", A)
    token = desk.abort("x")
    assert desk.answers[token] is WAITS
    desk.settle()

    assert desk.answers[token] is None
    assert desk.state("x") == "CompleteAbort"
    assert isinstance(desk.answers[desk.end("x", who)], ProducerFenced)


def test_an_operator_sees_each_id():
    desk = Desk()
    desk.began("x", timeout_ms=30_000)
    desk.opened("y", B, A)

    views = {view.transactional_id: view for view in desk.shard.transactions()}

    assert (views["x"].state, views["x"].timeout_ms, views["x"].started_ms) == ("Empty", 30_000, -1)
    assert (views["y"].state, views["y"].places) == ("Ongoing", (A, B))
    assert views["y"].started_ms == desk.at().wall_ms
    assert desk.shard.describe("z") is None
