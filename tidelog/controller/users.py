"""Decisions about users: what is stored of their passwords.

Rule: only verifiers are stored, of mechanisms that there are, with enough iterations.
"""

from collections.abc import Callable, Mapping
from typing import Final

from tidelog.controller.image import ClusterImage
from tidelog.controller.records import MetadataRecord, SaltsChosen, TokenGranted, TokenRevoked, UserChanged
from tidelog.errors import InvalidRequest
from tidelog.security.failures import UnacceptableCredential, UnknownUser
from tidelog.security.principals import ANONYMOUS, NAME_CHARACTERS_MAX
from tidelog.security.scram import (
    HASHES,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    PASSWORD_BYTES_MAX,
    SALT_BYTES_MAX,
    Verifier,
)
from tidelog.security.tokens import Token

USERS_MAX: Final = 10_000
TOKENS_MAX: Final = 10_000


def check_name(name: str) -> str:
    """The name, if a user may have it; InvalidRequest otherwise."""
    if not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable() or name != name.strip():
        raise InvalidRequest(
            f"a user's name has 1 to {NAME_CHARACTERS_MAX} characters that can be printed, "
            "and no spaces around them"
        )
    if name == ANONYMOUS.name:
        raise InvalidRequest(f"{name} is whoever has proved nothing; choose another name")
    return name


def check_password(password: str) -> None:
    """UnacceptableCredential if nobody can have this password."""
    if not 0 < len(password.encode("utf-8", "replace")) <= PASSWORD_BYTES_MAX:
        raise UnacceptableCredential(f"a password has 1 to {PASSWORD_BYTES_MAX} bytes")


def check_cost(iterations: int, salt: bytes) -> None:
    """UnacceptableCredential if so many iterations, or such a salt, are none to store."""
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise UnacceptableCredential(
            f"{iterations} iterations; it takes {ITERATIONS_MIN} to {ITERATIONS_MAX} "
            f"(kafka-configs.sh: SCRAM-SHA-256=[iterations={ITERATIONS_MIN},password=...])"
        )
    if not 8 <= len(salt) <= SALT_BYTES_MAX:
        raise UnacceptableCredential(f"a salt has 8 to {SALT_BYTES_MAX} bytes")


def change_user(
    image: ClusterImage, name: str, changed: Mapping[str, Verifier | None], *, secret: bytes
) -> list[MetadataRecord]:
    """Set what is stored of a user, by mechanism; None removes it, and the last one the user.
    `secret` serves if this is the first."""
    before = image.users.get(name, {})
    after = dict(before)
    for mechanism, verifier in changed.items():
        assert mechanism in HASHES, "whoever asks names one that there is"
        if verifier is not None:
            after[mechanism] = verifier
        elif after.pop(mechanism, None) is None:
            raise UnknownUser(f"there is no user {name!r} with a password of {mechanism}")
    if not before and after:
        check_name(name)
        if len(image.users) >= USERS_MAX:
            raise InvalidRequest(f"there are {USERS_MAX} users; more have to be told apart by certificates")
    if not after:
        return remove_user(image, name)
    chosen = [] if image.salts_secret else [SaltsChosen(secret=secret)]
    return [*chosen, UserChanged(name=name, verifiers=after)]


def remove_user(image: ClusterImage, name: str) -> list[MetadataRecord]:
    """Forget a user, all its passwords, and its tokens."""
    if name not in image.users:
        raise UnknownUser(f"there is no user {name!r}")
    return [UserChanged(name=name, verifiers={}), *_revoked(image, lambda token: token.user == name)]


def grant_token(image: ClusterImage, token: Token, now_ms: int) -> list[MetadataRecord]:
    """Take a new token, and forget those that have expired."""
    if len(image.tokens) >= TOKENS_MAX:
        raise InvalidRequest(f"there are {TOKENS_MAX} tokens; revoke some")
    expired = _revoked(image, lambda one: one.expires_ms is not None and one.expires_ms <= now_ms)
    return [TokenGranted(token=token), *expired]


def revoke_token(image: ClusterImage, token_id: str) -> list[MetadataRecord]:
    if token_id not in image.tokens:
        raise UnknownUser(f"there is no token {token_id!r}; it is named by its id, not by its secret")
    return [TokenRevoked(id=token_id)]


def _revoked(image: ClusterImage, goes: Callable[[Token], bool]) -> list[MetadataRecord]:
    return [TokenRevoked(id=token.id) for token in image.tokens.values() if goes(token)]
