"""Errors of Spark's, said as ours."""

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException

from tidelog.spark.archive.tasks import SparkGaveUp, blaming_spark

TRACE = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: an executor was lost
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:1)"""


def test_an_error_of_the_jvm_is_one_line_with_its_reason():
    with (
        pytest.raises(SparkGaveUp, match=r"archiving: .*executor was lost") as raised,
        blaming_spark("archiving"),
    ):
        raise Py4JError(TRACE)
    assert "\n" not in str(raised.value)


def test_a_query_that_is_wrong_is_said():
    with pytest.raises(SparkGaveUp, match="no column named x"), blaming_spark("restoring"):
        raise AnalysisException("there is no column named x\n;; plan")


def test_other_errors_are_left_alone():
    with pytest.raises(ValueError), blaming_spark("archiving"):
        raise ValueError
