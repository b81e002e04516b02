"""Spark Declarative Pipelines, as users run them: topics as source and as sink."""

import os
import subprocess
import sys
from pathlib import Path

from tests.spark.topics import values
from tidelog.spark.java import find_java

RUN_SECONDS_MAX = 300

PIPELINE = """\
name: evens
storage: file://{directory}/storage
libraries: [{{glob: {{include: transformations/**}}}}]
configuration: {{spark.sql.shuffle.partitions: "1"}}
"""

TRANSFORMATIONS = """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
cluster = {{"kafka.bootstrap.servers": "{bootstrap}"}}


@dp.table
def numbers():
    reader = spark.readStream.format("tidelog").options(**cluster, subscribe="{topic}")
    return reader.option("startingOffsets", "earliest").load()


dp.create_sink("evens", "tidelog", {{**cluster, "topic": "{topic}-evens"}})


@dp.append_flow(target="evens", name="even")
def even():
    return spark.readStream.table("numbers").where("offset % 2 = 0").select("key", "value")
"""


def test_a_declarative_pipeline_reads_and_writes_topics_once(topics, topic, tmp_path):
    topics.make(topic)
    topics.make(f"{topic}-evens")
    topics.put(topic, values(*"abcd"))
    (tmp_path / "transformations").mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(PIPELINE.format(directory=tmp_path))
    (tmp_path / "transformations" / "evens.py").write_text(
        TRANSFORMATIONS.format(bootstrap=topics.bootstrap, topic=topic)
    )

    _run(tmp_path)
    assert topics.values(f"{topic}-evens") == [b"a", b"c"]


def _run(directory: Path) -> None:
    program = Path(sys.executable).parent / "spark-pipelines"
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java().home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PATH": f"{program.parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        [
            program,
            "run",
            "--remote",
            "local[1]",
            "--conf",
            "spark.sql.catalogImplementation=hive",
            "--conf",
            "spark.driver.memory=1g",
        ],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
