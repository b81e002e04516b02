"""What a shard knows is the fold of its log, and of the compacted log as well."""

from binascii import unhexlify

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.queues.desk import WAITS, Desk, receipts
from tidelog.errors import BrokerError, StorageError
from tidelog.queues.events import Published
from tidelog.queues.limits import Limits
from tidelog.queues.message import DEAD, MAIN
from tidelog.queues.records import About
from tidelog.records import Record
from tidelog.simulation.queue_watch import compacted, picture

NAMES = st.sampled_from(("a", "b"))
REQUESTS = st.sampled_from((None, None, "k1", "k2", "k3", "k4"))
LANES = st.sampled_from((MAIN, MAIN, DEAD))
STEP = st.one_of(
    st.tuples(st.just("declare"), NAMES, st.booleans(), REQUESTS),
    st.tuples(st.just("drop"), NAMES, REQUESTS),
    *[
        st.tuples(
            st.just("publish"),
            NAMES,
            st.integers(1, 3),
            st.sampled_from((None, "x", "y")),
            st.sampled_from((0, 0, 0, 700)),
            REQUESTS,
        )
    ]
    * 4,
    *[st.tuples(st.just("receive"), NAMES, LANES, st.integers(1, 3), REQUESTS)] * 3,
    *[
        st.tuples(
            st.just("settle"),
            NAMES,
            st.sampled_from(("ack", "ack", "nack", "extend")),
            st.integers(0, 9),
            REQUESTS,
        )
    ]
    * 3,
    st.tuples(st.just("sweep"), NAMES, LANES, REQUESTS),
    st.tuples(st.just("time"), st.sampled_from((0.1, 0.6, 1.1, 20.0))),
    st.tuples(st.just("hold")),
    st.tuples(st.just("store")),
    st.tuples(st.just("fail")),
    st.tuples(st.just("fail over"), st.booleans()),
    st.tuples(st.just("crash")),
    st.tuples(st.just("create"), REQUESTS),
    st.tuples(st.just("delete"), st.integers(0, 2), REQUESTS),
    st.tuples(st.just("add"), st.integers(0, 2), REQUESTS),
    st.tuples(st.just("read"), st.integers(0, 2), st.sampled_from(("ada", "bob")), REQUESTS),
)


class Play:
    """Does what is drawn, and checks what must hold of it."""

    def __init__(self):
        self.limits = Limits(request_window_ms=15_000, requests_bytes_max=2_000)
        self.desk = Desk(limits=self.limits)
        self.given: dict[str, list[str]] = {"a": [], "b": []}
        self.owners: dict[tuple[str, str], object] = {}

    def do(self, step):
        desk = self.desk
        match step:
            case ("declare", name, ordered, key):
                desk.declare(
                    name,
                    is_ordered=ordered,
                    visibility_ms=500,
                    max_deliveries=2,
                    messages_max=8,
                    key=_key(step, key),
                )
            case ("drop", name, key):
                desk.drop(name, key=_key(step, key))
            case ("publish", name, count, order, delay, key):
                about = About(key=order, delay_ms=delay)
                desk.publish(*[b"1"] * count, name=name, about=about, key=_key(step, key))
            case ("receive", name, lane, most, key):
                got = desk.receive(most, name=name, lane=lane, key=_key(step, key))
                if got is not WAITS and not isinstance(got, BrokerError):
                    self.given[name] += receipts(got)
                    self.check_owned(name, got)
            case ("settle", name, kind, number, key):
                known = self.given[name][-10:]
                if known:
                    receipt = known[number % len(known)]
                    key = key and f"{key}{receipt}"
                    desk.settle(kind, receipt, name=name, ms=300, key=_key(step, key))
            case ("sweep", name, lane, key):
                desk.sweep(lane, deletes=lane == MAIN, name=name, key=_key(step, key))
            case ("time", seconds):
                desk.pass_time(seconds)
            case ("hold",):
                desk.holds = True
            case ("store",):
                desk.holds = False
                desk.store()
            case ("fail",):
                if desk.in_flight:
                    desk.fail(StorageError("the disk was full"), max(desk.in_flight))
            case ("fail over", compacts):
                desk.holds = False
                desk.store()
                self.check_fold()
                log = compacted(desk.log) if compacts else desk.log
                self.desk = desk.fail_over(log)
            case ("crash",):  # what is on its way is lost
                log = compacted(desk.log)
                self.desk = Desk(limits=self.limits, log=log, now=desk.now)
            case ("create", key):
                desk.create(key=_key(step, key))
            case ("delete", queue, key):
                desk.delete(queue, key=_key(step, key))
            case ("add", queue, key):
                desk.add(queue, key=_key(step, key))
            case ("read", queue, client, key):
                desk.read(queue, client, key=_key(step, key))
        for queue in self.desk.shard.work_queues.values():
            assert len(queue) + queue.arriving <= 8

    def check_owned(self, name, got):
        queue = self.desk.shard.work_queues.get(name)
        for one in got.given:
            assert queue is not None, "a repeat may tell of a queue that is gone, and of no message"
            assert queue.owns(one.offset, one.count)

    def check_fold(self):
        live = picture(self.desk.shard)
        for log in (self.desk.log, compacted(self.desk.log), compacted(self.desk.log, tombstones=False)):
            again = Desk(limits=self.limits, log=log, now=self.desk.now)
            assert picture(again.shard) == live
            assert len(again.log) == len(log), "there was nothing left to delete"


def _key(step, key):
    return None if key is None else f"{step[0]}{key}"


@settings(deadline=None, max_examples=300)
@given(st.lists(STEP, max_size=60))
def test_the_fold_of_the_compacted_log_is_what_the_shard_knows(steps):
    play = Play()
    for step in steps:
        play.do(step)
    play.do(("store",))
    play.desk.pass_time(0)
    play.check_fold()


# The first format.


def old_log() -> list[Record]:
    """Records as the first format has them: of each the offset, the key, the value and headers.

    `a` is declared, with an order; x and y of the key k are published by a request; x is given out;
    `a` is declared again; a queue with pointers is made, a message appended, and read by ada.
    """
    lines = """
        0 5761 95cd75300ac3ce000f424000
        1 4a0001610000000000000000 2278 r=50505050505050505050505050505050 m=9480a16b0000
        2 4a0001610000000000000001 2279 r=50505050505050505050505050505050 m=9480a16b0000
        3 440001610000000000000000 970101 00cd7530000000
        4 5761 95cd13880ac3ce000f424000
        5 510000000000000000 00
        6 4d00000000000000000000000000000000 31 r=51515151515151515151515151515151
        7 500000000000000000616461 92ff06 r=52525252525252525252525252525252
    """
    records = []
    for line in lines.strip().splitlines():
        offset, key, *rest = line.split()
        value = "".join(part for part in rest if "=" not in part)
        headers = tuple((part[0], unhexlify(part[2:])) for part in rest if "=" in part)
        records.append(
            Record(
                offset=int(offset),
                key=unhexlify(key),
                value=unhexlify(value),
                headers=headers,
                timestamp_ms=1_700_000_990_000,
            )
        )
    return records


def test_what_was_written_before_is_read():
    for log in (old_log(), compacted(old_log())):
        desk = Desk(log=log)

        queue = desk.shard.work_queue("a")
        assert queue.settings.is_ordered
        assert queue.settings.visibility_ms == 5000
        assert desk.counts(name="a") == {"ready": 1, "in_flight": 1}
        assert desk.publish(b'"x"', b'"y"', name="a", key="P" * 16) == Published(1, 2)
        assert desk.add(0, key="Q" * 16).offset == 6
        assert desk.read(0, "ada", key="R" * 16).offset == 6
        assert desk.settle("ack", "1-1", name="a").fates == "d"
        assert len(desk.receive(10, name="a").given) == 1
        desk.sweep(name="a")
        desk.drop("a")
        desk.delete(0)
        alive = [(one.key or b"")[:1] for one in compacted(desk.log) if one.value is not None]
        assert set(alive) <= {b"N"}, "old keys are deleted under their names"
