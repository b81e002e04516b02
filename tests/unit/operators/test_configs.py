"""What a change of settings does, and what it may cost."""

import pytest

from tidelog.config import TOPIC_SETTINGS, all_node_settings
from tidelog.kafka.configs import Entry, Source
from tidelog.operators.configs import Changed, planned, warnings_of


def entry(name: str, *values: tuple[Source, int]) -> Entry:
    """A setting with the values that compete for it, the strongest first."""
    setting = TOPIC_SETTINGS.get(name) or all_node_settings()[name]
    return Entry(setting, [(source, name, value) for source, value in values], read_only=False)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("retention.ms", "604800000", "1000"),
        ("retention.bytes", "-1", "5"),
        ("retention.records", "-1", "0"),
        ("log.retention.ms", "2", "1"),
        ("cleanup.policy", "delete", "compact"),
    ],
)
def test_a_change_that_may_delete_records_says_so(name, before, after):
    (warning,) = warnings_of(Changed(name=name, before=before, after=after))

    assert name in warning and "deleted" in warning


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("retention.ms", "1000", "2000"),
        ("retention.ms", "1000", "1000"),
        ("retention.ms", "1000", "-1"),
        ("retention.ms", None, "1"),
        ("segment.bytes", "100", "50"),
        ("cleanup.policy", "delete", "delete"),
    ],
)
def test_a_harmless_change_warns_of_nothing(name, before, after):
    assert warnings_of(Changed(name=name, before=before, after=after)) == []


def test_unsetting_uncovers_the_next_strongest_value():
    known = entry("retention.ms", (Source.TOPIC, 1), (Source.NODE, 2), (Source.DEFAULT, 3))

    change = planned("retention.ms", None, known, Source.TOPIC)

    assert (change.before, change.after) == ("1", "2")


def test_unsetting_what_was_not_set_changes_nothing():
    known = entry("retention.ms", (Source.FILE, 2), (Source.DEFAULT, 3))

    change = planned("retention.ms", None, known, Source.NODE)

    assert change.before == change.after == "2"


def test_what_all_brokers_have_is_told_without_what_one_of_them_has():
    known = entry("num.partitions", (Source.NODE, 9), (Source.ALL_NODES, 3), (Source.DEFAULT, 1))

    change = planned("num.partitions", None, known, Source.ALL_NODES)

    assert (change.before, change.after) == ("3", "1")
