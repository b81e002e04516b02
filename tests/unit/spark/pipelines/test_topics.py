"""Which topics a pipeline has made for it."""

from pathlib import Path
from typing import Any

import pytest

from tidelog.spark.pipelines.spec import SpecError, Topic, parse
from tidelog.spark.pipelines.topics import check_bucket, wanted


def topics(**changes: Any) -> dict[str, Topic]:
    document = {
        "name": "sales",
        "sources": {"orders": {"topic": "orders", "json": "id string", "dead_letter": "broken"}},
        "sinks": {
            "out": {"from": "orders", "topic": "out"},
            "latest": {"from": "orders", "bucket": "latest"},
            "files": {"from": "orders", "parquet": "files"},
        },
        **changes,
    }
    return wanted(parse(document, Path("/nowhere")))


def test_what_is_written_is_made_and_buckets_are_compacted() -> None:
    assert topics() == {
        "broken": Topic(),
        "out": Topic(),
        "latest": Topic(config={"cleanup.policy": "compact"}),
    }


def test_what_the_pipeline_says_of_a_topic_is_kept() -> None:
    said = {"orders": {"partitions": 3}, "latest": {"partitions": 2, "config": {"a": 1}}}

    found = topics(topics=said)

    assert found["orders"] == Topic(partitions=3)
    assert found["latest"] == Topic(partitions=2, config={"cleanup.policy": "compact", "a": 1})


def test_traffic_has_a_topic_to_go_to() -> None:
    assert "orders" in topics(traffic={"topic": "orders"})


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete,compact"])
def test_a_bucket_may_be_any_topic_that_is_compacted(policy: str) -> None:
    check_bucket("latest", {"cleanup.policy": policy})


def test_a_bucket_that_is_not_compacted_is_refused_with_the_command_that_helps() -> None:
    with pytest.raises(SpecError, match=r"has cleanup\.policy=delete; .*`tidelog configs"):
        check_bucket("latest", {"cleanup.policy": "delete"})
