"""What comes of each message of an exchange."""

import pytest

from tidelog.security import sasl
from tidelog.security.failures import AuthenticationFailed
from tidelog.security.principals import Principal
from tidelog.security.sasl import Challenge, CheckPassword, CheckToken, Proved
from tidelog.security.scram import Hash, ScramClient, make_verifier

VERIFIER = make_verifier(Hash.SHA_256, "pencil", b"some salt", 4096)


def begin(mechanism):
    users = {"alice": {"SCRAM-SHA-256": VERIFIER}}
    return sasl.begin(
        mechanism, nonce=lambda: "nonce", verifiers=lambda name: users.get(name, {}), secret=b"x"
    )


def test_plain_asks_whether_the_password_is_right():
    assert begin("PLAIN").step(b"\0alice\0pencil") == CheckPassword("alice", "pencil")
    assert begin("PLAIN").step(b"alice\0alice\0pencil") == CheckPassword("alice", "pencil")
    assert "pencil" not in repr(CheckPassword("alice", "pencil"))


@pytest.mark.parametrize(
    "message",
    [b"", b"alice", b"\0alice\0", b"\0\0pencil", b"bob\0alice\0pencil", b"\0a\0b\0c", b"\xff\0a\0b"],
)
def test_plain_takes_nothing_else(message):
    with pytest.raises(AuthenticationFailed):
        begin("PLAIN").step(message)


def test_scram_proves_a_principal_in_two_steps():
    client, exchange = ScramClient(Hash.SHA_256, "alice", "pencil", nonce="x"), begin("SCRAM-SHA-256")

    challenge = exchange.step(client.first())
    assert isinstance(challenge, Challenge)
    proved = exchange.step(client.final(challenge.data))

    assert isinstance(proved, Proved)
    assert proved.principal == Principal("User", "alice")
    client.check(proved.data)


def test_a_user_without_a_password_of_the_mechanism_is_as_good_as_none():
    client, exchange = ScramClient(Hash.SHA_512, "alice", "pencil", nonce="x"), begin("SCRAM-SHA-512")
    challenge = exchange.step(client.first())

    assert isinstance(challenge, Challenge)
    with pytest.raises(AuthenticationFailed):
        exchange.step(client.final(challenge.data))


def test_oauthbearer_hands_out_the_token():
    assert begin("OAUTHBEARER").step(b"n,,\x01auth=Bearer a.b.c\x01\x01") == CheckToken("a.b.c")
    with_extensions = b"n,,\x01auth=Bearer a.b.c\x01cluster=x\x01\x01"
    assert begin("OAUTHBEARER").step(with_extensions) == CheckToken("a.b.c")
    assert "a.b.c" not in repr(CheckToken("a.b.c"))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,\x01\x01",
        b"n,a=bob,\x01auth=Bearer a\x01\x01",
        b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
        b"n,,\x01auth=Bearer a\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
        b"n,,\x01auth=Basic a\x01\x01",
    ],
)
def test_oauthbearer_takes_nothing_else(message):
    with pytest.raises(AuthenticationFailed):
        begin("OAUTHBEARER").step(message)
