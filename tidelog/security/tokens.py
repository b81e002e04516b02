"""Tokens: what programs show instead of a password over HTTP.

Rule 1: a token is random, and told once. What is stored of it is a digest.
Rule 2: a token names what is stored of it, so that one look finds it; the secret part is compared in
        constant time.
"""

# token := "tl_" id: hex{16} "_" secret: base64url{43}

import base64
import hashlib
import hmac
import re
from typing import Final

import msgspec

ID_BYTES: Final = 8
SECRET_BYTES: Final = 32
DIGEST_BYTES: Final = 32
_ID: Final = re.compile(r"[0-9a-f]{16}")
_TOKEN: Final = re.compile(r"tl_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored of a token."""

    id: str
    user: str
    digest: bytes
    created_ms: int
    expires_ms: int | None = None
    note: str = ""
    """What it is for, as whoever made it says."""

    def __repr__(self) -> str:
        return f"<Token {self.id} of {self.user!r}>"


def text_of(token_id: bytes, secret: bytes) -> str:
    """The token, as programs show it."""
    return f"tl_{token_id.hex()}_{base64.urlsafe_b64encode(secret).decode().rstrip('=')}"


def id_of(text: str) -> str | None:
    """The id of what is written like a token; None for anything else."""
    found = _TOKEN.fullmatch(text)
    return None if found is None else found[1]


def digest_of(text: str) -> bytes:
    """What is stored of a token. It is random, so one round of a hash hides it."""
    return hashlib.sha256(text.encode()).digest()


def is_fit(stored: Token) -> bool:
    """Whether a token can have such an id and digest."""
    return _ID.fullmatch(stored.id) is not None and len(stored.digest) == DIGEST_BYTES


def is_token(text: str, stored: Token, now_ms: int) -> bool:
    """Whether this is the token, and it still holds."""
    is_right = hmac.compare_digest(digest_of(text), stored.digest)
    return is_right and (stored.expires_ms is None or now_ms < stored.expires_ms)
