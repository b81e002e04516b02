"""SCRAM as RFC 5802 and RFC 7677 have it, and as an attacker would like it."""

import base64

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidelog.security.failures import AuthenticationFailed
from tidelog.security.scram import (
    HASHES,
    Hash,
    ScramClient,
    ScramServer,
    Verifier,
    is_password,
    make_verifier,
)

SHA_256 = Hash.SHA_256
SECRET = b"secret of the cluster"
VERIFIERS = {kind: make_verifier(kind, "pencil", b"some salt", 4096) for kind in Hash}


def server(kind=SHA_256, nonce="of-the-server", users=("user",), **changed):
    known = dict.fromkeys(users, VERIFIERS[kind])
    return ScramServer(kind, nonce=nonce, find=known.get, secret=SECRET, **changed)


def client(name="user", password="pencil", kind=SHA_256):
    return ScramClient(kind, name, password, nonce="of-the-client")


def exchange(serving, asking):
    """The whole of it; what the server says last."""
    answer = serving.final(asking.final(serving.first(asking.first())))
    asking.check(answer)
    return answer


def test_the_example_of_rfc_7677_comes_out_as_printed():
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    stored = make_verifier(SHA_256, "pencil", salt, 4096)
    serving = ScramServer(
        SHA_256, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", find={"user": stored}.get, secret=SECRET
    )
    asking = ScramClient(SHA_256, "user", "pencil", nonce="rOprNGfwEbeRWgbNEkqO")

    challenge = serving.first(asking.first())
    proof = asking.final(challenge)

    assert asking.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert challenge == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert proof == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert serving.final(proof) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert serving.name == "user"


@pytest.mark.parametrize("kind", HASHES.values(), ids=HASHES)
def test_each_hash_lets_in_who_knows_the_password_and_nobody_else(kind):
    assert exchange(server(kind), client(kind=kind)).startswith(b"v=")
    with pytest.raises(AuthenticationFailed, match="password is wrong"):
        exchange(server(kind), client(password="pencils", kind=kind))
    assert is_password(kind, "pencil", VERIFIERS[kind])
    assert not is_password(kind, "pencils", VERIFIERS[kind])


@pytest.mark.parametrize("name", ["a,b=c", "=2C", "ünï", "User:x"])
def test_a_name_may_hold_what_the_format_needs(name):
    serving = server(users=(name,))

    exchange(serving, client(name))

    assert serving.name == name


def test_names_cannot_be_told_apart_by_their_salts():
    known, unknown = server().first(client().first()), server().first(client("nobody").first())
    again, other = server().first(client("nobody").first()), server().first(client("someone").first())

    assert unknown == again != other
    assert known.count(b",") == unknown.count(b",") == 2


def test_a_user_that_does_not_exist_is_refused_as_a_wrong_password_is():
    messages = []
    for name in ("user", "nobody"):
        with pytest.raises(AuthenticationFailed) as refused:
            exchange(server(), client(name, "wrong"))
        messages.append(str(refused.value))

    assert messages[0] == messages[1]


def test_a_proof_for_another_nonce_is_refused():
    """A proof that was overheard is no use with a server that draws a nonce of its own."""
    asking = client()
    overheard = asking.final(server(nonce="first").first(asking.first()))

    later = server(nonce="second")
    later.first(client().first())

    with pytest.raises(AuthenticationFailed):
        later.final(overheard)


def test_a_server_that_does_not_know_the_password_is_found_out():
    liar = ScramServer(SHA_256, nonce="x", find={"user": VERIFIERS[SHA_256]}.get, secret=SECRET)
    asking = client()
    asking.final(liar.first(asking.first()))

    for answer in (b"v=AAAA", b"", b"e=other-error"):
        with pytest.raises(AuthenticationFailed):
            asking.check(answer)


@pytest.mark.parametrize(
    "challenge",
    [b"", b"r=else,s=AAAA,i=16384", b"r=of-the-client,s=AAAA,i=16384", b"r=of-the-clientx,s=AAAA,i=1"],
)
def test_a_client_answers_no_challenge_that_is_not_for_it(challenge):
    with pytest.raises(AuthenticationFailed):
        client().final(challenge)


@pytest.mark.parametrize(
    "first",
    [
        b"p=tls-unique,,n=user,r=x",  # we offer no channel binding
        b"n,a=other,n=user,r=x",
        b"n,,n=,r=x",
        b"n,,n=us=er,r=x",
        b"n,,n=user",
        b"n,,m=must,n=user,r=x",
        b"n,,n=user,r=\xff",
        b"n,,n=user,r=" + b"x" * 5000,
        b"n,,n=" + b"u" * 300 + b",r=x",
    ],
)
def test_first_messages_that_are_none_are_refused(first):
    with pytest.raises(AuthenticationFailed):
        server().first(first)


@pytest.mark.parametrize("binding", [b"c=eSws", b"c=biw=", b"c=!", b"x=biws"])
def test_a_binding_other_than_what_was_begun_with_is_refused(binding):
    asking, serving = client(), server()
    proof = asking.final(serving.first(asking.first()))

    with pytest.raises(AuthenticationFailed):
        serving.final(proof.replace(b"c=biws", binding))


@given(st.binary(max_size=200), st.binary(max_size=200))
@example(b"n,,n=user,r=x", b"c=biws,r=xof-the-server,p=")
@example(b"n,,n=user,r=x", b"c=biws,r=xof-the-server,p=" + base64.b64encode(bytes(32)))
def test_whatever_is_sent_is_refused(first, final):
    assert not is_let_in(first, final)


def is_let_in(first, final):
    serving = server()
    try:
        serving.first(first)
        serving.final(final)
    except AuthenticationFailed:
        return False
    return True


def test_nobody_has_the_empty_key_of_users_that_do_not_exist():
    asking = client("nobody")
    serving = server()
    serving.first(asking.first())
    zeros = Verifier(b"", 4096, bytes(32), bytes(32))

    with pytest.raises(AuthenticationFailed):
        serving.final(b"c=biws,r=of-the-clientof-the-server,p=" + base64.b64encode(zeros.stored_key))
