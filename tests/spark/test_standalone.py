"""Batches, streams and SQL with executors that are processes of their own."""

import json
import subprocess
import sys

from tests.spark.standalone import standalone
from tests.spark.touring import ROWS

TOUR_SECONDS_MAX = 500


def test_a_master_and_two_workers_do_the_same_as_one_process_and_miss_what_is_not_shared(topics, tmp_path):
    topics.make("tour", 3)
    topics.make("copy", 2)
    with standalone(tmp_path / "cluster", hidden=tmp_path / "hidden") as cluster:
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.touring", cluster.url, topics.bootstrap, tmp_path],
            capture_output=True,
            text=True,
            timeout=TOUR_SECONDS_MAX,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout)

    assert len(seen["executors"]) == 2
    assert (seen["rows"], seen["copied"]) == (ROWS, ROWS)
    assert seen["batches"] >= 3
    assert "wrote 1000 rows below" in seen["unshared"]
    assert "the executors do not share that place" in seen["unshared"]
    assert len(topics.values("copy")) == ROWS
