"""The ages of a lane's messages: never wrong, and no message that leaves pays for all others."""

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.queues.desk import Desk, receipts
from tidelog.queues.ages import Ages
from tidelog.queues.message import DEAD, MAIN, OTHER, Message

STEPS = st.lists(st.tuples(st.sampled_from(["come", "go", "move"]), st.integers(0, 400)))


class Lanes:
    """Two lanes and their messages."""

    def __init__(self) -> None:
        self.messages: dict[int, Message] = {}
        self.ages = [Ages(MAIN), Ages(DEAD)]

    def come(self, offset: int, lane: int = MAIN) -> None:
        message = self.messages[offset] = Message(offset, offset, 0, 1)
        message.lane = lane
        self.ages[lane].add(message)

    def count(self, lane: int) -> int:
        return sum(one.lane == lane for one in self.messages.values())

    def go(self, offset: int) -> None:
        message = self.messages[offset]
        self.ages[message.lane].tidy(self.messages, self.count(message.lane) - 1)
        del self.messages[offset]

    def move(self, offset: int) -> None:
        message = self.messages[offset]
        self.ages[message.lane].tidy(self.messages, self.count(message.lane) - 1)
        message.lane = OTHER[message.lane]
        self.ages[message.lane].add(message)


@given(STEPS)
def test_the_oldest_of_each_lane_is_known_whatever_comes_goes_and_moves(steps):
    lanes = Lanes()
    seen = set(range(0, 400, 2))
    for offset in sorted(seen):
        lanes.come(offset, offset // 2 % 2)
    for what, offset in steps:
        if what == "come" and offset not in seen:  # no two messages have one offset
            seen.add(offset)
            lanes.come(offset)
        elif what != "come" and offset in lanes.messages:
            getattr(lanes, what)(offset)
        for lane, ages in enumerate(lanes.ages):
            ages.assert_invariants(lanes.messages)
            mine = [one.offset for one in lanes.messages.values() if one.lane == lane]
            oldest = ages.oldest(lanes.messages)
            assert (None if oldest is None else oldest.offset) == min(mine, default=None)


def test_a_message_that_moves_for_ever_leaves_nothing_behind():
    lanes = Lanes()
    for offset in range(1001):
        lanes.come(offset)
    for _ in range(5000):
        lanes.move(1000)
    for offset in range(1, 1000):
        lanes.go(offset)

    assert len(lanes.ages[MAIN]) < 200
    assert len(lanes.ages[DEAD]) <= 1


class Counting(dict[int, Message]):
    """Messages that are counted when somebody looks at them."""

    looks = 0

    def get(self, key, default=None):
        self.looks += 1
        return super().get(key, default)

    def values(self):
        self.looks += len(self)
        return super().values()


def test_one_that_leaves_costs_no_more_beside_a_pile_of_others():
    messages, ages = Counting(), Ages(MAIN)
    for offset in range(10_000):
        messages[offset] = Message(offset, offset, 0, 1)
        ages.add(messages[offset])
    worst = 0
    for left, offset in zip(range(9999, 0, -1), range(1, 10_000), strict=True):
        messages.looks = 0
        ages.tidy(messages, left)
        del messages[offset]
        worst = max(worst, messages.looks)

    assert worst <= 4
    assert len(ages) < 2000
    assert ages.oldest(messages) is messages[0]


def test_an_acknowledgement_costs_no_more_beside_a_pile_of_the_dead():
    desk = Desk()
    desk.declare(max_deliveries=1, visibility_ms=1000)
    desk.publish(*[b"1"] * 2000)
    for _ in range(20):
        desk.receive(100)
    desk.pass_time(5)
    assert desk.counts(DEAD) == {"ready": 2000}
    queue = desk.shard.work_queue("q")
    messages = queue.messages = Counting(queue.messages)
    worst = 0
    for _ in range(200):
        desk.publish(b"1")
        (receipt,) = receipts(desk.receive())
        desk.holds = True
        desk.settle("ack", receipt)
        messages.looks = 0
        desk.shard.stored(max(desk.in_flight), desk.at)
        worst = max(worst, messages.looks)
        desk.in_flight.clear()
        desk.holds = False

    assert worst < 20
