"""The group coordinator of this node: the shards of `__consumer_offsets` that it leads."""

from collections.abc import Iterable
from uuid import UUID

from tidelog.broker.broker import Broker
from tidelog.coordinators.shard_drivers import ShardDriver, ShardKeeper
from tidelog.groups.limits import Limits
from tidelog.groups.shard import Shard
from tidelog.model import NO_PRODUCER, OFFSETS_TOPIC, Offset, ProducerId
from tidelog.partition.driver import Partition
from tidelog.records import BatchHeader, decode_batch, read_marker


class GroupsDriver(ShardDriver[Shard]):
    """One partition of `__consumer_offsets` and the groups in it."""

    def __init__(self, broker: Broker, partition: Partition, limits: Limits) -> None:
        self._limits = limits
        super().__init__(broker, partition)

    def _new_shard(self) -> Shard:
        return Shard(self._limits)

    def _replay_batch(self, shard: Shard, header: BatchHeader, batch: memoryview) -> None:
        if header.is_control:
            if (marker := read_marker(batch)) is not None:
                shard.replay_marker(header.producer_id, marker.commits)
            return
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER
        for record in decode_batch(batch):
            shard.replay(record, producer_id)

    def _appended(self, shard: Shard, write: int, offset: Offset) -> None:
        shard.appended(write, offset)

    def _on_loaded(self, shard: Shard) -> None:
        self.perform(shard.topics_found(self._ids(shard.topics()), self.now()))

    def topic_deleted(self, name: str) -> None:
        """A topic of that name is no more; another may have it already."""
        if self.shard.is_loaded:
            self.perform(self.shard.topics_deleted({name}, self._ids({name}), self.now()))

    def _ids(self, names: Iterable[str]) -> dict[str, UUID]:
        """The ids of the topics that have these names now.

        No offset in the log is of a later topic: this node knows of all that the metadata held
        when it was made leader, and who led before commits nothing once it knows of more.
        """
        topics = self._broker.image.topics
        return {name: topics[name].id for name in names if name in topics}

    def completed(self, producer_id: ProducerId, commits: bool, offset: Offset) -> None:
        """A transaction has ended here: its marker stands at `offset`, and is committed."""
        self.perform(self.shard.completed(producer_id, commits, self.now(), offset))


class GroupCoordinator(ShardKeeper[GroupsDriver]):
    """The consumer groups that this node coordinates."""

    topic = OFFSETS_TOPIC
    what = "groups"

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._limits = _limits(broker)

    def _make(self, partition: Partition) -> GroupsDriver:
        return GroupsDriver(self._broker, partition, self._limits)

    def _partitions(self) -> int:
        return self._broker.config.offsets_topic_num_partitions

    def start(self) -> None:
        super().start()
        self._broker.repeat(self._broker.config.offsets_retention_check_interval_ms / 1000, self._expire)
        self._broker.on_topic_deleted(self.topic_deleted)

    def topic_deleted(self, name: str) -> None:
        for driver in self._drivers.values():
            driver.topic_deleted(name)

    async def _expire(self) -> None:
        for driver in self.drivers():
            driver.perform(driver.shard.expire(driver.now()))


def _limits(broker: Broker) -> Limits:
    config = broker.config
    return Limits(
        group_size_max=config.group_max_size,
        group_bytes_max=config.group_max_bytes,
        session_timeout_min_ms=config.group_min_session_timeout_ms,
        session_timeout_max_ms=config.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        offset_metadata_max=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
    )
