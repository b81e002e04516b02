"""The three client libraries, by name."""

from typing import Final

from tests.clients.adapters import Client
from tests.clients.adapters.aio import AioKafkaClient
from tests.clients.adapters.confluent import ConfluentClient
from tests.clients.adapters.kafka_python import KafkaPythonClient

CLIENTS: Final[dict[str, type[Client]]] = {
    "confluent": ConfluentClient,
    "kafka-python": KafkaPythonClient,
    "aiokafka": AioKafkaClient,
}
