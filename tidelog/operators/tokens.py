"""Tokens: what programs show over HTTP to say for which user they ask.

Rule 1: a token is in the answer that makes it, and nowhere else: what is stored is a digest.
Rule 2: a token ends when it expires, when it is revoked, and when its user is removed.
"""

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta

from tidelog.controller import users
from tidelog.controller.image import ClusterImage
from tidelog.controller.records import MetadataRecord
from tidelog.operators.values import LIMIT, After, Limit, page
from tidelog.operators.verbs import ALTER_CLUSTER, DESCRIBE_CLUSTER, Http, Verb
from tidelog.security.tokens import ID_BYTES, SECRET_BYTES, Token, digest_of, text_of

if TYPE_CHECKING:
    from tidelog.operators.desk import Desk

DAYS: Final = 90
DAYS_MAX: Final = 3650
NOTE_CHARACTERS_MAX: Final = 200
_DAY_MS: Final = 24 * 60 * 60 * 1000

Days = Annotated[int, Meta(ge=1, le=DAYS_MAX, description="How long it holds; null for ever.")]


class ListTokens(msgspec.Struct, frozen=True, kw_only=True):
    limit: Limit = LIMIT
    after: After = None


class TokenShown(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    user: str
    note: str
    created_ms: int
    expires_ms: int | None
    """Null: never."""


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    tokens: list[TokenShown]
    next: str | None


class CreateToken(msgspec.Struct, frozen=True, kw_only=True):
    user: str
    days: Days | None = DAYS
    note: Annotated[str, Meta(max_length=NOTE_CHARACTERS_MAX, description="What it is for.")] = ""


class Created(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    user: str
    token: str
    """Told once; nobody can find it out later."""
    expires_ms: int | None

    def __repr__(self) -> str:
        return f"<Created {self.id}>"


class NamedToken(msgspec.Struct, frozen=True, kw_only=True):
    id: str


async def list_tokens(desk: "Desk", asked: ListTokens) -> Tokens:
    known = desk.broker.image.tokens
    ids, after = page(known, limit=asked.limit, after=asked.after)
    return Tokens(tokens=[_show(known[one]) for one in ids], next=after)


def _show(token: Token) -> TokenShown:
    return TokenShown(
        id=token.id,
        user=token.user,
        note=token.note,
        created_ms=token.created_ms,
        expires_ms=token.expires_ms,
    )


async def create_token(desk: "Desk", asked: CreateToken) -> Created:
    broker = desk.broker
    random, now_ms = broker.host.random, broker.host.clock.wall_ms()
    token_id = random.randbytes(ID_BYTES)
    text = text_of(token_id, random.randbytes(SECRET_BYTES))
    token = Token(
        id=token_id.hex(),
        user=users.check_name(asked.user),
        digest=digest_of(text),
        created_ms=now_ms,
        expires_ms=None if asked.days is None else now_ms + asked.days * _DAY_MS,
        note=asked.note,
    )
    await broker.metadata.change(lambda image: users.grant_token(image, token, now_ms))
    return Created(id=token.id, user=token.user, token=text, expires_ms=token.expires_ms)


async def revoke_token(desk: "Desk", asked: NamedToken) -> NamedToken:
    def decide(image: ClusterImage) -> list[MetadataRecord]:
        return users.revoke_token(image, asked.id)

    await desk.broker.metadata.change(decide)
    return asked


VERBS: Final = (
    Verb(
        name="tokens.list",
        do=list_tokens,
        permission=DESCRIBE_CLUSTER,
        summary="List the tokens: whose they are and until when, never the tokens themselves.",
        http=Http("GET", "/v1/tokens"),
    ),
    Verb(
        name="tokens.create",
        do=create_token,
        permission=ALTER_CLUSTER,
        is_dangerous=True,
        summary="Make a token for a user; the answer is the only place that has it.",
        http=Http("POST", "/v1/tokens", status=201),
    ),
    Verb(
        name="tokens.revoke",
        do=revoke_token,
        permission=ALTER_CLUSTER,
        is_dangerous=True,
        summary="Revoke a token.",
        http=Http("DELETE", "/v1/tokens/{id}", errors={404: "There is no such token."}),
    ),
)
