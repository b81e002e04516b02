"""The authorizer: off, on, and what it keeps."""

from uuid import UUID

import pytest

from tidelog.security.acls import Acls, Binding, Effect
from tidelog.security.authorizer import (
    ANSWERS_MAX,
    CLIENTS_MAX,
    Authorizer,
    host_of,
    parse_super_users,
    remember,
)
from tidelog.security.permissions import CLUSTER_NAME, Kind, Operation, Resource
from tidelog.security.principals import ANONYMOUS, Principal
from tidelog.security.refusals import ClusterAuthorizationFailed, TopicAuthorizationFailed

ALICE = Principal("User", "alice")
ROOT = Principal("User", "root")
TOPIC = Resource(Kind.TOPIC, "t")
READS = Binding(principal=ALICE, operation=Operation.READ, kind=Kind.TOPIC, name="t")


def make(*bindings: Binding, **settings: object) -> tuple[Authorizer, Acls]:
    acls = Acls()
    for one in bindings:
        acls.add(one)
    return Authorizer(lambda: acls, **{"is_on": True, **settings}), acls  # type: ignore[arg-type]


def test_everybody_may_do_everything_while_it_is_off():
    authorizer, _ = make(is_on=False)

    authorizer.authorize(ANONYMOUS, "h", Operation.DELETE, TOPIC)
    assert authorizer.access(ANONYMOUS, "h").may_some(Operation.WRITE, Kind.TOPIC)


def test_nobody_may_do_what_no_binding_allows():
    authorizer, _ = make(READS)

    authorizer.authorize(ALICE, "h", Operation.READ, TOPIC)
    with pytest.raises(TopicAuthorizationFailed, match=r"User:ANONYMOUS may not do Read on Topic 't'"):
        authorizer.authorize(ANONYMOUS, "h", Operation.READ, TOPIC)
    with pytest.raises(ClusterAuthorizationFailed, match="the cluster"):
        authorizer.authorize(ALICE, "h", Operation.ALTER, Resource(Kind.CLUSTER, CLUSTER_NAME))


def test_a_super_user_is_denied_nothing():
    authorizer, _ = make(
        Binding(principal=ALICE, operation=Operation.ALL, effect=Effect.DENY, kind=Kind.TOPIC, name="*"),
        super_users={ALICE},
    )

    authorizer.authorize(ALICE, "h", Operation.DELETE, TOPIC)
    assert authorizer.access(ALICE, "h").may_some(Operation.WRITE, Kind.TOPIC)


def test_what_no_binding_covers_is_everybodys_if_the_setting_says_so():
    authorizer, _ = make(READS, allows_unbound=True)

    assert authorizer.allows(ANONYMOUS, "h", Operation.WRITE, Kind.TOPIC, "other")
    assert not authorizer.allows(ANONYMOUS, "h", Operation.WRITE, Kind.TOPIC, "t")


def test_a_change_of_the_bindings_counts_from_the_next_question_on():
    authorizer, acls = make(READS)
    access = authorizer.access(ALICE, "h")
    assert access.may(Operation.READ, Kind.TOPIC, "t")
    held = access.answers()

    acls.remove(READS)

    assert not access.may(Operation.READ, Kind.TOPIC, "t")
    assert access.answers() is not held


def test_an_answer_is_found_once(monkeypatch):
    authorizer, acls = make(READS)
    access = authorizer.access(ALICE, "h")
    assert access.may(Operation.READ, Kind.TOPIC, "t")
    monkeypatch.setattr(acls, "judge", None)

    assert access.may(Operation.READ, Kind.TOPIC, "t")
    assert authorizer.access(ALICE, "h") is access


def test_what_is_kept_is_bounded():
    everything = Binding(principal=ALICE, operation=Operation.ALL, kind=Kind.TOPIC, name="*")
    authorizer, _ = make(everything)
    access = authorizer.access(ALICE, "h")
    topics: set[str | UUID] = set()
    for number in range(ANSWERS_MAX + 1):
        assert access.may(Operation.READ, Kind.TOPIC, str(number))
        remember(topics, str(number))
    for number in range(CLIENTS_MAX + 1):
        authorizer.access(ALICE, str(number))

    assert 0 < len(access.answers().found) <= ANSWERS_MAX
    assert 0 < len(topics) <= ANSWERS_MAX
    assert len(authorizer._clients) == CLIENTS_MAX


def test_nothing_is_kept_of_what_is_refused_or_has_a_very_long_name():
    everything = Binding(principal=ALICE, operation=Operation.READ, kind=Kind.TOPIC, name="*")
    authorizer, _ = make(everything)
    access = authorizer.access(ALICE, "h")

    assert not access.may(Operation.WRITE, Kind.TOPIC, "t")
    assert not access.may_some(Operation.WRITE, Kind.TOPIC)
    assert access.may(Operation.READ, Kind.TOPIC, "t" * 256)

    assert access.answers().found == set()


def test_an_address_of_ipv4_is_one_however_it_came():
    assert host_of("::ffff:10.0.0.1") == host_of("10.0.0.1") == "10.0.0.1"
    assert host_of("::1") == "::1"


@pytest.mark.parametrize("is_on", [True, False])
def test_nobody_changes_anything_while_it_is_read_only_but_super_users(is_on):
    everything = [
        Binding(
            principal=ALICE,
            operation=Operation.ALL,
            kind=kind,
            name="*" if kind is not Kind.CLUSTER else CLUSTER_NAME,
        )
        for kind in Kind
    ]
    authorizer, _ = make(*everything, is_on=is_on, super_users={ROOT})
    access = authorizer.access(ALICE, "h")
    assert access.may(Operation.WRITE, Kind.TOPIC, "t")

    authorizer.configure(is_read_only=True)

    refused = [
        (Operation.WRITE, Kind.TOPIC, "t"),
        (Operation.CREATE, Kind.CLUSTER, CLUSTER_NAME),
        (Operation.ALTER, Kind.CLUSTER, CLUSTER_NAME),
        (Operation.CLUSTER_ACTION, Kind.CLUSTER, CLUSTER_NAME),
        (Operation.DELETE, Kind.GROUP, "g"),
        (Operation.ALTER_CONFIGS, Kind.TOPIC, "t"),
        (Operation.READ, Kind.TOPIC, "queue:q"),
        (Operation.READ, Kind.TOPIC, "pointers:1"),
    ]
    kept = [
        (Operation.READ, Kind.TOPIC, "t"),
        (Operation.READ, Kind.GROUP, "g"),
        (Operation.DESCRIBE, Kind.CLUSTER, CLUSTER_NAME),
        (Operation.ALTER_CONFIGS, Kind.CLUSTER, CLUSTER_NAME),
    ]
    assert [access.may(*question) for question in refused] == [False] * len(refused)
    assert not access.may_some(Operation.WRITE, Kind.TOPIC)
    assert all(access.may(*question) for question in kept)
    assert all(authorizer.access(ROOT, "h").may(*question) for question in refused)

    authorizer.configure(is_read_only=False)
    assert all(access.may(*question) for question in refused)
    assert access.is_judged is is_on


def test_super_users_are_read_as_kafka_writes_them():
    assert parse_super_users("") == frozenset()
    assert parse_super_users("User:a; User:CN=b,O=c") == {
        Principal("User", "a"),
        Principal("User", "CN=b,O=c"),
    }
    with pytest.raises(ValueError, match="User:NAME"):
        parse_super_users("alice")
