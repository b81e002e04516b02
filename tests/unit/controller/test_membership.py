import pytest

from tests.unit.controller.histories import cluster, electorate, image_after, partition_in, states, voters
from tidelog.controller.membership import begin_shutdown, fence, unfence, unregister
from tidelog.controller.records import (
    BrokerFenced,
    BrokerShutdownWanted,
    BrokerUnfenced,
    BrokerUnregistered,
    VotersChanged,
)
from tidelog.errors import BrokerIdNotRegistered, InvalidRequest
from tidelog.model import NO_NODE


def test_fenced_brokers_come_first_then_what_they_led():
    image = image_after(*cluster(1, 2, 3), partition_in([1, 2, 3], [1, 2, 3], 1))

    records = fence(image, [2, 1], electorate(image))

    assert records[:2] == [BrokerFenced(node=1, broker_epoch=1), BrokerFenced(node=2, broker_epoch=2)]
    assert states(records) == [(3, (3,), (), 4, 5)]
    assert len(records) == 3


def test_brokers_that_come_back_lead_what_nobody_led():
    image = image_after(
        *cluster(1, 2), partition_in([1, 2], [1], NO_NODE), BrokerFenced(node=1, broker_epoch=1)
    )

    records = unfence(image, [1], electorate(image))

    assert records[0] == BrokerUnfenced(node=1, broker_epoch=1)
    assert states(records) == [(1, (1,), (), 4, 5)]


def test_who_wants_to_stop_hands_over_what_it_leads_and_leaves_the_in_sync_sets():
    image = image_after(*cluster(1, 2, 3), partition_in([1, 2, 3], [1, 2], 1))

    records = begin_shutdown(image, [1], electorate(image))

    assert records[0] == BrokerShutdownWanted(node=1, broker_epoch=1)
    assert states(records) == [(2, (2,), (), 4, 5)]


def test_what_nobody_else_can_lead_is_led_by_nobody_when_its_broker_stops():
    image = image_after(*cluster(1, 2), partition_in([1, 2], [1], 1))

    assert states(begin_shutdown(image, [1], electorate(image))) == [(NO_NODE, (1,), (), 4, 5)]


def test_a_planned_stop_waits_for_an_operator_too_where_failover_is_manual():
    partition = partition_in([1, 2, 3], [1, 2], 1, config={"failover.mode": "manual"})
    image = image_after(*cluster(1, 2, 3), partition)

    assert states(begin_shutdown(image, [1], electorate(image))) == [(NO_NODE, (2,), (1,), 4, 5)]


def test_a_broker_is_forgotten_once_it_stopped_and_holds_nothing():
    image = image_after(*cluster(1, 2), partition_in([1], [1], 1), VotersChanged(voters=voters(3)))

    with pytest.raises(InvalidRequest, match="running"):
        unregister(image, 2)
    image.apply(BrokerFenced(node=1, broker_epoch=1))
    image.apply(BrokerFenced(node=2, broker_epoch=2))
    with pytest.raises(InvalidRequest, match="replicas of t-0; move"):
        unregister(image, 1)
    assert unregister(image, 2) == BrokerUnregistered(node=2, broker_epoch=2)
    with pytest.raises(BrokerIdNotRegistered):
        unregister(image, 9)
    image.apply(VotersChanged(voters=voters(2)))
    with pytest.raises(InvalidRequest, match="voter"):
        unregister(image, 2)
