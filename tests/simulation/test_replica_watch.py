"""What the watch of replicas takes for a loss, and what it does not."""

from tests.simulation.test_planted_replication import Stage, a_stage
from tidelog.partition.driver import Partition
from tidelog.simulation import replica_watch as watch
from tidelog.simulation.quorum import quorum_of

NEVER = 1 << 40


def _outdate_the_leader(stage: Stage) -> int:
    """The first leader has synced a fourth record alone, and is down; another leads without it."""
    first, second, third = stage.nodes
    stage.commit(3)
    stage.part(first, second, third)
    stage.send(first)
    stage.run_until(lambda: stage.has(first, 4))
    stage.world.check_now()
    stage.world.crash(first)
    stage.run_until(lambda: stage.leads(second) or stage.leads(third))
    stage.world.heal()
    return first


def _restart_unseen(stage: Stage, node: int) -> Partition:
    """Let the watch know of the process, but look at none of its partitions; the one that opens."""
    world = stage.world
    world.restart(node)
    stage.run_until(lambda: quorum_of(world.machines[node]))
    assert stage.partition(node) is None
    world.check_now()
    stage.run_until(lambda: stage.partition(node))
    partition = stage.partition(node)
    assert partition is not None
    return partition


def _file_bytes(stage: Stage, node: int, partition: Partition) -> int:
    (segment,) = partition.log.segments
    return stage.world.machines[node].disk.open(segment.path()).size()


def test_what_a_leader_has_cut_before_anybody_looked_was_not_lost_by_the_disk(monkeypatch):
    monkeypatch.setattr(watch, "_CHECK_EVERY_EVENTS", NEVER)
    with a_stage() as stage:
        stage.world.check_now()
        first = _outdate_the_leader(stage)

        partition = _restart_unseen(stage, first)
        assert partition.log.end == 4
        stage.run_until(lambda: stage.has(first, 3))

        stage.world.check_now()


def test_who_dies_in_a_cut_that_nobody_saw_begin_may_come_back_without_what_it_cut(monkeypatch):
    monkeypatch.setattr(watch, "_CHECK_EVERY_EVENTS", NEVER)
    with a_stage() as stage:
        stage.world.check_now()
        first = _outdate_the_leader(stage)
        partition = _restart_unseen(stage, first)
        bytes_before = _file_bytes(stage, first, partition)

        stage.run_until(lambda: partition.mending.is_changing)
        stage.world.check_now()
        stage.run_until(lambda: _file_bytes(stage, first, partition) < bytes_before)
        assert partition.log.end == 4  # the process does not know yet
        stage.world.crash(first)

        assert _restart_unseen(stage, first).log.end == 3
        stage.world.check_now()
