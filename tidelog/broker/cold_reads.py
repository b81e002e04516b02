"""Bytes of a log that memory does not hold, read for services of the broker.

Rule: rot is noticed before anybody gets the bytes, and told to whoever heals it.
"""

from functools import partial
from typing import TYPE_CHECKING

from tidelog.errors import OffsetNotAvailable, StorageError
from tidelog.host import Bytes
from tidelog.log.log import ColdRead
from tidelog.model import Offset
from tidelog.partition.driver import Partition

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


async def read_cold(broker: "Broker", partition: Partition, read: ColdRead) -> Bytes:
    """Bytes from the disk, each batch checked; a BrokerError if they cannot be read now."""
    work = partial(read.perform_checked, broker.host.disk, has_gaps=partition.has_gaps)
    try:
        return await broker.host.offload.run(work)
    except FileNotFoundError:  # its segment was deleted meanwhile; the next look knows
        raise OffsetNotAvailable(f"{partition.name} was cut at {read.offset}") from None
    except OSError as error:
        raise StorageError(f"{partition.name} cannot be read: {error}") from error
    except StorageError:
        suspect(broker, partition, read.offset)
        raise


def suspect(broker: "Broker", partition: Partition, offset: Offset) -> None:
    """A reader has found rot at `offset`: have other replicas heal it, if there are any."""
    if partition.is_copy:
        broker.feeding.on_suspect(partition, offset)
