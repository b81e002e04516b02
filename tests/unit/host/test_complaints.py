"""How often a log speaks of others that misbehave."""

from tidelog.host.complaints import HOSTS_MAX, SAY_SECONDS, Complaints
from tidelog.simulation.host import SimulatedClock


def test_of_each_host_a_line_now_and_then_that_counts_the_others():
    clock = SimulatedClock()
    complaints = Complaints(clock)

    first, *rest = [complaints.about("a") for _ in range(5)]
    other = complaints.about("b")
    clock.advance(SAY_SECONDS)

    assert first == "" and rest == [None] * 4
    assert other == " (4 more since the last such line)"
    assert complaints.about("a") == ""


def test_a_crowd_of_hosts_gets_no_more_lines_than_a_few():
    complaints = Complaints(SimulatedClock())

    said = [complaints.about(str(number)) for number in range(10 * HOSTS_MAX)]

    assert sum(one is not None for one in said) == HOSTS_MAX
