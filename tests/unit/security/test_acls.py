"""Bindings against a model that looks at each of them for every question."""

from collections.abc import Iterable
from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidelog.security.acls import Acls, Binding, BindingFilter, Effect, Pattern, Verdict, binding_problem
from tidelog.security.permissions import CLUSTER_NAME, IMPLIED_BY, Kind, Operation
from tidelog.security.principals import Principal

ALICE, BOB, ALL = (Principal("User", name) for name in ("alice", "bob", "*"))
NAMES = ("a", "ab", "abc", "b", "*", "abd")
HOSTS = ("*", "10.0.0.1", "10.0.0.2")
KINDS = (Kind.TOPIC, Kind.GROUP)
OPERATIONS = (Operation.ALL, Operation.READ, Operation.DESCRIBE, Operation.ALTER, Operation.WRITE)

bindings = st.builds(
    Binding,
    principal=st.sampled_from((ALICE, BOB, ALL)),
    host=st.sampled_from(HOSTS),
    operation=st.sampled_from(OPERATIONS),
    effect=st.sampled_from(Effect),
    kind=st.sampled_from(KINDS),
    name=st.sampled_from(NAMES),
    pattern=st.sampled_from(Pattern),
)
questions = st.tuples(
    st.sampled_from((ALICE, BOB)),
    st.sampled_from(HOSTS[1:]),
    st.sampled_from(OPERATIONS[1:]),
    st.sampled_from(KINDS),
    st.sampled_from((*NAMES[:4], "abcd", "")),
)
changes = st.lists(st.tuples(st.booleans(), bindings), max_size=12)


def acls_of(many: Iterable[Binding]) -> Acls:
    found = Acls()
    for one in many:
        found.add(one)
    return found


def covers(one: Binding, name: str) -> bool:
    if one.pattern is Pattern.PREFIXED:
        return name[: len(one.name)] == one.name
    return one.name == "*" or one.name == name


def model(
    known: set[Binding], who: Principal, host: str, operation: Operation, kind: Kind, name: str
) -> Verdict:
    there = [one for one in known if one.kind is kind and covers(one, name)]
    if not there:
        return Verdict.UNBOUND
    mine = [one for one in there if one.principal in (who, ALL) and one.host in (host, "*")]
    enough = {operation, Operation.ALL, *IMPLIED_BY.get(operation, ())}
    if any(one.effect is Effect.DENY and one.operation in (operation, Operation.ALL) for one in mine):
        return Verdict.DENIED
    if any(one.effect is Effect.ALLOW and one.operation in enough for one in mine):
        return Verdict.ALLOWED
    return Verdict.UNMENTIONED


@given(changes, questions)
def test_every_question_has_the_answer_of_a_look_at_all_bindings(changed, question):
    acls = Acls()
    known: set[Binding] = set()
    for adds, one in changed:
        (acls.add if adds else acls.remove)(one)
        (known.add if adds else known.discard)(one)

    assert acls.judge(*question) is model(known, *question)
    assert set(acls) == known
    assert acls == acls_of(known)


@given(changes, questions)
def test_what_decides_a_question_says_the_same(changed, question):
    acls = acls_of(one for adds, one in changed if adds)

    verdict = acls.judge(*question)

    effects = {one.effect for one in acls.explain(*question)}
    expected = {Verdict.DENIED: {Effect.DENY}, Verdict.ALLOWED: {Effect.ALLOW}}
    assert effects == expected.get(verdict, set())


@given(changes, questions)
def test_some_resource_is_allowed_if_any_name_is(changed, question):
    acls = acls_of(one for adds, one in changed if adds)
    who, host, _, kind, _ = question

    is_some = acls.allows_some(who, host, Operation.WRITE, kind)

    # Names that no binding spells stand for all others that its pattern covers.
    names = {one.name + more for one in acls for more in ("", "~")} | {"~"}
    found = {acls.judge(who, host, Operation.WRITE, kind, name) for name in names - {"*"}}
    assert is_some is (Verdict.ALLOWED in found)


@given(changes, bindings)
def test_removing_a_binding_leaves_every_other_one(changed, one):
    acls = acls_of(known for adds, known in changed if adds)
    before = set(acls)
    acls.add(one)

    acls.remove(one)

    assert set(acls) == before - {one}
    for who, host, operation in product((ALICE, BOB), HOSTS[1:], OPERATIONS[1:]):
        question = (who, host, operation, one.kind, one.name)
        assert acls.judge(*question) is model(before - {one}, *question)


filters = st.builds(
    BindingFilter,
    kind=st.sampled_from((None, *KINDS)),
    name=st.sampled_from((None, *NAMES)),
    pattern=st.sampled_from((None, *Pattern)),
    principal=st.sampled_from((None, ALICE, ALL)),
    effect=st.sampled_from((None, *Effect)),
    covering=st.booleans(),
)


@given(changes, filters)
def test_a_filter_takes_what_it_says_and_all_of_that_is_looked_at(changed, wanted):
    acls = acls_of(known for adds, known in changed if adds)
    looked_at = acls.candidates(wanted)
    assert len(looked_at) == len(set(looked_at)) and set(looked_at) <= set(acls)
    assert {one for one in looked_at if wanted.takes(one)} == {one for one in acls if wanted.takes(one)}
    for one in acls:
        named = wanted.name in (None, one.name) or (wanted.covering and covers(one, wanted.name))
        same = all(
            getattr(wanted, part) in (None, getattr(one, part))
            for part in ("kind", "pattern", "principal", "effect")
        )
        assert wanted.takes(one) is (named and same)


def test_a_change_makes_another_stamp_and_nothing_else_does():
    acls = Acls()
    one = Binding(principal=ALICE, operation=Operation.READ, kind=Kind.TOPIC, name="t")
    before = acls.stamp

    acls.remove(one)
    assert acls.stamp is before
    acls.add(one)
    added = acls.stamp
    acls.add(one)

    assert before is not added is acls.stamp


def test_what_nobody_can_be_given_is_refused():
    def problem(**fields: Any) -> str:
        wanted: dict[str, Any] = {
            "principal": ALICE,
            "operation": Operation.READ,
            "kind": Kind.TOPIC,
            "name": "t",
        } | fields
        return binding_problem(Binding(**wanted)) or ""

    assert not problem()
    assert problem(kind=Kind.CLUSTER, name=CLUSTER_NAME) == ""
    assert "one cluster" in problem(kind=Kind.CLUSTER, name="other")
    assert "one cluster" in problem(kind=Kind.CLUSTER, name=CLUSTER_NAME, pattern=Pattern.PREFIXED)
    assert "no name begins so" in problem(name="*", pattern=Pattern.PREFIXED)
    for wrong in ("", "a\nb", "x" * 1025):
        assert "can be printed" in problem(name=wrong)
        assert "can be printed" in problem(host=wrong)


def test_a_question_costs_no_more_with_many_bindings():
    acls = acls_of(
        Binding(
            principal=Principal("User", f"u{number}"),
            operation=Operation.READ,
            kind=Kind.TOPIC,
            name=f"topic-{number:05}",
            pattern=Pattern.PREFIXED if number % 2 else Pattern.LITERAL,
        )
        for number in range(5000)
    )

    assert len(acls._covering(Kind.TOPIC, "topic-00001-more")) == 1
    assert list(acls._lengths[Kind.TOPIC]) == [len("topic-00001")]  # prefixes are tried by their lengths
