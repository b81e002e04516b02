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

    reports.keep_only({8})

    assert reports.get(1, 7) is None
    assert reports.get(1, 8) is not None
