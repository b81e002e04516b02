import pickle

import pytest

from tidelog.client.security import security_of
from tidelog.errors import ConfigError
from tidelog.model import TopicPartition
from tidelog.records import Codec
from tidelog.spark.options import (
    Archive,
    Assigned,
    AtEdge,
    AtOffsets,
    AtTime,
    Matching,
    Subscribed,
    read_options,
    write_options,
)
from tidelog.spark.ranges import EARLIEST, LATEST

AT = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
READ = AT | {"subscribe": "a"}
WRITE = AT | {"topic": "a"}


def batch(**options):
    return read_options(READ | options, streaming=False)


def stream(**options):
    return read_options(READ | options, streaming=True)


def test_a_batch_reads_all_that_is_committed_and_a_stream_what_comes():
    assert (batch().starting, batch().ending) == (AtEdge(EARLIEST), AtEdge(LATEST))
    assert stream().starting == AtEdge(LATEST)
    for options in (batch(), stream()):
        assert options.read_committed
        assert options.fail_on_data_loss
        assert options.archive is None
    assert stream().commit_offsets
    assert not batch().commit_offsets


@pytest.mark.parametrize(
    ("options", "subscription"),
    [
        ({"subscribe": "a, b,a"}, Subscribed(("a", "b"))),
        ({"subscribePattern": "a.*"}, Matching("a.*")),
        ({"assign": '{"a": [1, 0]}'}, Assigned((TopicPartition("a", 0), TopicPartition("a", 1)))),
        ({"ASSIGN": '{"a": [0]}'}, Assigned((TopicPartition("a", 0),))),
    ],
)
def test_topics_are_named_in_one_of_three_ways(options, subscription):
    assert read_options(AT | options, streaming=False).subscription == subscription


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "none was given"),
        ({"subscribe": "a", "assign": "{}"}, "assign and subscribe were given"),
        ({"subscribe": " , "}, "subscribe is empty"),
        ({"subscribePattern": "("}, "is no pattern"),
        ({"assign": "{}"}, "assign must be JSON"),
        ({"assign": '{"a": 3}'}, "assign must be JSON"),
        ({"assign": '{"a": [-1]}'}, "assign must be JSON"),
    ],
)
def test_topics_that_cannot_be_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        read_options(AT | options, streaming=False)


def test_a_time_for_all_wins_over_times_and_these_over_offsets():
    given = {
        "startingOffsets": '{"a": {"0": 3}}',
        "startingOffsetsByTimestamp": '{"a": {"0": 70}}',
        "startingTimestamp": "5",
    }
    place = TopicPartition("a", 0)

    assert batch(**given).starting == AtTime(5)
    del given["startingTimestamp"]
    assert batch(**given).starting == AtTime(None, ((place, 70),))
    del given["startingOffsetsByTimestamp"]
    assert batch(**given).starting == AtOffsets(((place, 3),))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets=latest leaves nothing"),
        ({"endingOffsets": "earliest"}, "endingOffsets=earliest leaves nothing"),
        ({"startingOffsets": '{"a": {"0": -1}}'}, "cannot be latest"),
        ({"endingOffsets": '{"a": {"0": -2}}'}, "cannot be earliest"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "-2 is earliest, -1 is latest"),
        ({"startingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "milliseconds since 1970"),
        ({"startingTimestamp": "now"}, "startingTimestamp must be a whole number"),
        ({"minPartitions": "0"}, "minPartitions must be at least 1"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss must be one of true, false"),
        ({"kafka.isolation.level": "any"}, "read_committed, read_uncommitted"),
        ({"kafka.auto.offset.reset": "latest"}, "startingOffsets"),
        ({"kafka.security.protocol": "TLS"}, "SASL_SSL"),
        ({"kafka.sasl.mechanism": "GSSAPI", "kafka.security.protocol": "SASL_SSL"}, "SCRAM-SHA-256"),
        ({"kafka.ssl.truststore.type": "JKS"}, "must be pem"),
        ({"kafka.ssl.endpoint.identification.algorithm": ""}, "must be https"),
        ({"history": "archive"}, "archive.warehouse"),
        ({"maxOffsetsPerTrigger": "5"}, "for streaming reads"),
        ({"topic": "a"}, "for writes"),
        ({"startingOffset": "earliest"}, "did you mean startingOffsets"),
        ({"what": "ever"}, "docs/spark.md"),
    ],
)
def test_what_cannot_be_read_so_is_refused_with_a_fix(options, words):
    with pytest.raises(ConfigError, match=words):
        batch(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"endingOffsets": "latest"}, "for batch reads"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is more than"),
        ({"maxTriggerDelay": "soon"}, "such as 30s or 15m"),
    ],
)
def test_what_a_stream_cannot_do_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        stream(**options)


@pytest.mark.parametrize(("text", "ms"), [("15m", 900_000), ("200ms", 200), ("3 s", 3000)])
def test_delays_are_times(text, ms):
    assert stream(maxTriggerDelay=text).trigger_delay_ms_max == ms


def test_without_a_cluster_nothing_goes():
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers"):
        read_options({"subscribe": "a"}, streaming=False)


def test_a_query_writes_to_a_group_that_the_user_names_only_if_it_is_told_to():
    assert (stream().group, stream().group_prefix) == ("", "spark-kafka-source")
    assert stream(groupIdPrefix="etl").group_prefix == "etl"
    named = {"kafka.group.id": "billing"}
    assert stream(**named).group == "billing"
    assert not stream(**named).commit_offsets
    assert stream(**named, commitOffsets="true").commit_offsets


def test_an_archive_is_named_by_its_warehouse():
    options = batch(history="archive", **{"archive.warehouse": "/w"})

    assert options.archive == Archive(warehouse="/w", catalog=None)


def test_writes_are_exactly_once_unless_said_otherwise():
    assert write_options(WRITE, streaming=True).is_exactly_once
    given = WRITE | {"delivery": "at-least-once", "kafka.acks": "1", "kafka.compression.type": "zstd"}
    options = write_options(given, streaming=True)
    assert (options.is_exactly_once, options.acks, options.codec) == (False, 1, Codec.ZSTD)


@pytest.mark.parametrize(
    ("options", "streaming", "words"),
    [
        ({"txnAppId": "a"}, False, "belong together"),
        ({"txnVersion": "1"}, False, "belong together"),
        ({"txnAppId": "a", "txnVersion": "1"}, True, "for batch writes"),
        ({"txnAppId": "a b", "txnVersion": "1"}, False, "letters, digits"),
        ({"txnAppId": "a", "txnVersion": "1", "delivery": "at-least-once"}, False, "exactly once"),
        ({"kafka.acks": "1"}, False, "can lose records"),
        ({"kafka.acks": "0", "delivery": "at-least-once"}, False, "kafka.acks must be one of"),
        ({"kafka.transactional.id": "x"}, False, "txnAppId"),
        ({"subscribe": "a"}, False, "for batch reads and streaming reads"),
    ],
)
def test_what_cannot_be_written_so_is_refused(options, streaming, words):
    with pytest.raises(ConfigError, match=words):
        write_options(WRITE | options, streaming=streaming)


def test_a_part_has_its_own_message_and_readers_may_be_lenient():
    given = {
        "kafka.bootstrap.servers": "h:1",
        "subscribe": "t",
        "valueFormat": "protobuf",
        "keyFormat": "json-schema",
        "schema.registry.url": "http://h:2",
        "value.message": "shop.Order",
        "schema.validate": "false",
    }
    options = read_options(given, streaming=False)
    assert (options.value_format.message, options.key_format.message) == ("shop.Order", None)
    assert not options.key_format.validates
    del given["schema.validate"]
    assert read_options(given, streaming=False).key_format.validates


def test_how_to_connect_goes_with_the_addresses_to_the_executors():
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    jaas = f'{module} required username="alice" password="secret";'
    options = {
        "kafka.bootstrap.servers": "a:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": jaas,
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.ssl.truststore.type": "PEM",
    }

    reading = read_options(options | {"subscribe": "t"}, streaming=True)
    for read in (reading, write_options(options, streaming=False)):
        sent = pickle.loads(pickle.dumps(read))
        found = security_of(sent.bootstrap)
        assert (sent.bootstrap, found.username, found.password) == ("a:1", "alice", "secret")
        assert (found.mechanism, found.truststore) == ("SCRAM-SHA-512", "/ca.pem")
        assert "secret" not in repr(read)
