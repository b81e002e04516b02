"""Certificates that are read again while a node runs."""

import asyncio
import ssl
from pathlib import Path

import pytest

from tidelog.config import node_config
from tidelog.errors import ConfigError
from tidelog.faces.cli.certificates import make_authority, make_client, make_node
from tidelog.faces.tls import Certificates
from tidelog.host import system_host


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an authority, two certificates of nodes and one of a client."""
    directory = tmp_path_factory.mktemp("authority")
    make_authority(directory, 2)
    make_node(directory, 1, ["127.0.0.1"], 2)
    make_node(directory, 2, ["127.0.0.1"], 2)
    make_client(directory, "carol", 2)
    return directory


def place(authority: Path, node: int, at: Path) -> None:
    """Let a node's certificate and key be in one file, as a new file of that name."""
    aside = at.with_suffix(".new")
    aside.write_text("".join((authority / f"node-{node}{kind}.pem").read_text() for kind in ("", "-key")))
    aside.replace(at)


def config_of(authority: Path, at: Path, **more: object):
    return node_config(
        {
            "kafka.security.protocol": "SSL",
            "ssl.keystore.location": str(at),
            "ssl.truststore.location": str(authority / "ca.pem"),
            "ssl.client.auth": "requested",
            **more,
        }
    )


async def shake(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[ssl.SSLObject, bytes | None]:
    """A handshake in memory: the server's side, and the certificate that the client was shown."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    serving = server.wrap_bio(to_server, to_client, server_side=True)
    asking = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    for side in (asking, serving) * 3:
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            pass
    assert serving.version() == "TLSv1.3" and asking.getpeercert()
    return serving, asking.getpeercert(binary_form=True)


class _Transport(asyncio.BaseTransport):
    def __init__(self, connection: ssl.SSLObject) -> None:
        super().__init__({"peercert": connection.getpeercert()})


def shown(authority: Path, node: int) -> bytes:
    return ssl.PEM_cert_to_DER_cert((authority / f"node-{node}.pem").read_text())


def test_new_connections_get_the_certificate_that_is_in_the_file_by_then(authority, tmp_path):
    async def act():
        at = tmp_path / "node.pem"
        place(authority, 1, at)
        known = Certificates(system_host(), config_of(authority, at))
        client = ssl.create_default_context(cafile=str(authority / "ca.pem"))
        _, before = await shake(known.context, client)
        place(authority, 2, at)
        await known.look()
        _, after = await shake(known.context, client)
        at.write_text("no certificate")
        await known.look()
        _, kept = await shake(known.context, client)
        assert (before, after, kept) == (shown(authority, 1), shown(authority, 2), shown(authority, 2))

    asyncio.run(act())


def test_who_shows_a_certificate_is_its_owner(authority, tmp_path):
    async def act():
        at = tmp_path / "node.pem"
        place(authority, 1, at)
        rules = {"ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/"}
        known = Certificates(system_host(), config_of(authority, at, **rules))
        client = ssl.create_default_context(cafile=str(authority / "ca.pem"))
        nobody, _ = await shake(known.context, client)
        client.load_cert_chain(authority / "carol.pem", authority / "carol-key.pem")
        carol, _ = await shake(known.context, client)
        assert str(known.principal(_Transport(nobody))) == "User:ANONYMOUS"
        assert str(known.principal(_Transport(carol))) == "User:carol"

    asyncio.run(act())


def test_older_protocols_are_refused(authority, tmp_path):
    at = tmp_path / "node.pem"
    place(authority, 1, at)

    context = Certificates(system_host(), config_of(authority, at)).context

    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("broken", ["ssl.keystore.location", "ssl.truststore.location"])
def test_files_that_make_no_tls_stop_a_start_with_their_names(authority, tmp_path, broken):
    at, wrong = tmp_path / "node.pem", tmp_path / "wrong.pem"
    place(authority, 1, at)
    wrong.write_text("nothing")

    with pytest.raises(ConfigError, match=rf"{broken}.*wrong\.pem"):
        Certificates(system_host(), config_of(authority, at, **{broken: str(wrong)}))
