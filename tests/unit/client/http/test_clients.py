"""The two drivers: the same plans, with threads and with coroutines."""

import asyncio
import subprocess
import sys
import threading
from contextlib import aclosing, closing
from inspect import signature

import httpx
import pytest

import tidelog.client
from tests.support import derive_client
from tests.unit.client.http.fleet import Fleet, Gone, events, ok, problem
from tests.unit.client.http.test_kv import KEY, WATCH, Counter, entry, event, page
from tidelog.client import AsyncClient, Client, Conflict, NotFound, Unavailable
from tidelog.client.http import awaiting, blocking

SURFACES = [
    "Client",
    "Kv",
    "Topics",
    "Topic",
    "Queue",
    "Message",
    "PointerQueues",
    "Room",
    "PubSub",
    "Replication",
    "Groups",
    "Brokers",
]


def test_the_blocking_client_is_what_the_awaiting_one_derives():
    derived = derive_client.derive(derive_client.AWAITING.read_text())

    assert derive_client.BLOCKING.read_text() == derived, "run `make format`"


def methods_of(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


@pytest.mark.parametrize("name", SURFACES)
def test_both_clients_have_the_same_methods_with_the_same_parameters(name):
    one, other = getattr(blocking, name), getattr(awaiting, f"Async{name}")

    assert methods_of(one) == methods_of(other)
    for method in methods_of(one):
        theirs = signature(getattr(other, method)).parameters
        assert list(signature(getattr(one, method)).parameters) == list(theirs)
        if method != "topic":
            assert getattr(one, method).__doc__, f"{name}.{method} says nothing of itself"


def test_a_method_shows_what_it_takes_and_gives():
    assert "ttl: " in str(signature(blocking.Kv.put))
    assert signature(blocking.Kv.put).return_annotation is tidelog.client.Entry
    assert "Entry" in str(signature(awaiting.AsyncKv.scan).return_annotation)
    assert blocking.Kv.put.__name__ == "put"


def test_every_exported_name_can_be_had():
    for name in tidelog.client.__all__:
        assert getattr(tidelog.client, name) is not None
    with pytest.raises(AttributeError):
        tidelog.client.nothing  # noqa: B018


def test_importing_the_room_imports_nothing_heavy():
    script = (
        "import sys, tidelog.client\n"
        "from tidelog.client import Conflict, Entry\n"
        "print(*({'httpx', 'asyncio', 'kio', 'msgspec'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert (result.stdout.strip(), result.stderr) == ("", "")


def test_an_awaited_call_is_retried_as_a_blocking_one_is():
    fleet = Fleet()
    fleet.says(KEY, Gone(httpx.ReadError), problem(503), ok(entry()))

    async def story() -> None:
        async with fleet.async_client() as client:
            assert (await client.kv("b").put("k", 1)).version == 3

    asyncio.run(story())

    assert len({asked.key for asked in fleet.questions(KEY)}) == 1
    assert len(fleet.slept) == 2


def test_an_awaited_error_is_the_same():
    fleet = Fleet()
    fleet.says(KEY, problem(409, version=4))

    async def story() -> None:
        async with fleet.async_client() as client:
            with pytest.raises(Conflict) as caught:
                await client.kv("b").put("k", 1, if_version=3)
            assert caught.value.version == 4
            with pytest.raises(NotFound):
                await client.topics.describe("t")

    asyncio.run(story())


def test_an_async_update_may_await():
    fleet = Fleet()
    fleet.says(KEY, Counter(others=1))

    async def add(count: int) -> int:
        await asyncio.sleep(0)
        return count + 1

    async def story() -> None:
        async with fleet.async_client() as client:
            assert (await client.kv("b").update("k", add, default=0)).value == 101
            assert (await client.kv("b").update("k", lambda count: count + 1)).value == 102

    asyncio.run(story())


def test_an_async_scan_goes_from_page_to_page():
    fleet = Fleet()
    fleet.says("/v1/kv/b", page("a", following="a"), page("b"))

    async def story() -> None:
        async with fleet.async_client() as client:
            assert [entry.key async for entry in client.kv("b").scan()] == ["a", "b"]

    asyncio.run(story())


def test_an_async_watch_goes_on_after_a_loss_and_is_closed():
    fleet = Fleet()
    last = events(event("k", "2", 2), event("k", "3", 3))
    fleet.says(WATCH, events(event("k", "1", 1), lost=True), problem(503), last)

    async def story() -> None:
        async with fleet.async_client() as client, aclosing(client.kv("b").watch()) as watch:
            assert [(await anext(watch)).version, (await anext(watch)).version] == [1, 2]

    asyncio.run(story())

    assert [asked.query["from"] for asked in fleet.questions(WATCH)] == ["now", "c1", "c1"]
    assert last.is_closed


def test_a_cancelled_call_leaves_the_client_as_it_was():
    fleet = Fleet()
    fleet.says(KEY, ok(entry()))

    async def story() -> None:
        started = asyncio.Event()

        async def answer(request: httpx.Request) -> httpx.Response:
            if not started.is_set():
                started.set()
                await asyncio.Event().wait()
            return fleet.answer(request)

        async with AsyncClient("a:1", transport=httpx.MockTransport(answer)) as client:
            call = asyncio.create_task(client.kv("b").get("k"))
            await started.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            for _ in range(2):
                assert await client.kv("b").get("k") is not None

    asyncio.run(story())


def test_a_closed_client_takes_no_calls():
    fleet = Fleet()
    with closing(fleet.client()) as client:
        pass

    with pytest.raises(RuntimeError, match="closed"):
        client.kv("b").get("k")


def test_threads_share_a_client_and_look_around_once():
    fleet = Fleet()
    fleet.leaders = {"b": ["a:1"]}
    fleet.says(KEY, ok(entry()))
    client = fleet.client()
    client.kv("b").get("k")
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        for _ in range(20):
            client.kv("b", consistency="local").put("k", 1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(fleet.questions(KEY)) == 161
    assert len(fleet.questions("/v1/cluster")) == 1


def test_a_real_connection_that_is_refused_is_said_to_be():
    with Client("127.0.0.1:1", retries=0) as client, pytest.raises(Unavailable) as caught:
        client.cluster()

    assert "(Connection refused)" in str(caught.value)


def test_the_rest_of_the_face_can_be_asked():
    fleet = Fleet()
    for path in ("/v1/replication", "/v1/cluster", "/v1/groups/g"):
        fleet.says(path, ok({"path": path}))
    fleet.says("/v1/groups", ok({"groups": [{"group": "g"}]}))
    fleet.says("/v1/groups/g/reset", ok({}))
    fleet.says("/v1/brokers", ok({"brokers": [{"id": 1}]}))
    for path in ("/v1/brokers/2", "/v1/brokers/2/drain", "/v1/brokers/2/stop"):
        fleet.says(path, ok({"path": path}))
    client = fleet.client()

    assert client.replication.details("t")["path"] == "/v1/replication"
    assert client.cluster("a", "b")["path"] == "/v1/cluster"
    assert fleet.asked[-1].query == {"topics": "a,b"}
    assert client.groups.list() == [{"group": "g"}]
    client.groups.describe("g")
    client.groups.reset("g", "t", to="earliest")
    assert fleet.asked[-1].body == {"topic": "t", "to": "earliest", "dry_run": False}
    client.groups.delete("g")
    assert fleet.asked[-1].method == "DELETE"
    assert client.brokers.list() == [{"id": 1}]
    client.brokers.drain(2)
    assert fleet.asked[-1].body == {"dry_run": False, "undo": False}
    client.brokers.stop(2)
    assert fleet.asked[-1].body == {}
    client.brokers.remove(2)
    assert (fleet.asked[-1].method, fleet.asked[-1].path) == ("DELETE", "/v1/brokers/2")
