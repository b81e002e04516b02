"""Who shakes hands with a server of TLS, and for how long."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import uvloop

from tidelog.faces.cli.certificates import make_authority, make_node
from tidelog.host import LoopNetwork, handshakes
from tidelog.host.handshakes import TlsServer


class Echo(asyncio.Protocol):
    """Sends back what it gets."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_those_who_say_nothing_make_room_for_those_who_come(
    new_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKES_MAX", 4)
    make_authority(tmp_path, 2)
    make_node(tmp_path, 1, ["127.0.0.1"], 2)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(tmp_path / "node-1.pem", tmp_path / "node-1-key.pem")
    asking = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    made: list[Echo] = []

    def make() -> Echo:
        made.append(Echo())
        return made[-1]

    async def main() -> None:
        server = await LoopNetwork().serve(make, "127.0.0.1", 0, tls=serving)
        port = cast(TlsServer, server).sockets[0].getsockname()[1]
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=asking)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        async with asyncio.timeout(handshakes.TLS_SECONDS_MAX / 2):
            for ended, _ in silent[:9]:
                assert await ended.read() == b""
        assert not any(there.at_eof() for there, _ in silent[9:])

        server.close()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"again")
        assert await reader.readexactly(5) == b"again"
        for there, _ in silent[9:]:
            assert await there.read() == b""
        for _, one in (*silent, (None, writer)):
            one.close()
        await writer.wait_closed()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
