"""The client for threads: every call returns when it is done.

Rule: nothing is decided here. A method is a plan of another module, and this one performs its
      effects.

Do not edit: `python -m tests.support.derive_client` makes this module of `awaiting.py`.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import httpx

from tidelog.client.http.admin import BrokersPlans, ClientPlans, GroupsPlans
from tidelog.client.http.core import Settings
from tidelog.client.http.effects import (
    Apply,
    Effect,
    Emit,
    Flow,
    Lost,
    Open,
    Plan,
    Pull,
    Reply,
    Request,
    Send,
    Wait,
)
from tidelog.client.http.kv import KvPlans
from tidelog.client.http.pointer_queues import PointerQueuesPlans
from tidelog.client.http.queues import Consuming, MessageFacts, MessagePlans, QueuePlans
from tidelog.client.http.replication import ReplicationPlans
from tidelog.client.http.rooms import PubSubPlans, RoomPlans
from tidelog.client.http.surface import like
from tidelog.client.http.topics import TopicPlans, TopicsPlans
from tidelog.client.http.transport import (
    CONNECTIONS_MAX,
    DEFAULT_ADDRESS,
    lost_of,
    make_core,
    options,
    reply_of,
    timeout_of,
)
from tidelog.client.http.values import Consistency, Seconds
from tidelog.client.security import Security

C = TypeVar("C")
P = ParamSpec("P")
T = TypeVar("T")


class Driver:
    """Performs effects, one after another, in the caller's thread."""

    def __init__(self, http: httpx.Client, sleep: Callable[[float], None]) -> None:
        self.http = http
        self._sleep = sleep

    def run(self, plan: Plan[T]) -> T:
        """The result of a plan."""
        came: Any = None
        try:
            while True:
                try:
                    effect = plan.send(came)
                except StopIteration as end:
                    result: T = end.value
                    return result
                came = self.perform(effect)
        finally:
            plan.close()

    def iterate(self, flow: Flow[T]) -> Generator[T, None, None]:
        """What a flow emits. To stop earlier, leave the loop, or close this."""
        stream = Stream(self.http)
        came: Any = None
        try:
            while True:
                try:
                    effect = flow.send(came)
                except StopIteration:
                    return
                match effect:
                    case Emit(item):
                        yield item
                        came = None
                    case Open(request):
                        came = stream.open(request)
                    case Pull():
                        came = stream.pull()
                    case _:
                        came = self.perform(effect)
        finally:
            flow.close()
            stream.close()

    def perform(self, effect: Effect) -> Any:
        match effect:
            case Send(request):
                return self._send(request)
            case Wait(seconds):
                return self._sleep(seconds)
            case Apply(function, argument):
                return function(argument)

    def _send(self, request: Request) -> Reply | Lost:
        try:
            response = self.http.request(
                request.method,
                request.url,
                headers=request.headers,
                content=request.body,
                timeout=timeout_of(request),
            )
        except httpx.RequestError as error:
            return lost_of(error, request)
        return reply_of(response, response.content)


class Stream:
    """The answer that a flow reads on and on."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._request: Request | None = None
        self._response: httpx.Response | None = None
        self._chunks: Iterator[bytes] | None = None

    def open(self, request: Request) -> Reply | Lost:
        self.close()
        self._request = request
        try:
            self._response = self._http.send(
                self._http.build_request(
                    request.method, request.url, headers=request.headers, timeout=timeout_of(request)
                ),
                stream=True,
            )
            body = b"" if self._response.status_code == 200 else self._response.read()
        except httpx.RequestError as error:
            return lost_of(error, request)
        self._chunks = self._response.iter_bytes()
        return reply_of(self._response, body)

    def pull(self) -> bytes | Lost:
        assert self._request is not None, "it was opened"
        assert self._chunks is not None
        try:
            return next(self._chunks, b"")
        except httpx.RequestError as error:
            return lost_of(error, self._request)

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None


class Surface(Generic[C]):
    """What a user calls; `_plans` says what to do."""

    def __init__(self, plans: C, driver: Driver) -> None:
        self._plans = plans
        self._driver = driver


def call(plan: Callable[Concatenate[C, P], Plan[T]]) -> Callable[Concatenate[Surface[C], P], T]:
    """A method that carries out a plan."""

    def method(self: Surface[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._driver.run(plan(self._plans, *args, **kwargs))

    return like(plan, method, lambda result: result)


def each(
    flow: Callable[Concatenate[C, P], Flow[T]],
) -> Callable[Concatenate[Surface[C], P], Generator[T, None, None]]:
    """A method that gives what a flow emits."""

    def method(self: Surface[C], /, *args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
        return self._driver.iterate(flow(self._plans, *args, **kwargs))

    return like(flow, method, lambda item: Generator[item, None, None])  # type: ignore[valid-type]


class Kv(Surface[KvPlans]):
    """One key-value bucket."""

    create = call(KvPlans.create)
    drop = call(KvPlans.drop)
    get = call(KvPlans.get)
    put = call(KvPlans.put)
    delete = call(KvPlans.delete)
    compare_and_set = call(KvPlans.compare_and_set)
    update = call(KvPlans.update)
    batch = call(KvPlans.batch)
    scan = each(KvPlans.scan)
    watch = each(KvPlans.watch)


class Message(MessageFacts, Surface[MessagePlans]):
    """A message that is this receiver's for a while: acknowledge it, put it back or keep it."""

    ack = call(MessagePlans.ack)
    nack = call(MessagePlans.nack)
    extend = call(MessagePlans.extend)


def received(
    plan: Callable[Concatenate[C, P], Plan[list[MessagePlans]]],
) -> Callable[Concatenate[Surface[C], P], list[Message]]:
    """A method that carries out a plan whose result are messages."""

    def method(self: Surface[C], /, *args: P.args, **kwargs: P.kwargs) -> list[Message]:
        found = self._driver.run(plan(self._plans, *args, **kwargs))
        return [Message(one, self._driver) for one in found]

    return like(plan, method, lambda _: list[Message])


class Queue(Surface[QueuePlans]):
    """One work queue: each message has one receiver at a time, until it is acknowledged."""

    declare = call(QueuePlans.declare)
    describe = call(QueuePlans.describe)
    delete = call(QueuePlans.delete)
    publish = call(QueuePlans.publish)
    publish_many = call(QueuePlans.publish_many)
    receive = received(QueuePlans.receive)
    ack = call(QueuePlans.ack)
    nack = call(QueuePlans.nack)
    extend = call(QueuePlans.extend)
    purge = call(QueuePlans.purge)
    redrive = call(QueuePlans.redrive)

    def consume(
        self, *, max: int = 1, visibility: Seconds | None = None, idle: Seconds | None = None
    ) -> Generator[Message, None, None]:
        """Messages as they come, for ever, or until none came for `idle` seconds.

        One that was not settled is acknowledged when the next is asked for; who leaves the loop, by
        `break` or by an error, puts back the one that he has. Up to `max` are fetched at once.
        """
        consuming = Consuming(self._plans, max=max, visibility=visibility, idle=idle)
        try:
            while (found := self._driver.run(consuming.following())) is not None:
                yield Message(found, self._driver)
        finally:
            self._driver.run(consuming.leave())


class PointerQueues(Surface[PointerQueuesPlans]):
    """Queues with read pointers."""

    create = call(PointerQueuesPlans.create)
    delete = call(PointerQueuesPlans.delete)
    append = call(PointerQueuesPlans.append)
    read = call(PointerQueuesPlans.read)
    list = call(PointerQueuesPlans.list)
    messages = each(PointerQueuesPlans.messages)
    pointers = each(PointerQueuesPlans.pointers)
    broker_info = call(PointerQueuesPlans.broker_info)


class Room(Surface[RoomPlans]):
    """One room with its history."""

    create = call(RoomPlans.create)
    describe = call(RoomPlans.describe)
    delete = call(RoomPlans.delete)
    publish = call(RoomPlans.publish)
    history = call(RoomPlans.history)
    subscribe = each(RoomPlans.subscribe)


class PubSub(Surface[PubSubPlans]):
    """Messages to whoever listens now."""

    publish = call(PubSubPlans.publish)
    subscribe = each(PubSubPlans.subscribe)
    stats = call(PubSubPlans.stats)


class Topics(Surface[TopicsPlans]):
    """All topics."""

    list = call(TopicsPlans.list)
    describe = call(TopicsPlans.describe)
    create = call(TopicsPlans.create)
    alter = call(TopicsPlans.alter)
    delete = call(TopicsPlans.delete)


class Topic(Surface[TopicPlans]):
    """The records of one topic."""

    produce = call(TopicPlans.produce)
    produce_many = call(TopicPlans.produce_many)
    read = call(TopicPlans.read)
    stream = each(TopicPlans.stream)


class Replication(Surface[ReplicationPlans]):
    """How replicas stand."""

    status = call(ReplicationPlans.status)
    details = call(ReplicationPlans.details)


class Groups(Surface[GroupsPlans]):
    """Consumer groups."""

    list = call(GroupsPlans.list)
    describe = call(GroupsPlans.describe)
    delete = call(GroupsPlans.delete)
    reset = call(GroupsPlans.reset)


class Brokers(Surface[BrokersPlans]):
    """The nodes of the cluster."""

    list = call(BrokersPlans.list)
    drain = call(BrokersPlans.drain)
    remove = call(BrokersPlans.remove)
    stop = call(BrokersPlans.stop)


class Client(Surface[ClientPlans]):
    """A client of the HTTP face, which threads may share; close it, or use it in a `with`.

    It takes one address of the cluster or several, finds the other nodes by itself, and asks the
    leader of what a request is about. `timeout` is how long a node may be silent, in seconds;
    `retries` how often a request is repeated; `backoff` the longest pause before the first of
    them, twice that before the next. A stream that was heard and is lost is sought for
    `reconnect_seconds`. With `discover=False` it keeps to the addresses that it was given.
    `security` says who asks; without it, the file of TIDELOG_CLIENT_CONFIG does, if there is one.
    """

    def __init__(
        self,
        addresses: str | Sequence[str] = DEFAULT_ADDRESS,
        *,
        timeout: float = 10.0,
        retries: int = 3,
        backoff: float = 0.2,
        reconnect_seconds: float = 60.0,
        connections_max: int = CONNECTIONS_MAX,
        discover: bool = True,
        security: Security | None = None,
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], float] | None = None,
        random: Callable[[], float] | None = None,
        new_key: Callable[[], str] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        settings = Settings(
            timeout=timeout, retries=retries, backoff=backoff, reconnect_seconds=reconnect_seconds
        )
        core = make_core(addresses, settings, discover=discover, clock=clock, random=random, new_key=new_key)
        http = httpx.Client(transport=transport, **options(core, connections_max, security))
        super().__init__(ClientPlans(core), Driver(http, sleep))
        self.topics = Topics(TopicsPlans(core), self._driver)
        self.pointer_queues = PointerQueues(PointerQueuesPlans(core), self._driver)
        self.pubsub = PubSub(PubSubPlans(core), self._driver)
        self.replication = Replication(ReplicationPlans(core), self._driver)
        self.groups = Groups(GroupsPlans(core), self._driver)
        self.brokers = Brokers(BrokersPlans(core), self._driver)

    cluster = call(ClientPlans.cluster)
    health = call(ClientPlans.health)
    buckets = call(ClientPlans.buckets)
    queues = call(ClientPlans.queues)
    rooms = call(ClientPlans.rooms)
    request = call(ClientPlans.request)

    def kv(self, bucket: str, *, consistency: Consistency = "strong") -> Kv:
        """A bucket, and how new its reads shall be."""
        return Kv(KvPlans(self._plans.core, bucket, consistency), self._driver)

    def topic(self, name: str) -> Topic:
        return Topic(TopicPlans(self._plans.core, name), self._driver)

    def queue(self, name: str) -> Queue:
        """A work queue; `NAME.dead` is what nobody managed to do of NAME."""
        return Queue(QueuePlans(self._plans.core, name), self._driver)

    def room(self, name: str) -> Room:
        """A room, whose events are remembered."""
        return Room(RoomPlans(self._plans.core, name), self._driver)

    def close(self) -> None:
        """End all connections; streams end, too."""
        self._driver.http.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
