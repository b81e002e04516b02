"""Every API of Kafka for a principal that is allowed nothing, all but one of what it needs, or all of it.

A new API fails here until it has a row in the table of permissions, and a request in `ASKED`.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.broker.node import Node, batch_of, on_a_node
from tests.unit.kafka.test_acls import creation, wanted
from tests.unit.wire.messages import produce_fields, read_response
from tidelog.kafka import topics
from tidelog.kafka.permissions import ALL_OF, EITHER, FREE, NEEDS, NO_OPERATIONS, OPERATION_CODES
from tidelog.model import METADATA_TOPIC
from tidelog.security.acls import Binding, Effect
from tidelog.security.permissions import CLUSTER_NAME, Kind, Operation
from tidelog.security.principals import Principal
from tidelog.wire.apis import APIS, Api

ALICE = Principal("User", "alice")
CODES = {Kind.TOPIC: 29, Kind.GROUP: 30, Kind.CLUSTER: 31, Kind.TRANSACTIONAL_ID: 53}
NAMES = {Kind.TOPIC: "tee", Kind.GROUP: "gee", Kind.CLUSTER: CLUSTER_NAME, Kind.TRANSACTIONAL_ID: "exx"}
T, G, X = NAMES[Kind.TOPIC], NAMES[Kind.GROUP], NAMES[Kind.TRANSACTIONAL_ID]
UNKNOWN_TOPIC_ID = 100
"""Who may not know an id's name is told that nobody has the id."""

COMMITTED = {"committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": ""}
BY_PARTITION = {"name": T, "partition_indexes": [0]}
PRODUCER = {"producer_id": 1, "producer_epoch": 0}
ASKED: dict[Api, dict[str, Any]] = {
    Api.LIST_OFFSETS: {
        "replica_id": -1,
        "topics": [{"name": T, "partitions": [{"partition_index": 0, "timestamp": -1}]}],
    },
    Api.METADATA: {"topics": [{"name": T}], "allow_auto_topic_creation": False},
    Api.OFFSET_COMMIT: {
        "group_id": G,
        "generation_id_or_member_epoch": -1,
        "topics": [{"name": T, "partitions": [{"partition_index": 0, **COMMITTED}]}],
    },
    Api.OFFSET_FETCH: {"groups": [{"group_id": G, "topics": [BY_PARTITION]}]},
    Api.FIND_COORDINATOR: {"key_type": 0, "coordinator_keys": [G]},
    Api.JOIN_GROUP: {
        "group_id": G,
        "session_timeout": 10_000,
        "protocol_type": "p",
        "protocols": [{"name": "n", "metadata": b""}],
    },
    Api.HEARTBEAT: {"group_id": G, "generation_id": 1, "member_id": "m"},
    Api.LEAVE_GROUP: {"group_id": G, "members": [{"member_id": "m"}]},
    Api.SYNC_GROUP: {"group_id": G, "generation_id": 1, "member_id": "m"},
    Api.DESCRIBE_GROUPS: {"groups": [G]},
    Api.LIST_GROUPS: {},
    Api.CREATE_TOPICS: {
        "topics": [{"name": "new", "num_partitions": 1, "replication_factor": -1}],
        "validate_only": True,
    },
    Api.DELETE_TOPICS: {"topics": [{"name": T, "topic_id": None}]},
    Api.DELETE_RECORDS: {"topics": [{"name": T, "partitions": [{"partition_index": 0, "offset": 0}]}]},
    Api.INIT_PRODUCER_ID: {"transactional_id": None, "producer_id": -1, "producer_epoch": -1},
    Api.OFFSET_FOR_LEADER_EPOCH: {
        "replica_id": -1,
        "topics": [
            {"topic": T, "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]}
        ],
    },
    Api.ADD_PARTITIONS_TO_TXN: {
        "v3_and_below_transactional_id": X,
        "v3_and_below_producer_id": 1,
        "v3_and_below_producer_epoch": 0,
        "v3_and_below_topics": [{"name": T, "partitions": [0]}],
    },
    Api.ADD_OFFSETS_TO_TXN: {"transactional_id": X, "group_id": G, **PRODUCER},
    Api.END_TXN: {"transactional_id": X, "committed": True, **PRODUCER},
    Api.WRITE_TXN_MARKERS: {
        "markers": [
            {"transaction_result": False, "topics": [BY_PARTITION], "coordinator_epoch": 0, **PRODUCER}
        ]
    },
    Api.TXN_OFFSET_COMMIT: {
        "transactional_id": X,
        "group_id": G,
        "generation_id": -1,
        "topics": [{"name": T, "partitions": [{"partition_index": 0, **COMMITTED}]}],
        **PRODUCER,
    },
    Api.DESCRIBE_ACLS: wanted(),
    Api.CREATE_ACLS: {"creations": [creation()]},
    Api.DELETE_ACLS: {"filters": [wanted(resource_name_filter="nothing")]},
    Api.DESCRIBE_CONFIGS: {
        "resources": [
            {"resource_type": 2, "resource_name": T, "configuration_keys": None},
            {"resource_type": 4, "resource_name": "1", "configuration_keys": None},
        ]
    },
    Api.ALTER_CONFIGS: {
        "validate_only": True,
        "resources": [
            {"resource_type": 2, "resource_name": T, "configs": []},
            {"resource_type": 4, "resource_name": "1", "configs": []},
        ],
    },
    Api.DESCRIBE_LOG_DIRS: {"topics": None},
    Api.CREATE_PARTITIONS: {"topics": [{"name": T, "count": 2, "assignments": None}], "validate_only": True},
    Api.DELETE_GROUPS: {"groups_names": [G]},
    Api.ELECT_LEADERS: {"election_type": 0, "topic_partitions": None},
    Api.ALTER_PARTITION_REASSIGNMENTS: {"topics": []},
    Api.LIST_PARTITION_REASSIGNMENTS: {"topics": None},
    Api.OFFSET_DELETE: {"group_id": G, "topics": [{"name": T, "partitions": [{"partition_index": 0}]}]},
    Api.DESCRIBE_USER_SCRAM_CREDENTIALS: {"users": None},
    Api.ALTER_USER_SCRAM_CREDENTIALS: {"deletions": [{"name": "u", "mechanism": 1}], "upsertions": []},
    Api.DESCRIBE_QUORUM: {"topics": [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]},
    Api.DESCRIBE_PRODUCERS: {"topics": [BY_PARTITION]},
    Api.UNREGISTER_BROKER: {"broker_id": 99},
    Api.DESCRIBE_TRANSACTIONS: {"transactional_ids": [X]},
    Api.LIST_TRANSACTIONS: {"state_filters": [], "producer_id_filters": []},
    Api.DESCRIBE_TOPIC_PARTITIONS: {"topics": [{"name": T}], "response_partition_limit": 10, "cursor": None},
    Api.ADD_RAFT_VOTER: {"cluster_id": None, "voter_id": 9, "voter_directory_id": None},
    Api.REMOVE_RAFT_VOTER: {"cluster_id": None, "voter_id": 9, "voter_directory_id": None},
    Api.COMMIT_GROUP: {
        "group": X,
        "batch_id": 1,
        "after": -1,
        "counting": 0,
        "members": [{"transactional_id": X, **PRODUCER}],
    },
    Api.READ_DECISION: {"group": X},
    Api.FORGET_DECISION: {"group": X, "batch_id": 0},
    Api.RESTORE_BATCHES: {"topic_id": None, "partition": 0, "records": b""},
    Api.LIST_DECISIONS: {},
}
ASKED[Api.INCREMENTAL_ALTER_CONFIGS] = ASKED[Api.ALTER_CONFIGS]
VERSION = {Api.OFFSET_COMMIT: 9, Api.OFFSET_FETCH: 9}
"""The last that name topics; otherwise the newest."""
LISTS = {Api.LIST_GROUPS, Api.LIST_TRANSACTIONS, Api.LIST_DECISIONS}
"""What may not be seen is left out of these, and is no error."""


def codes_in(answer: Any) -> Iterator[int]:
    """All error codes of an answer."""
    if isinstance(answer, tuple | list):
        for one in answer:
            yield from codes_in(one)
    elif dataclasses.is_dataclass(answer):
        for field in dataclasses.fields(answer):
            value = getattr(answer, field.name)
            if field.name in ("error_code", "partition_error_code"):
                yield int(value)
            else:
                yield from codes_in(value)


def refused(answer: Any) -> set[int]:
    return set(codes_in(answer)) & {*CODES.values()}


def allow(node: Node, *operations: tuple[Operation, Kind], effect: Effect = Effect.ALLOW) -> None:
    """Let Alice do this and no more; the image is changed by hand, for it is quicker."""
    acls = node.broker.image.acls
    for one in list(acls):
        acls.remove(one)
    for operation, kind in operations:
        name = "*" if kind is not Kind.CLUSTER else CLUSTER_NAME
        acls.add(Binding(principal=ALICE, operation=operation, kind=kind, name=name, effect=effect))


def needs(api: Api) -> list[tuple[Operation, Kind]]:
    return [(operation, kind) for kind, operation in NEEDS[api].items() if _names(api, kind)]


def _names(api: Api, kind: Kind) -> bool:
    """Whether the request of `ASKED` concerns such a resource."""
    nameless = (Api.FIND_COORDINATOR, Api.INIT_PRODUCER_ID, Api.PRODUCE)
    return kind is not Kind.TRANSACTIONAL_ID or api not in nameless


async def ask(node: Node, api: Api) -> Any:
    if api is Api.PRODUCE:
        fields = produce_fields([(T, [(0, batch_of(b"a"))])], acks=-1)
        return await node.ask(Api.PRODUCE, 9, **fields)
    if api is Api.FETCH:
        return read_response(Api.FETCH, 11, await node.start_fetch((T, 0, 0)).body)
    return await node.ask(api, VERSION.get(api, APIS[api].most), **ASKED[api])


async def prepare(node: Node) -> None:
    node.client.principal = ALICE
    allow(node, *((Operation.ALL, kind) for kind in CODES))
    await node.create(T)
    for kind, name in ((0, G), (1, X)):
        await node.ask(Api.FIND_COORDINATOR, 4, key_type=kind, coordinator_keys=[name])
    await node.broker.acted()
    made = await node.ask(Api.INIT_PRODUCER_ID, 4, transactional_id=X, transaction_timeout=9000)
    added = await node.ask(
        Api.ADD_PARTITIONS_TO_TXN,
        3,
        v3_and_below_transactional_id=X,
        v3_and_below_producer_id=made.producer_id,
        v3_and_below_producer_epoch=made.producer_epoch,
        v3_and_below_topics=[{"name": T, "partitions": [0]}],
    )
    assert set(codes_in(added)) == {0}
    assert not refused(await ask(node, Api.OFFSET_COMMIT))


def on_a_judged_node(story: Any) -> None:
    async def whole(node: Node) -> None:
        await prepare(node)
        await story(node)

    on_a_node(
        whole, authorizer_enabled=True, offsets_topic_num_partitions=1, transaction_state_log_num_partitions=1
    )


def test_every_api_has_a_row_and_every_row_is_asked_for():
    assert set(NEEDS) | set(FREE) == set(APIS)
    assert not set(NEEDS) & set(FREE)
    assert {*ASKED, Api.PRODUCE, Api.FETCH} == set(NEEDS)


def test_who_is_allowed_nothing_is_refused_by_every_api_and_shown_nothing():
    async def story(node):
        for api in NEEDS:
            allow(node)
            answer = await ask(node, api)
            told = repr(answer)
            if api in LISTS:
                assert not any(name in told for name in (T, G, X)), (api, answer)
            else:
                expected = {CODES[kind] for _, kind in needs(api)}
                found = set(codes_in(answer))
                assert found and found <= {*expected, 0} and found & expected, (api, answer)
                assert 0 not in found or api is Api.OFFSET_FETCH or len(found) > 1, (api, answer)

    on_a_judged_node(story)


def test_each_operation_of_a_row_is_needed():
    async def story(node):
        for api in NEEDS:
            wanted_here = needs(api)
            for missing in wanted_here:
                left = [one for one in wanted_here if one != missing]
                allow(node, *left)
                answer = await ask(node, api)
                if api in EITHER and left:
                    assert not refused(answer), (api, missing, answer)
                elif api is Api.DESCRIBE_TRANSACTIONS and missing[1] is Kind.TOPIC:
                    assert T not in repr(answer)
                elif api not in LISTS and left:
                    assert CODES[missing[1]] in refused(answer), (api, missing, answer)

    on_a_judged_node(story)


def test_who_is_allowed_what_a_row_says_is_refused_by_nobody():
    async def story(node):
        last = [Api.DELETE_TOPICS, Api.DELETE_GROUPS]
        for api in [*(one for one in NEEDS if one not in last), *last]:
            allow(node, *needs(api))
            answer = await ask(node, api)
            assert not refused(answer), (api, answer)

    on_a_judged_node(story)


def test_a_denial_counts_before_what_is_allowed():
    async def story(node):
        allow(node, (Operation.ALL, Kind.TOPIC))
        node.broker.image.acls.add(
            Binding(
                principal=Principal("User", "*"),
                operation=Operation.READ,
                effect=Effect.DENY,
                kind=Kind.TOPIC,
                name=T,
            )
        )

        assert refused(await ask(node, Api.FETCH)) == {29}
        assert not refused(await ask(node, Api.PRODUCE))

    on_a_judged_node(story)


def test_metadata_of_all_topics_shows_those_that_may_be_described():
    async def story(node):
        await node.create("other")
        acls = node.broker.image.acls
        allow(node)
        acls.add(Binding(principal=ALICE, operation=Operation.READ, kind=Kind.TOPIC, name=T))

        answer = await node.ask(Api.METADATA, 12, topics=None)

        assert [one.name for one in answer.topics] == [T]
        partitions = await node.ask(
            Api.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[], response_partition_limit=10, cursor=None
        )
        assert [one.name for one in partitions.topics] == [T]

    on_a_judged_node(story)


def test_an_id_tells_nobody_the_name_of_a_topic():
    async def story(node):
        topic_id = node.broker.image.topics[T].id
        allow(node)

        found = (await node.ask(Api.METADATA, 12, topics=[{"name": None, "topic_id": topic_id}])).topics[0]
        deleted = (
            await node.ask(Api.DELETE_TOPICS, 6, topics=[{"name": None, "topic_id": topic_id}])
        ).responses[0]
        fetched = (await node.fetch((topic_id, 0, 0), version=13)).responses[0].partitions[0]

        assert (found.error_code, found.name or None) == (UNKNOWN_TOPIC_ID, None)
        assert (deleted.error_code, deleted.name) == (29, None)
        assert fetched.error_code == 29

    on_a_judged_node(story)


def test_an_id_that_a_node_has_not_heard_of_yet_is_judged_where_it_is_known(monkeypatch):
    monkeypatch.setattr(topics, "_find", lambda *_: None)

    async def story(node):
        async def delete():
            asked = [{"name": None, "topic_id": topic_id}]
            return (await node.ask(Api.DELETE_TOPICS, 6, topics=asked)).responses[0]

        topic_id = node.broker.image.topics[T].id
        allow(node, (Operation.DESCRIBE, Kind.TOPIC))
        refused = await delete()
        assert (refused.error_code, refused.name, T in node.broker.image.topics) == (29, None, True)
        assert T not in refused.error_message

        allow(node, (Operation.DELETE, Kind.TOPIC))
        assert ((await delete()).error_code, T in node.broker.image.topics) == (0, False)

    on_a_judged_node(story)


def test_a_topic_that_is_missing_is_made_only_for_who_may_create_it():
    async def story(node):
        async def named(name):
            return (await node.ask(Api.METADATA, 12, topics=[{"name": name}])).topics[0].error_code

        allow(node, (Operation.WRITE, Kind.TOPIC))
        assert await named("new") == 29
        allow(node, (Operation.WRITE, Kind.TOPIC), (Operation.CREATE, Kind.CLUSTER))
        assert await named("new") == 0

    on_a_judged_node(story)


def test_settings_are_hidden_in_the_answer_to_who_may_only_create():
    async def story(node):
        allow(node, (Operation.CREATE, Kind.TOPIC))

        (made,) = (await ask(node, Api.CREATE_TOPICS)).topics

        assert (made.error_code, made.topic_config_error_code, made.num_partitions) == (0, 29, -1)

    on_a_judged_node(story)


def test_what_a_client_may_do_is_told_where_it_asks():
    def bits(*operations: Operation) -> int:
        return sum(1 << OPERATION_CODES[one] for one in operations)

    async def told(node, wants=True):
        cluster = await node.ask(Api.DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=wants)
        metadata = await node.ask(
            Api.METADATA, 12, topics=[{"name": T}], include_topic_authorized_operations=wants
        )
        groups = await node.ask(Api.DESCRIBE_GROUPS, 5, groups=[G], include_authorized_operations=wants)
        return (
            cluster.cluster_authorized_operations,
            metadata.topics[0].topic_authorized_operations,
            groups.groups[0].authorized_operations,
        )

    async def story(node):
        read, describe = Operation.READ, Operation.DESCRIBE
        allow(node, (Operation.CREATE, Kind.CLUSTER), (read, Kind.TOPIC), (describe, Kind.GROUP))
        assert await told(node) == (bits(Operation.CREATE), bits(read, describe), bits(describe))
        assert await told(node, wants=False) == (NO_OPERATIONS,) * 3

    on_a_judged_node(story)

    async def unjudged(node):
        await node.create(T)
        assert await told(node) == (ALL_OF[Kind.CLUSTER], ALL_OF[Kind.TOPIC], ALL_OF[Kind.GROUP])

    on_a_node(unjudged)


def test_a_change_reaches_a_request_that_repeats_another_and_one_that_waits():
    async def story(node):
        async def produce():
            frame_fields = produce_fields([(T, [(0, batch_of(b"a"))])], acks=-1)
            place = node.send(Api.PRODUCE, 9, frame_fields)
            answer = read_response(Api.PRODUCE, 9, await place.body)
            return answer.responses[0].partition_responses[0].error_code

        async def produce_again(repeated):
            from tests.unit.broker.node import Place

            place = Place()
            batch = memoryview(bytearray(batch_of(b"b")))
            node.requests.handle_repeated(repeated, batch, 100, node.client, place)
            answer = read_response(Api.PRODUCE, 9, await place.body)
            return answer.responses[0].partition_responses[0].error_code

        allow(node, (Operation.ALL, Kind.TOPIC))
        assert await produce() == 0
        repeated = node.repeated
        assert await produce_again(repeated) == 0
        end = node.broker.partition(T, 0).log.end
        waiting = node.start_fetch((T, 0, end), max_wait=60_000)
        allow(node, (Operation.READ, Kind.GROUP))
        assert await produce_again(repeated) == 29
        node.client.principal = Principal("User", "bob")
        node.broker.image.acls.add(
            Binding(principal=node.client.principal, operation=Operation.WRITE, kind=Kind.TOPIC, name=T)
        )
        assert await produce_again(repeated) == 0  # another principal proved itself on the connection

        answer = read_response(Api.FETCH, 11, await waiting.body)
        assert answer.responses[0].partitions[0].error_code == 29
        assert not answer.responses[0].partitions[0].records

    on_a_judged_node(story)


def test_a_transaction_of_another_id_is_refused_by_its_batches():
    async def story(node):
        allow(node, (Operation.ALL, Kind.TOPIC))
        fields = produce_fields([(T, [(0, batch_of(b"a"))])], acks=-1) | {"transactional_id": X}

        answer = await node.ask(Api.PRODUCE, 9, **fields)

        assert answer.responses[0].partition_responses[0].error_code == 53

    on_a_judged_node(story)


def test_a_read_only_cluster_is_read_and_can_be_made_writable_again():
    async def story(node):
        async def set_read_only(value):
            changed = {"name": "read.only", "config_operation": 0, "value": value}
            resource = {"resource_type": 4, "resource_name": "", "configs": [changed]}
            answer = await node.ask(Api.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource])
            assert answer.responses[0].error_code == 0

        await node.create(T)
        assert not refused(await ask(node, Api.PRODUCE))
        await set_read_only("true")

        assert refused(await ask(node, Api.PRODUCE)) == {29}
        assert refused(await ask(node, Api.CREATE_TOPICS)) == {29}
        assert refused(await ask(node, Api.CREATE_ACLS)) == {31}
        assert not refused(await ask(node, Api.FETCH))
        assert not refused(await ask(node, Api.OFFSET_COMMIT))

        await set_read_only("false")
        assert not refused(await ask(node, Api.PRODUCE))

    on_a_node(story)


def test_a_super_user_needs_no_permission_and_nobody_is_judged_while_it_is_off():
    async def story(node):
        node.client.principal = ALICE
        await node.create("t2")

    on_a_node(story, authorizer_enabled=True, super_users="User:root;User:alice")
    on_a_node(story)


@pytest.mark.parametrize("api", [Api.COMMIT_GROUP, Api.FORGET_DECISION])
def test_a_decision_over_others_ids_takes_the_right_to_act_for_the_cluster(api):
    async def story(node):
        allow(node)
        node.broker.image.acls.add(
            Binding(principal=ALICE, operation=Operation.WRITE, kind=Kind.TRANSACTIONAL_ID, name="mine")
        )
        asked = dict(ASKED[api], group="mine")

        answer = await node.ask(api, APIS[api].most, **asked)

        assert (answer.error_code == 53) is (api is Api.COMMIT_GROUP)  # whose member is another's

    on_a_judged_node(story)
