"""Exchanges of SASL with clients that know a password, guess one, or send anything; what HTTP shows instead.

What must hold: whatever is said is refused by AuthenticationFailed or answered; nobody is taken for somebody
whose password they do not know; nobody is taken for another than they say; no secret is in an answer.
"""

# case := "S" msgpack [mechanism: int, knows: bool, messages: [bytes]] | "H" a Host header and credentials

import base64
from collections.abc import Mapping
from random import Random
from typing import Final

import msgspec

from fuzz.mutate import mutate
from fuzz.runner import Broken
from tidelog.client.security import parse_jaas
from tidelog.errors import ConfigError
from tidelog.faces.http.guard import _name_and_password, name_of_host
from tidelog.security import sasl, tokens
from tidelog.security.failures import AuthenticationFailed
from tidelog.security.sasl import Challenge, CheckPassword, CheckToken, Proved
from tidelog.security.scram import HASHES, ScramClient, Verifier, make_verifier

_SALT: Final = b"salt of alice"
_ITERATIONS: Final = 4096
_PASSWORD: Final = "correct horse"
_USERS: Final = {
    "alice": {
        mechanism: make_verifier(kind, _PASSWORD, _SALT, _ITERATIONS) for mechanism, kind in HASHES.items()
    }
}
_MECHANISMS: Final = tuple(sasl.MECHANISMS)
_WORDS: Final = (
    *(b"n,,", b"y,,", b"p=tls-unique,,", b"n=", b"r=", b",", b"=2C", b"=", b"c=biws", b"p="),
    *(b"\0", b"\x01"),
)
_HOSTS: Final = (
    *(b"localhost", b"127.0.0.1:80", b"[::1]:8080", b"evil.example.com", b"tidelog"),
    b"1.2.3.4.example.com",
)


def _verifiers(name: str) -> Mapping[str, Verifier]:
    return _USERS.get(name, {})


def _begin(mechanism: str) -> sasl.Exchange:
    return sasl.begin(mechanism, nonce=lambda: "of-the-server", verifiers=_verifiers, secret=b"secret")


class ProofsFuzzer:
    name = "proofs"

    def make(self, random: Random) -> bytes:
        if random.random() < 0.2:
            text = random.choice(_HOSTS) + b"\n" + base64.b64encode(b"alice:" + _PASSWORD.encode())
            return b"H" + mutate(random, text)
        number, knows = random.randrange(len(_MECHANISMS)), random.random() < 0.3
        messages = list(_said(_MECHANISMS[number], _PASSWORD if knows else "guessed"))
        if random.random() < 0.9:
            at = random.randrange(len(messages))
            choices = (
                mutate(random, messages[at]),
                b"".join(random.choices(_WORDS, k=random.randint(1, 12))),
            )
            messages[at] = random.choice(choices)
        return b"S" + msgspec.msgpack.encode([number, knows, messages])

    def check(self, case: bytes) -> int:
        if case[:1] == b"H":
            return _check_http(case[1:])
        number, knows, messages = msgspec.msgpack.decode(case[1:], type=tuple[int, bool, list[bytes]])
        _check_exchange(_MECHANISMS[number], knows, messages)
        return len(messages)


def _said(mechanism: str, password: str) -> tuple[bytes, ...]:
    """What a client says that has this password."""
    if mechanism == sasl.PLAIN:
        return (f"\0alice\0{password}".encode(),)
    if mechanism == sasl.OAUTHBEARER:
        return (b"n,,\x01auth=Bearer a.b.c\x01\x01",)
    client, server = (
        ScramClient(HASHES[mechanism], "alice", password, nonce="of-the-client"),
        _begin(mechanism),
    )
    first = client.first()
    challenge = server.step(first)
    assert isinstance(challenge, Challenge)
    return first, client.final(challenge.data)


def _check_exchange(mechanism: str, knows: bool, messages: list[bytes]) -> None:
    exchange = _begin(mechanism)
    for message in messages:
        try:
            step = exchange.step(message)
        except AuthenticationFailed:
            return
        if isinstance(step, Proved):
            if not knows or step.principal.name != "alice":
                raise Broken(f"{step.principal} was proved by {messages}")
            return
        if isinstance(step, CheckPassword):
            if repr(step) != f"CheckPassword({step.name!r})":
                raise Broken(f"{step!r} shows a password")
            return
        if isinstance(step, CheckToken):
            if tokens.id_of(step.token) is not None:
                raise Broken(f"{messages} is taken for a token")
            return
        stored = _USERS["alice"].get(mechanism)
        if stored is not None and (stored.stored_key in step.data or stored.server_key in step.data):
            raise Broken("a key was sent")


def _check_http(case: bytes) -> int:
    host, _, credentials = case.partition(b"\n")
    name = name_of_host(host)
    if name is not None and (not {".", ":"} & set(name) or name.endswith(".localhost")):
        raise Broken(f"{host!r} was taken for a name with a domain")
    text = credentials.decode("latin-1")
    try:
        _name_and_password(text)
    except AuthenticationFailed:
        pass
    try:
        parse_jaas(text)
    except ConfigError:
        pass
    return 2
