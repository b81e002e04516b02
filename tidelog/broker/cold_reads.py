"""What services of the broker read of a log, whether memory holds it or a file.

Rule: rot is noticed before anybody gets the bytes, and told to whoever heals it.
"""

from functools import partial
from typing import TYPE_CHECKING

from tidelog.errors import OffsetNotAvailable, StorageError
from tidelog.host import Bytes
from tidelog.log.reading import Read
from tidelog.model import Offset
from tidelog.partition.driver import Partition

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


async def load(broker: "Broker", partition: Partition, read: Read) -> Bytes:
    """The batches of a read; a BrokerError if they cannot be had now. Waits for a file only."""
    if (cold := read.cold) is None:
        return read.joined
    try:
        return await broker.host.offload.run(partial(read.load, broker.host.disk))
    except OffsetNotAvailable:  # the next look knows
        raise OffsetNotAvailable(f"{partition.name} was cut at {cold.offset}") from None
    except OSError as error:
        raise StorageError(f"{partition.name} cannot be read: {error}") from error
    except StorageError:
        suspect(broker, partition, cold.offset)
        raise


def suspect(broker: "Broker", partition: Partition, offset: Offset) -> None:
    """A reader has found rot at `offset`: have other replicas heal it, if there are any."""
    if partition.is_copy:
        broker.replication.feeding.on_suspect(partition, offset)
