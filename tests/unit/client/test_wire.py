import asyncio
import struct
import time
from contextlib import asynccontextmanager

import pytest

from tests.unit.client.fake_broker import FakeBroker
from tidelog.client.wire import Connection, ConnectionFailed, versions_known
from tidelog.errors import UnsupportedVersion
from tidelog.model import Endpoint
from tidelog.wire import own
from tidelog.wire.apis import APIS, Api


def endpoint(port):
    return Endpoint(host="127.0.0.1", port=port)


@asynccontextmanager
async def raw_server(answer):
    """A listener that gives `answer` to whatever comes; its port."""

    async def serve(reader, writer):
        try:
            await reader.read(1)
            writer.write(answer)
            while await reader.read(1000):
                pass
        except ConnectionError:
            pass
        finally:
            writer.close()
            left.set()

    left = asyncio.Event()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        await left.wait()
        await asyncio.sleep(0.01)


def metadata_of(names):
    return {"topics": [{"name": name, "topic_id": None} for name in names]}


def test_the_highest_version_that_both_sides_speak_is_used():
    async def scenario():
        async with FakeBroker() as broker:
            broker.versions[Api.METADATA] = (0, 7)
            connection = await Connection.open(endpoint(broker.port))

            await connection.call(Api.METADATA, topics=[], allow_auto_topic_creation=False)

            assert broker.seen[-1] == (Api.METADATA, 7)
            assert connection.version(Api.FETCH) == 12  # later ones have ids instead of names
            connection.close()

    asyncio.run(scenario())


def test_an_old_node_that_refuses_our_api_versions_is_asked_in_its_own():
    async def scenario():
        async with FakeBroker() as broker:
            broker.versions[Api.API_VERSIONS] = (0, 2)

            connection = await Connection.open(endpoint(broker.port))

            asked = [version for api, version in broker.seen if api is Api.API_VERSIONS]
            assert asked == [versions_known(Api.API_VERSIONS)[1], 2]
            assert connection.versions[Api.FETCH] == (4, 17)
            connection.close()

    asyncio.run(scenario())


def test_an_api_without_a_common_version_is_refused_by_name():
    async def scenario():
        async with FakeBroker() as broker:
            broker.versions[Api.FETCH] = (13, 17)
            del broker.versions[Api.CREATE_PARTITIONS]
            connection = await Connection.open(endpoint(broker.port))

            with pytest.raises(UnsupportedVersion, match="fetch 13 to 17, this client 4 to 12"):
                connection.version(Api.FETCH)
            with pytest.raises(UnsupportedVersion, match="does not offer create partitions"):
                connection.version(Api.CREATE_PARTITIONS)
            connection.close()

    asyncio.run(scenario())


def test_requests_are_pipelined_and_each_gets_its_own_answer():
    async def scenario():
        async with FakeBroker() as broker:
            connection = await Connection.open(endpoint(broker.port))
            names = [f"topic-{number}" for number in range(50)]

            answers = await asyncio.gather(
                *(connection.call(Api.METADATA, **metadata_of([name])) for name in names)
            )

            assert [answer.topics[0].name for answer in answers] == names
            connection.close()

    asyncio.run(scenario())


def test_a_frame_larger_than_any_buffer_arrives_whole():
    async def scenario():
        async with FakeBroker() as broker:
            connection = await Connection.open(endpoint(broker.port))
            names = [f"topic-{number}-{'x' * 200}" for number in range(2000)]

            answer = await connection.call(Api.METADATA, **metadata_of(names))

            assert [topic.name for topic in answer.topics] == names
            connection.close()

    asyncio.run(scenario())


def test_a_request_out_of_time_fails_the_connection_and_all_behind_it():
    async def scenario():
        async with FakeBroker() as broker:
            broker.silent.add(Api.METADATA)
            connection = await Connection.open(endpoint(broker.port))
            behind = asyncio.create_task(connection.call(Api.METADATA, topics=[]))
            started = time.monotonic()

            with pytest.raises(ConnectionFailed, match=r"not answered within 0\.1 s"):
                await connection.call(Api.METADATA, topics=[], timeout_seconds=0.1)

            with pytest.raises(ConnectionFailed):
                await behind
            with pytest.raises(ConnectionFailed):
                await connection.call(Api.METADATA, topics=[])
            assert time.monotonic() - started < 5
            assert not connection.is_open

    asyncio.run(scenario())


def test_a_lost_connection_fails_what_is_in_flight():
    async def scenario():
        async with FakeBroker() as broker:
            broker.drops[Api.METADATA] = 1
            connection = await Connection.open(endpoint(broker.port))

            with pytest.raises(ConnectionFailed, match=f"127.0.0.1:{broker.port}: the"):
                await connection.call(Api.METADATA, topics=[])

    asyncio.run(scenario())


def test_a_cancelled_request_leaves_the_connection_usable():
    async def scenario():
        async with FakeBroker() as broker:
            connection = await Connection.open(endpoint(broker.port))
            task = asyncio.create_task(connection.call(Api.METADATA, topics=[]))
            await asyncio.sleep(0)
            task.cancel()

            answer = await connection.call(Api.METADATA, topics=[])

            assert answer.cluster_id == "fake"
            connection.close()

    asyncio.run(scenario())


def test_nobody_listening_is_said_with_the_address_and_what_to_do():
    async def scenario():
        async with FakeBroker() as broker:
            port = broker.port
        with pytest.raises(ConnectionFailed, match=rf"127\.0\.0\.1:{port}.*tidelog start"):
            await Connection.open(endpoint(port))

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        struct.pack(">i", -5),
        struct.pack(">ii", 100, 77) + bytes(96),
        struct.pack(">ii", 5, 1) + b"\x00",
    ],
    ids=["http", "negative size", "unknown correlation id", "cut-off body"],
)
def test_a_listener_that_is_not_kafkas_is_recognised(answer):
    async def scenario():
        async with raw_server(answer) as port:
            with pytest.raises(ConnectionFailed):
                await Connection.open(endpoint(port), timeout_seconds=5)

    asyncio.run(scenario())


def test_a_silent_listener_is_given_up():
    async def scenario():
        async with raw_server(b"") as port:
            with pytest.raises(ConnectionFailed, match=r"0\.2 s"):
                await Connection.open(endpoint(port), timeout_seconds=0.2)

    asyncio.run(scenario())


def test_requests_of_our_own_are_spoken_in_the_version_that_brokers_take():
    for key in own.NAMES:
        speaks = APIS[Api(key)]
        assert versions_known(key) == (speaks.least, speaks.most)
