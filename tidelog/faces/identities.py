"""What a node knows of users, and finds out about passwords and tokens.

Rule 1: a password is salted in a thread, one at a time, and one of each host after the other: whoever
        guesses keeps others waiting for one guess. Too many of a host at once are refused.
Rule 2: a password that was right is remembered by a digest that only this process can make, for as
        long as what is stored of it stays: a request with basic auth costs no salting each.
Rule 3: a user that does not exist takes as long to refuse as a wrong password.
"""

import asyncio
import hmac
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from tidelog.broker.broker import Broker
from tidelog.config.setting import split_list
from tidelog.security import tokens
from tidelog.security.failures import AuthenticationFailed
from tidelog.security.principals import USER, Principal
from tidelog.security.sasl import Proved
from tidelog.security.scram import HASHES, PASSWORD_BYTES_MAX, Hash, Verifier, is_password, pretended

WAITING_OF_HOST_MAX: Final = 50
"""Passwords from one address that are salted or wait for it; further ones are refused."""
WAITING_MAX: Final = 1000
"""The same of all addresses."""
REMEMBERED_MAX: Final = 1000
_SECRET_BYTES: Final = 32
_NONCE_BYTES: Final = 24


class Identities:
    """Users of the cluster, as this node knows them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._secret = broker.host.random.randbytes(_SECRET_BYTES)
        self._turns = _Turns()
        self._right: dict[bytes, Verifier] = {}
        """By a digest of the name and the password, what they were checked with; the oldest first."""

    @property
    def mechanisms(self) -> list[str]:
        """Those that this node offers."""
        return split_list(self._broker.config.sasl_enabled_mechanisms)

    @property
    def session_ms_max(self) -> int:
        """For how long a proof by SASL lasts; 0: as long as the connection."""
        return self._broker.config.connections_max_reauth_ms

    def verifiers(self, name: str) -> Mapping[str, Verifier]:
        """What is stored of a user's passwords; nothing if there is no such user."""
        return self._broker.image.users.get(name, {})

    def salts_secret(self) -> bytes:
        """What the salts of users that do not exist are made of."""
        return self._broker.image.salts_secret or self._secret

    def nonce(self) -> str:
        return self._broker.host.random.randbytes(_NONCE_BYTES).hex()

    def wall_ms(self) -> int:
        return self._broker.host.clock.wall_ms()

    async def check_password(self, name: str, password: str, host: str) -> Principal:
        """Whose password it is that came from this host; AuthenticationFailed if it is wrong."""
        wrong = AuthenticationFailed("the user or the password is wrong")
        if len(password.encode()) > PASSWORD_BYTES_MAX:
            raise wrong
        known = self.verifiers(name)
        mechanism = next((one for one in HASHES if one in known), Hash.SHA_256.mechanism)
        kind, stored = HASHES[mechanism], known.get(mechanism)
        digest = hmac.digest(self._secret, f"{name}\0{password}".encode(), "sha256")
        if stored is None or self._right.get(digest) != stored:
            verifier = stored or pretended(kind, name, self.salts_secret())
            async with self._turns.of(host):
                # somebody may have come with it meanwhile
                is_right = stored is not None and self._right.get(digest) == stored
                if not is_right:
                    check = partial(is_password, kind, password, verifier)
                    is_right = await self._broker.host.offload.run(check)
            if stored is None or not is_right:
                raise wrong
            while len(self._right) >= REMEMBERED_MAX:
                del self._right[next(iter(self._right))]
            self._right[digest] = stored
        return Principal(USER, name)

    async def check_token(self, token: str) -> Proved:
        """Whose token it is, and until when; AuthenticationFailed if it is none."""
        stored = self.token(token)
        if stored is None:
            raise AuthenticationFailed("the token is wrong, has expired or was revoked")
        return Proved(Principal(USER, stored.user), expires_ms=stored.expires_ms)

    def token(self, text: str) -> tokens.Token | None:
        """What is stored of a token, as long as it holds."""
        token_id = tokens.id_of(text)
        stored = None if token_id is None else self._broker.image.tokens.get(token_id)
        return stored if stored is not None and tokens.is_token(text, stored, self.wall_ms()) else None


class _Turns:
    """One at a time, and of each host one after the other.

    Invariant: while anybody waits, somebody has the turn.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By host; the one whose turn is next comes first."""
        self._there: Counter[str] = Counter()
        """Those who wait and the one that has the turn, by host."""
        self._is_taken = False

    @asynccontextmanager
    async def of(self, host: str) -> AsyncIterator[None]:
        """Inside, nobody else has the turn; AuthenticationFailed if too many wait for it."""
        if self._there[host] >= WAITING_OF_HOST_MAX or self._there.total() >= WAITING_MAX:
            raise AuthenticationFailed("too many log in at this moment; try again")
        self._there[host] += 1
        try:
            if self._is_taken:
                await self._wait(host)
            self._is_taken = True
            try:
                yield
            finally:
                self._pass_on()
        finally:
            self._there[host] -= 1
            if not self._there[host]:
                del self._there[host]

    async def _wait(self, host: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(host, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._pass_on()  # it had come
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            host = next(iter(self._waiting))
            of_host = self._waiting.pop(host)
            turn = of_host.popleft()
            if of_host:
                self._waiting[host] = of_host  # behind the others
            if not turn.cancelled():
                turn.set_result(None)
                return
        self._is_taken = False
