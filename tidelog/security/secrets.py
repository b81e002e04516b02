"""The cluster's secret: what every node has, and nobody else.

Rule 1: a secret is never shown: not by `repr`, not by an error, not by a log.
Rule 2: proofs are compared in a time that does not depend on where they differ.
Rule 3: a key has one use. What one key proves is a label and what was said, so a proof of one side is none
        of the other.
"""

# file := line*                one secret to a line; the first proves, all of them are believed
# line := SECRET | "#" comment | nothing

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

CHARACTERS_MIN: Final = 32
"""A shorter secret could be guessed by whoever has seen one proof."""
SECRETS_MAX: Final = 4
FILE_BYTES_MAX: Final = 64 * 1024


class Secret:
    """One secret, and those that others may still have while it is replaced."""

    __slots__ = ("_keys",)

    def __init__(self, secrets: Sequence[bytes]) -> None:
        """The first of `secrets` proves; any of them is believed."""
        assert secrets, "a node without a secret has no Secret"
        self._keys = tuple(hashlib.sha256(b"tidelog cluster secret\0" + each).digest() for each in secrets)

    def __repr__(self) -> str:
        return "<Secret>"

    def __reduce__(self) -> str:
        raise TypeError("a secret is not copied to another process")

    @classmethod
    def parse(cls, content: bytes) -> "Secret":
        """The secrets of a file; ValueError says what is wrong with it, and shows nothing of it."""
        if len(content) > FILE_BYTES_MAX:
            raise ValueError(f"it is larger than {FILE_BYTES_MAX} bytes")
        lines = [line.strip() for line in content.splitlines()]
        secrets = [line for line in lines if line and not line.startswith(b"#")]
        if not secrets:
            raise ValueError("it holds no secret")
        if len(secrets) > SECRETS_MAX:
            raise ValueError(f"it holds {len(secrets)} secrets; at most {SECRETS_MAX} are taken")
        if min(map(len, secrets)) < CHARACTERS_MIN:
            raise ValueError(f"a secret in it has fewer than {CHARACTERS_MIN} characters")
        return cls(secrets)

    @property
    def newest(self) -> bytes:
        """The key by which this node proves itself."""
        return self._keys[0]

    def key_of(self, proof: bytes, label: bytes, said: bytes) -> bytes | None:
        """The key that made `proof` of what was said; None if none of these did."""
        found = None
        for key in self._keys:
            if hmac.compare_digest(prove(key, label, said), proof):
                found = key
        return found


def prove(key: bytes, label: bytes, said: bytes) -> bytes:
    """What only somebody with `key` can make of `said`."""
    return hmac.digest(key, label + b"\0" + said, "sha256")
