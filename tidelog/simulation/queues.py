"""Queues under faults: messages appended and read by pointers, published, given out and settled.

Clients ask nodes as the HTTP face would, and repeat a request, with its key, at one node after the
other until it is answered; workers sometimes forget what they have, or settle it too late.

| invariant                        | meaning                                                       |
|----------------------------------|---------------------------------------------------------------|
| a pointer neither skips nor      | what a client reads of a queue is the beginning of what the   |
|   repeats                        | queue holds, in order                                         |
| a delivery is one receiver's     | no two requests are given the same message with one count     |
| a message is acknowledged once   | of all requests that acknowledge it one is told that it did   |
| what is done stays done          | a message that was acknowledged is given to nobody again      |
| what is asked for is there once  | a request that is repeated with its key adds nothing          |
| a repeat returns what is owned   | a receive that comes again gets nothing that its caller has |
|                                  | settled, and nothing that it was not given before             |
| of one key one after the other   | in an ordered queue nobody gets a message while an older one |
|                                  | of its key is not done                                        |
| nothing acknowledged is lost     | in the end every message that a publisher was told of was     |
|                                  | given out and acknowledged; every one appended is read        |
| liveness                         | after healing everybody gets on, and the queues get empty     |

Some requests have no key, and are asked for once: then a message may be missing, and is never there
twice. What operators do meanwhile is in `queue_operators`, what must hold inside of the nodes in
`queue_watch`, and of the log that the queues are kept in, in `replica_watch`.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sized
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tidelog.errors import TidelogError
from tidelog.model import Offset
from tidelog.queues.events import Kind, request_hash
from tidelog.queues.message import DEAD, MAIN
from tidelog.queues.records import About, Settings
from tidelog.services.queue_work import (
    AppendWork,
    CreateWork,
    DeclareWork,
    LookWork,
    Message,
    PublishWork,
    QueueAnswer,
    QueueWork,
    ReadNextWork,
    ReceiveWork,
    SettleWork,
)
from tidelog.services.queues import Queues
from tidelog.simulation.machine import Machine
from tidelog.simulation.node_calls import ask_node
from tidelog.simulation.queue_operators import QueueOperators
from tidelog.simulation.queue_watch import QueueWatch
from tidelog.simulation.quorum import QuorumWatch
from tidelog.simulation.replica_watch import ReplicaWatch
from tidelog.simulation.story import LIVENESS, PAUSE_SECONDS, Story
from tidelog.simulation.world import World

T = TypeVar("T")

POINTERS: Final = "a pointer neither skips nor repeats"
ONE_OWNER: Final = "a delivery is one receiver's"
ACKED_ONCE: Final = "a message is acknowledged once"
DONE: Final = "what is done stays done"
LOST: Final = "nothing acknowledged is lost"
ONCE: Final = "what is asked for is there once"
OWNED: Final = "a repeat returns what is owned"
ORDER: Final = "of one key one after the other"

_QUEUE: Final = "jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePace:
    """How much is asked of queues, and how patiently."""

    writers: int = 2
    readers: int = 2
    workers: int = 3
    think_seconds: float = 0.05
    patience_seconds: float = 2.0
    visibility_ms: int = 1500
    max_deliveries: int = 3
    is_ordered: bool = False
    forget_chance: float = 0.1
    """That a worker does nothing more with what it has."""
    late_chance: float = 0.05
    """That it settles it after its time is over."""
    anonymous_chance: float = 0.0
    """That a request has no key, and is asked for once."""
    repeat_chance: float = 0.0
    """That a request that was answered is repeated, or its key used for another."""
    delay_chance: float = 0.0
    has_operators: bool = False


class _Answer:
    """What was found in collections that only grow; it holds until one of them has.

    A queue may take minutes to get empty, and the loop asks at every moment of them.
    """

    def __init__(self) -> None:
        self._sizes: list[int] | None = None
        self._found: str | None = None

    def now(self, find: Callable[[], str | None], *grown: Sized) -> str | None:
        sizes = [len(one) for one in grown]
        if sizes != self._sizes:
            self._sizes, self._found = sizes, find()
        return self._found


class QueueLoad(Story):
    """The queues of one cluster, and everybody who uses them."""

    def __init__(self, world: World, pace: QueuePace, replicas: ReplicaWatch | None = None) -> None:
        """`replicas` watches the cluster already, if queues are not all that there is."""
        super().__init__(world)
        self.pace = pace
        if replicas is None:
            QuorumWatch(world)
            replicas = ReplicaWatch(world)
        self.replicas = replicas
        self.stops = False
        """Nobody publishes or appends any more, and workers do all that they are given: of each
        ordered key one message is out at a time, so a backlog would take them minutes otherwise."""
        self.queue_id = -1
        self.appended: dict[Offset, bytes] = {}
        """What writers were told of."""
        self._reads: dict[str, list[tuple[Offset, bytes]]] = {}
        self.published: dict[Offset, bytes] = {}
        self._given: dict[tuple[Offset, int], str] = {}
        self.acked: dict[Offset, str] = {}
        self._acked_count: dict[Offset, int] = {}
        self.maybe_acked: set[Offset] = set()
        self._unread, self._undone = _Answer(), _Answer()
        self._stands_at: dict[bytes, Offset] = {}
        self._key_of: dict[Offset, str] = {}
        self._settled: set[tuple[Offset, int]] = set()
        """Deliveries that their owner has settled, and knows of it."""
        self.operators = QueueOperators(self)
        self.insides = QueueWatch(world)

    @property
    def name(self) -> str:
        """Of the queue whose messages are given out."""
        return _QUEUE

    def pointers(self) -> dict[str, Offset]:
        """What each reader has got last."""
        return {name: reads[-1][0] for name, reads in self._reads.items() if reads}

    # Asking.

    async def try_once(
        self, who: str, generator: random.Random, place: Callable[[Queues], Awaitable[Any]], work: QueueWork
    ) -> QueueAnswer:
        """Ask some node once."""
        seconds = self.pace.patience_seconds
        if isinstance(work, ReceiveWork):
            seconds += work.wait_seconds

        async def ask(machine: Any) -> QueueAnswer:
            queues: Queues = machine.node.services.queues
            return await queues.have_done(await place(queues), work, seconds=seconds)

        node = generator.choice(list(self.world.machines))
        return await ask_node(self.world, node, ask, seconds)

    async def _ask_for(
        self,
        who: str,
        generator: random.Random,
        place: Callable[[Queues], Awaitable[Any]],
        work: QueueWork,
        *,
        once: bool = False,
    ) -> Any:
        """Ask one node after the other until one answers; None if it is asked for once, in vain."""
        while True:
            try:
                return await self.try_once(who, generator, place, work)
            except (TidelogError, TimeoutError) as error:
                self.world.trace.note(who, f"{type(error).__name__}: {error}")
                await asyncio.sleep(PAUSE_SECONDS * generator.random())
                if once:
                    return None
                work = work.repeated()

    def did(self, who: str) -> None:
        self.operations += 1
        self._not_yet.pop(who, None)

    # Who comes.

    async def _begin(self) -> None:
        pace, generator = self.pace, self.world.fork("queues")
        request = request_hash("create")
        made = await self._ask_for(
            "maker", generator, lambda queues: queues.place_for_new(request), CreateWork(request=request)
        )
        assert made.number is not None
        self.queue_id = made.number
        settings = Settings(pace.visibility_ms, pace.max_deliveries, pace.is_ordered)
        declared = DeclareWork(name=_QUEUE, settings=settings, request=request_hash("declare"))
        await self._ask_for("maker", generator, _work_place, declared)
        for number in range(pace.writers):
            self._spawn(self._host(number), self._append_on(f"writer-{number}"))
            self._spawn(self._host(number), self._publish_on(f"publisher-{number}"))
        for number in range(pace.readers):
            self._spawn(self._host(number), self._read_on(f"reader-{number}"))
        for number in range(pace.workers):
            self._spawn(self._host(number), self._work_on(f"worker-{number}"))
        if pace.has_operators:
            operators = self.operators
            self._spawn(self._host(0), operators.declare_again("declarer", _QUEUE))
            self._spawn(self._host(1), operators.redrive("redriver", _QUEUE))
            self._spawn(self._host(2), operators.remake("remaker"))
            for number in range(2):
                self._spawn(self._host(number), operators.crowd(f"crowd-{number}"))

    async def _pause(self, generator: random.Random) -> None:
        await asyncio.sleep(self.pace.think_seconds * 2 * generator.random())

    # Pointers.

    async def _append_on(self, name: str) -> None:
        generator, count = self.world.fork(name), 0
        while not self.stops:
            count += 1
            value = b'"%s/%d"' % (name.encode(), count)
            work = AppendWork(queue_id=self.queue_id, value=value, request=request_hash(f"{name} {count}"))
            done = await self._ask_for(name, generator, self._pointer_place, work)
            assert done.number is not None
            if self.appended.setdefault(done.number, value) != value:
                self.world.fail(LOST, f"{done.number}: {self.appended[done.number]!r}, {value!r}")
            self.acknowledged += 1
            self.did(name)
            await self._pause(generator)

    def _pointer_place(self, queues: Queues) -> Awaitable[Any]:
        return queues.place_of_id(self.queue_id)

    async def _read_on(self, name: str) -> None:
        generator, count = self.world.fork(name), 0
        reads = self._reads.setdefault(name, [])
        while True:
            count += 1
            work = ReadNextWork(queue_id=self.queue_id, client=name, request=request_hash(f"{name} {count}"))
            found = (await self._ask_for(name, generator, self._pointer_place, work)).messages
            for message in found:
                if reads and message.offset <= reads[-1][0]:
                    self.world.fail(POINTERS, f"{name}: {message.offset} after {reads[-1][0]}")
                reads.append((message.offset, message.value))
                self._note_value(message)
            self.did(name)
            await self._pause(generator)

    # Work.

    async def _publish_on(self, name: str) -> None:
        generator, count = self.world.fork(name), 0
        while not self.stops:
            count += 1
            values = [b'"%s/%d/%d"' % (name.encode(), count, n) for n in range(generator.randint(1, 3))]
            key = f"key-{generator.randint(0, 3)}" if generator.random() < 0.7 else None
            delay_ms = 300 if generator.random() < self.pace.delay_chance else 0
            messages = tuple((value, About(key=key, delay_ms=delay_ms)) for value in values)
            is_known = generator.random() >= self.pace.anonymous_chance
            request = request_hash(f"{name} {count}") if is_known else b""
            work = PublishWork(name=_QUEUE, messages=messages, request=request)
            done = await self._ask_for(name, generator, _work_place, work, once=not is_known)
            if done is None:
                continue
            for offset, value in zip(done.offsets, values, strict=True):
                if self.published.setdefault(offset, value) != value:
                    self.world.fail(LOST, f"{offset}: {self.published[offset]!r} and {value!r}")
                if key is not None:
                    self._key_of[offset] = key
            if is_known and generator.random() < self.pace.repeat_chance:
                again = await self._ask_for(name, generator, _work_place, work)
                if again is not None and again.offsets != done.offsets:
                    self.world.fail(ONCE, f"{values} stand at {done.offsets}, {again.offsets}")
            self.acknowledged += len(values)
            self.did(name)
            await self._pause(generator)

    async def _work_on(self, name: str) -> None:
        generator, count = self.world.fork(name), 0
        while True:
            count += 1
            lane = DEAD if generator.random() < 0.2 else MAIN
            is_known = self.stops or generator.random() >= self.pace.anonymous_chance
            work = ReceiveWork(
                name=_QUEUE,
                lane=lane,
                count_max=generator.randint(1, 4),
                wait_seconds=generator.choice((0.0, 0.5)),
                visibility_ms=None,
                request=request_hash(f"{name} {count}") if is_known else b"",
            )
            got = await self._ask_for(name, generator, _work_place, work, once=not is_known)
            if got is None:
                continue
            for message in got.messages:
                self._note_given(name, f"{name} {count}", message)
                self._note_order(lane, message)
            self.did(name)
            if got.messages and (self.stops or generator.random() >= self.pace.forget_chance):
                if not self.stops and generator.random() < self.pace.late_chance:
                    await asyncio.sleep(self.pace.visibility_ms * 2 / 1000)
                await self._settle(name, generator, f"{name} {count} settles", got.messages)
            if is_known and got.messages and generator.random() < self.pace.repeat_chance:
                settled = set(self._settled)
                again = await self._ask_for(name, generator, _work_place, work)
                self._note_repeat(f"{name} {count}", got, again, settled)
            await self._pause(generator)

    def _note_repeat(
        self, request: str, got: QueueAnswer, again: QueueAnswer, settled: set[tuple[Offset, int]]
    ) -> None:
        """A receive came again; `settled` is what was settled before."""
        before = {(one.offset, one.count) for one in got.messages}
        for one in again.messages:
            at = (one.offset, one.count)
            if at in settled or at not in before:
                self.world.fail(OWNED, f"{request} gets {at} again, of {sorted(before)}")

    def _note_order(self, lane: int, message: Message) -> None:
        """Where nothing dies, all that was published before under its key must be done."""
        pace, key = self.pace, message.key
        if lane != MAIN or not pace.is_ordered or pace.max_deliveries or key is None:
            return
        for offset, other in self._key_of.items():
            is_done = offset in self.acked or offset in self.maybe_acked
            if other == key and offset < message.offset and not is_done:
                self.world.fail(ORDER, f"{message.offset} of {key} is out before {offset}")

    def _note_value(self, message: Message) -> None:
        at = self._stands_at.setdefault(message.value, message.offset)
        if at != message.offset:
            self.world.fail(ONCE, f"{message.value!r} stands at {at} and at {message.offset}")

    def _note_given(self, name: str, request: str, message: Message) -> None:
        self._note_value(message)
        at = (message.offset, message.count)
        if self._given.setdefault(at, request) != request:
            self.world.fail(ONE_OWNER, f"{at}: {self._given[at]} and {request}")
        # An earlier delivery may be heard of late: its answer took longer than it was visible.
        if message.count > self._acked_count.get(message.offset, message.count):
            self.world.fail(DONE, f"{message.offset} is given to {name}, and was acknowledged")
        known = self.published.get(message.offset)
        if known is not None and known != message.value:
            self.world.fail(LOST, f"{message.offset} says {message.value!r}, not {known!r}")

    async def _settle(
        self, name: str, generator: random.Random, key: str, messages: tuple[Message, ...]
    ) -> None:
        weights = (1, 0, 0) if self.stops else (0.7, 0.2, 0.1)
        kinds: tuple[Kind, ...] = ("ack", "nack", "extend")
        kind = generator.choices(kinds, weights)[0]
        receipts = tuple(f"{one.offset}-{one.count}" for one in messages)
        work = SettleWork(
            name=_QUEUE,
            receipts=receipts,
            kind=kind,
            ms=generator.randint(1, 1000),
            request=request_hash(key),
        )
        if kind == "ack":
            self.maybe_acked.update(one.offset for one in messages)
        outcomes: tuple[str, ...] = (await self._ask_for(name, generator, _work_place, work)).outcomes
        for message, outcome in zip(messages, outcomes, strict=False):
            if kind != "extend" and outcome == "done":
                self._settled.add((message.offset, message.count))
            if kind != "ack" or outcome != "done":
                continue
            earlier = self.acked.setdefault(message.offset, key)
            self._acked_count.setdefault(message.offset, message.count)
            if earlier != key:
                self.world.fail(ACKED_ONCE, f"{message.offset}: {earlier} and {key}")
        self.world.trace.note(name, f"{kind} {receipts} {outcomes}")
        self.did(name)

    # After healing.

    def _expected(self) -> Iterable[Hashable]:
        pace = self.pace
        counts = {
            "writer": pace.writers,
            "publisher": pace.writers,
            "reader": pace.readers,
            "worker": pace.workers,
        }
        return [f"{kind}-{number}" for kind, count in counts.items() for number in range(count)]

    def _end(self, sound: list[Machine], seconds_max: float) -> None:
        """The queues get empty."""
        world = self.world
        self.stops = True
        world.run_while(self._not_read, seconds_max, name=LIVENESS)
        world.run_while(self._not_done, 4 * seconds_max, name=LIVENESS)
        looking = self._spawn(self._hosts[0], self._look())
        world.run_until(looking.done, seconds_max, name=LIVENESS)
        self._stop(1.0)
        world.check_now()
        self._judge()

    def _not_read(self) -> str | None:
        return self._unread.now(self._find_unread, self.appended, *self._reads.values())

    def _find_unread(self) -> str | None:
        for name, reads in self._reads.items():
            missing = self.appended.keys() - {offset for offset, _ in reads}
            if missing:
                return f"{name} has not read {sorted(missing)[:3]}"
        return None

    def _not_done(self) -> str | None:
        return self._undone.now(self._find_undone, self.published, self.acked, self.maybe_acked)

    def _find_undone(self) -> str | None:
        missing = self.published.keys() - self.acked.keys() - self.maybe_acked
        return f"nobody has done {sorted(missing)[:3]}" if missing else None

    async def _look(self) -> None:
        """In the end nothing is left but what somebody said to be done, and was not heard."""
        generator = self.world.fork("looker")
        while True:
            found = (await self._ask_for("looker", generator, _work_place, LookWork(name=_QUEUE))).document
            if not any(found[lane][what] for lane in ("main", "dead") for what in _KINDS):
                return
            await asyncio.sleep(0.5)

    def _judge(self) -> None:
        order = sorted(self.appended)
        for name, reads in self._reads.items():
            offsets = [offset for offset, _ in reads]
            if offsets[: len(order)] != order[: len(offsets)] and set(order) - set(offsets):
                self.world.fail(POINTERS, f"{name} read {offsets[:20]}, of {order[:20]}")
            for offset, value in reads:
                if self.appended.get(offset, value) != value:
                    self.world.fail(POINTERS, f"{name}: {offset} says {value!r}")
        first = next(iter(self._reads.values()), [])
        for name, reads in self._reads.items():
            shorter = min(len(reads), len(first))
            if reads[:shorter] != first[:shorter]:
                self.world.fail(POINTERS, f"{name} and another have read different things")


_KINDS: Final = ("ready", "delayed", "in_flight")


def _work_place(queues: Queues) -> Awaitable[Any]:
    return queues.place_of(_QUEUE)
