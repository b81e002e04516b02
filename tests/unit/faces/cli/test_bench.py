import json


def test_bench_measures_and_removes_its_topic(tidelog, broker):
    options = ["--seconds", 0.1, "--batch-bytes", 2000, "--partitions", 2]

    table = tidelog("bench", *options)
    document = json.loads(tidelog("bench", *options, "--json").out)

    assert table.code == 0 and "records/s" in table.out
    assert document["produce"]["records"] == document["consume"]["records"] > 0
    assert document["end_to_end_ms"]["p99"] >= document["end_to_end_ms"]["p50"] > 0
    assert document["settings"]["partitions"] == 2
    assert broker.topics == {}


def test_bench_does_not_touch_a_topic_that_exists(tidelog, broker):
    tidelog("topics", "create", "mine")

    result = tidelog("bench", "--topic", "mine")

    assert result.code == 1 and "mine" in result.err
    assert "mine" in broker.topics
