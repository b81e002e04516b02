"""Which fenced brokers clients are told of, and for how long."""

from tests.unit.controller.histories import cluster, image_after, registered
from tidelog.broker.fenced_brokers import TOLD_SECONDS, FencedBrokers
from tidelog.controller.records import BrokerFenced, BrokerUnfenced, BrokerUnregistered

FENCED = BrokerFenced(node=2, broker_epoch=2)


def brokers_after(*later, at=100.0):
    """Three unfenced brokers, of which these records come in turn at a time."""
    image, found = image_after(*cluster(1, 2, 3)), FencedBrokers()
    found.applied(image, cluster(1, 2, 3), 0.0)
    for record in later:
        image.apply(record)
        found.applied(image, [record], at)
    return found


def test_a_fenced_broker_is_told_of_for_ten_minutes():
    found = brokers_after(FENCED)

    assert found.is_told(2, 100.0)
    assert found.is_told(2, 100.0 + TOLD_SECONDS - 1)
    assert not found.is_told(2, 100.0 + TOLD_SECONDS)


def test_a_broker_that_registers_anew_is_told_of_as_long_as_before():
    found = brokers_after(FENCED)
    again = registered(2, epoch=9)
    found.applied(image_after(*cluster(1, 2, 3), again), [again], 400.0)

    assert found.is_told(2, 699.0)
    assert not found.is_told(2, 700.0)


def test_a_broker_that_was_removed_is_not_told_of():
    assert not brokers_after(FENCED, BrokerUnregistered(node=2, broker_epoch=2)).is_told(2, 100.0)


def test_a_broker_that_was_never_unfenced_is_not_told_of():
    assert not brokers_after(registered(4, epoch=4)).is_told(4, 100.0)


def test_each_time_that_a_broker_is_fenced_counts_anew():
    found = brokers_after(FENCED)
    for record, at in ((BrokerUnfenced(node=2, broker_epoch=2), 500.0), (FENCED, 900.0)):
        found.applied(image_after(*cluster(1, 2, 3)), [record], at)

    assert found.is_told(2, 1499.0)
    assert not found.is_told(2, 1500.0)


def test_a_fenced_broker_of_a_snapshot_is_told_of_from_then():
    image, found = image_after(*cluster(1, 2, 3), FENCED), FencedBrokers()
    found.applied(image, (), 50.0)
    found.applied(image, (), 60.0)

    assert found.is_told(2, 50.0 + TOLD_SECONDS - 1)
    assert not found.is_told(2, 50.0 + TOLD_SECONDS)


def test_only_librdkafka_is_told_and_only_with_topics():
    assert FencedBrokers.are_for("confluent-kafka-python 2.16.1-rdkafka-2.16.0", names_topics=True)
    assert FencedBrokers.are_for("librdkafka 2.3.0", names_topics=True)
    assert not FencedBrokers.are_for("librdkafka 2.3.0", names_topics=False)
    assert not FencedBrokers.are_for("apache-kafka-java 4.1.0", names_topics=True)
