"""Executors on other machines, and the paths of this one."""

from pathlib import Path
from typing import Any

import pytest

from tidelog.spark.pipelines.sharing import check_shared
from tidelog.spark.pipelines.spec import Pipeline, SpecError, parse

ELSEWHERE = "spark://master:7077"


def pipeline(folder: Path, sink: dict[str, Any], **changes: Any) -> Pipeline:
    document = {
        "name": "sales",
        "checkpoint": "hdfs://name/checkpoints",
        "sources": {"orders": {"topic": "orders"}},
        "sinks": {"out": {"from": "orders", **sink}},
        **changes,
    }
    return parse(document, folder)


@pytest.mark.parametrize(
    ("sink", "key"),
    [
        ({"iceberg": "sales.orders"}, r"sinks\.out\.catalog\.warehouse is /.*/warehouse"),
        ({"iceberg": "s.o", "catalog": {"warehouse": "file:///w", "uri": "sqlite:////c"}}, "file:"),
        ({"parquet": "out"}, r"sinks\.out\.parquet is /"),
    ],
)
def test_paths_of_this_machine_are_refused_where_executors_may_be_on_others(
    tmp_path: Path, sink: dict[str, Any], key: str
) -> None:
    with pytest.raises(SpecError, match=f"{key}.*shared: true"):
        check_shared(pipeline(tmp_path, sink), ELSEWHERE)

    check_shared(pipeline(tmp_path, sink), "local[2]")
    check_shared(pipeline(tmp_path, sink, shared=True), ELSEWHERE)


def test_a_checkpoint_of_this_machine_is_refused_too(tmp_path: Path) -> None:
    made = pipeline(tmp_path, {"topic": "copy"}, checkpoint="state/checkpoints")

    with pytest.raises(SpecError, match=r"checkpoint is /.*/state/checkpoints, and the executors"):
        check_shared(made, "yarn")


@pytest.mark.parametrize(
    "sink",
    [
        {"topic": "copy"},
        {"parquet": "s3a://bucket/out"},
        {"iceberg": "s.o", "catalog": {"type": "rest", "uri": "http://catalog:8181"}},
        {"iceberg": "s.o", "catalog": {"uri": "sqlite:////c", "warehouse": "s3://bucket/w"}},
    ],
)
def test_places_that_all_reach_are_taken(tmp_path: Path, sink: dict[str, Any]) -> None:
    check_shared(pipeline(tmp_path, sink), ELSEWHERE)


def test_shared_is_true_or_false(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="shared is 'maybe'; it must be true or false"):
        pipeline(tmp_path, {"topic": "copy"}, shared="maybe")
