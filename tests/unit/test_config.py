import dataclasses

import pytest
import yaml

from tidelog.config import (
    NODE_SETTINGS,
    TOPIC_SETTINGS,
    NodeConfig,
    TopicConfig,
    flatten,
    from_environment,
    node_config,
    reference,
    topic_config,
    with_node_changes,
)
from tidelog.config.environment import OTHER_VARIABLES
from tidelog.config.topic import min_in_sync_of
from tidelog.errors import ConfigError


def test_without_sources_the_defaults_hold():
    assert node_config() == NodeConfig()
    assert topic_config({}, TopicConfig()) == TopicConfig()


def test_a_settings_key_is_its_fields_name_with_dots():
    config = node_config({"num.partitions": "4"})

    assert config == dataclasses.replace(NodeConfig(), num_partitions=4)
    assert set(NODE_SETTINGS) == {
        f.name.replace("_", ".") for f in dataclasses.fields(NodeConfig) if f.metadata
    }


def test_the_later_source_wins_key_by_key():
    file = {"num.partitions": 2, "rack": "file", "log.retention.ms": 1}
    environment = {"num.partitions": "3", "log.retention.ms": "2"}
    flags = {"num.partitions": "4"}

    config = node_config(file, environment, flags)

    assert (config.num_partitions, config.rack) == (4, "file")
    assert config.topic_defaults.retention_ms == 2


def test_topic_defaults_stand_behind_log():
    config = node_config({"log.segment.bytes": "1000", "log.durability": "replicated"})

    assert config.topic_defaults == TopicConfig(segment_bytes=1000, durability="replicated")


def test_a_topics_own_config_lies_on_top_of_the_defaults():
    defaults = TopicConfig(segment_bytes=1000, retention_ms=5)

    config = topic_config({"retention.ms": "6"}, defaults)

    assert config == dataclasses.replace(defaults, retention_ms=6)


@pytest.mark.parametrize("kind", ["nested", "flat", "with underscores"])
def test_yaml_may_be_nested_or_flat(kind):
    text = {
        "nested": "log: {retention: {mode: hybrid, records: 5}}\nnum: {partitions: 3}",
        "flat": "log.retention.mode: hybrid\nlog.retention.records: 5\nnum.partitions: 3",
        "with underscores": "log_retention_mode: hybrid\nlog: {retention_records: 5}\nnum_partitions: 3",
    }[kind]

    config = node_config(flatten(yaml.safe_load(text)))

    assert config.num_partitions == 3
    assert config.topic_defaults.retention_mode == "hybrid"
    assert config.topic_defaults.retention_records == 5


def test_the_environment_gives_only_settings():
    found = from_environment(
        {
            "TIDELOG_LOG_RETENTION_MODE": "hybrid",
            "TIDELOG_NUM_PARTITIONS": "3",
            "TIDELOG_SEED": "7",
            "NUM_PARTITIONS": "9",
            "RACK": "x",
        }
    )

    assert found == {"log.retention.mode": "hybrid", "num.partitions": "3"}


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("TIDELOG_NUM_PARTITION", "TIDELOG_NUM_PARTITIONS"),
        ("TIDELOG_LOG_RETENTIONS_MS", "TIDELOG_LOG_RETENTION_MS"),
    ],
)
def test_a_misspelt_setting_of_the_environment_is_refused_with_the_right_name(variable, meant):
    with pytest.raises(ConfigError, match=f"no setting {variable} .*did you mean {meant}"):
        from_environment({variable: "3"})


def test_variables_of_commands_and_of_kubernetes_are_no_settings():
    others = {
        "TIDELOG_SERVICE_HOST",
        "TIDELOG_SERVICE_PORT",
        "TIDELOG_PORT",
        "TIDELOG_PORT_9092_TCP",
        "TIDELOG_PORT_9092_TCP_ADDR",
        *OTHER_VARIABLES,
    }

    assert from_environment(dict.fromkeys(others, "x")) == {}


@pytest.mark.parametrize(
    ("key", "value", "fix"),
    [
        ("num.partitions", "many", "a whole number from 1 to 10000"),
        ("num.partitions", 0, "a whole number from 1 to 10000"),
        ("num.partitions", 10001, "a whole number from 1 to 10000"),
        ("num.partitions", 1.5, "a whole number from 1 to 10000"),
        ("num.partitions", True, "a whole number from 1 to 10000"),
        ("num.partitions", None, "a whole number from 1 to 10000"),
        ("connections.max", "0", "a whole number of at least 1"),
        ("rack", ["a"], "text"),
        ("rack", None, "text"),
        ("log.retention.ms", "a week", "a whole number of at least -1"),
        ("log.retention.ms", -2, "a whole number of at least -1"),
        ("log.retention.mode", "all", "one of any, hybrid"),
        ("log.durability", "", "one of fsync, replicated"),
        ("log.segment.bytes", 2**31, f"a whole number from 14 to {2**31 - 1}"),
        ("log.cleanup.policy", "delete;compact", "one or more of delete, compact"),
        ("log.cleanup.policy", " , ", "one or more of delete, compact"),
        ("log.cleanup.policy", [1], "one or more of delete, compact"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key_and_what_it_may_be(key, value, fix):
    with pytest.raises(ConfigError) as error:
        node_config({key: value})

    assert str(error.value) == f"{key} is {value!r}; it must be {fix}"


@pytest.mark.parametrize("value", ["yes", "", 1, None])
def test_a_switch_is_true_or_false_and_nothing_else(value):
    with pytest.raises(ConfigError, match=r"^auto\.create\.topics\.enable is .*true or false"):
        node_config({"auto.create.topics.enable": value})


@pytest.mark.parametrize(("value", "meant"), [("true", True), (" FALSE ", False), (False, False)])
def test_a_switch_is_read_from_text_and_from_yaml(value, meant):
    config = node_config({"auto.create.topics.enable": value})

    assert config.auto_create_topics_enable is meant


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("compact", "compact"),
        (" compact , delete ", "compact,delete"),
        ("delete,,delete", "delete"),
        (["compact", "delete"], "compact,delete"),
    ],
)
def test_a_list_is_read_from_text_and_from_yaml(value, meant):
    config = node_config({"log.cleanup.policy": value})

    assert config.topic_defaults.cleanup_policy == meant


@pytest.mark.parametrize("value", ["", "*", "none", "0:1", "0:1,12:3"])
def test_replicas_are_named_as_kafka_names_them(value):
    key = "follower.replication.throttled.replicas"

    config = topic_config({key: value}, TopicConfig())

    assert config.follower_replication_throttled_replicas == value


def test_a_choice_that_is_not_offered_is_refused_with_what_to_do_instead():
    with pytest.raises(ConfigError) as error:
        topic_config({"compression.type": "zstd"}, TopicConfig())

    assert str(error.value) == (
        "compression.type is 'zstd'; it must be producer: batches are kept as they come; set "
        "compression.type of the producers instead"
    )


def test_every_topic_config_of_kafka_4_is_known():
    kafka = {
        "cleanup.policy",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "delete.retention.ms",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "follower.replication.throttled.replicas",
        "index.interval.bytes",
        "leader.replication.throttled.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "max.compaction.lag.ms",
        "max.message.bytes",
        "message.downconversion.enable",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.type",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "preallocate",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
        "unclean.leader.election.enable",
    }

    own = {"durability", "failover.mode", "kv.view", "retention.mode", "retention.records"}
    assert set(TOPIC_SETTINGS) == kafka | own


@pytest.mark.parametrize(("replicas", "needed"), [(1, 1), (2, 1), (3, 2), (5, 2)])
def test_two_of_three_replicas_must_be_in_sync_unless_somebody_says_otherwise(replicas, needed):
    assert min_in_sync_of(TopicConfig(), replicas) == needed


@pytest.mark.parametrize(
    ("wanted", "replicas", "needed"), [(1, 3, 1), (2, 2, 2), (3, 3, 3), (3, 2, 2), (2, 1, 1)]
)
def test_a_minimum_that_was_set_counts_as_far_as_there_are_replicas(wanted, replicas, needed):
    assert min_in_sync_of(TopicConfig(min_insync_replicas=wanted), replicas) == needed


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (
            {"log.min.insync.replicas": 0},
            "log.min.insync.replicas is 0, so a write that nobody holds would count",
        ),
        (
            {"log.min.compaction.lag.ms": 2, "log.max.compaction.lag.ms": 1},
            "log.min.compaction.lag.ms is 2, which is above log.max.compaction.lag.ms, 1",
        ),
        (
            {"log.durability": "replicated", "log.flush.messages": 1},
            "log.flush.messages is 1, which is not kept while log.durability is 'replicated'",
        ),
        (
            {"log.durability": "replicated", "log.flush.ms": 1000},
            "log.flush.ms is 1000, which is not kept while log.durability is 'replicated'",
        ),
        ({"log.retention.mode": "hybrid"}, "log.retention.records is -1, so the other would never count"),
        (
            {"log.retention.mode": "hybrid", "log.retention.records": 1, "log.retention.ms": -1},
            "log.retention.ms is -1, so the other would never count",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused_with_the_way_out(values, complaint):
    with pytest.raises(ConfigError) as error:
        node_config(values)

    assert complaint in str(error.value)
    assert "; " in str(error.value)


@pytest.mark.parametrize(
    "values",
    [
        {"log.min.compaction.lag.ms": 1, "log.max.compaction.lag.ms": 1},
        {"log.durability": "fsync", "log.flush.messages": 1},
        {"log.retention.mode": "hybrid", "log.retention.records": 0, "log.retention.ms": 0},
    ],
)
def test_settings_that_go_together_are_taken(values):
    assert node_config(values) != NodeConfig()


def test_what_contradicts_itself_already_does_not_keep_a_node_from_starting():
    started = node_config({"log.max.compaction.lag.ms": 1})

    config = with_node_changes(started, {"log.min.compaction.lag.ms": "2"})

    assert config.topic_defaults.min_compaction_lag_ms == 2


@pytest.mark.parametrize(
    ("key", "similar"),
    [
        ("num.partition", "num.partitions"),
        ("log.retention.msec", "log.retention.ms"),
        ("retention.ms", "log.retention.ms"),
    ],
)
def test_an_unknown_key_is_refused_with_the_one_that_was_meant(key, similar):
    with pytest.raises(ConfigError, match=f"there is no setting '{key}'; did you mean '{similar}'"):
        node_config({key: "1"})


def test_an_unknown_key_is_refused_also_beside_the_one_that_was_meant():
    with pytest.raises(ConfigError, match=r"'retention\.ms'"):
        node_config({"log.retention.ms": "1", "retention.ms": "2"})


def test_an_unknown_topic_config_is_refused_with_the_one_that_was_meant():
    with pytest.raises(ConfigError, match=r"no config 'retention\.m'; did you mean"):
        topic_config({"retention.m": "1"}, TopicConfig())


@pytest.mark.parametrize("key", ["kafka", "http", "peer", "kafka.advertised"])
def test_an_address_is_checked_where_it_enters(key):
    with pytest.raises(ConfigError, match=f"^{key}: 'here' is not HOST:PORT"):
        node_config({key: "here"})


def test_every_default_is_a_value_that_would_be_taken():
    for setting in [*NODE_SETTINGS.values(), *TOPIC_SETTINGS.values()]:
        assert setting.parse(setting.text(setting.default)) == setting.default, setting.name


def test_the_reference_tells_of_every_setting():
    text = reference()

    for setting in [*NODE_SETTINGS.values(), *TOPIC_SETTINGS.values()]:
        assert f"| `{setting.name}` |" in text
        assert setting.doc in text


def test_a_place_for_http_that_somebody_chose_is_told_from_the_default():
    assert not node_config({}).http_chosen
    assert node_config({}, {"http": "127.0.0.1:8080"}).http_chosen
    assert node_config({"http": ""}).http_endpoint is None
