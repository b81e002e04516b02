"""Every key of a file for a master and its replicas: its effect here, or why it has none."""

import logging
import re
from typing import Any

import pytest
import yaml

from tidelog.config import NodeConfig, all_node_settings, flatten, node_config, node_value
from tidelog.config.master_replica import FORMER_KEYS, former_reference
from tidelog.errors import ConfigError

EFFECTS: list[tuple[str, Any, dict[str, Any]]] = [
    ("server.host", "0.0.0.0", {"http": "0.0.0.0:8080"}),
    ("server.port", 15500, {"http": "127.0.0.1:15500"}),
    ("replication.enabled", False, {"default.replication.factor": 1}),
    ("replication.listen_host", "::1", {"peer": "[::1]:9192"}),
    ("replication.listen_port", 15501, {"peer": "127.0.0.1:15501"}),
    ("replication.log_retention_mode", "any", {"log.retention.mode": "any"}),
    ("replication.log_retention_hours", 24, {"log.retention.ms": 86_400_000}),
    ("replication.log_retention_hours", -1, {"log.retention.ms": -1}),
    ("replication.log_max_entries", 1_000_000, {"log.retention.records": 1_000_000}),
    ("replication.min_replicas_for_write", 0, {"log.min.insync.replicas": 1}),
    ("replication.min_replicas_for_write", 1, {"log.min.insync.replicas": 2}),
    ("replication.min_replicas_ack", 1, {"http.min.replicas.ack": 1}),
    ("replication.sync_timeout_ms", 100, {"http.sync.timeout.ms": 100}),
    (
        "replication.heartbeat_interval_ms",
        1000,
        {"broker.heartbeat.interval.ms": 1000, "replication.stream.heartbeat.interval.ms": 1000},
    ),
    (
        "replication.heartbeat_interval_secs",
        1,
        {"broker.heartbeat.interval.ms": 1000, "replication.stream.heartbeat.interval.ms": 1000},
    ),
    (
        "replication.replica_timeout_secs",
        20,
        {"broker.session.timeout.ms": 20_000, "replication.stream.replica.timeout.secs": 20},
    ),
    ("replication.full_sync_threshold", 9, {"replication.stream.full.sync.threshold": 9}),
    ("replication.batch_size", 9, {"replication.stream.batch.size": 9}),
    ("replication.batch_timeout_ms", 9, {"replication.stream.batch.timeout.ms": 9}),
    ("replication.compression", False, {"replication.stream.compression": False}),
    ("replication.compression_threshold", 9, {"replication.stream.compression.threshold": 9}),
]
IDLE: list[tuple[str, Any]] = [
    ("server.role", "master"),
    ("server.read_only", False),
    ("replication.mode", "master"),
    ("replication.mode", "sync"),
    ("replication.log_compression", True),
    ("replication.sync_interval_ms", 100),
    ("replication.reconnect_interval_secs", 5),
    ("replication.reconnect_max_attempts", 0),
    ("replication.apply_batch_size", 100),
    ("replication.tcp_nodelay", True),
    ("replication.keepalive_secs", 60),
]
REFUSED: list[tuple[str, Any, str]] = [
    ("server.role", "replica", "quorum"),
    ("server.read_only", True, "consistency=local"),
    ("replication.mode", "replica", "quorum"),
    ("replication.master_host", "master.local", "quorum"),
    ("replication.master_port", 15501, "quorum"),
    ("replication.tcp_nodelay", False, "always on"),
    ("server.port", 65536, "from 0 to 65535"),
    ("replication.batch_size", "many", "a whole number"),
    ("replication.log_retention_mode", "time", "any, hybrid"),
    ("replication.log_retention_hours", -2, "at least|from -1"),
]


def changed(config: NodeConfig) -> dict[str, Any]:
    """All that is not at its default."""
    return {
        key: node_value(config, key)
        for key in all_node_settings()
        if node_value(config, key) != node_value(NodeConfig(), key)
    }


def from_file(text: str) -> NodeConfig:
    return node_config(flatten(yaml.safe_load(text)))


@pytest.mark.parametrize(("key", "value", "effect"), EFFECTS)
def test_a_key_sets_what_it_is_called_here(key, value, effect):
    config = node_config(flatten({key: value}))

    assert {name: node_value(config, name) for name in effect} == effect
    assert changed(config).keys() <= effect.keys()


@pytest.mark.parametrize(("key", "value"), IDLE)
def test_a_key_without_effect_says_so(key, value, caplog):
    with caplog.at_level(logging.WARNING):
        config = node_config(flatten({key: value}))

    assert changed(config) == {}
    assert FORMER_KEYS[key.replace("_", ".")].doc in caplog.text and "no effect" in caplog.text


@pytest.mark.parametrize(("key", "value", "why"), REFUSED)
def test_what_would_not_be_kept_is_refused_with_the_reason(key, value, why):
    with pytest.raises(ConfigError) as error:
        node_config(flatten({key: value}))

    assert str(error.value).startswith(key.replace("_", ".")) and re.search(why, str(error.value))


def test_every_key_is_tried_above_and_sets_only_what_there_is():
    tried = {key for key, *_ in [*EFFECTS, *IDLE, *REFUSED]}

    assert tried == {key.written for key in FORMER_KEYS.values()}
    for key in FORMER_KEYS.values():
        assert set(key.targets) <= all_node_settings().keys(), key.written
        assert f"| `{key.written}` |" in "\n".join(former_reference())


def test_a_masters_file_is_taken_as_it_is():
    config = from_file(
        """
        server: {role: "master", host: "0.0.0.0", port: 15500}
        replication:
          enabled: true
          mode: "master"
          listen_port: 15501
          log_retention_mode: "hybrid"
          log_retention_hours: 24
          log_max_entries: 1000000
          log_compression: true
          min_replicas_for_write: 0
          replica_timeout_secs: 30
          heartbeat_interval_secs: 5
          batch_size: 100
          batch_timeout_ms: 10
        """
    )

    assert (config.http, config.peer, config.http_chosen) == ("0.0.0.0:15500", "127.0.0.1:15501", True)
    assert config.topic_defaults.retention_mode == "hybrid"
    assert config.broker_session_timeout_ms == 30_000
    assert config.replication_stream_batch_size == 100


def test_defaults_of_the_stream_are_those_of_the_files():
    config, there = NodeConfig(), FORMER_KEYS

    assert config.replication_stream_batch_size == there["replication.batch.size"].default
    assert config.replication_stream_batch_timeout_ms == (there["replication.batch.timeout.ms"].default)
    assert config.replication_stream_compression is there["replication.compression"].default
    assert config.replication_stream_compression_threshold == (
        there["replication.compression.threshold"].default
    )
    assert config.replication_stream_full_sync_threshold == (there["replication.full.sync.threshold"].default)
    assert config.replication_stream_replica_timeout_secs == (
        there["replication.replica.timeout.secs"].default
    )
    assert config.replication_stream_heartbeat_interval_ms == (
        there["replication.heartbeat.interval.ms"].default
    )


@pytest.mark.parametrize(
    "twice",
    [
        {"replication.log_max_entries": 5, "log.retention.records": 6},
        {"server.port": 1, "http": "127.0.0.1:2"},
        {"replication.heartbeat_interval_ms": 900, "replication.heartbeat_interval_secs": 1},
    ],
    ids=str,
)
def test_a_file_that_says_a_thing_twice_is_refused(twice):
    with pytest.raises(ConfigError, match="say the same; keep one of them"):
        node_config(flatten(twice))


def test_a_stronger_source_wins_by_either_name_and_an_address_keeps_its_other_part():
    by_ours = node_config({"replication.log.max.entries": 5}, {"log.retention.records": 6})
    by_theirs = node_config({"log.retention.records": 6}, {"replication.log.max.entries": 5})
    port = node_config({"server.host": "10.0.0.1", "server.port": 1}, {"server.port": 2})

    assert by_ours.topic_defaults.retention_records == 6
    assert by_theirs.topic_defaults.retention_records == 5
    assert port.http == "10.0.0.1:2"


def test_heartbeats_too_rare_for_a_session_are_refused():
    with pytest.raises(ConfigError, match="replica_timeout_secs"):
        node_config({"replication.heartbeat.interval.secs": 5})


def test_a_key_that_is_misspelt_is_told_its_name():
    with pytest.raises(ConfigError, match=r"did you mean 'replication\.batch\.size'"):
        node_config({"replication.batch.sise": 5})
