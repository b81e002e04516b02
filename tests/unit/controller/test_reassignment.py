import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.controller.histories import (
    CLUSTER_ID,
    TOPIC_ID,
    cluster,
    elect_all,
    electorate,
    image_after,
    partition_in,
    reported,
    restore_preferred,
    the_place,
)
from tidelog.config.topic import BY_REPLICAS
from tidelog.controller import in_sync, membership, reassignment
from tidelog.controller.elections import Electorate, min_in_sync
from tidelog.controller.in_sync import WantedInSync
from tidelog.controller.records import (
    BrokerFenced,
    BrokerShutdownWanted,
    PartitionChanged,
    PartitionState,
    TopicCreated,
)
from tidelog.controller.reports import ReplicaReport, ReplicaReports
from tidelog.errors import (
    BrokerError,
    InvalidReplicaAssignment,
    InvalidUpdateVersion,
    NoReassignmentInProgress,
)
from tidelog.model import NO_NODE
from tidelog.raft.voters import ReplicaKey

NODES = (1, 2, 3, 4, 5)


def image_with(partition, *, nodes=NODES, fenced=()):
    image = image_after(*cluster(*nodes), partition)
    for node in fenced:
        image.apply(BrokerFenced(node=node, broker_epoch=image.brokers[node].broker_epoch))
    return image


def able(image, *, minimum=BY_REPLICAS, reports=None):
    return electorate(image, minimum=minimum, reports=reports)


def begun(image, *target, **kwargs):
    """Begin a move in the image; the state that it makes."""
    record = reassignment.begin(the_place(image), target, image, able(image, **kwargs))
    assert record is not None
    image.apply(record)
    return record.state


def in_sync_are(image, *nodes, leader=None, eligible=()):
    """As if leaders and elections had made it so."""
    place = the_place(image)
    after = place.partition.changed(
        in_sync=frozenset(nodes),
        eligible=frozenset(eligible),
        leader=place.partition.leader if leader is None else leader,
    )
    image.apply(PartitionChanged(topic=str(TOPIC_ID), partition=0, state=after.state))


def completed(image, **kwargs):
    record = reassignment.complete(the_place(image), able(image, **kwargs))
    return None if record is None else record.state


def cancelled(image, **kwargs):
    return reassignment.cancel(the_place(image), able(image, **kwargs)).state


def moving(state):
    return state.replicas, state.adding, state.removing, state.original


# Beginning.


@pytest.mark.parametrize(
    ("original", "target", "replicas", "adding", "removing"),
    [
        ((1, 2, 3), (3, 4, 5), (3, 4, 5, 1, 2), (4, 5), (1, 2)),
        ((1, 2, 3), (4, 2, 3), (4, 2, 3, 1), (4,), (1,)),
        ((1, 2), (1, 2, 3, 4), (1, 2, 3, 4), (3, 4), ()),
        ((1, 2, 3), (2,), (2, 1, 3), (), (1, 3)),
        ((1,), (2,), (2, 1), (2,), (1,)),
    ],
)
def test_the_target_comes_first_and_then_those_who_go(original, target, replicas, adding, removing):
    image = image_with(partition_in(original, original, original[0]))

    state = begun(image, *target)

    assert moving(state) == (replicas, adding, removing, original)
    assert (state.leader, state.in_sync) == (original[0], original)
    assert (state.epoch, state.partition_epoch) == (3, 5)
    assert image.moving.keys() == {CLUSTER_ID}
    assert the_place(image).partition.target == target


def test_another_order_of_the_same_replicas_is_there_at_once():
    image = image_with(partition_in([1, 2, 3], [1, 2, 3], 1))

    state = begun(image, 3, 1, 2)

    assert moving(state) == ((3, 1, 2), (), (), ())
    assert (state.leader, state.epoch, state.partition_epoch) == (1, 3, 5)
    assert not image.moving


def test_what_is_so_already_changes_nothing():
    image = image_with(partition_in([1, 2, 3], [1, 2, 3], 1))
    place = the_place(image)
    assert reassignment.begin(place, (1, 2, 3), image, able(image)) is None

    begun(image, 3, 4, 5)

    assert reassignment.begin(place, (3, 4, 5), image, able(image)) is None


@pytest.mark.parametrize(
    ("target", "why"),
    [((), "at least one"), ((1, 1), "once"), ((1, 9), r"cannot move to \[9\]: there are only")],
)
def test_a_target_must_name_known_nodes_each_once(target, why):
    image = image_with(partition_in([1, 2, 3], [1, 2, 3], 1))

    with pytest.raises(InvalidReplicaAssignment, match=why):
        reassignment.begin(the_place(image), target, image, able(image))


def test_nobody_is_added_who_is_not_there_but_who_is_a_replica_already_may_stay_so():
    image = image_with(partition_in([1, 2, 3], [2, 3], 2), fenced=[1, 5])
    image.apply(BrokerShutdownWanted(node=4, broker_epoch=4))

    for node in (4, 5):
        with pytest.raises(InvalidReplicaAssignment, match="fenced or about to stop; start"):
            reassignment.begin(the_place(image), (2, 3, node), image, able(image))
    assert begun(image, 1, 2).replicas == (1, 2, 3)


def test_another_target_counts_from_the_replicas_of_before_the_first():
    image = image_with(partition_in([1, 2, 3], [1, 2, 3], 1))
    begun(image, 3, 4)
    in_sync_are(image, 1, 2, 3, 4)

    state = begun(image, 5, 1, 2)

    assert moving(state) == ((5, 1, 2, 3), (5,), (3,), (1, 2, 3))
    assert (state.in_sync, state.leader, state.epoch) == ((1, 2, 3), 1, 4)


def test_the_minimum_in_sync_stays_as_it_was_until_the_end():
    image = image_with(partition_in([1, 2], [1], 1))
    place = the_place(image)
    assert able(image).minimum(place.topic, place.partition) == 1

    begun(image, 3, 4, 5)

    assert len(place.partition.replicas) == 5
    assert able(image).minimum(place.topic, place.partition) == 1
    in_sync_are(image, 1, 3, 4, 5)
    state = completed(image)
    assert state is not None
    image.apply(PartitionChanged(topic=str(TOPIC_ID), partition=0, state=state))
    assert able(image).minimum(place.topic, place.partition) == 2


# Completing.


def test_a_move_waits_for_all_who_are_added():
    image = image_with(partition_in([1, 2, 3], [1, 2, 3], 1))
    begun(image, 3, 4, 5)

    assert completed(image) is None
    in_sync_are(image, 1, 2, 3, 4)
    assert completed(image) is None
    in_sync_are(image, 1, 2, 3, 4, 5)
    state = completed(image)

    assert state is not None
    assert moving(state) == ((3, 4, 5), (), (), ())
    assert (state.leader, state.in_sync, state.eligible) == (3, (3, 4, 5), ())
    assert (state.epoch, state.partition_epoch) == (4, 8)


def test_a_leader_who_stays_leads_in_another_epoch_if_a_replica_goes():
    """Its log may be gone, and it added again, before the leader hears of it."""
    image = image_with(partition_in([1, 2, 3], [1, 2, 3], 1))
    begun(image, 4, 1)
    in_sync_are(image, 1, 2, 3, 4)

    state = completed(image)

    assert state is not None
    assert (state.leader, state.epoch, state.in_sync) == (1, 4, (1, 4))


def test_a_leader_goes_on_in_its_epoch_if_nobody_goes():
    image = image_with(partition_in([1], [1], 1))
    assert begun(image, 1, 2).epoch == 3
    in_sync_are(image, 1, 2)

    state = completed(image)

    assert state is not None
    assert (state.leader, state.epoch, state.replicas) == (1, 3, (1, 2))


def test_fewer_replicas_are_enough_once_enough_of_them_are_in_sync():
    image = image_with(partition_in([1, 2, 3], [1, 3], 1))
    begun(image, 2, 3)
    assert completed(image, minimum=2) is None, "2 is not in sync, and 3 alone is not enough"

    in_sync_are(image, 1, 2, 3)
    state = completed(image, minimum=2)

    assert state is not None
    assert (state.replicas, state.leader, state.in_sync) == ((2, 3), 2, (2, 3))


def test_of_those_who_stay_anyway_not_all_must_be_in_sync():
    image = image_with(partition_in([1, 2, 3], [1, 3], 1))
    begun(image, 1, 2, 4)
    in_sync_are(image, 1, 3, 4)

    state = completed(image)

    assert state is not None
    assert (state.leader, state.in_sync, state.eligible) == (1, (1, 4), ())


def test_nothing_is_completed_while_nobody_leads():
    image = image_with(partition_in([1, 2, 3], [1, 2, 3], 1))
    begun(image, 3, 4, 5)
    in_sync_are(image, 4, 5, leader=NO_NODE, eligible=[1, 2, 3])

    assert completed(image, minimum=3) is None


def test_a_move_waits_while_nobody_who_stays_can_lead():
    image = image_with(partition_in([1], [1], 1))
    begun(image, 2)
    in_sync_are(image, 1, 2)

    assert completed(image, reports=reported(n2=(3, 5, True))) is None, "damaged"
    image.apply(BrokerShutdownWanted(node=2, broker_epoch=2))
    assert completed(image) is None, "about to stop"


def test_who_is_damaged_does_not_count_as_one_who_stays():
    image = image_with(partition_in([1, 2, 3], [1, 2, 3], 1))
    begun(image, 2, 3, 4)
    in_sync_are(image, 1, 2, 3, 4)

    state = completed(image, reports=reported(n2=(3, 5, True)))

    assert state is not None
    assert (state.leader, state.in_sync, state.eligible) == (3, (3, 4), ())


def test_a_log_that_was_cut_leads_only_if_no_other_is_there():
    reports = ReplicaReports()
    reports.take(3, 1, [ReplicaReport(CLUSTER_ID, 3, 5, 5, False, True)], now=0.0)
    image = image_with(partition_in([1, 2, 3], [1, 2, 3], 1))
    begun(image, 3, 4, 5)
    in_sync_are(image, 1, 2, 3, 4, 5)

    state = completed(image, reports=reports)

    assert state is not None
    assert state.leader == 4


def test_an_operator_who_moves_the_leader_away_has_decided_that_another_leads():
    manual = {"failover.mode": "manual"}
    image = image_with(partition_in([1, 2, 3], [1, 2, 3], 1, config=manual))
    begun(image, 3, 4, 5)
    in_sync_are(image, 1, 2, 3, 4, 5)

    state = completed(image)

    assert state is not None
    assert state.leader == 3


def test_what_a_leader_proposed_before_is_stale_after_each_step():
    image = image_with(partition_in([1, 2, 3], [1, 2, 3], 1))
    lives = {node: image.brokers[node].broker_epoch for node in NODES}
    proposal = WantedInSync(
        topic_id=TOPIC_ID,
        partition=0,
        leader=1,
        broker_epoch=1,
        epoch=3,
        partition_epoch=4,
        in_sync={1: lives[1], 2: lives[2]},
    )
    assert in_sync.change_in_sync(image, proposal, able(image)).state.in_sync == (1, 2)

    begun(image, 1, 2, 4)

    with pytest.raises(InvalidUpdateVersion):
        in_sync.change_in_sync(image, proposal, able(image))


# Cancelling.


def test_cancelling_goes_back_to_the_same_replicas_in_the_same_order():
    image = image_with(partition_in([1, 2, 3], [1, 2, 3], 1))
    begun(image, 3, 4, 5)
    in_sync_are(image, 1, 2, 3, 4)

    state = cancelled(image)

    assert moving(state) == ((1, 2, 3), (), (), ())
    assert (state.leader, state.epoch, state.in_sync) == (1, 4, (1, 2, 3))


def test_what_does_not_move_cannot_be_cancelled():
    image = image_with(partition_in([1, 2, 3], [1, 2, 3], 1))

    with pytest.raises(NoReassignmentInProgress, match="t-0"):
        cancelled(image)


def test_if_one_who_was_added_leads_another_does_after_cancelling():
    image = image_with(partition_in([1, 2, 3], [1, 2, 3], 1))
    begun(image, 4, 2, 3)
    in_sync_are(image, 2, 3, 4, leader=4)

    state = cancelled(image, reports=reported(n2=(3, 5), n3=(3, 6)))

    assert (state.leader, state.in_sync, state.epoch) == (3, (2, 3), 5)


def test_cancelling_is_refused_where_only_those_who_would_go_have_it_all():
    image = image_with(partition_in([1, 2, 3], [1, 2, 3], 1))
    begun(image, 3, 4, 5)
    in_sync_are(image, 4, 5, leader=4)

    with pytest.raises(InvalidReplicaAssignment, match=r"is on \[4, 5\] alone"):
        cancelled(image)
    in_sync_are(image, 3, 4, 5, leader=4)
    with pytest.raises(InvalidReplicaAssignment, match=r"needs 2 .* only \[3\] would"):
        cancelled(image)
    in_sync_are(image, 3, 4, leader=4)
    image.apply(BrokerFenced(node=3, broker_epoch=3))
    with pytest.raises(InvalidReplicaAssignment, match=r"none of .* can lead"):
        cancelled(image, minimum=1)


def test_a_disk_that_alone_has_it_all_is_not_given_up():
    image = image_with(partition_in([1, 2, 3], [1, 2, 3], 1))
    begun(image, 3, 4, 5)
    lost = the_place(image).partition.changed(
        leader=NO_NODE, in_sync=frozenset(), lost=(ReplicaKey(4, "d4"),)
    )
    image.apply(PartitionChanged(topic=str(TOPIC_ID), partition=0, state=lost.state))

    with pytest.raises(InvalidReplicaAssignment, match=r"is on \[4\] alone"):
        cancelled(image)


def test_cancelling_takes_nothing_from_a_damaged_sole_replica():
    image = image_with(partition_in([1], [1], NO_NODE))
    begun(image, 2)
    damaged = reported(n1=(3, 5, True))

    state = cancelled(image, reports=damaged)
    assert (state.replicas, state.in_sync) == ((1,), (1,))
    in_sync_are(image, 1, 2, leader=2)

    with pytest.raises(InvalidReplicaAssignment, match=r"is on \[2\] alone"):
        cancelled(image, reports=damaged)


def test_a_sole_replica_waits_for_no_operator_while_it_moves():
    image = image_with(partition_in([1], [1], NO_NODE, config={"failover.mode": "manual"}))
    begun(image, 2)

    (elected,) = elect_all(image, able(image))

    assert elected.state.leader == 1


def test_only_so_many_are_completed_at_once():
    states = [PartitionState(n, (2, 1), (1, 2), 1, 0, 1, (), (2,), (1,), (), (1,)) for n in (7, 8)]
    topic = TopicCreated(name="t", id=str(TOPIC_ID), replicas=[[2, 1]] * 2, partitions=states)
    image = image_with(topic)

    def done(count_max):
        return reassignment.completed(image.moving.values(), able(image), count_max=count_max)

    assert [len(done(count)) for count in (1, 2, 3)] == [1, 2, 2]


# Whatever happens.


class Copies:
    """What every node really holds: a number for the last record of it that was committed."""

    def __init__(self, image, minimum):
        self.image = image
        self.minimum = minimum
        self.committed = 0
        self.held = dict.fromkeys(the_place(image).partition.replicas, 0)

    @property
    def partition(self):
        return the_place(self.image).partition

    def electorate(self):
        return Electorate.of(self.image, ReplicaReports(), min_in_sync(self.minimum))

    def take(self, records):
        before = self.partition
        for record in records:
            self.image.apply(record)
        if not set(before.replicas) <= set(self.partition.replicas):
            assert self.partition.epoch > before.epoch
        self.check()

    def check(self):
        partition = self.partition
        assert set(self.partition.adding) | set(partition.removing) <= set(partition.replicas)
        assert partition.replicas == partition.target + partition.removing
        assert partition.in_sync | partition.eligible <= set(partition.replicas)
        assert partition.leader == NO_NODE or partition.leader in partition.in_sync
        assert (CLUSTER_ID in self.image.moving) == partition.is_moving
        for node in list(self.held):
            if node not in partition.replicas:
                del self.held[node]  # its files are gone
        for node in partition.in_sync | partition.eligible:
            assert self.held.get(node) == self.committed, f"{node} lacks some: {partition}"

    # What can happen.

    def write(self, node):
        partition = self.partition
        enough = self.electorate().minimum(the_place(self.image).topic, partition)
        if partition.leader != NO_NODE and len(partition.in_sync) >= enough:
            self.committed += 1
            self.held |= dict.fromkeys(partition.in_sync, self.committed)

    def join(self, node):
        partition = self.partition
        if partition.leader == NO_NODE or node not in partition.replicas:
            return
        self.held[node] = self.committed  # it has caught up
        self._propose(partition.in_sync | {node})

    def leave(self, node):
        if node != self.partition.leader and self.partition.leader != NO_NODE:
            self._propose(self.partition.in_sync - {node})

    def _propose(self, members):
        partition, brokers = self.partition, self.image.brokers
        wanted = WantedInSync(
            topic_id=TOPIC_ID,
            partition=0,
            leader=partition.leader,
            epoch=partition.epoch,
            broker_epoch=brokers[partition.leader].broker_epoch,
            partition_epoch=partition.partition_epoch,
            in_sync={node: brokers[node].broker_epoch for node in members},
        )
        try:
            record = in_sync.change_in_sync(self.image, wanted, self.electorate())
        except BrokerError:
            return
        self.take([record])

    def fence(self, node):
        if not self.image.brokers[node].fenced:
            self.take(membership.fence(self.image, [node], self.electorate()))

    def unfence(self, node):
        if self.image.brokers[node].fenced:
            self.take(membership.unfence(self.image, [node], self.electorate()))

    def prefer(self, node):
        self.take(restore_preferred(self.image, self.electorate(), count_max=9))

    def complete(self, node):
        before = self.partition
        record = reassignment.complete(the_place(self.image), self.electorate())
        if record is not None:
            self.take([record])
            after = self.partition
            assert after.replicas == before.target and not after.is_moving
            assert after.leader != NO_NODE
            enough = self.electorate().minimum(the_place(self.image).topic, after)
            assert len(after.in_sync) >= enough

    def cancel(self, node):
        original = reassignment.before(self.partition)
        try:
            record = reassignment.cancel(the_place(self.image), self.electorate())
        except BrokerError:
            return
        self.take([record])
        assert self.partition.replicas == original

    def begin(self, target):
        led = self.partition.leader != NO_NODE
        minimum = self.electorate().minimum(the_place(self.image).topic, self.partition)
        is_short = len(self.partition.in_sync) < minimum
        try:
            record = reassignment.begin(the_place(self.image), target, self.image, self.electorate())
        except BrokerError:
            return
        self.take([record] if record is not None else [])
        assert (self.partition.leader != NO_NODE) == led
        assert self.partition.target == target
        after = self.electorate().minimum(the_place(self.image).topic, self.partition)
        assert after == minimum, "the minimum moves at the end alone"
        assert is_short or len(self.partition.in_sync) >= minimum


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(
                [
                    "write",
                    "write",
                    "join",
                    "join",
                    "leave",
                    "fence",
                    "unfence",
                    "prefer",
                    "complete",
                    "cancel",
                ]
            ),
            st.sampled_from(NODES),
        ),
        st.tuples(
            st.just("begin"), st.lists(st.sampled_from(NODES), min_size=1, max_size=4, unique=True).map(tuple)
        ),
    ),
    max_size=60,
)


@settings(max_examples=400, deadline=None)
@given(
    replicas=st.lists(st.sampled_from(NODES), min_size=1, max_size=3, unique=True),
    minimum=st.sampled_from([BY_REPLICAS, 1, 2, 3]),
    failover=st.sampled_from(["auto", "manual"]),
    steps=STEPS,
)
def test_whoever_counts_holds_all_that_was_committed_whatever_moves(replicas, minimum, failover, steps):
    config = {"failover.mode": failover}
    image = image_with(partition_in(replicas, replicas, replicas[0], config=config))
    copies = Copies(image, minimum)

    for name, argument in steps:
        getattr(copies, name)(argument)
