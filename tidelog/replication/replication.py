"""The replication of one node: its replicas, and what they say to those of other nodes.

Everything here exists from the constructor on; the broker starts what runs.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from tidelog.cluster.controller_line import ControllerLine
from tidelog.cluster.member import ClusterMember
from tidelog.cluster.membership import Membership
from tidelog.config import NodeConfig, TopicConfig
from tidelog.controller.image import TopicImage
from tidelog.controller.reports import ReplicaReports
from tidelog.host import Host
from tidelog.log.cleaner import Cleaner
from tidelog.log.directory import DataDirectory
from tidelog.log.disk_room import ChangeDisk, DiskRoom
from tidelog.log.rounds import Rounds
from tidelog.log.tail import TailBudget
from tidelog.model import NodeId
from tidelog.partition.driver import Partition
from tidelog.replication.damage import Damage
from tidelog.replication.follower_sessions import FollowerSessions
from tidelog.replication.in_sync import InSyncProposals
from tidelog.replication.lagging_followers import LaggingFollowers
from tidelog.replication.leader_fetchers import LeaderFetchers
from tidelog.replication.leftovers import Leftovers
from tidelog.replication.log_changes import LogChanges
from tidelog.replication.log_starts import LogStarts
from tidelog.replication.metadata_changes import MetadataChanges, Moved
from tidelog.replication.removal import Removal
from tidelog.replication.replica_reports import Reporting
from tidelog.replication.replicas import Replicas
from tidelog.replication.scrubbing import Scrubber


class Replication:
    """One of each that replication on this node consists of."""

    def __init__(
        self,
        host: Host,
        member: ClusterMember,
        rounds: Rounds,
        *,
        node_id: NodeId,
        directory: DataDirectory,
        budget: TailBudget,
        cleaner: Cleaner,
        room: DiskRoom,
        change_disk: ChangeDisk,
        config: Callable[[], NodeConfig],
        config_of: Callable[[TopicImage], TopicConfig],
        reports: Callable[[], ReplicaReports],
        make_membership: Callable[[Reporting], Membership],
        spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
        apply_configs: Callable[[Sequence[str] | None], Coroutine[Any, Any, None]],
        tell_deleted: Callable[[str], None],
        tell_moved: Callable[[Moved], None],
    ) -> None:
        """`make_membership` is given what the voters are to hear of the replicas."""
        self.replicas = Replicas(
            node_id=node_id,
            host=host,
            directory=directory,
            rounds=rounds,
            budget=budget,
            cleaner=cleaner,
            config_of=config_of,
            change_disk=change_disk,
            has_lease=lambda: self.membership.has_lease,
            on_role=self._on_role,
            on_closed=self._on_closed,
            on_spent=lambda partition: spawn(self.in_sync.step_down(partition)),
            on_short=room.ran_out,
        )
        self.removal = Removal(host, rounds, self.replicas, directory=directory, change_disk=change_disk)
        self.log_starts = LogStarts(
            directory, self.replicas, self.removal, change_disk=change_disk, spawn=spawn
        )
        self.replicas.on_start_agreed = self.log_starts.agreed
        self.leftovers = Leftovers(host, member, self.replicas, node_id=node_id, directory=directory)
        self.reporting = Reporting(node_id, member.metadata, self.replicas)
        self.replicas.on_decided, self.replicas.on_changed = self.reporting.repeat, self.reporting.mark
        self.membership = make_membership(self.reporting)
        self.following = MetadataChanges(
            node_id,
            member.metadata,
            self.replicas,
            apply_configs=apply_configs,
            tell_deleted=tell_deleted,
            tell_moved=tell_moved,
        )
        self.catching_up = LaggingFollowers(
            host, self.replicas, config=config, image=lambda: member.metadata.image, reports=reports
        )
        self.feeding = FollowerSessions(host, member, self.replicas, self.catching_up)
        self.log_changes = LogChanges(
            member,
            self.replicas,
            rounds,
            node_id=node_id,
            directory=directory,
            cleaner=cleaner,
            nudge=self.membership.nudge,
        )
        self.fetching = LeaderFetchers(
            host,
            member,
            self.replicas,
            broker_epoch=lambda: self.membership.broker_epoch,
            spawn=spawn,
            change_log=self.log_changes.change,
            log_starts=self.log_starts,
            threshold=lambda: config().catchup_threshold_records,
        )
        self.in_sync = InSyncProposals(
            host,
            node_id,
            member.metadata,
            self.replicas,
            ControllerLine(member),
            lag_seconds_max=lambda: config().replica_lag_time_max_ms / 1000,
            acted=self.following.done,
        )
        self.damage = Damage(
            host,
            mend=lambda partition, offset: self.scrubber.inspect(partition, offset),
            nudge=self.membership.nudge,
            spawn=spawn,
        )
        self.scrubber = Scrubber(
            host,
            member,
            self.replicas,
            rounds,
            node_id=node_id,
            root=directory.root,
            config=config,
            change_disk=change_disk,
            declare=self.damage.declare,
        )
        self.feeding.on_may_join = self.in_sync.look_at
        self.feeding.on_suspect = self.damage.suspect

    def _on_role(self, cluster_id: int, partition: Partition) -> None:
        self.fetching.follow(cluster_id, partition)
        if partition.leader is not None and len(partition.leader.replicas) > 1:
            self.in_sync.look_at(partition)

    def _on_closed(self, partition: Partition) -> None:
        self.fetching.forget(partition)
        self.reporting.mark(partition)

    async def drop_laggards(self) -> None:
        """See who has fallen behind, and who waits at the end of what it follows."""
        await self.feeding.note_level()
        await self.in_sync.look_at_all()
