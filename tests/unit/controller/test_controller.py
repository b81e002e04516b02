from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.controller.histories import CLUSTER_ID, cluster, partition_in, the_place
from tidelog.config import TopicConfig
from tidelog.controller import elections, reassignment
from tidelog.controller.controller import Controller, Standing
from tidelog.controller.decisions import Defaults, NewTopic, create_topic
from tidelog.controller.elections import min_in_sync
from tidelog.controller.image import ClusterImage
from tidelog.controller.in_sync import WantedInSync, change_in_sync
from tidelog.controller.leases import LEASE_SECONDS, Heartbeat
from tidelog.controller.records import (
    BrokerFenced,
    BrokerRegistered,
    BrokerShutdownWanted,
    PartitionChanged,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
)
from tidelog.controller.registration import Registration
from tidelog.controller.reports import ReplicaReport, ReplicaReports
from tidelog.controller.worklist import CHANGED
from tidelog.errors import (
    BrokerError,
    EligibleLeadersNotAvailable,
    PreferredLeaderNotAvailable,
    StaleBrokerEpoch,
)
from tidelog.model import NO_NODE, Endpoint


class Driver:
    """What a driver does, without a log: every batch is committed at once."""

    def __init__(self, *records, minimum=1, has_heard=True, **options):
        self.image = ClusterImage()
        self.end = 1
        self.now = 0.0
        self.batches: list = []
        self.controller = Controller(cluster_id="c", min_in_sync=min_in_sync(minimum), **options)
        self.apply(records)
        for broker in self.image.brokers.values() if has_heard else ():
            self.controller.overheard(
                Heartbeat(node=broker.node, broker_epoch=broker.broker_epoch, metadata_offset=0), now=0.0
            )
        self.begin()

    def begin(self):
        self.controller.begin(self.image, self.now, self.end)

    def apply(self, records):
        if not records:
            return
        for record in records:
            self.image.apply(record)
        self.end += len(records)
        self.batches.append(list(records))
        self.controller.applied(self.image, records, self.end)

    def settle(self):
        """Do all that is due; return the kinds of records in each batch."""
        first = len(self.batches)
        while records := self.controller.due(self.image, self.now):
            self.apply(records)
            assert len(self.batches) - first < 50, "what is due must come to an end"
        return [[type(record).__name__ for record in batch] for batch in self.batches[first:]]

    def gone(self, node):
        """The process of a broker's present life is gone."""
        if (broker := self.image.brokers.get(node)) is not None:
            self.controller.gone(node, broker.broker_epoch)

    def register(self, node, *, incarnation="i", directory=None, clean=True):
        wanted = Registration(
            cluster_id="c",
            node=node,
            incarnation=incarnation,
            directory=directory or f"d{node}",
            kafka=Endpoint(host="k", port=node),
            peer=Endpoint(host="p", port=node),
            clean=clean,
        )
        self.apply(self.controller.register(self.image, wanted, self.end))
        return self.image.brokers[node].broker_epoch

    def beat(
        self, node, *, reached=None, wants_shutdown=False, replicas=(), disk_full=False, has_unheard=False
    ):
        broker = self.image.brokers[node]
        heartbeat = Heartbeat(
            node=node,
            broker_epoch=broker.broker_epoch,
            wants_shutdown=wants_shutdown,
            metadata_offset=self.end if reached is None else reached,
            replicas=tuple(replicas),
            disk_full=disk_full,
            has_unheard=has_unheard,
        )
        self.controller.heard(self.image, heartbeat, self.now)

    def standing(self, node, epoch=None):
        if epoch is None:
            epoch = self.image.brokers[node].broker_epoch
        return self.controller.standing(self.image, node, epoch, self.now)

    @property
    def partition(self):
        return the_place(self.image).partition


def test_who_is_about_to_be_fenced_is_told_so_before_it_is():
    driver = Driver()
    driver.register(1)
    driver.beat(1)
    driver.settle()
    driver.now += 10

    decided = driver.controller.due(driver.image, driver.now)  # it takes a while to be committed
    driver.beat(1)

    assert driver.standing(1).is_fenced
    driver.apply(decided)
    driver.beat(1)
    assert driver.settle() == [["BrokerUnfenced"]]
    assert not driver.standing(1).is_fenced


def test_a_broker_registers_catches_up_and_is_unfenced():
    driver = Driver()
    driver.register(1)
    driver.beat(1, reached=driver.end - 1)
    assert driver.settle() == []
    assert driver.standing(1) == Standing(is_known=True, is_fenced=True, may_stop=True)

    driver.beat(1)

    assert driver.settle() == [["BrokerUnfenced"]]
    assert driver.standing(1) == Standing(is_known=True, is_fenced=False, may_stop=False)


def test_silence_beyond_the_lease_moves_the_lead_and_a_heartbeat_brings_the_broker_back():
    driver = Driver(*cluster(1, 2), partition_in([1, 2], [1, 2], 1), preferred_seconds=None)
    driver.now = 1.0
    driver.beat(2)
    assert driver.controller.deadline(driver.image, driver.now) == LEASE_SECONDS

    driver.now = LEASE_SECONDS
    assert driver.settle() == [["BrokerFenced", "PartitionChanged"]]
    assert (driver.partition.leader, driver.partition.in_sync) == (2, {2})

    driver.beat(1)
    assert driver.settle() == [["BrokerUnfenced"]]
    assert driver.partition.leader == 2


def test_a_process_that_is_gone_is_fenced_at_once():
    driver = Driver(*cluster(1, 2), partition_in([1, 2], [1, 2], 1))

    driver.gone(1)

    assert driver.settle() == [["BrokerFenced", "PartitionChanged"]]
    assert driver.now == 0.0


def test_what_is_due_stays_due_until_it_is_applied():
    driver = Driver(*cluster(1, 2), partition_in([1, 2], [1, 2], 1))
    driver.gone(1)

    once = driver.controller.due(driver.image, 0.0)

    assert once
    assert driver.controller.due(driver.image, 0.0) == once


def test_the_longest_log_that_was_heard_of_leads():
    driver = Driver(*cluster(1, 2, 3), partition_in([1, 2, 3], [1, 2, 3], 1))
    driver.beat(2, replicas=[ReplicaReport(CLUSTER_ID, 3, 10, 5)])
    driver.beat(3, replicas=[ReplicaReport(CLUSTER_ID, 3, 11, 5)])

    driver.gone(1)
    driver.settle()

    assert driver.partition.leader == 3


def test_a_voter_that_does_not_lead_remembers_how_far_replicas_go():
    driver = Driver(*cluster(1, 2, 3), partition_in([1, 2, 3], [1, 2, 3], 1))
    report = ReplicaReport(CLUSTER_ID, 3, 11, 5)
    driver.controller.overheard(
        Heartbeat(node=3, broker_epoch=3, metadata_offset=0, replicas=(report,)), now=0.0
    )

    driver.begin()
    driver.gone(1)
    driver.settle()

    assert driver.partition.leader == 3


def test_a_new_controller_elects_what_its_predecessor_did_not_come_to():
    driver = Driver(*cluster(1), partition_in([1], [1], NO_NODE))

    assert driver.settle() == [["PartitionChanged"]]
    assert driver.partition.leader == 1


def test_a_broker_may_stop_once_it_leads_nothing_and_all_others_know():
    driver = Driver(*cluster(1, 2), partition_in([1, 2], [1, 2], 1))
    driver.beat(2)
    driver.beat(1, wants_shutdown=True)
    assert driver.settle() == [["BrokerShutdownWanted", "PartitionChanged"]]
    assert driver.partition.leader == 2
    assert not driver.standing(1).may_stop

    driver.beat(2)
    assert driver.standing(1).may_stop

    driver.gone(1)
    assert driver.settle() == [["BrokerFenced"]]
    driver.beat(1)
    assert driver.settle() == [], "it is back only when it registers again"


def test_a_new_controller_lets_a_broker_go_once_the_others_reached_its_time():
    driver = Driver(*cluster(1, 2), BrokerShutdownWanted(node=1, broker_epoch=1))
    assert not driver.standing(1).may_stop

    driver.beat(2)

    assert driver.standing(1).may_stop


def test_the_only_broker_may_stop_at_once():
    driver = Driver(*cluster(1), partition_in([1], [1], 1))
    driver.beat(1, wants_shutdown=True)
    driver.settle()

    assert driver.standing(1).may_stop
    assert driver.partition.leader == NO_NODE


def test_an_earlier_life_is_told_that_it_is_over():
    driver = Driver()
    first = driver.register(1)
    driver.register(1, incarnation="j")

    assert not driver.standing(1, first).is_known
    with pytest.raises(StaleBrokerEpoch):
        driver.controller.heard(driver.image, Heartbeat(node=1, broker_epoch=first, metadata_offset=99), 0.0)


def test_leaders_return_to_first_replicas_after_a_while_and_not_all_at_once():
    count = CHANGED + 1
    created = TopicCreated(name="t", id=str(UUID(int=5)), replicas=[[1, 2]] * count)
    driver = Driver(*cluster(1, 2), created, preferred_seconds=5.0, lease_seconds=100.0)
    for number, partition in enumerate(driver.image.topics["t"].partitions):
        state = partition.changed(leader=2).state
        driver.image.apply(PartitionChanged(topic=str(UUID(int=5)), partition=number, state=state))
    driver.begin()
    assert driver.settle() == []
    assert driver.controller.deadline(driver.image, 0.0) == 5.0

    driver.now = 5.0

    assert [len(batch) for batch in driver.settle()] == [CHANGED, 1]
    assert driver.image.strayed == {}
    assert driver.controller.deadline(driver.image, 5.0) == 100.0


MANY = 2 * CHANGED + 1


def led_by_one(count: int) -> Driver:
    """Three brokers, the first of which leads all of many partitions."""
    created = TopicCreated(name="t", id=str(UUID(int=5)), replicas=[[1, 2, 3]] * count)
    driver = Driver(*cluster(1, 2, 3), created, preferred_seconds=None, lease_seconds=100.0)
    for node in (1, 2, 3):
        driver.beat(node)
    assert driver.settle() == []
    return driver


def sizes(batches: list[list[str]]) -> list[int]:
    return [batch.count("PartitionChanged") for batch in batches]


def test_a_broker_that_holds_very_much_is_fenced_in_several_batches():
    driver = led_by_one(MANY)

    driver.gone(1)
    batches = driver.settle()

    assert batches[0][0] == "BrokerFenced"
    assert sizes(batches) == [CHANGED, CHANGED, 1]
    assert all(1 not in p.in_sync and p.leader == 2 for p in driver.image.topics["t"].partitions)
    assert driver.controller.deadline(driver.image, 0.0) == 100.0


def test_a_batch_that_was_lost_on_the_way_is_decided_again():
    driver = led_by_one(MANY)
    driver.gone(1)
    driver.apply(driver.controller.due(driver.image, 0.0))

    lost = driver.controller.due(driver.image, 0.0)

    assert driver.controller.deadline(driver.image, 0.0) == 0.0
    assert driver.controller.due(driver.image, 0.0) == lost
    assert sizes(driver.settle()) == [CHANGED, 1]


def test_a_new_controller_finishes_what_its_predecessor_began():
    driver = led_by_one(MANY)
    driver.gone(1)
    driver.apply(driver.controller.due(driver.image, 0.0))

    driver.begin()

    assert sizes(driver.settle()) == [CHANGED, 1]


def test_a_broker_that_stops_hands_over_very_much_in_several_batches():
    driver = led_by_one(MANY)

    driver.beat(1, wants_shutdown=True)
    batches = driver.settle()

    assert batches[0][0] == "BrokerShutdownWanted"
    assert sizes(batches) == [CHANGED, CHANGED, 1]
    for node in (2, 3):
        driver.beat(node)
    assert driver.standing(1).may_stop


def test_topics_that_are_deleted_meanwhile_are_left_alone():
    driver = led_by_one(MANY)
    driver.gone(1)
    driver.apply(driver.controller.due(driver.image, 0.0))

    driver.apply([TopicDeleted(name="t")])

    assert driver.settle() == []


def test_a_broker_that_held_very_much_registers_again_once_others_lead_it():
    driver = led_by_one(MANY)
    wanted = Registration(
        cluster_id="c",
        node=1,
        incarnation="another",
        directory=driver.image.brokers[1].directory,
        kafka=Endpoint(host="k", port=1),
        peer=Endpoint(host="p", port=1),
    )
    assert driver.controller.must_leave_first(driver.image, wanted)

    batches = driver.settle()

    assert sizes(batches) == [CHANGED, CHANGED, 1]
    assert not driver.controller.must_leave_first(driver.image, wanted)
    assert len(driver.controller.register(driver.image, wanted, 9999)) == 1


def test_a_registration_that_came_late_ends_no_lease_of_a_broker_that_holds_very_much():
    driver = led_by_one(MANY)
    driver.beat(1)
    wanted = Registration(
        cluster_id="c",
        node=1,
        incarnation="before",
        directory=driver.image.brokers[1].directory,
        kafka=Endpoint(host="k", port=1),
        peer=Endpoint(host="p", port=1),
        known_epoch=driver.image.brokers[1].broker_epoch - 1,
    )

    assert not driver.controller.must_leave_first(driver.image, wanted)
    assert driver.settle() == []
    assert not driver.image.brokers[1].fenced
    with pytest.raises(StaleBrokerEpoch):
        driver.controller.register(driver.image, wanted, driver.end)


def test_a_broker_that_held_little_registers_again_at_once():
    driver = led_by_one(3)
    wanted = Registration(
        cluster_id="c",
        node=1,
        incarnation="another",
        directory=driver.image.brokers[1].directory,
        kafka=Endpoint(host="k", port=1),
        peer=Endpoint(host="p", port=1),
    )

    assert not driver.controller.must_leave_first(driver.image, wanted)


def test_very_much_that_nobody_led_is_led_in_several_batches():
    created = TopicCreated(name="t", id=str(UUID(int=5)), replicas=[[1]] * MANY)
    driver = Driver(*cluster(1, 2), created, preferred_seconds=None, lease_seconds=100.0)
    driver.beat(1), driver.beat(2)
    driver.gone(1)
    driver.settle()
    assert len(driver.image.led[NO_NODE]) == MANY

    driver.beat(1)

    assert sizes(driver.settle()) == [CHANGED, CHANGED, 1]
    assert NO_NODE not in driver.image.led


def test_what_was_heard_of_deleted_partitions_is_forgotten():
    driver = Driver(*cluster(1), partition_in([1], [1], 1))
    driver.beat(1, replicas=[ReplicaReport(CLUSTER_ID, 3, 11, 5)])

    driver.apply([TopicDeleted(name="t")])

    assert driver.controller.reports.get(1, CLUSTER_ID) is None


# Replicas whose start discarded bytes.


def test_the_last_in_sync_that_discarded_bytes_does_not_lead_when_its_turn_comes_as_the_first():
    driver = Driver(*cluster(1, 2), partition_in([1, 2], [1], NO_NODE, eligible=[2]), minimum=2)
    driver.gone(2)
    driver.beat(1, replicas=[ReplicaReport(CLUSTER_ID, 3, 9, 5, False, True)])
    driver.settle()
    assert driver.image.brokers[2].fenced
    assert driver.image.led.keys() == {NO_NODE}

    for _ in range(10):
        driver.now += LEASE_SECONDS / 2
        driver.beat(1)
        driver.settle()

    assert driver.image.led.keys() == {NO_NODE}, "2 may have what 1 discarded"


# Damage.


def damage(driver, node, *, damaged=True):
    driver.beat(node, replicas=[ReplicaReport(CLUSTER_ID, 3, 11, 5, damaged)])


def test_a_leader_that_says_it_is_damaged_is_replaced_and_comes_back_only_when_sound():
    driver = Driver(*cluster(1, 2), partition_in([1, 2], [1, 2], 1), preferred_seconds=1.0)
    damage(driver, 1)

    assert driver.settle() == [["PartitionChanged"]]
    assert (driver.partition.leader, driver.partition.in_sync) == (2, {2})

    driver.now = 1.0
    assert driver.settle() == []
    driver.gone(2)
    driver.settle()
    assert driver.partition.leader == NO_NODE


def test_what_is_due_because_of_damage_stays_due_until_it_is_applied():
    driver = Driver(*cluster(1, 2), partition_in([1, 2], [1], 1))
    damage(driver, 1)

    once = driver.controller.due(driver.image, 0.0)

    assert once
    assert driver.controller.due(driver.image, 0.0) == once


def test_a_partition_without_any_sound_replica_waits_until_one_says_that_it_is_sound():
    driver = Driver(*cluster(1, 2), partition_in([1, 2], [1], 1), preferred_seconds=None)
    damage(driver, 1)
    driver.settle()
    assert (driver.partition.leader, driver.partition.in_sync) == (NO_NODE, {1})

    damage(driver, 1, damaged=False)

    assert driver.settle() == [["PartitionChanged"]]
    assert driver.partition.leader == 1


def test_a_new_controller_acts_on_the_damage_that_it_overheard():
    driver = Driver(*cluster(1, 2), partition_in([1, 2], [1, 2], 1))
    report = ReplicaReport(CLUSTER_ID, 3, 11, 5, True)
    driver.controller.overheard(
        Heartbeat(node=1, broker_epoch=1, metadata_offset=0, replicas=(report,)), now=0.0
    )

    driver.begin()
    driver.settle()

    assert driver.partition.leader == 2


def test_damage_that_was_looked_at_is_not_news_again():
    driver = Driver(*cluster(1, 2), partition_in([1, 2], [1], 1), preferred_seconds=None)
    damage(driver, 1)
    driver.settle()
    forced = elections.promote(
        the_place(driver.image), 1, driver.controller.electorate(driver.image), force=True
    )

    driver.apply([forced])
    damage(driver, 1)

    assert driver.settle() == []
    assert driver.partition.leader == 1


# Settings.


@pytest.mark.parametrize(
    ("before", "after"), [({"failover.mode": "manual"}, {}), ({}, {"unclean.leader.election.enable": "true"})]
)
def test_what_waits_is_led_as_soon_as_a_setting_allows_it(before, after):
    in_sync = [2] if before else [1]
    partition = partition_in([1, 2], in_sync, NO_NODE, config=before)
    driver = Driver(*cluster(1, 2), BrokerFenced(node=1, broker_epoch=1), partition)
    assert driver.settle() == []

    driver.apply([TopicConfigChanged(topic="t", config=after)])

    assert driver.settle() == [["PartitionChanged"]]
    assert driver.partition.leader == 2


def test_what_waits_is_looked_at_now_and_then_whoever_changed_what():
    lax = TopicConfig()
    driver = Driver(
        *cluster(1, 2),
        BrokerFenced(node=1, broker_epoch=1),
        partition_in([1, 2], [1], NO_NODE),
        config_of=lambda topic: lax,
        preferred_seconds=5.0,
    )
    assert driver.settle() == []
    lax = TopicConfig(unclean_leader_election_enable=True)
    driver.now = 1.0
    driver.beat(2)
    assert driver.settle() == []
    driver.now = 2.9
    driver.beat(2)
    driver.now = 4.8
    driver.beat(2)

    driver.now = 5.0

    assert driver.settle() == [["PartitionChanged"]]


# Whatever happens.

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "beat",
                "beat",
                "beat",
                "gone",
                "restart",
                "wipe",
                "stop",
                "create",
                "wait",
                "settle",
                "settle",
                "join",
                "join",
                "shrink",
                "elected",
                "damage",
                "mend",
                "promote",
            ]
        ),
        st.integers(1, 4),
        st.integers(0, 7),
    ),
    max_size=60,
)


def take_step(driver, kind, node, number):
    image = driver.image
    match kind:
        case "beat" if node in image.brokers:
            driver.beat(node, reached=driver.end - number % 2, replicas=driver.damage_of(node))
        case "stop" if node in image.brokers:
            driver.beat(node, wants_shutdown=True)
        case "damage" | "mend" if node in image.brokers:
            held = list(image.held.get(node, {}).values())
            if held:
                getattr(driver, kind)(held[number % len(held)].partition, node)
        case "promote" if image.places:
            place = list(image.places.values())[number % len(image.places)]
            able = driver.controller.electorate(image)
            driver.apply([elections.promote(place, None, able, force=False)])
        case "gone":
            driver.gone(node)
        case "restart":
            clean, directory = bool(number % 2), None
            if node in image.brokers:
                directory = image.brokers[node].directory
            driver.register(node, incarnation=f"i{driver.end}", directory=directory, clean=clean)
        case "wipe":
            driver.register(node, incarnation=f"w{driver.end}", directory=f"w{driver.end}")
            driver.damaged = {(n, cluster_id) for n, cluster_id in driver.damaged if n != node}
        case "create":
            wanted = NewTopic(
                name=f"t{number}",
                partitions=2,
                replication=min(3, node),
                config={"failover.mode": "manual" if number % 3 == 2 else "auto"},
            )
            defaults = Defaults(partitions=1, replication=-1, topic=TopicConfig())
            driver.apply([create_topic(image, wanted, UUID(int=driver.end), defaults)])
        case "wait":
            driver.now += number / 2
        case "join" | "shrink":
            places = list(image.places.values())
            if places:
                propose(driver, places[number % len(places)], node, joins=kind == "join")
        case "elected":
            driver.begin()
        case _:
            driver.settle()


def propose(driver, place, node, *, joins):
    partition, brokers = place.partition, driver.image.brokers
    if partition.leader == NO_NODE:
        return
    members = partition.in_sync | {node} if joins else partition.in_sync - {node}
    wanted = WantedInSync(
        topic_id=place.topic.id,
        partition=place.number,
        leader=partition.leader,
        broker_epoch=brokers[partition.leader].broker_epoch,
        epoch=partition.epoch,
        partition_epoch=partition.partition_epoch,
        in_sync={n: brokers[n].broker_epoch for n in sorted(members) if n in brokers},
    )
    electorate = driver.controller.electorate(driver.image)
    driver.apply([change_in_sync(driver.image, wanted, electorate)])


class Witness(Driver):
    """Watches every batch, and knows which disks hold all that was committed.

    A leader commits, with everyone in sync, as soon as enough are; who is in sync with a leader
    holds what the leader holds.
    """

    def __init__(self, least):
        self.least = least
        self.damaged: set = set()
        self.holders: dict = {}
        self.epochs: dict = {}
        self.leaders: dict = {}
        super().__init__(minimum=least, preferred_seconds=1.0)

    def apply(self, records):
        super().apply(records)
        for place in self.image.places.values():
            self.check_state(place.partition)
            self.check_history(place.partition)
            self.check_committed(place.partition)

    def check_state(self, partition):
        active = {node for node in partition.in_sync if self.image.brokers[node].is_active}
        assert partition.leader == NO_NODE or partition.leader in active
        assert active == partition.in_sync or (len(partition.in_sync) == 1 and partition.leader == NO_NODE), (
            "a fenced broker is in no in-sync set, unless it is the last"
        )
        assert partition.in_sync or partition.lost
        assert partition.in_sync <= set(partition.replicas)
        assert partition.eligible <= set(partition.replicas) - partition.in_sync
        assert (
            len(partition.in_sync) < self.minimum(partition)
            or partition.leader == NO_NODE
            or not partition.eligible
        ), "who is eligible could not be done without"

    def check_history(self, partition):
        epochs = (partition.epoch, partition.partition_epoch)
        before = self.epochs.get(partition.cluster_id, (0, 0))
        assert all(now >= then for now, then in zip(epochs, before, strict=True))
        self.epochs[partition.cluster_id] = epochs
        epoch = (partition.cluster_id, partition.epoch)
        if partition.leader != NO_NODE and epoch not in self.leaders:
            self.check_elected(partition)
        led = self.leaders.setdefault(epoch, partition.leader)
        assert led == partition.leader, "one leader per epoch"

    def check_elected(self, partition):
        leader, cluster_id = partition.leader, partition.cluster_id
        known = self.controller.reports.is_damaged(leader, cluster_id)
        assert len(partition.replicas) == 1 or not known, "who says it is damaged is not elected"
        holders = self.holders.get(cluster_id)
        if holders is not None and (leader, cluster_id) not in self.damaged:
            disk = (leader, self.image.brokers[leader].directory)
            assert disk in holders, "a clean leader holds all that was committed"

    def check_committed(self, partition):
        if partition.leader == NO_NODE:
            return
        cluster_id = partition.cluster_id
        disks = {
            (node, self.image.brokers[node].directory)
            for node in partition.in_sync
            if (node, cluster_id) not in self.damaged
        }
        if len(partition.in_sync) >= self.minimum(partition):
            self.holders[cluster_id] = disks
        elif cluster_id in self.holders:
            self.holders[cluster_id] |= disks

    def minimum(self, partition):
        return min(self.least, len(partition.replicas))

    def damage(self, partition, node):
        """It loses what it had, if that is not the last copy."""
        disk = (node, self.image.brokers[node].directory)
        holders = self.holders.get(partition.cluster_id, set())
        if holders - {disk}:
            self.holders[partition.cluster_id] = holders - {disk}
            self.damaged.add((node, partition.cluster_id))
            self.beat(node, replicas=self.damage_of(node))

    def mend(self, partition, node):
        """It gets what it lost from the leader."""
        if (node, partition.cluster_id) in self.damaged and partition.leader not in (NO_NODE, node):
            self.damaged.remove((node, partition.cluster_id))
            if node in partition.in_sync:
                disk = (node, self.image.brokers[node].directory)
                self.holders[partition.cluster_id].add(disk)
            self.beat(node, replicas=[ReplicaReport(partition.cluster_id, 0, 0, 0)])

    def damage_of(self, node):
        return [ReplicaReport(i, 0, 0, 0, True) for n, i in sorted(self.damaged) if n == node]

    def settle(self):
        settled = super().settle()
        for cluster_id, place in self.image.places.items():
            led = (place.partition.leader, cluster_id)
            if len(place.partition.replicas) > 1 and led in self.damaged:
                known = self.controller.reports.is_damaged(*led)
                assert not known, "who says it is damaged leads no more"
        return settled


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, least=st.sampled_from([1, 2]))
def test_whatever_happens_leaders_hold_what_was_committed_and_epochs_never_fall(steps, least):
    driver = Witness(least)
    for node in (1, 2, 3):
        take_step(driver, "restart", node, 1)
        take_step(driver, "beat", node, 0)
    for kind, node in (("settle", 0), ("create", 3), ("join", 1), ("join", 2), ("join", 3)):
        try:
            take_step(driver, kind, node, 0)
        except BrokerError:
            continue
    for kind, node, number in steps:
        try:
            take_step(driver, kind, node, number)
        except BrokerError:
            continue
    registered = [r for b in driver.batches for r in b if isinstance(r, BrokerRegistered)]
    assert all(one.broker_epoch < later.broker_epoch for one, later in pairwise(registered))


# Replicas that move.


def in_sync_grows(driver, *nodes):
    """The leader proposes that these are in sync."""
    partition, brokers = driver.partition, driver.image.brokers
    wanted = WantedInSync(
        topic_id=the_place(driver.image).topic.id,
        partition=0,
        leader=partition.leader,
        broker_epoch=brokers[partition.leader].broker_epoch,
        epoch=partition.epoch,
        partition_epoch=partition.partition_epoch,
        in_sync={node: brokers[node].broker_epoch for node in nodes},
    )
    driver.apply([change_in_sync(driver.image, wanted, driver.controller.electorate(driver.image))])


def test_a_replica_of_which_a_voter_heard_before_it_knew_of_it_may_join():
    """The broker has applied more than this voter, and says nothing twice that does not change."""
    driver = Driver(*cluster(1, 2, 3), partition_in([1, 2], [1, 2], 1), preferred_seconds=None)
    driver.beat(3, reached=driver.end + 2, replicas=[ReplicaReport(CLUSTER_ID, -1, 0, 0)])

    in_sync_grows(driver, 1)  # 3 had applied this when it spoke, and the move behind it
    able = driver.controller.electorate(driver.image)
    moves = reassignment.begin(the_place(driver.image), (1, 2, 3), driver.image, able)
    driver.apply([moves])
    driver.begin()
    in_sync_grows(driver, 1, 3)

    assert driver.partition.in_sync == {1, 3}


def test_the_next_controller_completes_what_the_last_one_saw_begin():
    driver = Driver(*cluster(1, 2, 3, 4), partition_in([1, 2], [1, 2], 1), preferred_seconds=None)
    place, able = the_place(driver.image), driver.controller.electorate(driver.image)
    begun = reassignment.begin(place, (3, 4), driver.image, able)
    assert begun is not None
    driver.apply([begun])
    driver.beat(1, replicas=[ReplicaReport(CLUSTER_ID, 3, 9, 9)])
    assert driver.settle() == []

    for node in (3, 4):
        driver.beat(node, replicas=[ReplicaReport(CLUSTER_ID, 3, 9, 9)])
    in_sync_grows(driver, 1, 2, 3)
    assert driver.settle() == []
    in_sync_grows(driver, 1, 2, 3, 4)
    driver.begin()

    assert driver.settle() == [["PartitionChanged"]]
    assert driver.partition.replicas == (3, 4)
    assert (driver.partition.leader, driver.partition.in_sync) == (3, {3, 4})
    assert driver.controller.reports.get(1, CLUSTER_ID) is None
    assert driver.settle() == []


# Full disks.


def test_leadership_leaves_a_full_disk_at_once_and_returns_when_there_is_room():
    driver = Driver(*cluster(1, 2), partition_in([1, 2], [1, 2], 1))
    driver.settle()

    driver.beat(1, disk_full=True)
    assert driver.controller.has_news
    driver.settle()
    assert (driver.partition.leader, driver.controller.has_news) == (2, False)
    for _ in range(10):
        driver.now += 1
        driver.beat(1, disk_full=True)
        driver.beat(2)
        assert driver.settle() == []

    for _ in range(6):
        driver.now += 1
        driver.beat(1)
        driver.beat(2)
        driver.settle()
    assert driver.partition.leader == 1


def test_a_leader_on_a_full_disk_is_relieved_once_another_replica_is_in_sync():
    driver = Driver(*cluster(1, 2), partition_in([1, 2], [1], 1))
    driver.beat(1, disk_full=True)
    driver.beat(2)
    assert driver.settle() == []

    driver.apply([partition_in([1, 2], [1, 2], 1)])
    for _ in range(6):
        driver.now += 1
        driver.beat(1, disk_full=True)
        driver.beat(2)
        assert driver.controller.deadline(driver.image, driver.now) is not None
        driver.settle()

    assert driver.partition.leader == 2


def test_another_life_of_a_broker_begins_with_room():
    reports = ReplicaReports()
    reports.take(1, 3, (), 0.0, disk_full=True)
    reports.take(1, 4, (), 1.0)

    assert reports.full() == []


def test_nobody_leads_before_it_has_told_of_all_its_replicas():
    """A broker of thousands tells of them in several heartbeats; the last may tell of damage.

    A replica that is given the lead though it is damaged was chosen so by an operator, as far as
    it knows, and says no more that it is: nobody would replace it.
    """
    driver = Driver(*cluster(1, 2, 3), partition_in([1, 2, 3], [1], NO_NODE, eligible=[2]))
    driver.register(1)
    driver.register(2)
    driver.settle()
    damaged = ReplicaReport(CLUSTER_ID, 3, 100, 100, damaged=True)

    driver.beat(1, replicas=[ReplicaReport(1234, 3, 100, 100)], has_unheard=True)
    driver.settle()
    assert driver.partition.leader == NO_NODE
    driver.beat(1, replicas=[damaged])
    driver.beat(2, replicas=[ReplicaReport(CLUSTER_ID, 3, 100, 100)])
    driver.settle()

    assert driver.partition.leader == 2


DAMAGED = ReplicaReport(CLUSTER_ID, 3, 100, 100, damaged=True)
SOUND = ReplicaReport(CLUSTER_ID, 3, 100, 100)


def test_a_controller_elects_nobody_of_whose_replicas_it_has_not_heard():
    """Its process has just begun. Whom its predecessor did not let lead may be damaged."""
    waiting = partition_in([1, 2, 3], [1], NO_NODE, eligible=[2])
    driver = Driver(*cluster(1, 2, 3), waiting, has_heard=False)

    assert driver.settle() == []
    driver.beat(1, replicas=[DAMAGED])
    driver.settle()
    assert driver.partition.leader == NO_NODE
    driver.beat(2, replicas=[SOUND], has_unheard=True)
    driver.settle()
    assert driver.partition.leader == NO_NODE
    driver.beat(2)
    assert driver.controller.has_news
    driver.settle()

    assert driver.partition.leader == 2


def test_a_controller_that_has_heard_of_nobody_replaces_a_leader_once_it_has():
    driver = Driver(*cluster(1, 2), partition_in([1, 2], [1, 2], 1), has_heard=False)

    driver.gone(1)
    driver.settle()
    assert (driver.partition.leader, driver.partition.in_sync) == (NO_NODE, {2})
    driver.beat(2, replicas=[SOUND])
    driver.settle()

    assert driver.partition.leader == 2


def test_a_sole_replica_leads_though_nothing_was_heard_of_it():
    driver = Driver(*cluster(1), partition_in([1], [1], NO_NODE), has_heard=False)
    driver.settle()

    assert driver.partition.leader == 1


def test_an_unclean_election_waits_for_a_clean_leader_that_was_not_heard_of():
    lax = TopicConfig(unclean_leader_election_enable=True)
    driver = Driver(
        *cluster(1, 2), partition_in([1, 2], [1], NO_NODE), has_heard=False, config_of=lambda topic: lax
    )

    driver.beat(2, replicas=[ReplicaReport(CLUSTER_ID, 3, 5, 5)])
    driver.settle()
    assert driver.partition.leader == NO_NODE
    driver.beat(1, replicas=[SOUND])
    driver.settle()

    assert (driver.partition.leader, driver.partition.in_sync) == (1, {1})


@pytest.mark.parametrize("target", [None, 1])
def test_an_operator_is_asked_to_wait_for_a_replica_that_was_not_heard_of(target):
    driver = Driver(*cluster(1, 2), partition_in([1, 2], [1], NO_NODE), has_heard=False)
    driver.beat(2, replicas=[ReplicaReport(CLUSTER_ID, 3, 5, 5)])
    electorate, place = driver.controller.electorate(driver.image), the_place(driver.image)

    with pytest.raises(EligibleLeadersNotAvailable, match=r"^1 .*not told"):
        elections.promote(place, target, electorate, force=False)
    with pytest.raises(PreferredLeaderNotAvailable, match="not told"):
        elections.elect_preferred(place, electorate)
    with pytest.raises(EligibleLeadersNotAvailable, match=r"^1 .*not told"):
        elections.elect_unclean(place, electorate)
    with pytest.raises(EligibleLeadersNotAvailable, match=r"^1 .*not told"):
        elections.promote(place, None, electorate, force=True)
    assert elections.promote(place, 1, electorate, force=True).state.leader == 1
