"""Which listeners there are, and which of them anybody could come in by."""

import pytest

from tidelog.config import node_config
from tidelog.config.security import ANYBODY
from tidelog.errors import ConfigError
from tidelog.model import Endpoint, is_loopback

TLS = {"ssl.keystore.location": "node.pem"}
MUTUAL = {**TLS, "ssl.truststore.location": "ca.pem", "ssl.client.auth": "required"}


def test_listeners_have_names_protocols_and_addresses_to_tell():
    config = node_config(
        {
            "kafka.listeners": "outside=SASL_SSL://0.0.0.0:9094,inside=PLAINTEXT://[::1]:9095",
            "kafka.listeners.advertised": "outside=broker.example.com:19094",
            **TLS,
        }
    )

    first, outside, inside = config.listeners

    assert (first.name, first.protocol, first.at) == ("", "PLAINTEXT", config.kafka_endpoint)
    assert (outside.has_tls, outside.has_sasl) == (True, True)
    assert outside.advertised == Endpoint(host="broker.example.com", port=19094)
    assert (inside.at, inside.advertised) == (Endpoint(host="::1", port=9095), None)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"kafka.listeners": "outside=SSL://x:1"}, "ssl.keystore.location"),
        ({"kafka.security.protocol": "SSL"}, "ssl.keystore.location"),
        ({"http.security.protocol": "SASL_SSL"}, "ssl.keystore.location"),
        ({"ssl.client.auth": "required"}, "ssl.truststore.location"),
        ({"kafka.listeners": "a=PLAINTEXT://x:1,a=PLAINTEXT://x:2"}, "two listeners named a"),
        ({"kafka.listeners": "a=PLAINTEXT://x"}, "HOST:PORT"),
        ({"kafka.listeners": "a=TLS://x:1"}, "outside=SASL_SSL"),
        ({"kafka.listeners.advertised": "b=x:1"}, "names b"),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "SCRAM-SHA-256"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_setting(settings, complaint):
    with pytest.raises(ConfigError, match=complaint.replace(".", r"\.")):
        node_config(settings)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("127.8.9.1", True)]
    + [(host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "example.com", "localhost.example.com")],
)
def test_loopback_is_what_no_other_machine_reaches(host, expected):
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("settings", "doors"),
    [
        ({}, []),
        ({"kafka": "0.0.0.0:9092"}, ["kafka 0.0.0.0:9092"]),
        ({"http": "10.0.0.1:8080"}, ["http 10.0.0.1:8080"]),
        ({"http": ""}, []),
        ({"kafka": "0.0.0.0:9092", "kafka.security.protocol": "SASL_PLAINTEXT"}, []),
        ({"kafka": "0.0.0.0:9092", "kafka.security.protocol": "SSL", **TLS}, ["kafka 0.0.0.0:9092"]),
        ({"kafka": "0.0.0.0:9092", "kafka.security.protocol": "SSL", **MUTUAL}, []),
        ({"http": "0.0.0.0:1", "http.security.protocol": "SSL", **MUTUAL}, []),
        ({"http": "0.0.0.0:1", "http.security.protocol": "SASL_PLAINTEXT"}, []),
        ({"kafka.listeners": "a=PLAINTEXT://[::]:1"}, ["kafka.listeners (a) [::]:1"]),
        ({"quorum": "1@10.0.0.1:9192"}, ["peer 10.0.0.1:9192"]),
        ({"quorum": "1@10.0.0.1:9192", "cluster.secret.file": "secret"}, []),
        ({"quorum": "1@127.0.0.1:9192"}, []),
    ],
)
def test_whoever_could_come_in_unproved_needs_an_ugly_setting(settings, doors):
    config = node_config(settings)

    assert config.open_doors == doors
    if doors:
        with pytest.raises(ConfigError, match="anybody who reaches"):
            config.check_doors()
        node_config(settings, {"unauthenticated.beyond.loopback": ANYBODY}).check_doors()
    else:
        config.check_doors()
