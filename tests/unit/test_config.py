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
)
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
        "with underscores": "log_retention_mode: hybrid\nlog: {retention_records: 5}\n"
        "num_partitions: 3",
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
