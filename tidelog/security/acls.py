"""Access control lists: who is allowed and denied what, as Kafka has them.

Rule 1: a denial counts before any permission, whatever pattern either has.
Rule 2: who is allowed to read, write, delete or alter may describe; who may alter settings may see them.
        A denial implies nothing.
Rule 3: what is covered by no binding is nobody's.
Rule 4: a question costs the patterns that cover one name, however many bindings there are.
Rule 5: removing one binding leaves every other one: each is a value of its own.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from tidelog.security.permissions import CLUSTER_NAME, IMPLIED_BY, Kind, Operation
from tidelog.security.principals import Principal

ANYTHING: Final = "*"
"""As a name, a host, or the name of a principal: every one."""
NAME_CHARACTERS_MAX: Final = 1024
HOST_CHARACTERS_MAX: Final = 255
BINDINGS_MAX: Final = 20_000
"""Of a cluster; every node holds all of them in memory."""


class Pattern(Enum):
    """Which names a binding covers."""

    LITERAL = "Literal"
    """The one that it names; every name, where that is `*`."""
    PREFIXED = "Prefixed"
    """All that begin so."""


class Effect(Enum):
    """What a binding does."""

    ALLOW = "Allow"
    DENY = "Deny"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """One permission or denial."""

    principal: Principal
    host: str = ANYTHING
    operation: Operation
    effect: Effect = Effect.ALLOW
    kind: Kind
    name: str
    pattern: Pattern = Pattern.LITERAL

    def __str__(self) -> str:
        what = f"{self.pattern.value.lower()} {self.kind.value} {self.name}"
        verb = "may" if self.effect is Effect.ALLOW else "may not"
        where = "" if self.host == ANYTHING else f" from {self.host}"
        return f"{self.principal} {verb} {self.operation.value} {what}{where}"

    def covers(self, name: str) -> bool:
        if self.pattern is Pattern.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, ANYTHING)


def binding_problem(binding: Binding) -> str | None:
    """Why nobody can be given this; None if somebody can."""
    for what, text, longest in (
        ("a resource", binding.name, NAME_CHARACTERS_MAX),
        ("a host", binding.host, HOST_CHARACTERS_MAX),
    ):
        if not 0 < len(text) <= longest or not text.isprintable():
            return f"{what} is called by 1 to {longest} characters that can be printed"
    is_the_cluster = binding.name == CLUSTER_NAME and binding.pattern is Pattern.LITERAL
    if binding.kind is Kind.CLUSTER and not is_the_cluster:
        return f"the one cluster is called {CLUSTER_NAME!r}, literally"
    if binding.pattern is Pattern.PREFIXED and binding.name == ANYTHING:
        return "everything is '*', literally; no name begins so"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingFilter:
    """Which bindings are meant; None is any."""

    principal: Principal | None = None
    host: str | None = None
    operation: Operation | None = None
    effect: Effect | None = None
    kind: Kind | None = None
    name: str | None = None
    pattern: Pattern | None = None
    covering: bool = False
    """Whether all that cover the name are meant, and not only those that have it (Kafka's MATCH)."""

    def takes(self, one: Binding) -> bool:
        return (
            self.principal in (None, one.principal)
            and self.host in (None, one.host)
            and self.operation in (None, one.operation)
            and self.effect in (None, one.effect)
            and self.kind in (None, one.kind)
            and self.pattern in (None, one.pattern)
            and (self.name is None or one.name == self.name or (self.covering and one.covers(self.name)))
        )


class Verdict(Enum):
    """What the bindings say of a question."""

    ALLOWED = "allowed"
    DENIED = "denied"
    """A binding denies it."""
    UNMENTIONED = "unmentioned"
    """There are bindings for the resource, and none of them concerns this."""
    UNBOUND = "unbound"
    """There are no bindings for the resource at all."""


_Place: TypeAlias = tuple[Kind, Pattern, str]
_Entry: TypeAlias = tuple[Principal, str, Operation, Effect]


class Acls:
    """All bindings of a cluster, and what they say.

    Invariant: `_entries`, `_lengths` and `_theirs` are what a look at all bindings would find.
    """

    def __init__(self) -> None:
        self._bindings: dict[Binding, None] = {}
        self._entries: dict[_Place, dict[_Entry, None]] = {}
        self._lengths: dict[Kind, Counter[int]] = {}
        """How many prefixes of each length there are."""
        self._theirs: dict[tuple[Kind, Principal], dict[Binding, None]] = {}
        self.stamp = object()
        """Another one after every change: what was found under this one is true as long as it stands."""

    def __len__(self) -> int:
        return len(self._bindings)

    def __iter__(self) -> Iterator[Binding]:
        return iter(self._bindings)

    def __contains__(self, binding: Binding) -> bool:
        return binding in self._bindings

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Acls) and self._bindings == other._bindings

    __hash__ = None  # type: ignore[assignment]

    def add(self, binding: Binding) -> None:
        if binding in self._bindings:
            return
        self._bindings[binding] = None
        self._theirs.setdefault((binding.kind, binding.principal), {})[binding] = None
        place = (binding.kind, binding.pattern, binding.name)
        entries = self._entries.get(place)
        if entries is None:
            entries = self._entries[place] = {}
            if binding.pattern is Pattern.PREFIXED:
                self._lengths.setdefault(binding.kind, Counter())[len(binding.name)] += 1
        entries[_entry(binding)] = None
        self.stamp = object()

    def remove(self, binding: Binding) -> None:
        """Remove it, if it is there."""
        if binding not in self._bindings:
            return
        del self._bindings[binding]
        theirs = self._theirs[binding.kind, binding.principal]
        del theirs[binding]
        if not theirs:
            del self._theirs[binding.kind, binding.principal]
        place = (binding.kind, binding.pattern, binding.name)
        entries = self._entries[place]
        del entries[_entry(binding)]
        if not entries:
            del self._entries[place]
            if binding.pattern is Pattern.PREFIXED:
                lengths = self._lengths[binding.kind]
                lengths[len(binding.name)] -= 1
                if not lengths[len(binding.name)]:
                    del lengths[len(binding.name)]
        self.stamp = object()

    def candidates(self, wanted: "BindingFilter") -> list[Binding]:
        """All that the filter may take: those of its principal or of its name, if it has one, whichever are
        fewer."""
        kinds = tuple(Kind) if wanted.kind is None else (wanted.kind,)
        name, principal = wanted.name, wanted.principal
        if name is None and principal is None:
            return list(self._bindings)
        named = [] if name is None else [one for kind in kinds for one in self._places(kind, name)]
        theirs = [] if principal is None else [self._theirs.get((kind, principal), {}) for kind in kinds]
        if principal is not None and (
            name is None or sum(map(len, theirs)) <= sum(len(self._entries[place]) for place in named)
        ):
            return [one for bindings in theirs for one in bindings]
        return [
            Binding(
                principal=who, host=host, operation=what, effect=effect, kind=kind, name=text, pattern=pattern
            )
            for kind, pattern, text in named
            for who, host, what, effect in self._entries[kind, pattern, text]
        ]

    def touch(self) -> None:
        """Have everything asked again: what is allowed no longer follows from the bindings alone."""
        self.stamp = object()

    def _places(self, kind: Kind, name: str) -> list[_Place]:
        """All patterns that cover the name and have bindings; among them those that are the name itself."""
        names = dict.fromkeys((name, ANYTHING))
        places: list[_Place] = [(kind, Pattern.LITERAL, one) for one in names]
        places += [
            (kind, Pattern.PREFIXED, name[:length])
            for length in self._lengths.get(kind, ())
            if length <= len(name)
        ]
        return [place for place in places if place in self._entries]

    def _covering(self, kind: Kind, name: str) -> list[dict[_Entry, None]]:
        """What is said of all patterns that cover the name."""
        return [self._entries[place] for place in self._places(kind, name)]

    def judge(self, principal: Principal, host: str, operation: Operation, kind: Kind, name: str) -> Verdict:
        """What the bindings say of this operation on the resource of that name."""
        covering = self._covering(kind, name)
        if not covering:
            return Verdict.UNBOUND
        whos = [(who, where) for who in _matching(principal) for where in dict.fromkeys((host, ANYTHING))]

        def says(effect: Effect, *operations: Operation) -> bool:
            return any(
                (who, where, one, effect) in entries
                for entries in covering
                for who, where in whos
                for one in operations
            )

        if says(Effect.DENY, operation, Operation.ALL):
            return Verdict.DENIED
        if says(Effect.ALLOW, operation, Operation.ALL, *IMPLIED_BY.get(operation, ())):
            return Verdict.ALLOWED
        return Verdict.UNMENTIONED

    def _concerning(self, principal: Principal, host: str, kind: Kind) -> list[Binding]:
        return [
            one
            for who in _matching(principal)
            for one in self._theirs.get((kind, who), ())
            if one.host in (host, ANYTHING)
        ]

    def allows_some(self, principal: Principal, host: str, operation: Operation, kind: Kind) -> bool:
        """Whether there can be a resource of the kind on which the operation is allowed.

        It looks at all bindings of the principal, so the answer should be kept.
        """
        wanted = (operation, Operation.ALL)
        of_kind = [one for one in self._concerning(principal, host, kind) if one.operation in wanted]
        denied = [one for one in of_kind if one.effect is Effect.DENY]
        literal = {one.name for one in denied if one.pattern is Pattern.LITERAL}
        prefixes = {one.name for one in denied if one.pattern is Pattern.PREFIXED}
        if ANYTHING in literal:
            return False
        lengths = {len(prefix) for prefix in prefixes}

        def is_left(one: Binding) -> bool:
            """Whether no denial covers all that the permission covers."""
            if one.pattern is Pattern.LITERAL and one.name == ANYTHING:
                return True
            if one.pattern is Pattern.LITERAL and one.name in literal:
                return False
            return not any(one.name[:length] in prefixes for length in lengths if length <= len(one.name))

        return any(one.effect is Effect.ALLOW and is_left(one) for one in of_kind)

    def explain(
        self, principal: Principal, host: str, operation: Operation, kind: Kind, name: str
    ) -> list[Binding]:
        """The bindings that decide a question: the denials, or else the permissions."""
        concerned = [one for one in self._concerning(principal, host, kind) if one.covers(name)]
        denials = [
            one
            for one in concerned
            if one.effect is Effect.DENY and one.operation in (operation, Operation.ALL)
        ]
        enough = (operation, Operation.ALL, *IMPLIED_BY.get(operation, ()))
        return denials or [one for one in concerned if one.effect is Effect.ALLOW and one.operation in enough]


def _entry(binding: Binding) -> _Entry:
    return binding.principal, binding.host, binding.operation, binding.effect


def _matching(principal: Principal) -> tuple[Principal, ...]:
    """As whom a principal may be named: itself, or everybody of its kind."""
    everybody = Principal(principal.kind, ANYTHING)
    return (principal,) if principal == everybody else (principal, everybody)
