"""Permissions as Kafka's admin clients list, add and remove them."""

import pytest

from tests.unit.broker.node import on_a_node
from tidelog.controller import acls
from tidelog.kafka.acls import CHANGES_MAX
from tidelog.wire.apis import APIS, Api

ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
TOPIC, GROUP, CLUSTER, TOKEN = 2, 3, 4, 6
DENY, ALLOW = 2, 3
READ, WRITE, ALTER = 3, 4, 7
INVALID_REQUEST, CLUSTER_REFUSED, POLICY = 42, 31, 44
VERSIONS = range(1, APIS[Api.CREATE_ACLS].most + 1)


def creation(name="t", principal="User:alice", **fields):
    return {
        "resource_type": TOPIC,
        "resource_name": name,
        "resource_pattern_type": LITERAL,
        "principal": principal,
        "host": "*",
        "operation": READ,
        "permission_type": ALLOW,
    } | fields


def wanted(**fields):
    return {
        "resource_type_filter": ANY,
        "resource_name_filter": None,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
    } | fields


async def create(node, *creations, version=3):
    answer = await node.ask(Api.CREATE_ACLS, version, creations=list(creations))
    return [one.error_code for one in answer.results]


async def describe(node, version=3, **fields):
    answer = await node.ask(Api.DESCRIBE_ACLS, version, **wanted(**fields))
    assert answer.error_code == 0, answer
    return {
        (one.resource_name, one.pattern_type, acl.principal, acl.operation, acl.permission_type)
        for one in answer.resources
        for acl in one.acls
    }


async def delete(node, *filters, version=3):
    answer = await node.ask(Api.DELETE_ACLS, version, filters=list(filters))
    return [
        (one.error_code, sorted((acl.resource_name, acl.permission_type) for acl in one.matching_acls))
        for one in answer.filter_results
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_was_created_is_described_and_deleted_in_every_version(version):
    async def story(node):
        assert await create(node, creation(), creation("u", host="h"), version=version) == [0, 0]
        assert await create(node, creation(), version=version) == [0]  # once more is as good as once

        assert await describe(node, version) == {
            ("t", LITERAL, "User:alice", READ, ALLOW),
            ("u", LITERAL, "User:alice", READ, ALLOW),
        }
        found = await delete(node, wanted(resource_name_filter="t"), version=version)
        assert found == [(0, [("t", ALLOW)])]
        assert await describe(node, version) == {("u", LITERAL, "User:alice", READ, ALLOW)}

    on_a_node(story)


def test_deleting_a_permission_leaves_the_denial_beside_it():
    async def story(node):
        await create(node, creation(), creation(permission_type=DENY))

        found = await delete(node, wanted(resource_name_filter="t", permission_type=ALLOW))

        assert found == [(0, [("t", ALLOW)])]
        assert await describe(node) == {("t", LITERAL, "User:alice", READ, DENY)}

    on_a_node(story)


def test_filters_that_would_compare_everything_again_and_again_are_refused(monkeypatch):
    monkeypatch.setattr(acls, "LOOKED_MAX", 20)

    async def story(node):
        await create(node, *(creation(f"t{number}", f"User:u{number}") for number in range(10)))

        nobody = [wanted(host_filter=f"h{number}") for number in range(3)]
        assert await delete(node, *nobody) == [(POLICY, [])] * 3

        told = [wanted(resource_name_filter=f"t{number}") for number in range(9)]
        assert await delete(node, *told) == [(0, [(f"t{number}", ALLOW)]) for number in range(9)]
        assert await describe(node) == {("t9", LITERAL, "User:u9", READ, ALLOW)}

    on_a_node(story)


def test_match_finds_all_that_cover_a_name():
    async def story(node):
        await create(
            node,
            creation("orders"),
            creation("ord", resource_pattern_type=PREFIXED),
            creation("*"),
            creation("other"),
            creation("orders", resource_type=GROUP),
        )
        named = {"resource_type_filter": TOPIC, "resource_name_filter": "orders"}

        covering = await describe(node, pattern_type_filter=MATCH, **named)
        literal = await describe(node, pattern_type_filter=LITERAL, **named)

        assert {one[0] for one in covering} == {"orders", "ord", "*"}
        assert {one[0] for one in literal} == {"orders"}

    on_a_node(story)


@pytest.mark.parametrize(
    "wrong",
    [
        {"resource_type": TOKEN},
        {"resource_type": ANY},
        {"operation": ANY},
        {"operation": 99},
        {"permission_type": ANY},
        {"resource_pattern_type": MATCH},
        {"principal": "alice"},
        {"name": ""},
        {"resource_type": CLUSTER},
        {"host": ""},
    ],
)
def test_a_wrong_creation_spoils_its_own_result_alone(wrong):
    async def story(node):
        assert await create(node, creation(**wrong), creation("good")) == [INVALID_REQUEST, 0]
        assert {one[0] for one in await describe(node)} == {"good"}

    on_a_node(story)


def test_a_wrong_filter_deletes_nothing_and_others_do():
    async def story(node):
        await create(node, creation())

        found = await delete(node, wanted(operation=99), wanted(principal_filter="alice"), wanted())

        assert found == [(INVALID_REQUEST, []), (INVALID_REQUEST, []), (0, [("t", ALLOW)])]

    on_a_node(story)


def test_a_request_changes_so_many_at_most():
    async def story(node):
        many = [creation(str(number)) for number in range(CHANGES_MAX + 1)]

        assert set(await create(node, *many)) == {INVALID_REQUEST}
        assert await describe(node) == set()

    on_a_node(story)


def test_permissions_survive_a_restart_and_hold_again():
    from tests.unit.broker.node import Machine

    machine = Machine()

    async def before(node):
        await create(node, creation(), creation(permission_type=DENY))
        await delete(node, wanted(permission_type=ALLOW))

    async def after(node):
        assert await describe(node) == {("t", LITERAL, "User:alice", READ, DENY)}

    machine.live(before)
    machine.live(after)


def test_who_may_not_alter_the_cluster_may_not_change_permissions():
    async def story(node):
        assert await create(node, creation(), creation("u")) == [CLUSTER_REFUSED] * 2
        assert await delete(node, wanted()) == [(CLUSTER_REFUSED, [])]
        answer = await node.ask(Api.DESCRIBE_ACLS, 3, **wanted())
        assert (answer.error_code, answer.resources) == (CLUSTER_REFUSED, ())

    on_a_node(story, authorizer_enabled=True)
