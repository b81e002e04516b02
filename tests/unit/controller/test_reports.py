import msgspec

from tidelog.controller.reports import ReplicaReport, ReplicaReports


def test_the_last_word_of_a_broker_counts_and_what_it_leaves_out_stays():
    reports = ReplicaReports()
    reports.take(1, 5, [ReplicaReport(7, 0, 10, 9), ReplicaReport(8, 0, 1, 1)], now=1.0)

    reports.take(1, 5, [ReplicaReport(7, 1, 20, 19)], now=2.0)

    assert reports.get(1, 7) == ReplicaReport(7, 1, 20, 19)
    assert reports.get(1, 8) == ReplicaReport(8, 0, 1, 1)
    assert reports.get(2, 7) is None
    assert (reports.age(1, 5.0), reports.age(2, 5.0)) == (3.0, None)


def test_another_life_begins_with_nothing_and_an_earlier_one_is_not_heard():
    reports = ReplicaReports()
    reports.take(1, 5, [ReplicaReport(7, 0, 10, 9)], now=1.0)
    reports.take(1, 6, [], now=2.0)
    assert reports.get(1, 7) is None

    reports.take(1, 5, [ReplicaReport(7, 0, 99, 99)], now=3.0)

    assert reports.get(1, 7) is None
    assert reports.age(1, 3.0) == 1.0


def test_deleted_partitions_are_forgotten():
    reports = ReplicaReports()
    reports.take(1, 5, [ReplicaReport(7, 0, 10, 9), ReplicaReport(8, 0, 1, 1)], now=1.0)

    reports.forget([7], 1)

    assert reports.get(1, 7) is None
    assert reports.get(1, 8) is not None


def test_damage_is_known_until_the_replica_says_that_it_is_sound_again():
    reports = ReplicaReports()
    reports.take(1, 5, [ReplicaReport(7, 0, 10, 9, True), ReplicaReport(8, 0, 1, 1)], now=1.0)
    assert (reports.is_damaged(1, 7), reports.is_damaged(1, 8)) == (True, False)
    assert not reports.is_damaged(2, 7)
    assert list(reports.damaged()) == [7]

    reports.take(1, 5, [ReplicaReport(8, 0, 2, 2)], now=2.0)
    assert reports.is_damaged(1, 7), "it did not say otherwise"
    reports.take(1, 5, [ReplicaReport(7, 0, 10, 9)], now=3.0)
    assert not reports.is_damaged(1, 7)
    assert list(reports.damaged()) == []


def test_damage_ends_with_the_life_that_told_of_it():
    reports = ReplicaReports()
    reports.take(1, 5, [ReplicaReport(7, 0, 10, 9, True)], now=1.0)

    reports.take(1, 6, [], now=2.0)
    reports.take(1, 5, [ReplicaReport(7, 0, 10, 9, True)], now=3.0)

    assert not reports.is_damaged(1, 7)


def test_what_came_to_be_damaged_or_sound_is_unsettled_until_somebody_looked():
    reports = ReplicaReports()
    damaged, sound = ReplicaReport(7, 0, 10, 9, True), ReplicaReport(7, 0, 10, 9)
    reports.take(1, 5, [ReplicaReport(8, 0, 1, 1)], now=1.0)
    assert reports.unsettled == {}
    for broker_epoch, said in [(5, [damaged]), (5, [sound]), (5, [damaged]), (6, [])]:
        reports.take(1, broker_epoch, said, now=1.0)
        assert list(reports.unsettled) == [7]
        reports.unsettled.clear()
        reports.take(1, broker_epoch, said, now=1.0)
        assert reports.unsettled == {}, "nothing new"


def test_damage_of_deleted_topics_is_forgotten():
    reports = ReplicaReports()
    reports.take(1, 5, [ReplicaReport(7, 0, 10, 9, True)], now=1.0)

    reports.forget([7], 1)

    assert (list(reports.damaged()), reports.unsettled) == ([], {})


def test_a_report_of_before_there_was_damage_can_be_read():
    old = msgspec.msgpack.encode([7, 0, 10, 9])

    assert msgspec.msgpack.decode(old, type=ReplicaReport) == ReplicaReport(7, 0, 10, 9, False)


def test_who_holds_a_partition_no_more_has_nothing_to_say_of_it():
    reports = ReplicaReports()
    for node in (1, 2):
        reports.take(node, 5, [ReplicaReport(7, 0, 10, 9, True), ReplicaReport(8, 0, 1, 1)], now=1)

    reports.keep_replicas(7, [2, 3], 1)

    assert reports.get(1, 7) is None
    assert not reports.is_damaged(1, 7)
    assert reports.get(1, 8) is not None
    assert reports.is_damaged(2, 7)


def test_what_was_said_on_newer_metadata_is_kept_while_a_voter_applies_the_older():
    reports = ReplicaReports()
    reports.take(1, 5, [ReplicaReport(7, 0, 10, 9, True)], now=1.0, metadata_offset=12)

    reports.keep_replicas(7, [2, 3], 11)  # it held it no more, and has held it again since
    reports.forget([7], 12)  # of an earlier topic, before this one was made

    assert reports.said_in(5, 1, 7) == ReplicaReport(7, 0, 10, 9, True)
    assert (list(reports.damaged()), list(reports.unsettled)) == ([7], [7])
    reports.keep_replicas(7, [2, 3], 13)
    assert reports.said_in(5, 1, 7) is None
