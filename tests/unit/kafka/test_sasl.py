"""What a connection may ask before, while and after it proves who it is."""

import asyncio
from datetime import timedelta

import pytest

from tests.unit.broker.node import Refused, on_a_node
from tidelog.controller.records import TokenGranted
from tidelog.faces import identities
from tidelog.faces.identities import Identities
from tidelog.kafka.context import Client
from tidelog.kafka.sasl import SaslSession
from tidelog.security import tokens
from tidelog.security.failures import AuthenticationFailed
from tidelog.security.principals import ANONYMOUS, Principal
from tidelog.security.scram import HASHES, ScramClient, is_password, make_verifier, salted_password
from tidelog.wire.apis import APIS, Api

ALICE = Principal("User", "alice")
SALT = b"salt of alice"
BEFORE = {Api.API_VERSIONS, Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE}
UNSUPPORTED_MECHANISM, ILLEGAL_STATE, FAILED, UNKNOWN_USER, DUPLICATE, UNACCEPTABLE = 33, 34, 58, 91, 92, 93
TOKEN = tokens.text_of(bytes(8), bytes(32))
PLAIN_TOO = {"sasl_enabled_mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN"}


async def add_user(node, name="alice", password="pencil", **changed):
    """The answer for a user that an admin client adds."""
    upsertions = [
        {
            "name": name,
            "mechanism": number,
            "iterations": 16384,
            "salt": SALT,
            "salted_password": salted_password(kind, password, SALT, 16384),
            **changed,
        }
        for number, kind in enumerate(HASHES.values(), 1)
    ]
    answer = await node.ask(Api.ALTER_USER_SCRAM_CREDENTIALS, 0, upsertions=upsertions)
    return answer.results[0]


def a_token():
    """What is stored of TOKEN, which is alice's."""
    return tokens.Token(
        id=bytes(8).hex(), user="alice", digest=tokens.digest_of(TOKEN), created_ms=0, expires_ms=2**62
    )


def connect(node):
    """A connection to a listener that wants proof, instead of the one before."""
    known = Identities(node.broker)
    node.client = Client(address="test", sasl=SaslSession(known, node.clock.monotonic))
    return known


async def shake(node, mechanism="SCRAM-SHA-256"):
    return await node.ask(Api.SASL_HANDSHAKE, 1, mechanism=mechanism)


async def say(node, message):
    return await node.ask(Api.SASL_AUTHENTICATE, 2, auth_bytes=message)


async def prove(node, name="alice", password="pencil", mechanism="SCRAM-SHA-256"):
    """The last answer of an exchange by SCRAM."""
    assert (await shake(node, mechanism)).error_code == 0
    client = ScramClient(HASHES[mechanism], name, password, nonce="of-the-client")
    challenge = await say(node, client.first())
    assert challenge.error_code == 0
    return await say(node, client.final(challenge.auth_bytes))


@pytest.mark.parametrize("mechanism", HASHES)
def test_who_proves_a_password_is_that_user(mechanism):
    async def act(node):
        await add_user(node)
        connect(node)

        answer = await prove(node, mechanism=mechanism)

        assert (answer.error_code, node.client.principal) == (0, ALICE)
        assert (await node.ask(Api.METADATA, 9, topics=[])).brokers

    on_a_node(act)


def test_nothing_but_proofs_is_served_before_one():
    async def act(node):
        connect(node)
        for api, versions in APIS.items():
            if api not in BEFORE:
                with pytest.raises(Refused, match="before it was proved"):
                    await node.send(api, versions.most, {}, body=b"").body
        assert (await node.ask(Api.API_VERSIONS, 3)).error_code == 0
        assert node.client.principal == ANONYMOUS

    on_a_node(act)


@pytest.mark.parametrize(("name", "password"), [("alice", "wrong"), ("nobody", "pencil")])
def test_a_wrong_proof_is_told_and_then_nothing_is_served(name, password):
    async def act(node):
        await add_user(node)
        connect(node)
        began = node.clock.monotonic()

        answer = await prove(node, name, password)

        assert answer.error_code == FAILED and node.clock.monotonic() > began
        assert node.client.principal == ANONYMOUS and node.client.sasl.has_failed
        with pytest.raises(Refused):
            await node.ask(Api.API_VERSIONS, 3)

    on_a_node(act)


def test_an_exchange_has_an_order():
    async def act(node):
        connect(node)
        assert (await say(node, b"n,,n=alice,r=x")).error_code == ILLEGAL_STATE
        connect(node)
        answer = await shake(node, "GSSAPI")
        assert answer.error_code == UNSUPPORTED_MECHANISM
        assert list(answer.mechanisms) == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
        connect(node)
        await shake(node)
        assert (await shake(node)).error_code == ILLEGAL_STATE
        assert node.client.sasl.has_failed

    on_a_node(act)


def test_a_listener_that_wants_no_proof_takes_none():
    async def act(node):
        assert (await shake(node)).error_code == ILLEGAL_STATE
        assert (await say(node, b"x")).error_code == ILLEGAL_STATE
        assert (await node.ask(Api.METADATA, 9, topics=[])).brokers

    on_a_node(act)


def test_who_proves_nothing_in_time_is_overdue():
    async def act(node):
        await add_user(node)
        connect(node)
        await asyncio.sleep(9.9)
        assert not node.client.sasl.is_overdue
        await asyncio.sleep(0.2)
        assert node.client.sasl.is_overdue
        await prove(node)
        assert not node.client.sasl.is_overdue

    on_a_node(act)


def test_a_session_ends_and_is_prolonged_by_another_proof():
    async def act(node):
        await add_user(node)
        connect(node)
        assert (await prove(node)).session_lifetime == timedelta(seconds=60)
        await asyncio.sleep(50)
        assert (await prove(node)).session_lifetime == timedelta(seconds=60)
        await asyncio.sleep(50)
        assert (await node.ask(Api.METADATA, 9, topics=[])).brokers
        await asyncio.sleep(11)
        with pytest.raises(Refused):
            await node.ask(Api.METADATA, 9, topics=[])

    on_a_node(act, connections_max_reauth_ms=60_000)


def test_a_connection_stays_with_whom_it_began():
    async def act(node):
        await add_user(node)
        await add_user(node, "bob")
        connect(node)
        await prove(node)

        answer = await prove(node, "bob")

        assert answer.error_code == FAILED
        assert node.client.principal == ALICE and node.client.sasl.has_failed

    on_a_node(act)


def test_plain_is_offered_only_where_it_was_asked_for():
    async def act(node):
        connect(node)
        assert (await shake(node, "PLAIN")).error_code == UNSUPPORTED_MECHANISM

    on_a_node(act)


def test_plain_proves_the_same_password():
    async def act(node):
        await add_user(node)
        for message, code in ((b"\0alice\0pencil", 0), (b"\0alice\0pen", FAILED), (b"\0bob\0pencil", FAILED)):
            connect(node)
            await shake(node, "PLAIN")
            assert (await say(node, message)).error_code == code

    on_a_node(act, **PLAIN_TOO)


def test_a_password_that_was_right_is_salted_once_until_it_changes(monkeypatch):
    salted = []

    def counted(*given):
        salted.append(given)
        return is_password(*given)

    monkeypatch.setattr(identities, "is_password", counted)

    async def act(node):
        await add_user(node)
        known = Identities(node.broker)
        for _ in range(3):
            assert await known.check_password("alice", "pencil", "here") == ALICE
        assert len(salted) == 1
        await add_user(node, password="crayon")
        with pytest.raises(AuthenticationFailed):
            await known.check_password("alice", "pencil", "here")
        assert await known.check_password("alice", "crayon", "here") == ALICE

    on_a_node(act, **PLAIN_TOO)


def test_a_crowd_that_guesses_is_refused_before_it_costs_anything(monkeypatch):
    salted = []
    monkeypatch.setattr(identities, "is_password", lambda *given: salted.append(1))

    async def act(node):
        known = Identities(node.broker)
        guesses = (known.check_password("alice", str(number), "here") for number in range(200))
        found = await asyncio.gather(*guesses, return_exceptions=True)
        assert all(isinstance(one, AuthenticationFailed) for one in found)
        assert len(salted) == identities.WAITING_OF_HOST_MAX

    on_a_node(act)


def test_a_crowd_that_guesses_keeps_another_host_waiting_for_one_guess(monkeypatch):
    salted = []

    def noted(kind, password, verifier):
        salted.append(password)
        return is_password(kind, password, verifier)

    monkeypatch.setattr(identities, "is_password", noted)

    async def act(node):
        await add_user(node)
        known = Identities(node.broker)
        crowd = [asyncio.create_task(known.check_password("alice", f"{n}", "there")) for n in range(100)]
        while not salted:
            await asyncio.sleep(0)
        crowd[1].cancel()  # whose turn would be next
        others = [known.check_password("alice", "pencil", "here") for _ in range(40)]

        assert await asyncio.gather(*others) == [ALICE] * 40
        assert salted.index("pencil") <= 2 and salted.count("pencil") == 1
        await asyncio.gather(*crowd, return_exceptions=True)
        assert await known.check_password("alice", "pencil", "there") == ALICE
        with pytest.raises(AuthenticationFailed, match="wrong"):
            await known.check_password("alice", "crayon", "there")

    on_a_node(act)


# The admin API.


def test_users_are_described_with_what_they_can_log_in_by():
    async def act(node):
        await add_user(node)
        answer = await node.ask(Api.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=None)
        (alice,) = answer.results
        assert [(one.mechanism, one.iterations) for one in alice.credential_infos] == [(1, 16384), (2, 16384)]
        asked = [{"name": name} for name in ("alice", "bob", "bob")]
        alice, bob = (await node.ask(Api.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=asked)).results
        assert (alice.error_code, bob.error_code) == (0, DUPLICATE)

    on_a_node(act)


def test_a_user_is_gone_with_its_last_password_and_its_tokens_are():
    async def act(node):
        await add_user(node)
        await node.broker.metadata.change(lambda image: [TokenGranted(token=a_token())])
        for mechanism, code in ((1, 0), (2, 0), (1, UNKNOWN_USER)):
            deletions = [{"name": "alice", "mechanism": mechanism}]
            answer = await node.ask(Api.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=deletions)
            assert answer.results[0].error_code == code
            assert bool(node.broker.image.tokens) == bool(node.broker.image.users)
        assert node.broker.image.users == {}

    on_a_node(act)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"iterations": 4096}, UNACCEPTABLE),
        ({"iterations": 2_000_000}, UNACCEPTABLE),
        ({"salt": b"short"}, UNACCEPTABLE),
        ({"salted_password": b""}, UNACCEPTABLE),
        ({"mechanism": 0}, UNSUPPORTED_MECHANISM),
        ({"mechanism": 1}, DUPLICATE),
        ({"name": ""}, 42),
        ({"name": "x" * 256}, 42),
        ({"name": "ANONYMOUS"}, 42),
    ],
)
def test_what_makes_no_good_user_is_refused_whole(changed, code):
    async def act(node):
        assert (await add_user(node, **changed)).error_code == code
        assert node.broker.image.users == {}

    on_a_node(act)


def test_the_salts_of_users_that_do_not_exist_stay_when_the_node_starts_again():
    async def act(node):
        await add_user(node)
        first = connect(node).salts_secret()
        node.client = Client(address="test")
        await add_user(node, "bob")
        assert connect(node).salts_secret() == first == node.broker.image.salts_secret

    on_a_node(act)


def test_what_is_stored_is_not_the_password():
    async def act(node):
        await add_user(node)
        kind = HASHES["SCRAM-SHA-256"]
        assert node.broker.image.users["alice"]["SCRAM-SHA-256"] == make_verifier(kind, "pencil", SALT)
        salted = salted_password(kind, "pencil", SALT, 16384)
        assert all(
            salted not in (one.stored_key, one.server_key)
            for one in node.broker.image.users["alice"].values()
        )

    on_a_node(act)


def test_a_token_proves_who_it_is_of_where_it_is_offered():
    async def act(node):
        known = connect(node)
        text = TOKEN
        await node.broker.metadata.change(lambda image: [TokenGranted(token=a_token())])
        for shown, code in ((text, 0), (text[:-1] + "B", FAILED), ("a.b.c", FAILED)):
            connect(node)
            assert (await shake(node, "OAUTHBEARER")).error_code == 0
            assert (await say(node, f"n,,\x01auth=Bearer {shown}\x01\x01".encode())).error_code == code
        assert (await known.check_token(text)).principal == ALICE

    on_a_node(act, sasl_enabled_mechanisms="OAUTHBEARER")
