"""Who is asked in `versus_requests.py`, and in which words.

Rule 1: the same work as far as each can do it: keys and values of the same size, one at a time, and
        safe on disks before the answer; to receive and acknowledge is two requests, both answered,
        but in AMQP, which sends the next message behind an acknowledgement.
Rule 2: there are as many queues with each as there are here, so that of three nodes each keeps some;
        connections go to all nodes in turn.
Rule 3: what is taken was put there for that; nobody waits for a message that is not there.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final, Protocol

from benchmarks.amqp import HEAD, Channel, ack
from benchmarks.amqp import publish as publish_to_rabbit
from benchmarks.bench import Bench
from benchmarks.closed import ask_once, http_answer, http_request, redis_answer, redis_request
from benchmarks.closed_load import AMQP, HTTP, NATS, REDIS, Program, Settling, Talk, spread
from benchmarks.cluster import cluster_of_three
from benchmarks.http_requests import BUCKET, KEYS, VALUE, Nodes, gets, puts
from benchmarks.nats_peer import Nats, NatsTalk
from benchmarks.nats_peer import publish as publish_to_nats
from benchmarks.queue_requests import GROUP, QUEUES
from benchmarks.rabbit_peer import Rabbit
from benchmarks.redis_peer import Redis

PUT: Final = "kv put"
GET: Final = "kv get"
PUBLISH: Final = "queue publish"
TAKE: Final = "receive + ack"
FILL: Final = "fill"
"""To publish what is taken."""

_METHOD_BYTES: Final = 4
_ADDED: Final = tuple(f"added-{number}" for number in range(QUEUES))
_TAKEN: Final = tuple(f"taken-{number}" for number in range(QUEUES))
_KEYS: Final = tuple(f"key-{number:05}" for number in range(KEYS))


class Side(Protocol):
    """A server, or three."""

    protocol: str

    @property
    def pids(self) -> Sequence[int]: ...

    def talks(self, kind: str, connections: int) -> list[Talk] | None:
        """Connections that are ready for this kind of request; None if it has none."""


def _rotated(programs: Sequence[Program], ports: Sequence[int], connections: int) -> list[Talk]:
    """One queue for each connection. Who asks a node's queues through that node alone would not meet
    the others."""
    talks = []
    for at in range(connections):
        port = ports[(at + at // QUEUES) % len(ports)]
        talks += spread([port], programs[at % QUEUES], 1)
    return talks


class OurRequests:
    """Tidelog over HTTP."""

    protocol = HTTP

    def __init__(self, nodes: Nodes) -> None:
        self._ports = nodes.http_ports
        self.pids: Sequence[int] = nodes.pids
        count = len(nodes.http_ports)
        bucket = b'{"partitions": %d, "replication": %d}' % (count, count)
        for path, body in (
            (f"/v1/kv/{BUCKET}", bucket),
            *((f"/v1/queues/{queue}", b"{}") for queue in (*_ADDED, *_TAKEN)),
        ):
            ask_once(self._ports[0], http_request("PUT", path, body), http_answer)
        self._programs = {
            PUT: Program(puts()),
            GET: Program(gets()),
            PUBLISH: Program([_post(queue, "messages", _MESSAGE) for queue in _ADDED]),
            FILL: Program([_post(queue, "messages", _MESSAGE) for queue in _TAKEN]),
        }
        self._takes = [_receive(queue) for queue in _TAKEN]

    def talks(self, kind: str, connections: int) -> list[Talk] | None:
        if kind == TAKE:
            return _rotated(self._takes, self._ports, connections)
        return spread(self._ports, self._programs[kind], connections)


_MESSAGE: Final = f'{{"messages": [{{"value": "{VALUE}"}}]}}'.encode()


def _post(queue: str, verb: str, body: bytes) -> bytes:
    return http_request("POST", f"/v1/queues/{queue}/{verb}", body)


def _receive(queue: str) -> Program:
    before, after = b'{"receipts": ["', b'"]}'
    head = _post(queue, "ack", b"-").partition(b"content-length: ")
    settling = Settling(
        opening=b'"receipt":"',
        closing=b'"',
        head=head[0] + head[1],
        extra=len(before) + len(after),
        before=b"\r\n\r\n" + before,
        after=after,
    )
    return Program([_post(queue, "receive", b'{"max": 1}')], settling)


class RedisRequests:
    """Redis: strings, and streams with a group each."""

    protocol = REDIS

    def __init__(self, redis: Redis) -> None:
        self._ports = [redis.port]
        self.pids = [redis.pid]
        value = VALUE.encode()

        def add(stream: str) -> bytes:
            return redis_request(b"XADD", stream.encode(), b"*", b"v", value)

        self._programs = {
            PUT: Program([redis_request(b"SET", key.encode(), value) for key in _KEYS]),
            GET: Program([redis_request(b"GET", key.encode()) for key in _KEYS]),
            PUBLISH: Program([add(stream) for stream in _ADDED]),
            FILL: Program([add(stream) for stream in _TAKEN]),
        }
        for stream in _TAKEN:
            made = redis_request(b"XGROUP", b"CREATE", stream.encode(), GROUP, b"0", b"MKSTREAM")
            ask_once(redis.port, made, redis_answer)

    def talks(self, kind: str, connections: int) -> list[Talk] | None:
        if kind == TAKE:
            takes = [self._take(_TAKEN[at % QUEUES], at) for at in range(connections)]
            return [talk for take in takes for talk in spread(self._ports, take, 1)]
        return spread(self._ports, self._programs[kind], connections)

    def _take(self, stream: str, worker: int) -> Program:
        name = stream.encode()
        words = [
            b"XREADGROUP",
            b"GROUP",
            GROUP,
            b"worker-%d" % worker,
            b"COUNT",
            b"1",
            b"STREAMS",
            name,
            b">",
        ]
        settling = Settling(  # the id comes with its length before it, and goes back with it
            opening=b"\r\n*1\r\n*2\r\n$",
            closing=b"\r\n*2\r\n",
            before=redis_request(b"XACK", name, GROUP).replace(b"*3", b"*4") + b"$",
            after=b"\r\n",
        )
        return Program([redis_request(*words)], settling)


class NatsRequests:
    """JetStream: a bucket of its key-value store, and work queues, each with one consumer for all."""

    protocol = NATS

    def __init__(self, nats: Nats) -> None:
        self._ports = nats.ports
        self.pids = nats.pids
        self._inboxes = 0
        replicas = len(nats.ports)
        with NatsTalk(nats.ports[0]) as talk:
            self._make(talk, "KV_keys", ["$KV.keys.>"], replicas, max_msgs_per_subject=1, allow_direct=True)
            for queue in (*_ADDED, *_TAKEN):
                self._make(talk, queue, [queue], replicas, retention="workqueue")
            for queue in _TAKEN:
                wanted = {"durable_name": "workers", "ack_policy": "explicit", "max_ack_pending": 10_000}
                talk.ask(
                    f"$JS.API.CONSUMER.DURABLE.CREATE.{queue}.workers",
                    {"stream_name": queue, "config": wanted},
                )

    def _make(self, talk: NatsTalk, name: str, subjects: list[str], replicas: int, **more: object) -> None:
        wanted = {"name": name, "subjects": subjects, "num_replicas": replicas, "storage": "file"} | more
        talk.ask(f"$JS.API.STREAM.CREATE.{name}", wanted)

    def talks(self, kind: str, connections: int) -> list[Talk] | None:
        talks = []
        for at in range(connections):
            self._inboxes += 1
            inbox = f"_INBOX.{self._inboxes:08}"
            port = self._ports[(at + at // QUEUES) % len(self._ports)]
            program = self._program(kind, inbox, _TAKEN[at % QUEUES])
            start = at * len(program.requests) // connections
            talks.append(Talk(NatsTalk(port, inbox).socket, program, start))
        return talks

    def _program(self, kind: str, inbox: str, queue: str) -> Program:
        value = VALUE.encode()
        if kind == PUT:
            return Program([publish_to_nats(f"$KV.keys.{key}", inbox, value) for key in _KEYS])
        if kind == GET:
            subject = "$JS.API.DIRECT.GET.KV_keys.$KV.keys"
            return Program([publish_to_nats(f"{subject}.{key}", inbox, b"") for key in _KEYS])
        if kind == TAKE:
            settling = Settling(
                opening=b" $JS.ACK",
                closing=b" ",
                before=b"PUB $JS.ACK",
                after=publish_to_nats("", inbox, b"+ACK").removeprefix(b"PUB "),
            )
            asked = publish_to_nats(f"$JS.API.CONSUMER.MSG.NEXT.{queue}.workers", inbox, b"1")
            return Program([asked], settling)
        queues = _ADDED if kind == PUBLISH else _TAKEN
        return Program([publish_to_nats(one, inbox, value) for one in queues])


class RabbitRequests:
    """RabbitMQ: quorum queues. It keeps no keys."""

    protocol = AMQP

    def __init__(self, rabbit: Rabbit) -> None:
        self._ports = rabbit.ports
        self.pids = rabbit.pids
        for number, queue in enumerate((*_ADDED, *_TAKEN)):  # who is asked for it leads it
            channel = Channel(self._ports[number % len(self._ports)])
            channel.declare(queue)
            channel.close()
        self._programs = {
            kind: Program([publish_to_rabbit(queue, VALUE.encode()) for queue in queues])
            for kind, queues in ((PUBLISH, _ADDED), (FILL, _TAKEN))
        }

    def talks(self, kind: str, connections: int) -> list[Talk] | None:
        if kind in (PUT, GET):
            return None
        talks = []
        for at in range(connections):
            channel = Channel(self._ports[(at + at // QUEUES) % len(self._ports)])
            if kind == TAKE:
                channel.consume_one(_TAKEN[at % QUEUES])
                talks.append(Talk(channel.socket, Program([ack(0)], tag_at=HEAD.size + _METHOD_BYTES)))
            else:
                channel.confirm()
                talks.append(Talk(channel.socket, self._programs[kind], at * QUEUES // connections))
        return talks


PEERS: Final[Mapping[str, str]] = {
    "nats": "NATS JetStream, sync_interval always",
    "redis": "Redis, appendfsync always",
    "rabbitmq": "RabbitMQ, quorum queues",
}


@contextmanager
def sides(bench: Bench, peers: Sequence[str], nodes: int) -> Iterator[dict[str, Side]]:
    """Start us and all of these; by their names. Redis is one server."""
    with ExitStack() as stack:
        started: dict[str, Side] = {"": OurRequests(_ours(bench, nodes, stack))}
        for peer in peers:
            if peer == "nats":
                nats = stack.enter_context(Nats(bench.fresh(peer), nodes))
                started[peer] = NatsRequests(nats)
            elif peer == "rabbitmq":
                started[peer] = RabbitRequests(stack.enter_context(Rabbit(bench.fresh(peer), nodes)))
            elif nodes == 1:
                started[peer] = RedisRequests(stack.enter_context(Redis(bench.fresh(peer), "always")))
        yield started


def _ours(bench: Bench, nodes: int, stack: ExitStack) -> Nodes:
    if nodes == 1:
        node = stack.enter_context(bench.node())
        ports = [int(node.http.rpartition(":")[2])]
        return Nodes(name="", bootstrap=node.bootstrap, http_ports=ports, pids=[node.pid])
    cluster = stack.enter_context(cluster_of_three(bench))
    return Nodes(
        name="",
        bootstrap=cluster.bootstrap,
        http_ports=[cluster.http_port(node) for node in cluster.node_ids],
        pids=[cluster.pid(node) for node in cluster.node_ids],
    )
