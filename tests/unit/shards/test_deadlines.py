from random import Random

import pytest

from tidelog.shards.deadlines import Deadlines


def test_keys_come_up_in_the_order_of_their_deadlines_and_once():
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("late", 3.0)
    deadlines.set("early", 1.0)
    deadlines.set("twin", 3.0)

    assert deadlines.next() == 1.0
    assert [deadlines.pop_due(3.0) for _ in range(4)] == ["early", "late", "twin", None]
    assert deadlines.next() is None


def test_a_deadline_is_moved_in_both_directions():
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 5.0)
    deadlines.set("a", 9.0)
    assert deadlines.pop_due(8.0) is None
    deadlines.set("a", 2.0)

    assert deadlines.pop_due(2.0) == "a"
    assert deadlines.pop_due(100.0) is None


def test_a_cancelled_key_does_not_come_up():
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 1.0)
    deadlines.cancel("a")
    deadlines.cancel("a")

    assert deadlines.next() is None
    assert "a" not in deadlines


def test_heartbeats_push_nothing():
    deadlines: Deadlines[int] = Deadlines()
    for beat in range(100):
        for member in range(10):
            deadlines.set(member, 10.0 + beat)

    assert len(deadlines._heap) == 10


def test_cancelled_keys_do_not_pile_up():
    deadlines: Deadlines[int] = Deadlines()
    for key in range(10_000):
        deadlines.set(key, 1e9)
        deadlines.cancel(key)

    assert len(deadlines._heap) < 100


@pytest.mark.parametrize("seed", range(20))
def test_it_agrees_with_a_plain_dict(seed):
    random, deadlines, model = Random(seed), Deadlines[int](), dict[int, float]()
    now = 0.0
    for _ in range(500):
        key = random.randrange(10)
        match random.randrange(4):
            case 0 | 1:
                model[key] = now + random.randrange(20)
                deadlines.set(key, model[key])
            case 2:
                model.pop(key, None)
                deadlines.cancel(key)
            case 3:
                now += random.randrange(5)
                while (due := deadlines.pop_due(now)) is not None:
                    assert model.pop(due) <= now
                assert all(later > now for later in model.values())
        assert deadlines.next() == min(model.values(), default=None)
        assert len(deadlines) == len(model)
