"""Those who make, change, empty and delete work queues while others use them.

One has a queue of its own, which it fills, empties, deletes and makes anew: it knows at any moment
what must be in it. Others declare a queue that is in use again, bring back what is dead in it, or
crowd into one that holds little. Requests are repeated late, under the same key.

| invariant                        | meaning                                                       |
|----------------------------------|---------------------------------------------------------------|
| what is deleted stays deleted    | of a queue that was deleted or emptied nobody gets a message  |
| a deletion is done once          | a late copy of a request to delete, to empty or to bring back |
|                                  | does nothing to what came since                               |
| a key is one request's           | a key that was used is refused for another body               |
"""

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final

from tidelog.errors import OutOfOrderSequence, QueueFull, TidelogError, UnknownQueue
from tidelog.model import Offset
from tidelog.queues.events import request_hash
from tidelog.queues.message import DEAD, MAIN
from tidelog.queues.records import About, Settings
from tidelog.services.queue_work import (
    DeclareWork,
    DropWork,
    MoveWork,
    PublishWork,
    QueueAnswer,
    QueueWork,
    ReceiveWork,
    SettleWork,
)
from tidelog.services.queues import Queues

if TYPE_CHECKING:
    from tidelog.simulation.queues import QueueLoad

GONE: Final = "what is deleted stays deleted"
ONCE_ONLY: Final = "a deletion is done once"
ONE_REQUEST: Final = "a key is one request's"

OWN: Final = "own"
SMALL: Final = "small"
SMALL_MAX: Final = 5
_PAUSE_SECONDS: Final = 0.2


class QueueOperators:
    """What happens to queues, beside their messages."""

    def __init__(self, load: "QueueLoad") -> None:
        self._load = load
        self._world = load.world
        self.remade = 0
        self.refused = 0
        self._strays: set[bytes] = set()
        """Messages whose publisher was refused in the end: a copy that is late may publish them."""

    # Asking.

    async def _ask(
        self, who: str, generator: random.Random, name: str, work: QueueWork
    ) -> QueueAnswer | Exception:
        """Ask until one answers: what it says, or refuses for good."""

        def place(queues: Queues) -> Any:
            return queues.place_of(name)

        while True:
            try:
                return await self._load.try_once(who, generator, place, work)
            except (UnknownQueue, QueueFull, OutOfOrderSequence) as error:
                return error
            except (TidelogError, TimeoutError) as error:
                if getattr(error, "code", 0) in (UnknownQueue.code, OutOfOrderSequence.code):
                    return error
                self._world.trace.note(who, f"{type(error).__name__}: {error}")
                await asyncio.sleep(_PAUSE_SECONDS * generator.random())

    async def _pause(self, generator: random.Random) -> None:
        await asyncio.sleep(self._load.pace.think_seconds * 10 * generator.random())

    # A queue that is in use.

    async def declare_again(self, name: str, queue: str) -> None:
        """Whoever starts declares what it uses."""
        generator, pace, count = self._world.fork(name), self._load.pace, 0
        while not self._load.stops:
            count += 1
            settings = Settings(
                pace.visibility_ms + generator.choice((0, 1)), pace.max_deliveries, pace.is_ordered
            )
            key = request_hash(f"{name} {count}") if generator.random() < 0.7 else b""
            await self._ask(name, generator, queue, DeclareWork(name=queue, settings=settings, request=key))
            await self._pause(generator)

    async def redrive(self, name: str, queue: str) -> None:
        """Bring back what is dead, and ask for it again."""
        generator, count = self._world.fork(name), 0
        while not self._load.stops:
            count += 1
            work = MoveWork(name=queue, lane=DEAD, request=request_hash(f"{name} {count}"))
            first = await self._ask(name, generator, queue, work)
            await self._pause(generator)
            if generator.random() < 0.3:
                again = await self._ask(name, generator, queue, work)
                if again != first:
                    self._world.fail(ONCE_ONLY, f"{queue}: redriven {first}, and again {again}")
            await self._pause(generator)

    # A queue that holds little.

    async def crowd(self, name: str) -> None:
        """Publish into a queue that is full most of the time, and take from it now and then."""
        generator, count = self._world.fork(name), 0
        await self._ask(
            name, generator, SMALL, DeclareWork(name=SMALL, settings=Settings(messages_max=SMALL_MAX))
        )
        while not self._load.stops:
            count += 1
            messages = tuple((b"%d" % n, About()) for n in range(generator.randint(1, SMALL_MAX)))
            await self._ask(
                name,
                generator,
                SMALL,
                PublishWork(name=SMALL, messages=messages, request=request_hash(f"{name} {count}")),
            )
            if generator.random() < 0.5:
                work = ReceiveWork(
                    name=SMALL,
                    lane=MAIN,
                    count_max=3,
                    wait_seconds=0.0,
                    visibility_ms=None,
                    request=request_hash(f"{name} {count} receives"),
                )
                got = await self._ask(name, generator, SMALL, work)
                receipts = [f"{one.offset}-{one.count}" for one in getattr(got, "messages", ())]
                if receipts:
                    done = SettleWork(name=SMALL, receipts=tuple(receipts), kind="ack", ms=0)
                    await self._ask(name, generator, SMALL, done)
            await self._pause(generator)

    # A queue that is made anew.

    async def remake(self, name: str) -> None:
        """Fill a queue, empty it, delete it, make it anew; look at what is in it."""
        generator, life = self._world.fork(name), 0
        late: list[QueueWork] = []
        while not self._load.stops:
            life += 1
            mine = f"{name} {life}"
            settings = Settings(600_000, 0, generator.random() < 0.5, made_ms=life)
            declared = DeclareWork(name=OWN, settings=settings, request=request_hash(f"{mine} declares"))
            await self._ask(name, generator, OWN, declared)
            held = await self._fill(name, generator, mine, "first")
            for number in range(generator.randint(0, 2)):
                held |= await self._change(name, generator, f"{mine} {number}", held, late)
            if late and generator.random() < 0.5:
                await self._ask(name, generator, OWN, generator.choice(late))
            await self._expect(name, generator, mine, held)
            drop = DropWork(name=OWN, request=request_hash(f"{mine} drops"))
            if generator.random() < 0.5:  # with a message on its way
                await asyncio.gather(
                    self._ask(name, generator, OWN, drop), self._fill(name, generator, mine, "on its way")
                )
            else:
                await self._ask(name, generator, OWN, drop)
            late.append(drop)
            self.remade += 1
            self._load.did(name)

    async def _fill(self, name: str, generator: random.Random, mine: str, what: str) -> dict[Offset, bytes]:
        values = [b'"%s %s %d"' % (mine.encode(), what.encode(), n) for n in range(3)]
        keys = ("x", "y", None)
        delay = generator.choice((0, 0, 200))
        messages = tuple((value, About(key=generator.choice(keys), delay_ms=delay)) for value in values)
        request = request_hash(f"{mine} {what}")
        work = PublishWork(name=OWN, messages=messages, request=request)
        done = await self._ask(name, generator, OWN, work)
        if isinstance(done, Exception):
            self._strays.update(values)
            return {}
        if generator.random() < 0.2:
            other = PublishWork(name=OWN, messages=messages[:1], request=request)
            again = await self._ask(name, generator, OWN, other)
            if not isinstance(again, Exception):
                self._world.fail(ONE_REQUEST, f"{mine} {what}: {done} and {again}")
            self.refused += 1
        return dict(zip(done.offsets, values, strict=True))

    async def _change(
        self, name: str, generator: random.Random, mine: str, held: dict[Offset, bytes], late: list[QueueWork]
    ) -> dict[Offset, bytes]:
        """Empty it, or add to it; what was added."""
        if generator.random() < 0.4:
            purge = MoveWork(name=OWN, lane=MAIN, purges=True, request=request_hash(f"{mine} purges"))
            done = await self._ask(name, generator, OWN, purge)
            if not isinstance(done, Exception):
                if done.number != len(held) and not self._strays:
                    self._world.fail(GONE, f"{mine}: purged {done.number}, held {sorted(held)}")
                held.clear()
            late.append(purge)
            return {}
        return await self._fill(name, generator, mine, "more")

    async def _expect(
        self, name: str, generator: random.Random, mine: str, held: dict[Offset, bytes]
    ) -> None:
        """Everything that was published to this queue comes, and nothing else."""
        missing, count = dict(held), 0
        while missing and not self._load.stops:
            count += 1
            work = ReceiveWork(
                name=OWN,
                lane=MAIN,
                count_max=10,
                wait_seconds=0.5,
                visibility_ms=None,
                request=request_hash(f"{mine} receives {count}"),
            )
            got = await self._ask(name, generator, OWN, work)
            if isinstance(got, Exception):
                self._world.fail(ONCE_ONLY, f"{mine}: {got}, though nobody has deleted it since")
                return
            for message in got.messages:
                if held.get(message.offset) != message.value and message.value not in self._strays:
                    self._world.fail(GONE, f"{mine} gets {message}, of {held}")
                missing.pop(message.offset, None)
            if got.messages:
                receipts = tuple(f"{one.offset}-{one.count}" for one in got.messages)
                done = SettleWork(
                    name=OWN,
                    receipts=receipts,
                    kind="ack",
                    ms=0,
                    request=request_hash(f"{mine} acks {count}"),
                )
                await self._ask(name, generator, OWN, done)
            elif count > 200:
                self._world.fail(ONCE_ONLY, f"{mine} never gets {sorted(missing)}")
