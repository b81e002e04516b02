"""Replicas that move while nodes fail; and bugs planted in it, which its invariants find."""

import asyncio
from typing import Any

import pytest

from tests.simulation.test_planted_replication import PLACE, Stage, a_stage
from tidelog.client.admin import AdminClient
from tidelog.controller import elections, in_sync, reassignment
from tidelog.controller.elections import Electorate
from tidelog.controller.image import Place
from tidelog.controller.records import PartitionChanged
from tidelog.log.directory import PARTITION_METADATA
from tidelog.model import NO_NODE
from tidelog.partition.leader import Leader
from tidelog.replication.leftovers import Leftovers
from tidelog.simulation import replica_watch as watch
from tidelog.simulation.replicated import LEFT
from tidelog.simulation.swarm import make_plan, play
from tidelog.simulation.world import Violation


def plan_of(seed: int, *kinds: str, nodes: int = 5, chaos_seconds: float = 4) -> Any:
    return make_plan(seed, story="replicated", nodes=nodes, kinds=kinds, chaos_seconds=chaos_seconds)


def test_moves_are_drawn_apart_so_that_other_plans_stay_as_they_are() -> None:
    with_moves, without = plan_of(1, "crash", "move"), plan_of(1, "crash")

    others = tuple(fault for fault in with_moves.faults if fault.kind != "move")
    assert others == without.faults
    assert len(with_moves.faults) > len(others) > 0


@pytest.mark.parametrize("seed", [1, 115])
def test_nothing_is_lost_while_replicas_move_and_nodes_crash(seed: int) -> None:
    outcome = play(plan_of(seed, "crash", "isolate", "move", chaos_seconds=8))

    assert outcome.violation is None
    assert outcome.acknowledged > 10
    assert outcome.faults["move"] > 1


# Stories.


def order(stage: Stage, *target: int) -> None:
    """Let these nodes hold the partition."""

    async def work() -> None:
        async with stage.client(AdminClient, stage.controller) as client:
            assert await client.alter_reassignments({PLACE: target}) == {}

    stage.world.do(work())


def tell_of_one_who_goes_and_comes_back() -> None:
    """What it told of its old log must not count for its new one, which is empty."""
    with a_stage(replica_lag_time_max_ms=2000) as stage:
        first, second, third = stage.nodes
        stage.commit(5)
        order(stage, first, second)
        stage.run_until(lambda: stage.partition(third) is None)
        stage.world.clog(stage.controller, third, 1.5, seconds=3.0)  # its leader hears of it first
        order(stage, first, second, third)
        stage.run_until(lambda: not stage.state.is_moving)
        stage.commit()
        stage.run_until(lambda: stage.has(third, 6))


def test_who_goes_and_comes_back_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    tell_of_one_who_goes_and_comes_back()

    monkeypatch.setattr(reassignment, "_change", elections.change)  # in the same epoch
    monkeypatch.setattr(in_sync, "_check_health", lambda *_: None)
    monkeypatch.setattr(Leader, "forget", lambda *_: True)
    with pytest.raises(Violation, match=watch.JOINED):
        tell_of_one_who_goes_and_comes_back()


def test_a_follower_that_asks_before_its_leader_knows_of_it_gets_in_sync() -> None:
    """Though nothing is written that would make it ask again."""
    with a_stage() as stage:
        first, second, _ = stage.nodes
        other = next(n for n in stage.world.machines if n not in (*stage.nodes, stage.controller))
        stage.commit(5)
        stage.world.clog(stage.controller, first, 0.5, seconds=2.0)
        order(stage, first, second, other)
        stage.run_until(lambda: not stage.state.is_moving)


def test_what_is_moved_away_while_its_node_starts_leaves_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    look, looked = Leftovers.remove, []

    async def look_and_wait_for_the_move(self: Leftovers) -> None:
        await look(self)
        looked.append(self)
        while PLACE in [name for _, name in self._metadata.image.partitions_on(self._node_id)]:
            await asyncio.sleep(0.01)

    with a_stage() as stage:
        first, second, third = stage.nodes
        stage.commit(5)
        stage.world.crash(third)
        stage.run_until(lambda: third not in stage.state.in_sync)
        monkeypatch.setattr(Leftovers, "remove", look_and_wait_for_the_move)
        stage.world.restart(third)
        stage.run_until(lambda: looked)
        order(stage, first, second)
        stage.run_until(lambda: stage.world.is_up(third))
        disk = stage.world.machines[third].disk
        root = looked[0]._directory.root
        assert disk.is_directory(root)
        assert str(PLACE) not in disk.list(root)


@pytest.mark.parametrize("content", [None, b"", b"version: 0\ntop"])
def test_a_start_removes_what_a_crash_left_half_made_of_a_partition_that_others_hold(
    content: bytes | None,
) -> None:
    """Its directory does not say whose it is, so that it cannot be told from the topic's id."""
    with a_stage() as stage:
        other = next(n for n in stage.world.machines if n not in (*stage.nodes, stage.controller))
        machine = stage.world.machines[other]
        disk, root = machine.disk, machine.node.broker.root
        stage.world.crash(other)
        half_made, unknown = root / str(PLACE), root / f"{PLACE.topic}-{2**20}"
        for path in (half_made, unknown):
            disk.make_directory(path)
            if content is not None:
                disk.open(path / PARTITION_METADATA, create=True).write(0, [content])

        stage.world.restart(other)
        stage.run_until(lambda: stage.world.is_up(other))

        assert not disk.exists(half_made)
        assert disk.exists(unknown), "the cluster does not know that partition"


def test_a_start_keeps_a_directory_that_does_not_say_whose_records_it_has() -> None:
    with a_stage() as stage:
        other = next(n for n in stage.world.machines if n not in (*stage.nodes, stage.controller))
        machine = stage.world.machines[other]
        disk, path = machine.disk, machine.node.broker.root / str(PLACE)
        stage.world.crash(other)
        disk.make_directory(path)
        disk.open(path / "00000000000000000000.log", create=True).write(0, [b"records"])

        stage.world.restart(other)
        stage.run_until(lambda: stage.world.is_up(other))
        stage.world.run(10)

        assert disk.list(path) == ["00000000000000000000.log"]


# Planted.


def complete_early(place: Place, electorate: Electorate) -> PartitionChanged | None:
    """A move is complete once it has begun, and who comes counts as in sync."""
    partition = place.partition
    if not partition.is_moving or partition.leader == NO_NODE:
        return None
    target = partition.target
    leader = partition.leader if partition.leader in target else target[0]
    after = partition.edited(
        replicas=target,
        in_sync=frozenset(target),
        eligible=frozenset(),
        leader=leader,
        adding=(),
        removing=(),
        original=(),
    )
    return elections.change(place, after)


def leave_files_behind(self: Leftovers, *_: object) -> None:
    """A replica that was removed while its node was away stays where it is."""


def find(patch: pytest.MonkeyPatch, plant: Any, kinds: tuple[str, ...], seeds: range) -> str | None:
    """What seeds find with the bug; without it, the one that found something finds nothing."""
    for seed in seeds:
        plan = plan_of(seed, *kinds)
        with patch.context() as planted:
            planted.setattr(*plant)
            violation = play(plan).violation
        if violation is not None:
            assert play(plan).violation is None
            return violation.name
    return None


def test_a_move_that_ends_before_its_copies_are_there_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plant = (reassignment, "complete", complete_early)

    assert find(monkeypatch, plant, ("move",), range(1, 6)) in (watch.JOINED, watch.WHOLE)


def test_files_that_are_left_behind_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plant = (Leftovers, "_finish_removals", leave_files_behind)

    assert find(monkeypatch, plant, ("crash", "stop", "move"), range(6, 8)) == LEFT
