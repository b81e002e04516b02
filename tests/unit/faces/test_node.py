"""A node as its process has it."""

import asyncio
from pathlib import Path

from tests.faces.raw import request
from tidelog.config import NodeConfig
from tidelog.faces.node import ASKED_SECONDS, Node
from tidelog.host import system_host
from tidelog.wire.apis import Api


def test_a_node_knows_whether_kafka_clients_ask_it_for_anything(tmp_path: Path) -> None:
    async def main() -> None:
        node = Node(
            system_host(), NodeConfig(data=str(tmp_path), kafka="127.0.0.1:0", peer="127.0.0.1:0", http="")
        )
        assert not node.is_asked_by_kafka()
        await node.start()
        reader, writer = await asyncio.open_connection(node.kafka.host, node.kafka.port)
        assert not node.is_asked_by_kafka()
        (listener,) = node._listeners
        before = asyncio.get_running_loop().time()

        writer.write(request(Api.METADATA, 1))
        await reader.readexactly(4)

        assert listener.heard_at >= before
        listener.heard_at = asyncio.get_running_loop().time()
        assert node.is_asked_by_kafka()
        listener.heard_at -= ASKED_SECONDS
        assert not node.is_asked_by_kafka()

        writer.close()
        await node.stop()

    asyncio.run(main())
