"""Users: who may prove by a password who they are.

Rule 1: of a password only verifiers are stored, one for each mechanism of SCRAM. They are made in a
        thread, at the node that was asked.
Rule 2: a password is said in a request's body, never in a path or a query, and never in an answer.
"""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta

from tidelog.controller import users
from tidelog.controller.image import ClusterImage
from tidelog.controller.records import MetadataRecord
from tidelog.errors import InvalidRequest
from tidelog.host import Host
from tidelog.kafka.users import SECRET_BYTES
from tidelog.operators.values import LIMIT, After, Limit, page
from tidelog.operators.verbs import ALTER_CLUSTER, DESCRIBE_CLUSTER, Http, Verb
from tidelog.security.failures import UnknownUser
from tidelog.security.scram import HASHES, ITERATIONS, SALT_BYTES, Verifier, make_verifier

if TYPE_CHECKING:
    from tidelog.operators.desk import Desk

ITERATIONS_HERE_MAX: Final = 100_000
"""More would keep a node's threads busy for whoever may change users."""
Mechanism = Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]


class ListUsers(msgspec.Struct, frozen=True, kw_only=True):
    limit: Limit = LIMIT
    after: After = None


class Password(msgspec.Struct, frozen=True, kw_only=True):
    mechanism: str
    iterations: int


class User(msgspec.Struct, frozen=True, kw_only=True):
    user: str
    passwords: list[Password]


class Users(msgspec.Struct, frozen=True, kw_only=True):
    users: list[User]
    next: str | None


class SetUser(msgspec.Struct, frozen=True, kw_only=True):
    user: str
    password: str
    mechanisms: Annotated[list[Mechanism], Meta(min_length=1, max_length=2)] = msgspec.field(
        default_factory=lambda: ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    )
    iterations: Annotated[
        int, Meta(ge=ITERATIONS, le=ITERATIONS_HERE_MAX, description="How slow a password is to try.")
    ] = ITERATIONS
    new: Annotated[bool | None, Meta(description="true: the user must be new; false: it must be there.")] = (
        None
    )

    def __repr__(self) -> str:
        return f"SetUser(user={self.user!r})"


class NamedUser(msgspec.Struct, frozen=True, kw_only=True):
    user: str


async def list_users(desk: "Desk", asked: ListUsers) -> Users:
    known = desk.broker.image.users
    names, after = page(known, limit=asked.limit, after=asked.after)
    return Users(users=[_show(name, desk.broker.image) for name in names], next=after)


def _show(name: str, image: ClusterImage) -> User:
    passwords = [
        Password(mechanism=mechanism, iterations=verifier.iterations)
        for mechanism, verifier in sorted(image.users.get(name, {}).items())
    ]
    return User(user=name, passwords=passwords)


def new_secret(host: Host) -> bytes:
    """What salts for users that do not exist are made of, if the cluster has none yet."""
    return host.random.randbytes(SECRET_BYTES)


async def make_verifiers(
    host: Host, password: str, mechanisms: Iterable[str] = tuple(HASHES), iterations: int = ITERATIONS
) -> dict[str, Verifier]:
    """What is stored of a password, by mechanism; made in a thread."""
    made: dict[str, Verifier] = {}
    for mechanism in mechanisms:
        salt = host.random.randbytes(SALT_BYTES)
        made[mechanism] = await host.offload.run(
            partial(make_verifier, HASHES[mechanism], password, salt, iterations)
        )
    return made


async def set_user(desk: "Desk", asked: SetUser) -> User:
    name = users.check_name(asked.user)
    users.check_password(asked.password)
    host = desk.broker.host
    verifiers = await make_verifiers(host, asked.password, asked.mechanisms, asked.iterations)
    secret = new_secret(host)

    def decide(image: ClusterImage) -> list[MetadataRecord]:
        before = image.users.get(name)
        if before == verifiers:
            pass  # this very change, of which the answer was lost
        elif asked.new and before is not None:
            raise InvalidRequest(f"there is a user {name!r} already; `password` changes its password")
        elif asked.new is False and before is None:
            raise UnknownUser(f"there is no user {name!r}")
        others = dict.fromkeys((before or {}).keys() - verifiers.keys())
        return users.change_user(image, name, {**others, **verifiers}, secret=secret)

    await desk.broker.metadata.change(decide)
    return _show(name, desk.broker.image)


async def remove_user(desk: "Desk", asked: NamedUser) -> NamedUser:
    await desk.broker.metadata.change(lambda image: users.remove_user(image, asked.user))
    return asked


_USER: Final = "/v1/users/{user}"

VERBS: Final = (
    Verb(
        name="users.list",
        do=list_users,
        permission=DESCRIBE_CLUSTER,
        summary="List the users that have passwords.",
        http=Http("GET", "/v1/users"),
    ),
    Verb(
        name="users.set",
        do=set_user,
        permission=ALTER_CLUSTER,
        is_dangerous=True,
        summary="Add a user, or change its password; only what proves the password is stored.",
        http=Http("PUT", _USER, errors={404: "There is no such user."}),
    ),
    Verb(
        name="users.remove",
        do=remove_user,
        permission=ALTER_CLUSTER,
        is_dangerous=True,
        summary="Remove a user and its passwords.",
        http=Http("DELETE", _USER, errors={404: "There is no such user."}),
    ),
)
