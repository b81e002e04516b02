"""Client properties, as Kafka's clients have them."""

import pickle

import pytest

from tidelog.client import Client
from tidelog.client.security import CLIENT_CONFIG, Security, Servers, parse_jaas, read_properties, security_of
from tidelog.errors import ConfigError

JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="p\\"w;=";'


def test_properties_are_those_of_kafkas_clients():
    found = Security.of(
        {
            "security.protocol": "sasl_ssl",
            "SASL.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": JAAS,
            "ssl.truststore.location": "/ca.pem",
            "ssl.truststore.type": "PEM",
        }
    )

    assert (found.has_tls, found.has_sasl) == (True, True)
    assert (found.username, found.password, found.truststore) == ("alice", 'p"w;=', "/ca.pem")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.PlainLoginModule required username=alice password='x y';", ("alice", "x y")),
        ('PlainLoginModule required\n  username="alice"\n  password="";', ("alice", "")),
    ],
)
def test_a_jaas_config_has_a_user_and_a_password(text, expected):
    found = parse_jaas(text)

    assert (found["username"], found["password"]) == expected


@pytest.mark.parametrize(
    "text", ["", "username=alice", "Krb5LoginModule required;", 'PlainLoginModule required username="a" x;']
)
def test_what_is_no_jaas_config_is_refused(text):
    with pytest.raises(ConfigError, match=r"sasl\.jaas\.config"):
        parse_jaas(text)


@pytest.mark.parametrize(
    ("properties", "complaint"),
    [
        ({"security.protocol": "TLS"}, "security.protocol"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "SCRAM-SHA-256"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "sasl.username"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, "sasl.token"),
        ({"security.protocl": "SSL"}, "security.protocl is no property"),
    ],
)
def test_what_would_turn_a_proof_off_is_refused(properties, complaint):
    with pytest.raises(ConfigError, match=complaint.replace(".", r"\.")):
        Security.of(properties)


def test_no_secret_is_shown():
    shown = repr(Security(username="alice", password="secret", token="tl_1"))

    assert "alice" in shown and "secret" not in shown and "tl_1" not in shown


def test_servers_are_text_that_knows_how_to_connect_wherever_it_is_sent():
    security = Security(protocol="SSL", truststore="/ca.pem")

    sent = pickle.loads(pickle.dumps(Servers("a:1,b:2", security)))

    assert (sent, security_of(sent)) == ("a:1,b:2", security)
    assert f"{sent}" == "a:1,b:2" and security_of("a:1") == Security()


def test_without_more_the_environment_names_a_file(tmp_path, monkeypatch):
    path = tmp_path / "client.properties"
    path.write_text(
        "# ours\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism = PLAIN\n\n"
        "sasl.username=a\nsasl.password=b=c\n"
    )
    monkeypatch.setenv(CLIENT_CONFIG, str(path))

    assert security_of("a:1").password == "b=c"
    assert security_of(Servers("a:1", Security())) == Security()


@pytest.mark.parametrize("content", [None, "security.protocol", "nonsense=1"])
def test_a_file_that_is_not_understood_is_named(tmp_path, content):
    path = tmp_path / "client.properties"
    if content is not None:
        path.write_text(content)

    with pytest.raises(ConfigError, match=r"client\.properties"):
        read_properties(str(path))


def test_no_password_that_is_for_tls_goes_to_an_address_without():
    secure = Security(protocol="SASL_SSL", mechanism="PLAIN", username="alice", password="secret")

    with pytest.raises(ConfigError, match="https://"):
        Client("http://node.example:1", security=secure)
