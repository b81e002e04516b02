"""Records written and read for who does not speak Kafka, at whichever node it asks."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


class RecordService:
    """Writes to and reads from partitions that this node or another leads."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
