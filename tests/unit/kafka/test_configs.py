import asyncio
from typing import Any

import pytest

from tests.unit.broker.node import Machine, batch_of, on_a_node
from tidelog.config import MIB, TOPIC_SETTINGS
from tidelog.controller.image import Place
from tidelog.controller.records import PartitionChanged
from tidelog.kafka.configs import Operation, Resource, Source
from tidelog.wire.apis import Api

INVALID_CONFIG, INVALID_REQUEST, LIST = 40, 42, 7


async def alter(node, name, *changes, kind=Resource.TOPIC, validate_only=False) -> Any:
    """Alter one resource by (key, value[, operation])s; its answer."""
    resource = {
        "resource_type": kind,
        "resource_name": name,
        "configs": [
            {"name": key, "value": value, "config_operation": (*rest, Operation.SET)[0]}
            for key, value, *rest in changes
        ],
    }
    answer = await node.ask(
        Api.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=validate_only
    )
    return answer.responses[0]


async def described(node, name, key, kind=Resource.TOPIC) -> Any:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": [key]}
    answer = await node.ask(
        Api.DESCRIBE_CONFIGS, 4, resources=[resource], include_synonyms=True, include_documentation=True
    )
    (config,) = answer.results[0].configs
    return config


async def value_of(node, name, key, kind=Resource.TOPIC) -> str:
    return (await described(node, name, key, kind)).value


# The node's own.


@pytest.mark.parametrize("name", ["", "1"], ids=["all nodes", "this node"])
def test_the_cleaner_follows_the_nodes_settings_while_it_runs(name):
    async def story(node):
        answer = await alter(
            node,
            name,
            ("log.cleaner.io.max.bytes.per.second", "4000"),
            ("log.cleaner.dedupe.buffer.size", str(3 * MIB)),
            kind=Resource.BROKER,
        )

        cleaner = node.broker.cleaner
        assert answer.error_code == 0, answer.error_message
        assert cleaner.pace.wait_seconds(1000, now=5.0) == pytest.approx(0.25)
        assert cleaner.key_bytes_max == 3 * MIB
        await alter(
            node, name, ("log.cleaner.io.max.bytes.per.second", None, Operation.DELETE), kind=Resource.BROKER
        )
        assert cleaner.pace.wait_seconds(1000, now=5.0) == 0

    on_a_node(story)


def test_the_cleaner_starts_with_the_settings_that_were_changed_in_an_earlier_life():
    machine = Machine(log_cleaner_dedupe_buffer_size=5 * MIB)

    async def change(node):
        assert node.broker.cleaner.key_bytes_max == 5 * MIB
        await alter(node, "1", ("log.cleaner.dedupe.buffer.size", str(3 * MIB)), kind=Resource.BROKER)

    async def look(node):
        assert node.broker.cleaner.key_bytes_max == 3 * MIB

    machine.live(change)
    machine.live(look)


def test_what_needs_a_restart_is_refused_while_running():
    async def story(node):
        answer = await alter(node, "1", ("log.cleaner.backoff.ms", "20"), kind=Resource.BROKER)

        assert answer.error_code == INVALID_CONFIG
        assert "restart" in answer.error_message
        assert (await described(node, "1", "log.cleaner.backoff.ms", Resource.BROKER)).read_only

    on_a_node(story)


# Lists.


def test_a_topics_list_grows_from_what_the_node_gives_it():
    async def story(node):
        await node.create("t")
        await alter(node, "t", ("cleanup.policy", "delete", Operation.APPEND))

        assert await value_of(node, "t", "cleanup.policy") == "compact,delete"
        assert node.broker.partition("t", 0).config.deletes

    on_a_node(story, log_cleanup_policy="compact")


def test_a_topics_list_shrinks_from_what_the_node_gives_it():
    async def story(node):
        await node.create("t")
        answer = await alter(node, "t", ("cleanup.policy", "delete", Operation.SUBTRACT))

        assert answer.error_code == 0, answer.error_message
        assert await value_of(node, "t", "cleanup.policy") == "compact"
        answer = await alter(node, "t", ("cleanup.policy", "compact", Operation.SUBTRACT))
        assert answer.error_code == INVALID_CONFIG
        assert "one or more of delete, compact" in answer.error_message

    on_a_node(story, log_cleanup_policy="compact,delete")


def test_a_nodes_list_is_appended_to_and_subtracted_from():
    async def story(node):
        await node.create("t")
        config = node.broker.partition("t", 0)
        key = "log.cleanup.policy"

        await alter(node, "", (key, "compact", Operation.APPEND), kind=Resource.BROKER)
        assert await value_of(node, "1", key, Resource.BROKER) == "delete,compact"
        assert config.config.compacts and config.config.deletes

        # What is the node's own starts from what all nodes have.
        await alter(node, "1", (key, "delete", Operation.SUBTRACT), kind=Resource.BROKER)
        assert await value_of(node, "1", key, Resource.BROKER) == "compact"
        assert (await described(node, "1", key, Resource.BROKER)).config_type == LIST
        assert config.config.compacts and not config.config.deletes

        answer = await alter(node, "1", (key, "compact", Operation.SUBTRACT), kind=Resource.BROKER)
        assert answer.error_code == INVALID_CONFIG

    on_a_node(story)


def test_what_is_appended_again_is_there_once():
    async def story(node):
        await node.create("t")
        await alter(node, "t", ("cleanup.policy", " compact, delete ,compact", Operation.APPEND))

        assert await value_of(node, "t", "cleanup.policy") == "delete,compact"

    on_a_node(story)


def test_only_a_list_can_be_appended_to():
    async def story(node):
        await node.create("t")
        for key in ("retention.ms", "log.cleanup.policy", "nothing"):
            answer = await alter(node, "t", (key, "1", Operation.APPEND))
            assert answer.error_code == INVALID_CONFIG
            assert answer.error_message == f"{key} is not a list; set it instead"

    on_a_node(story)


# Kafka's own.


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cleanup.policy", "compact, delete"),
        ("compression.type", "producer"),
        ("compression.zstd.level", "3"),
        ("file.delete.delay.ms", "1000"),
        ("flush.messages", "1"),
        ("flush.ms", "1000"),
        ("follower.replication.throttled.replicas", "0:1,1:1"),
        ("leader.replication.throttled.replicas", "*"),
        ("local.retention.ms", "-2"),
        ("max.compaction.lag.ms", "1000"),
        ("message.downconversion.enable", "false"),
        ("min.insync.replicas", "2"),
        ("preallocate", "true"),
        ("remote.storage.enable", "false"),
        ("segment.index.bytes", "10485760"),
        ("segment.jitter.ms", "5"),
        ("unclean.leader.election.enable", "true"),
    ],
)
def test_a_config_that_kafkas_tools_set_is_taken_shown_and_survives(key, value):
    machine = Machine()

    async def make(node):
        await node.create("t", **{key.replace(".", "_"): value})

    async def look(node):
        config = await described(node, "t", key)
        assert (config.value, config.config_source) == (value.replace(" ", ""), Source.TOPIC)
        assert config.documentation == TOPIC_SETTINGS[key].doc
        assert (await node.produce("t", batch_of(b"v"), acks=1)).error_code in (0, 87)

    machine.live(make)
    machine.live(look)


@pytest.mark.parametrize(
    ("key", "value", "fix"),
    [
        ("compression.type", "zstd", "set compression.type of the producers"),
        ("compression.type", "uncompressed", "set compression.type of the producers"),
        ("remote.storage.enable", "true", "no remote storage"),
        ("remote.log.copy.disable", "true", "no remote storage"),
        ("leader.replication.throttled.replicas", "1-2", "PARTITION:BROKER"),
        ("message.format.version", "2.8", "leave it out"),
        ("message.timestamp.difference.max.ms", "1", "message.timestamp.before.max.ms"),
        ("cleanup.policy", "", "one or more of delete, compact"),
        ("cleanup.policy", "delete,forget", "one or more of delete, compact"),
    ],
)
def test_a_config_that_cannot_be_kept_is_refused_by_name_with_what_to_do(key, value, fix):
    async def story(node):
        topic = {
            "name": "t",
            "num_partitions": 1,
            "replication_factor": 1,
            "configs": [{"name": key, "value": value}],
        }
        (created,) = (await node.ask(Api.CREATE_TOPICS, 7, topics=[topic])).topics
        await node.create("other")
        altered = await alter(node, "other", (key, value))

        for answer in (created, altered):
            assert answer.error_code == INVALID_CONFIG
            assert key in answer.error_message and fix in answer.error_message

    on_a_node(story)


# Together.


def test_settings_that_contradict_each_other_are_refused_and_nothing_changes():
    async def story(node):
        await node.create("t", max_compaction_lag_ms="1000")

        answer = await alter(node, "t", ("retention.ms", "5"), ("min.compaction.lag.ms", "1001"))

        assert answer.error_code == INVALID_CONFIG
        assert "min.compaction.lag.ms is 1001" in answer.error_message
        assert "max.compaction.lag.ms, 1000" in answer.error_message
        assert node.broker.partition("t", 0).config.retention_ms != 5

    on_a_node(story)


def test_a_nodes_settings_that_contradict_each_other_are_refused_under_their_names():
    async def story(node):
        answer = await alter(
            node,
            "",
            ("log.min.compaction.lag.ms", "1001"),
            ("log.max.compaction.lag.ms", "1000"),
            kind=Resource.BROKER,
        )

        assert answer.error_code == INVALID_CONFIG
        assert "log.min.compaction.lag.ms is 1001" in answer.error_message

    on_a_node(story)


def test_a_topic_whose_settings_come_to_contradict_a_new_default_goes_on():
    machine = Machine()

    async def contradict(node):
        await node.create("t", max_compaction_lag_ms="1000", cleanup_policy="compact")
        answer = await alter(node, "", ("log.min.compaction.lag.ms", "5000"), kind=Resource.BROKER)
        assert answer.error_code == 0

    async def look(node):
        config = node.broker.partition("t", 0).config
        assert (config.min_compaction_lag_ms, config.max_compaction_lag_ms) == (5000, 1000)

    machine.live(contradict)
    machine.live(look)


def test_of_two_changes_at_once_none_is_lost():
    async def story(node):
        await node.create("t")

        await asyncio.gather(
            alter(node, "t", ("retention.ms", "5")),
            alter(node, "t", ("segment.ms", "6")),
            alter(node, "t", ("cleanup.policy", "compact", Operation.APPEND)),
            alter(node, "t", ("cleanup.policy", "delete", Operation.SUBTRACT)),
        )

        config = node.broker.partition("t", 0).config
        assert (config.retention_ms, config.segment_ms) == (5, 6)
        assert config.cleanup_policy == "compact"

    on_a_node(story)


# How many must be in sync.


async def with_replicas(node, name, replicas, **changes) -> None:
    """Let the topic's one partition, led by this node, have these replicas."""

    def decide(image):
        place = Place(image.topics[name], 0)
        after = place.partition.changed(replicas=tuple(replicas), **changes)
        return PartitionChanged(topic=str(place.topic.id), partition=0, state=after.state)

    await node.broker.metadata.change(decide)
    await node.broker.acted()


def eligible(node, name):
    return node.broker.image.topics[name].partitions[0].eligible


def test_the_minimum_in_sync_is_shown_as_the_number_that_counts_and_as_a_default():
    async def story(node):
        await node.create("t")
        one = await described(node, "t", "min.insync.replicas")
        assert (one.value, one.config_source) == ("1", Source.DEFAULT)
        assert [synonym.value for synonym in one.synonyms] == ["1"]

        await with_replicas(node, "t", [1, 2, 3])
        assert await value_of(node, "t", "min.insync.replicas") == "2"
        await alter(node, "t", ("min.insync.replicas", "5"))
        assert await value_of(node, "t", "min.insync.replicas") == "5", "as it was set"

    on_a_node(story)


def test_a_new_topic_is_told_the_minimum_in_sync_that_counts():
    async def story(node):
        topic = {"name": "t", "num_partitions": 1, "replication_factor": 1}
        (created,) = (await node.ask(Api.CREATE_TOPICS, 7, topics=[topic])).topics

        values = {config.name: config.value for config in created.configs}
        assert values["min.insync.replicas"] == "1"

    on_a_node(story)


@pytest.mark.parametrize("api", [Api.ALTER_CONFIGS, Api.INCREMENTAL_ALTER_CONFIGS])
def test_a_lower_minimum_and_who_is_eligible_no_more_are_one_decision(api):
    async def story(node):
        await node.create("t")
        await with_replicas(node, "t", [1, 2, 3], eligible=frozenset({2}))
        applied: list[Any] = []
        node.broker.metadata.on_applied(applied.append)
        config: dict[str, Any] = {"name": "min.insync.replicas", "value": "1"}
        if api is Api.INCREMENTAL_ALTER_CONFIGS:
            config["config_operation"] = Operation.SET
        resource = {"resource_type": Resource.TOPIC, "resource_name": "t", "configs": [config]}

        await node.ask(api, 1, resources=[resource], validate_only=True)
        assert eligible(node, "t") == {2}
        await node.ask(api, 1, resources=[resource], validate_only=False)

        assert eligible(node, "t") == frozenset()
        assert [type(record).__name__ for record in applied[0]] == ["TopicConfigChanged", "PartitionChanged"]

    on_a_node(story)


def test_a_lower_minimum_for_all_nodes_lets_nobody_stay_eligible_for_nothing():
    async def story(node):
        await node.create("t")
        await node.create("own", min_insync_replicas="2")
        for name in ("t", "own"):
            await with_replicas(node, name, [1, 2, 3], eligible=frozenset({2}))

        await alter(node, "", ("log.min.insync.replicas", "1"), kind=Resource.BROKER)

        assert eligible(node, "t") == frozenset()
        assert eligible(node, "own") == {2}

    on_a_node(story)


def test_the_minimum_in_sync_is_not_one_nodes_own():
    async def story(node):
        answer = await alter(node, "1", ("log.min.insync.replicas", "1"), kind=Resource.BROKER)

        assert answer.error_code == INVALID_CONFIG
        assert answer.error_message == (
            "log.min.insync.replicas must be the same everywhere; set it for all nodes"
        )

    on_a_node(story)
