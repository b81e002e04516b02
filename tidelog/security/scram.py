"""SCRAM (RFC 5802) with SHA-256 and SHA-512: both sides of one exchange, and what is stored of a password.

Rule 1: a password is never stored. A verifier proves who knows it, and is no use to log in with.
Rule 2: whoever asks for a user that does not exist gets a salt, too: the same at each try, so that
        names cannot be told apart.
Rule 3: what decides over a proof is compared in constant time, and only with the nonce that was given.
"""

# client-first := "n,," "n=" name ",r=" nonce ("," extension)*      (or "y,,"; channel bindings are refused)
# server-first := "r=" nonce ",s=" base64(salt) ",i=" iterations
# client-final := "c=" base64(the part before "n=") ",r=" nonce ",p=" base64(proof)
# server-final := "v=" base64(signature)

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from enum import Enum
from typing import Final

import msgspec

from tidelog.security.failures import AuthenticationFailed
from tidelog.security.principals import NAME_CHARACTERS_MAX

ITERATIONS: Final = 16_384
ITERATIONS_MIN: Final = 16_384
ITERATIONS_MAX: Final = 1_000_000
"""More would cost who logs in, and us, half a second."""
SALT_BYTES: Final = 16
SALT_BYTES_MAX: Final = 256
PASSWORD_BYTES_MAX: Final = 1024
MESSAGE_BYTES_MAX: Final = 4096
NONCE_CHARACTERS_MAX: Final = 512

_FIRST: Final = re.compile(
    r"((?:n|y),(?:a=([^,]*))?,)(n=([^,]*),r=([\x21-\x2b\x2d-\x7e]+)(?:,.*)?)", re.DOTALL
)
_FINAL: Final = re.compile(
    r"(c=([A-Za-z0-9+/=]+),r=([\x21-\x2b\x2d-\x7e]+)(?:,.*?)?),p=([A-Za-z0-9+/=]+)", re.DOTALL
)
_CHALLENGE: Final = re.compile(r"r=([^,]+),s=([A-Za-z0-9+/=]+),i=([1-9][0-9]{0,8})(?:,.*)?", re.DOTALL)
_ESCAPED: Final = re.compile(r"=2C|=3D|=")


class Hash(Enum):
    """A hash by the name that the mechanism gives it, and Python's."""

    SHA_256 = "sha256"
    SHA_512 = "sha512"

    @property
    def mechanism(self) -> str:
        return f"SCRAM-SHA-{self.value.removeprefix('sha')}"


HASHES: Final = {one.mechanism: one for one in Hash}
"""The hash of each mechanism of SCRAM that there is."""


class Verifier(msgspec.Struct, frozen=True, array_like=True):
    """What is stored of a password: enough to check a proof, and to prove ourselves."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"<Verifier of {self.iterations} iterations>"


def salted_password(kind: Hash, password: str, salt: bytes, iterations: int) -> bytes:
    """The slow step: milliseconds, in which other threads run."""
    return hashlib.pbkdf2_hmac(kind.value, password.encode(), salt, iterations)


def verifier_from(kind: Hash, salted: bytes, salt: bytes, iterations: int) -> Verifier:
    """What to store of a password that was salted."""
    client_key = _hmac(kind, salted, b"Client Key")
    stored_key = hashlib.new(kind.value, client_key).digest()
    return Verifier(salt, iterations, stored_key, _hmac(kind, salted, b"Server Key"))


def make_verifier(kind: Hash, password: str, salt: bytes, iterations: int = ITERATIONS) -> Verifier:
    """What to store of a password; slow."""
    return verifier_from(kind, salted_password(kind, password, salt, iterations), salt, iterations)


def is_password(kind: Hash, password: str, verifier: Verifier) -> bool:
    """Whether this is the password; slow, and as slow if it is not."""
    found = make_verifier(kind, password, verifier.salt, verifier.iterations)
    return hmac.compare_digest(found.stored_key, verifier.stored_key)


def pretended(kind: Hash, name: str, secret: bytes) -> Verifier:
    """The verifier of a user that does not exist: the same at each try, and no password fits it."""
    seed = hmac.digest(secret, f"{kind.mechanism}\0{name}".encode(), "sha512")
    size = hashlib.new(kind.value).digest_size
    return Verifier(seed[:SALT_BYTES], ITERATIONS, bytes(size), bytes(size))


class ScramServer:
    """The server's side of one exchange: `first`, then `final`, each once.

    `find` gives the verifier of a user, or None; `secret` makes those of users that do not exist.
    """

    def __init__(
        self, kind: Hash, *, nonce: str, find: Callable[[str], Verifier | None], secret: bytes
    ) -> None:
        self._kind = kind
        self._own_nonce = nonce
        self._find = find
        self._secret = secret
        self._verifier: Verifier | None = None
        self._is_known = False
        self._binding = ""
        self._nonce = ""
        self._so_far = ""
        self.name = ""
        """Who says to be there; proved once `final` has returned."""

    def first(self, message: bytes) -> bytes:
        """What to answer to the client's first message."""
        found = _FIRST.fullmatch(_text(message))
        if found is None:
            raise AuthenticationFailed("this is no first message of SCRAM without channel binding")
        header, authorization, bare, name, nonce = found.groups()
        self.name = _unescaped(name)
        if authorization and _unescaped(authorization) != self.name:
            raise AuthenticationFailed("nobody may act for another here")
        if not 0 < len(self.name) <= NAME_CHARACTERS_MAX or len(nonce) > NONCE_CHARACTERS_MAX:
            raise AuthenticationFailed("the name or the nonce has no fitting length")
        verifier = self._find(self.name)
        self._is_known = verifier is not None
        self._verifier = verifier = verifier or pretended(self._kind, self.name, self._secret)
        self._binding, self._nonce = header, nonce + self._own_nonce
        challenge = f"r={self._nonce},s={_base64(verifier.salt)},i={verifier.iterations}"
        self._so_far = f"{bare},{challenge}"
        return challenge.encode()

    def final(self, message: bytes) -> bytes:
        """Our own proof, if the client's is right; AuthenticationFailed otherwise."""
        verifier, self._verifier = self._verifier, None
        assert verifier is not None, "the first message came before, and no other final one"
        found = _FINAL.fullmatch(_text(message))
        if found is None:
            raise AuthenticationFailed("this is no final message of SCRAM")
        without_proof, binding, nonce, encoded = found.groups()
        proof = _unbase64(encoded)
        signed = f"{self._so_far},{without_proof}".encode()
        signature = _hmac(self._kind, verifier.stored_key, signed)
        client_key = _xor(proof, signature) if len(proof) == len(signature) else b""
        stored_key = hashlib.new(self._kind.value, client_key).digest()
        is_right = hmac.compare_digest(stored_key, verifier.stored_key)
        is_right &= hmac.compare_digest(nonce.encode(), self._nonce.encode())
        is_right &= _unbase64(binding) == self._binding.encode()
        if not (is_right and self._is_known):
            raise AuthenticationFailed("the user or the password is wrong")
        return b"v=" + _base64(_hmac(self._kind, verifier.server_key, signed)).encode()


class ScramClient:
    """The client's side of one exchange: `first`, `final` (slow), `check`."""

    def __init__(self, kind: Hash, name: str, password: str, *, nonce: str) -> None:
        self._kind = kind
        self._password = password
        self._nonce = nonce
        self._bare = f"n={name.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._expected = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, challenge: bytes) -> bytes:
        """The proof; AuthenticationFailed if the server asks for what no server should."""
        found = _CHALLENGE.fullmatch(_text(challenge))
        if found is None or not found[1].startswith(self._nonce) or found[1] == self._nonce:
            raise AuthenticationFailed("the server's challenge is none")
        salt, iterations = _unbase64(found[2]), int(found[3])
        if not ITERATIONS_MIN // 4 <= iterations <= ITERATIONS_MAX:
            raise AuthenticationFailed(f"the server asks for {iterations} iterations")
        salted = salted_password(self._kind, self._password, salt, iterations)
        without_proof = f"c={_base64(b'n,,')},r={found[1]}"
        signed = f"{self._bare},{_text(challenge)},{without_proof}".encode()
        verifier = verifier_from(self._kind, salted, salt, iterations)
        client_key = _hmac(self._kind, salted, b"Client Key")
        proof = _xor(client_key, _hmac(self._kind, verifier.stored_key, signed))
        self._expected = b"v=" + _base64(_hmac(self._kind, verifier.server_key, signed)).encode()
        return f"{without_proof},p={_base64(proof)}".encode()

    def check(self, answer: bytes) -> None:
        """AuthenticationFailed unless the server knows the verifier, too."""
        if not self._expected or not hmac.compare_digest(answer.partition(b",")[0], self._expected):
            raise AuthenticationFailed("the server could not prove that it knows this user")


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise AuthenticationFailed("a message of SCRAM is shorter than that")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise AuthenticationFailed("a message of SCRAM is UTF-8") from None


def _unescaped(name: str) -> str:
    def character(found: re.Match[str]) -> str:
        if found[0] == "=":
            raise AuthenticationFailed("a name has = and , as =3D and =2C")
        return "," if found[0] == "=2C" else "="

    return _ESCAPED.sub(character, name)


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise AuthenticationFailed("this is no base64") from None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _hmac(kind: Hash, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, kind.value)


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
