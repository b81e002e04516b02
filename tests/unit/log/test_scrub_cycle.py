from tidelog.log.scrub_cycle import RECENT_MAX, ScrubCycle, ScrubState
from tidelog.model import TopicPartition

NAMES = [TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("a", 10), TopicPartition("b", 0)]
INTERVAL_MS = 1000


def a_cycle(now_ms: int = 5000) -> ScrubCycle:
    cycle = ScrubCycle(ScrubState())
    cycle.begin(now_ms)
    return cycle


def test_the_first_cycle_is_due_at_once():
    assert ScrubCycle(ScrubState()).wait_ms(5000, INTERVAL_MS) == 0


def test_the_next_cycle_waits_for_the_interval_since_the_last_began():
    cycle = a_cycle(5000)
    cycle.end(5400)

    assert cycle.wait_ms(5500, INTERVAL_MS) == 500
    assert cycle.wait_ms(6000, INTERVAL_MS) == 0
    assert cycle.wait_ms(5500, 100) == 0


def test_a_clock_that_jumps_back_does_not_stop_the_scrubber():
    cycle = a_cycle(5000)
    cycle.end(5400)

    assert cycle.wait_ms(10, INTERVAL_MS) == 0


def test_a_cycle_visits_all_partitions_and_goes_on_where_it_was():
    cycle = a_cycle()
    assert list(cycle.left(NAMES)) == [(name, 0) for name in NAMES]

    cycle.reached(NAMES[1], 40)

    assert list(cycle.left(NAMES)) == [(NAMES[1], 40), (NAMES[2], 0), (NAMES[3], 0)]
    assert list(cycle.left([NAMES[0], NAMES[3]])) == [(NAMES[3], 0)]


def test_another_process_goes_on_with_the_cycle():
    cycle = a_cycle()
    cycle.reached(NAMES[2], 40)
    cycle.read(100)
    cycle.found(NAMES[1], 3, "gone", 5100)

    after = ScrubCycle.decode(cycle.encode())
    after.begin(9000)

    assert list(after.left(NAMES)) == [(NAMES[2], 40), (NAMES[3], 0)]
    assert (after.state.cycle, after.state.began_ms, after.state.bytes_read) == (1, 5000, 100)
    assert [rot.name for rot in after.state.open] == [NAMES[1]]


def test_a_file_that_makes_no_sense_begins_anew():
    for data in (b"", b"{", b'{"cycle": "x"}', b'{"version": 1, "cycle": 4}'):
        assert ScrubCycle.decode(data).state.cycle == 0


def test_what_was_found_before_the_file_was_read_stays():
    before = a_cycle()
    before.found(NAMES[0], 3, "x", 1)
    now = ScrubCycle(ScrubState())
    now.found(NAMES[0], 3, "x", 2)
    now.found(NAMES[3], 8, "y", 2)

    now.go_on(ScrubCycle.decode(before.encode()))

    assert [(rot.name, rot.offset) for rot in now.state.open] == [(NAMES[0], 3), (NAMES[3], 8)]
    assert now.state.found == 2


def test_rot_is_counted_once_and_ends_once():
    cycle = a_cycle()
    rot = cycle.found(NAMES[0], 3, "x", 10)
    assert cycle.found(NAMES[0], 3, "x", 20) is rot

    cycle.healed(rot, 30, source=2, size=61)
    cycle.gone(rot, 40)

    state = cycle.state
    assert (state.found, state.healed, state.open, state.recent) == (1, 1, [], [rot])
    assert (rot.state, rot.ended_ms, rot.source, rot.bytes) == ("healed", 30, 2, 61)
    assert not cycle.is_noted


def test_what_is_gone_was_not_healed():
    cycle = a_cycle()

    cycle.gone(cycle.found(NAMES[0], 3, "x", 10), 20)

    assert (cycle.state.healed, cycle.state.recent[0].state) == (0, "gone")


def test_few_of_those_that_ended_are_kept():
    cycle = a_cycle()
    for offset in range(RECENT_MAX + 5):
        cycle.gone(cycle.found(NAMES[0], offset, "x", 10), 20)

    assert [rot.offset for rot in cycle.state.recent] == list(range(5, RECENT_MAX + 5))
