"""A broker on a simulated machine, asked as a connection would ask it."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from tests.simulation import virtual_time
from tests.unit.wire.messages import frame_of, produce_fields, read_response
from tidelog.broker.broker import Broker
from tidelog.config import node_config
from tidelog.kafka.context import Client
from tidelog.kafka.requests import Requests
from tidelog.records import Record, encode_batch
from tidelog.simulation.disk import SimulatedDisk
from tidelog.simulation.host import SimulatedClock, simulated_host
from tidelog.wire.apis import Api
from tidelog.wire.requests import read_header


class Refused(Exception):
    """The connection was closed."""


class Place:
    """The place of one answer on a connection."""

    def __init__(self) -> None:
        self.body: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self.gone: Callable[[], None] = lambda: None

    def send(self, body):
        self.body.set_result(b"".join(body))  # InvalidStateError if it was answered before

    def skip(self):
        self.body.set_result(None)

    def refuse(self, reason):
        self.body.set_exception(Refused(reason))

    def on_gone(self, call):
        self.gone = call


class Node:
    """One life of a broker, and a client of it."""

    def __init__(self, broker: Broker, clock: SimulatedClock) -> None:
        self.broker = broker
        self.clock = clock
        self.requests = Requests(broker)
        self.client = Client(address="test")
        self.repeated: Any = None

    def send(self, api: Api, version: int, fields: dict[str, Any], *, body: Any = None) -> Place:
        """Send a request; what is answered comes into its place."""
        return self.send_frame(frame_of(api, version, fields, body=body))

    def send_frame(self, frame: bytearray) -> Place:
        place = Place()
        self.repeated = self.requests.handle(frame, read_header(frame), self.client, place)
        return place

    async def ask(self, api: Api, version: int, **fields: Any) -> Any:
        return read_response(api, version, await self.send(api, version, fields).body)

    async def create(self, name: str, partitions: int = 1, **config: str) -> Any:
        """Create a topic; its id."""
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": -1,
            "configs": [{"name": k.replace("_", "."), "value": v} for k, v in config.items()],
        }
        answer = (await self.ask(Api.CREATE_TOPICS, 7, topics=[topic])).topics[0]
        assert answer.error_code == 0, answer
        return answer.topic_id

    async def produce(
        self, topic: Any, batch: Any, *, partition: int = 0, version: int = 9, acks: int = -1
    ) -> Any:
        """The answer of the one partition written to."""
        fields = produce_fields([(topic, [(partition, bytes(batch))])], acks=acks)
        answer = await self.ask(Api.PRODUCE, version, **fields)
        return answer.responses[0].partition_responses[0]

    def start_fetch(
        self, *wanted: tuple[Any, int, int], version: int = 11, partition_bytes: int = 2**20, **fields: Any
    ) -> Place:
        """Ask for (topic, partition, offset)s."""
        topics = [
            {
                "topic": topic,
                "topic_id": topic,
                "partitions": [
                    {"partition": number, "fetch_offset": o, "partition_max_bytes": partition_bytes}
                ],
            }
            for topic, number, o in wanted
        ]
        fields = {"min_bytes": 1, "max_bytes": 2**20, "max_wait": 0, "topics": topics} | fields
        return self.send(Api.FETCH, version, fields)

    async def fetch(self, *wanted: tuple[Any, int, int], version: int = 11, **options: Any) -> Any:
        place = self.start_fetch(*wanted, version=version, **options)
        return read_response(Api.FETCH, version, await place.body)

    async def fetch_one(self, topic: Any, offset: int = 0, **options: Any) -> Any:
        """The answer of partition 0 of a topic."""
        (answer,) = (await self.fetch((topic, 0, offset), **options)).responses
        return answer.partitions[0]


class Machine:
    """A disk and a clock that outlive the broker's process."""

    def __init__(self, **settings: object) -> None:
        self.clock = SimulatedClock()
        self.disk = SimulatedDisk(random.Random("disk"))
        self.config = node_config({name.replace("_", "."): value for name, value in settings.items()})
        self._lives = 0

    def live(self, story: Callable[[Node], Awaitable[None]], *, killed: bool = False) -> None:
        """Start a node, run `story`, and stop the node, or kill it."""
        virtual_time.run(self._live(story, killed), self.clock)
        self.disk.kill()

    async def _live(self, story: Callable[[Node], Awaitable[None]], killed: bool) -> None:
        self._lives += 1
        failures: list[BaseException] = []
        host = simulated_host(f"life {self._lives}", self.disk, clock=self.clock, idle=0.2)
        broker = Broker(host, self.config, failures.append)
        await broker.start()
        await story(Node(broker, self.clock))
        assert failures == []
        if not killed:
            await broker.stop()


def on_a_node(story: Callable[[Node], Awaitable[None]], **settings: object) -> None:
    """Run `story` on a node of its own."""
    Machine(**settings).live(story)


def batch_of(*values: bytes, time_ms: int = 1000, **options: Any) -> bytes:
    records = [Record(value=value, timestamp_ms=time_ms) for value in values]
    return bytes(encode_batch(records, **options))


def placed(batch: bytes, base_offset: int, epoch: int = 0) -> bytes:
    """The batch as a log holds it."""
    head = base_offset.to_bytes(8, "big") + batch[8:12] + epoch.to_bytes(4, "big")
    return head + batch[16:]
