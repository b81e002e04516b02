"""Certificates that `tidelog certs` makes: TLS takes them, for whom they name and nobody else."""

import os
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509

from tidelog.faces.cli.certificates import NODE_URI


@pytest.fixture
def certs(tidelog, tmp_path: Path) -> Path:
    directory = tmp_path / "certs"
    assert tidelog("certs", "ca", "--directory", directory).code == 0
    return directory


def handshake(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Two ends of TLS, joined in memory; raises what either of them raises."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
    return ends


def contexts(certs: Path, node: str, client: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certs / "ca.pem")
    serving.verify_mode = ssl.CERT_REQUIRED
    serving.load_cert_chain(certs / f"{node}.pem", certs / f"{node}-key.pem")
    asking = ssl.create_default_context(cafile=certs / "ca.pem")
    asking.load_cert_chain(certs / f"{client}.pem", certs / f"{client}-key.pem")
    return serving, asking


def test_tls_takes_a_node_and_a_client_of_the_same_authority(tidelog, certs):
    tidelog("certs", "node", 3, "--host", "node-3.example", "--host", "10.0.0.3", "--directory", certs)
    tidelog("certs", "client", "alice", "--directory", certs)
    serving, asking = contexts(certs, "node-3", "alice")

    _, server = handshake(serving, asking, "node-3.example")
    handshake(serving, asking, "10.0.0.3")

    found = server.getpeercert()
    assert found is not None
    assert (("commonName", "alice"),) in found["subject"]
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        handshake(serving, asking, "localhost")


def test_a_client_cannot_serve(tidelog, certs):
    tidelog("certs", "client", "alice", "--directory", certs)
    serving, asking = contexts(certs, "alice", "alice")

    with pytest.raises(ssl.SSLError, match="unsuitable certificate purpose"):
        handshake(serving, asking, "alice")


def test_a_node_is_named_by_its_id_and_serves_locally_unless_told_otherwise(tidelog, certs):
    tidelog("certs", "node", 7, "--directory", certs)

    made = x509.load_pem_x509_certificate((certs / "node-7.pem").read_bytes())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [NODE_URI.format(7)]
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert list(map(str, names.get_values_for_type(x509.IPAddress))) == ["127.0.0.1", "::1"]


def test_keys_are_their_owner_s_alone_whatever_the_umask(tidelog, tmp_path):
    mask = os.umask(0)
    try:
        tidelog("certs", "ca", "--directory", tmp_path / "certs")
        tidelog("certs", "client", "alice", "--directory", tmp_path / "certs")
    finally:
        os.umask(mask)

    assert stat.S_IMODE((tmp_path / "certs").stat().st_mode) == 0o700
    for file in (tmp_path / "certs").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_nothing_is_replaced_and_no_name_leads_elsewhere(tidelog, certs):
    before = (certs / "ca-key.pem").read_bytes()

    again = tidelog("certs", "ca", "--directory", certs)
    outside = tidelog("certs", "client", "../mallory", "--directory", certs)
    lonely = tidelog("certs", "node", 1, "--directory", certs.parent)

    assert (again.code, outside.code, lonely.code) == (1, 2, 1)
    assert "ca-key.pem exists" in again.err
    assert "make an authority first" in lonely.err
    assert (certs / "ca-key.pem").read_bytes() == before
    assert not (certs.parent / "mallory.pem").exists()
