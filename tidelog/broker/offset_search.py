"""Offsets by time, or by a place's special number: the start of a log, its end, its newest record."""

from functools import partial
from typing import Final

from tidelog.broker.broker import Broker
from tidelog.errors import NotLeader
from tidelog.log.search import Found, TimeSearch
from tidelog.model import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, Epoch
from tidelog.partition.driver import Partition

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
LATEST_SURE: Final = -100
"""Ours: as LATEST, from a leader that has its lease. One that is cut off does not know that another
leads by now, and tells an end that is long past; a backup would take that for all there is."""


async def find_offset(
    broker: Broker, partition: Partition, timestamp_ms: int, committed_only: bool, epoch: Epoch = NO_EPOCH
) -> Found:
    """The first record since a time, or a place by its special number; NO_OFFSET for none."""
    leader = partition.leading(epoch)
    log = partition.log
    if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
        partition.visible_end()  # an earlier leader may have shown another start
        return Found(log.start, NO_TIMESTAMP, log.epochs.epoch_at(log.start))
    end = partition.visible_end()
    if committed_only:
        end = min(end, partition.last_stable_offset)
    if timestamp_ms == LATEST_SURE and len(leader.replicas) > 1 and not partition.has_lease():
        raise NotLeader(leader=None)
    if timestamp_ms in (LATEST, LATEST_SURE):
        return Found(end, NO_TIMESTAMP, leader.epoch)
    if timestamp_ms == LATEST_TIERED or timestamp_ms < LATEST_TIERED:
        return Found(NO_OFFSET, NO_TIMESTAMP, NO_EPOCH)
    search = TimeSearch.over(log, end)
    disk = broker.host.disk
    if timestamp_ms == MAX_TIMESTAMP:
        found = await broker.host.offload.run(partial(search.newest, disk))
    else:
        found = await broker.host.offload.run(partial(search.first_since, disk, timestamp_ms))
    return found if found is not None else Found(NO_OFFSET, NO_TIMESTAMP, NO_EPOCH)
