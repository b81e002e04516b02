"""Who may do what: the one place that every face asks.

Rule 1: where the authorizer is off, everybody may do everything. Where it is on, nobody may do what
        no binding allows, but for the super users.
Rule 2: an answer is kept as long as the bindings are what they were. So who asks the same again pays
        one look into a dict, and a change counts from the next question on.
Rule 3: while it is read-only, nobody but super users may change anything, whatever is allowed. Settings of
        nodes stay changeable, so that it can end.
Rule 4: a refusal says who may not do what. It does not say whether there is such a thing.
"""

from collections.abc import Callable, Collection
from typing import Final, TypeAlias
from uuid import UUID

from tidelog.errors import BrokerError
from tidelog.security.acls import Acls, Verdict
from tidelog.security.permissions import (
    CLUSTER_NAME,
    POINTERS_PREFIX,
    QUEUE_PREFIX,
    Kind,
    Operation,
    Resource,
)
from tidelog.security.principals import Principal
from tidelog.security.refusals import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)

ANSWERS_MAX: Final = 256
"""What is kept of one client; then it begins anew."""
NAME_CHARACTERS_KEPT: Final = 255
CLIENTS_MAX: Final = 1024
"""Clients that are remembered, by principal and host; connections of one share what was found."""
_MAPPED: Final = "::ffff:"
SUPER_USERS_SEPARATOR: Final = ";"
"""As Kafka writes it: names of certificates hold commas."""

_ERRORS: Final[dict[Kind, type[BrokerError]]] = {
    Kind.TOPIC: TopicAuthorizationFailed,
    Kind.GROUP: GroupAuthorizationFailed,
    Kind.CLUSTER: ClusterAuthorizationFailed,
    Kind.TRANSACTIONAL_ID: TransactionalIdAuthorizationFailed,
    Kind.USER: ClusterAuthorizationFailed,
}
_CHANGES: Final = frozenset(Operation) - {
    Operation.READ,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.DESCRIBE_TOKENS,
}
_Question: TypeAlias = tuple[Operation, Kind, str | None]


def parse_super_users(text: str) -> frozenset[Principal]:
    """Read `User:NAME;User:NAME`; ValueError with what is wrong."""
    words = (word.strip() for word in text.split(SUPER_USERS_SEPARATOR))
    return frozenset(Principal.parse(word) for word in words if word)


def host_of(address: str) -> str:
    """The address as ACLs write it: one of IPv4 that came through a socket of IPv6 is of IPv4."""
    return address.removeprefix(_MAPPED)


class Authorizer:
    """Judges everything that clients of one node ask for."""

    def __init__(
        self,
        acls: Callable[[], Acls],
        *,
        is_on: bool = False,
        super_users: Collection[Principal] = (),
        allows_unbound: bool = False,
    ) -> None:
        """`allows_unbound`: whether everybody may do everything to what no binding covers."""
        self.current = acls
        """The bindings as they are now."""
        self._allows_unbound = allows_unbound
        self._enforces = is_on
        self.is_read_only = False
        self._clients: dict[tuple[Principal, str], Access] = {}
        self.is_on = is_on
        """Whether anything may be refused."""
        self.super_users = frozenset(super_users)

    def configure(self, *, is_read_only: bool) -> None:
        """Begin or end to refuse what changes something; what was allowed is asked again."""
        if is_read_only != self.is_read_only:
            self.is_read_only = is_read_only
            self.is_on = self._enforces or is_read_only
            self.current().touch()

    def authorize(self, principal: Principal, host: str, operation: Operation, resource: Resource) -> None:
        """Let it pass, or raise the error that the client gets."""
        if not self.allows(principal, host, operation, resource.kind, resource.name):
            raise refusal(principal, operation, resource.kind, resource.name)

    def allows(self, principal: Principal, host: str, operation: Operation, kind: Kind, name: str) -> bool:
        if not self.is_on or principal in self.super_users:
            return True
        if self.is_read_only and changes(operation, kind, name):
            return False
        if not self._enforces:
            return True
        verdict = self.current().judge(principal, host, operation, kind, name)
        return verdict is Verdict.ALLOWED or (verdict is Verdict.UNBOUND and self._allows_unbound)

    def allows_some(self, principal: Principal, host: str, operation: Operation, kind: Kind) -> bool:
        """Whether there can be a resource of the kind on which it is allowed."""
        if not self.is_on or principal in self.super_users:
            return True
        if self.is_read_only and operation in _CHANGES:
            return False
        if self._allows_unbound or not self._enforces:
            return True
        return self.current().allows_some(principal, host, operation, kind)

    def access(self, principal: Principal, host: str) -> "Access":
        """The rights of a client; the same for all of its connections while it is remembered."""
        found = self._clients.get((principal, host))
        if found is None:
            if len(self._clients) >= CLIENTS_MAX:
                del self._clients[next(iter(self._clients))]
            found = self._clients[principal, host] = Access(self, principal, host)
        return found


def changes(operation: Operation, kind: Kind, name: str) -> bool:
    """Whether it changes more than how far a group has read: who receives from a queue changes it."""
    if operation is Operation.READ:
        return kind is Kind.TOPIC and name.startswith((QUEUE_PREFIX, POINTERS_PREFIX))
    return operation in _CHANGES and (operation, kind) != (Operation.ALTER_CONFIGS, Kind.CLUSTER)


class Answers:
    """What one client was found to be allowed, as long as no binding changes.

    What it is not allowed is not kept: whoever has no rights takes no memory by asking.
    """

    __slots__ = ("found", "readable", "writable")

    def __init__(self) -> None:
        self.found: set[_Question] = set()
        self.readable: set[str | UUID] = set()
        self.writable: set[str | UUID] = set()
        """Topics, by name or by id, that it may read or write: for those who ask for every batch."""


class Access:
    """The rights of one client: what it was found to be allowed, while that holds."""

    __slots__ = ("_answers", "_authorizer", "_stamp", "host", "principal")

    def __init__(self, authorizer: Authorizer, principal: Principal, host: str) -> None:
        self._authorizer = authorizer
        self._answers = Answers()
        self._stamp: object = None
        self.principal = principal
        self.host = host

    def __repr__(self) -> str:
        return f"<Access of {self.principal} from {self.host}>"

    @property
    def is_judged(self) -> bool:
        """Whether anything may be refused at all."""
        return self._authorizer.is_on

    def answers(self) -> Answers:
        """What was found so far, and holds now."""
        stamp = self._authorizer.current().stamp
        if stamp is not self._stamp or len(self._answers.found) >= ANSWERS_MAX:
            self._answers, self._stamp = Answers(), stamp
        return self._answers

    def may(self, operation: Operation, kind: Kind, name: str = CLUSTER_NAME) -> bool:
        if not self._authorizer.is_on:
            return True
        known, question = self.answers().found, (operation, kind, name)
        if question in known:
            return True
        is_allowed = self._authorizer.allows(self.principal, self.host, operation, kind, name)
        if is_allowed and len(name) <= NAME_CHARACTERS_KEPT:
            known.add(question)
        return is_allowed

    def may_some(self, operation: Operation, kind: Kind) -> bool:
        """Whether it may do that to any resource of the kind."""
        if not self._authorizer.is_on:
            return True
        known, question = self.answers().found, (operation, kind, None)
        if question in known:
            return True
        is_allowed = self._authorizer.allows_some(self.principal, self.host, operation, kind)
        if is_allowed:
            known.add(question)
        return is_allowed

    def require(self, operation: Operation, kind: Kind, name: str = CLUSTER_NAME) -> None:
        """Let it pass, or raise the error that the client gets."""
        if not self.may(operation, kind, name):
            raise refusal(self.principal, operation, kind, name)


def remember(topics: set[str | UUID], topic: str | UUID) -> None:
    """Keep it among the topics of `Answers` that were allowed."""
    if len(topics) >= ANSWERS_MAX:
        topics.clear()
    topics.add(topic)


def require_create(access: Access, topic: str) -> None:
    """Let it make a topic, by a permission for the topic or for the cluster."""
    if not access.may(Operation.CREATE, Kind.CLUSTER):
        access.require(Operation.CREATE, Kind.TOPIC, topic)


def refusal(principal: Principal, operation: Operation, kind: Kind, name: str) -> BrokerError:
    """The error by which a client learns that it may not do that."""
    what = "the cluster" if kind is Kind.CLUSTER else f"{kind.value} {name!r}"
    return _ERRORS[kind](f"{principal} may not do {operation.value} on {what}")
