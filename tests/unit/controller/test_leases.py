import pytest

from tests.unit.controller.histories import cluster, image_after, registered
from tidelog.controller.leases import LEASE_SECONDS, Heartbeat, Leases
from tidelog.controller.records import BrokerFenced, BrokerShutdownWanted
from tidelog.errors import BrokerIdNotRegistered, StaleBrokerEpoch


def beat(node, epoch, *, reached=100, wants_shutdown=False):
    return Heartbeat(node=node, broker_epoch=epoch, metadata_offset=reached, wants_shutdown=wants_shutdown)


def leases_of(image, now=0.0):
    leases = Leases()
    leases.begin(image, now)
    return leases


def test_a_lease_lasts_two_seconds_from_the_last_heartbeat():
    image = image_after(*cluster(1, 2))
    leases = leases_of(image)
    leases.heard(image, beat(1, 1), now=1.5)

    assert leases.ended(image, now=1.9) == []
    assert leases.deadline(image, now=1.9) == 2.0
    assert leases.ended(image, now=2.0) == [2]
    assert leases.ended(image, now=3.4) == [2]
    assert leases.ended(image, now=3.5) == [1, 2]
    assert LEASE_SECONDS == 2.0


def test_a_new_controller_grants_everybody_a_whole_lease_from_its_own_beginning():
    image = image_after(*cluster(1, 2))
    leases = leases_of(image, now=0.0)
    leases.heard(image, beat(1, 1), now=1.0)

    leases.begin(image, 100.0)  # its predecessor may have answered a heartbeat just now

    assert leases.ended(image, now=101.9) == []
    assert leases.ended(image, now=102.0) == [1, 2]


def test_a_new_controller_does_not_wait_for_a_process_that_is_gone():
    image = image_after(*cluster(1, 2))
    leases = leases_of(image, now=0.0)

    leases.begin(image, 100.0)
    leases.gone(2, 2)

    assert leases.ended(image, now=100.0) == [2]


def test_who_became_unfenced_without_being_heard_has_a_whole_lease_from_now():
    leases = leases_of(image_after())
    image = image_after(*cluster(1))

    assert leases.deadline(image, now=10.0) == 12.0
    assert leases.ended(image, now=12.0) == [1]


def test_a_process_that_is_gone_is_fenced_without_waiting():
    image = image_after(*cluster(1, 2))
    leases = leases_of(image)

    leases.gone(2, 2)
    leases.gone(9, 2)

    assert leases.ended(image, now=0.0) == [2]


def test_the_end_of_one_life_does_not_end_the_lease_of_the_next():
    image = image_after(*cluster(1, 2))
    leases = leases_of(image)
    leases.heard(image, beat(2, 2), now=0.0)

    leases.gone(2, 1)

    assert leases.ended(image, now=0.1) == []


def test_a_heartbeat_proves_that_a_process_is_not_gone():
    image = image_after(*cluster(1))
    leases = leases_of(image)

    leases.gone(1, 1)
    leases.heard(image, beat(1, 1), now=0.1)

    assert leases.ended(image, now=0.1) == []


def test_who_is_about_to_be_fenced_gets_no_lease_whatever_it_says():
    image = image_after(*cluster(1, 2))
    leases = leases_of(image)
    leases.heard(image, beat(2, 2), now=1.9)
    assert leases.ended(image, now=2.0) == [1]

    leases.heard(image, beat(1, 1), now=2.1)  # while that is being decided

    assert leases.is_over(image, 1)
    assert not leases.is_over(image, 2)
    assert leases.ended(image, now=2.1) == [1]

    image.apply(BrokerFenced(node=1, broker_epoch=1))
    assert not leases.is_over(image, 1)
    leases.heard(image, beat(1, 1), now=2.2)
    assert leases.ready(image, now=2.2) == [1]


def test_a_fenced_broker_is_not_fenced_again():
    image = image_after(*cluster(1), BrokerFenced(node=1, broker_epoch=1))

    assert leases_of(image).ended(image, now=50.0) == []
    assert leases_of(image).deadline(image, now=50.0) is None


@pytest.mark.parametrize(("reached", "ready"), [(7, []), (8, [1])])
def test_a_broker_is_ready_once_it_has_applied_its_own_registration(reached, ready):
    image = image_after(registered(1, epoch=7))
    leases = leases_of(image)

    leases.heard(image, beat(1, 7, reached=reached), now=0.0)

    assert leases.ready(image, now=1.0) == ready


def test_a_broker_that_fell_silent_or_wants_to_stop_or_was_never_heard_is_not_ready():
    image = image_after(registered(1, epoch=1), registered(2, epoch=2), registered(3, epoch=3))
    leases = leases_of(image)
    leases.heard(image, beat(1, 1), now=0.0)
    leases.heard(image, beat(2, 2, wants_shutdown=True), now=5.0)

    assert leases.ready(image, now=5.0) == []


def test_a_broker_that_left_is_not_ready_until_it_registers_again():
    image = image_after(
        *cluster(1), BrokerShutdownWanted(node=1, broker_epoch=1), BrokerFenced(node=1, broker_epoch=1)
    )
    leases = leases_of(image)
    leases.heard(image, beat(1, 1), now=0.0)
    assert leases.ready(image, now=0.0) == []

    image.apply(registered(1, epoch=2))
    assert leases.ready(image, now=0.0) == [], "what the earlier life said does not count"
    leases.heard(image, beat(1, 2), now=0.0)

    assert leases.ready(image, now=0.0) == [1]


def test_a_broker_that_wants_to_stop_leaves_once():
    image = image_after(*cluster(1, 2))
    leases = leases_of(image)
    leases.heard(image, beat(2, 2, wants_shutdown=True), now=0.0)
    assert leases.leaving(image, now=0.0) == [2]

    image.apply(BrokerShutdownWanted(node=2, broker_epoch=2))

    assert leases.leaving(image, now=0.0) == []
    assert leases.ended(image, now=2.0) == [1, 2], "its lease goes on until it has stopped"


def test_what_an_earlier_life_or_a_stranger_says_is_refused():
    image = image_after(*cluster(1), registered(1, epoch=9))
    leases = leases_of(image)

    with pytest.raises(StaleBrokerEpoch, match="9, not 1") as caught:
        leases.heard(image, beat(1, 1), now=0.0)
    assert caught.value.current == 9
    with pytest.raises(BrokerIdNotRegistered):
        leases.heard(image, beat(2, 1), now=0.0)


def test_all_have_reached_what_the_slowest_has():
    image = image_after(*cluster(1, 2, 3))
    leases = leases_of(image)
    for node, reached in ((1, 10), (2, 30), (3, 20)):
        leases.heard(image, beat(node, node, reached=reached), now=0.0)

    assert leases.reached(image, 0.0, besides=2) == 10
    assert leases.reached(image, 0.0, besides=1) == 20
    alone = image_after(*cluster(1))
    assert leases.reached(alone, 0.0, besides=1) is None
