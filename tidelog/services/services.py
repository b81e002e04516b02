"""What a node does for the faces that do not speak Kafka, and for other nodes' faces.

Rule: all of them are there as soon as the node is, whether its own faces are used or not: another
node may send it work at any time.
"""

from typing import TYPE_CHECKING

from tidelog.services.copies import Copies
from tidelog.services.kv import Kv
from tidelog.services.pubsub import PubSub
from tidelog.services.queues import Queues
from tidelog.services.records import RecordService
from tidelog.services.replica_reads import ReplicaReads

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


class Services:
    """The services of one node, one of each kind."""

    def __init__(self, broker: "Broker") -> None:
        self.records = RecordService(broker)
        self.replica_reads = ReplicaReads(broker)
        self.kv = Kv(broker)
        self.queues = Queues(broker)
        self.pubsub = PubSub(broker)
        self.copies = Copies(broker, self.records, self.kv, self.queues)
