"""Users by Kafka's admin API: DescribeUserScramCredentials and AlterUserScramCredentials.

Rule 1: a client sends a password salted; what is stored proves it, and is no use to log in with.
Rule 2: what a request does to a user happens as a whole or not at all, and each is told apart.
"""

from collections import Counter
from typing import Any, Final

from tidelog.broker.broker import Broker
from tidelog.controller import users
from tidelog.errors import BrokerError
from tidelog.kafka.context import Request
from tidelog.security.failures import DuplicateUser, UnacceptableCredential, UnknownUser, UnsupportedMechanism
from tidelog.security.permissions import CLUSTER_NAME, Kind
from tidelog.security.scram import HASHES, Hash, Verifier, verifier_from

SECRET_BYTES: Final = 32
NUMBERS: Final = {1: Hash.SHA_256, 2: Hash.SHA_512}
"""The mechanisms, as these APIs number them."""
_NUMBER_OF: Final = {kind.mechanism: number for number, kind in NUMBERS.items()}


def describe_user_scram_credentials(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    """The users asked for, or all, each with its mechanisms and iterations."""
    context.require(Kind.CLUSTER)
    known = broker.image.users
    asked = Counter([one.name for one in request.users or ()] or list(known))
    results: list[dict[str, Any]] = []
    for name, times in asked.items():
        error: BrokerError | None = None
        if times > 1:
            error = DuplicateUser(f"{name!r} is named twice")
        elif name not in known:
            error = UnknownUser(f"there is no user {name!r}")
        infos = [
            {"mechanism": _NUMBER_OF[mechanism], "iterations": verifier.iterations}
            for mechanism, verifier in (known[name] if error is None else {}).items()
        ]
        results.append({"user": name, "credential_infos": infos, **_told(error)})
    return {"error_message": None, "results": results}


async def alter_user_scram_credentials(broker: Broker, request: Any, context: Request) -> dict[str, Any]:
    """Add, replace and remove passwords."""
    if not context.may(Kind.CLUSTER):
        told = _told(context.refusal(Kind.CLUSTER, CLUSTER_NAME))
        names = dict.fromkeys(one.name for one in (*request.deletions, *request.upsertions))
        return {"results": [{"user": name, **told} for name in names]}
    wanted: dict[str, list[tuple[Any, bool]]] = {}
    for one, is_set in [(o, False) for o in request.deletions] + [(o, True) for o in request.upsertions]:
        wanted.setdefault(one.name, []).append((one, is_set))
    results = []
    for name, changes in wanted.items():
        error: BrokerError | None = None
        try:
            changed: dict[str, Verifier | None] = {}
            for one, is_set in changes:
                mechanism, verifier = _change(one, is_set=is_set)
                if mechanism in changed:
                    raise DuplicateUser(f"{name!r} is named twice with {mechanism}")
                changed[mechanism] = verifier
            await set_user(broker, name, changed)
        except BrokerError as refusal:
            error = refusal
        results.append({"user": name, **_told(error)})
    return {"results": results}


def _change(one: Any, *, is_set: bool) -> tuple[str, Verifier | None]:
    kind = NUMBERS.get(int(one.mechanism))
    if kind is None:
        raise UnsupportedMechanism(f"there is no mechanism {one.mechanism}")
    if not is_set:
        return kind.mechanism, None
    salt, salted = bytes(one.salt), bytes(one.salted_password)
    users.check_name(one.name)
    users.check_cost(one.iterations, salt)
    if not salted:
        raise UnacceptableCredential("a password that was salted has some bytes")
    return kind.mechanism, verifier_from(kind, salted, salt, one.iterations)


def _told(error: BrokerError | None) -> dict[str, Any]:
    if error is None:
        return {"error_code": 0, "error_message": None}
    return {"error_code": error.code, "error_message": str(error)}


async def set_user(broker: Broker, name: str, changed: dict[str, Verifier | None]) -> None:
    """Have what is stored of a user committed; a refusal is raised."""
    secret = broker.host.random.randbytes(SECRET_BYTES)
    await broker.metadata.change(lambda image: users.change_user(image, name, changed, secret=secret))


assert set(_NUMBER_OF) == set(HASHES)
