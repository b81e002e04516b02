import json

import pytest

from tidelog.faces.cli.reassign import read_plan
from tidelog.model import TopicPartition


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "say what to do, once"),
        (("--balance", "--drain", 3), "say what to do, once"),
        (("--replicas", "1,2"), "need --topic"),
        (("--replication", 2), "need --topic"),
        (("--topic", "t", "--partition", 0, "--replication", 2), "--partition goes with"),
        (("--topic", "t", "--replicas", "1;2"), "not a list of ids"),
    ],
)
def test_a_start_that_says_too_little_or_too_much_is_refused(tidelog, arguments, why):
    result = tidelog("reassign", "start", *arguments)

    assert result.code in (1, 2)
    assert why in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [(), ("--all", "--topic", "t")])
def test_what_to_cancel_must_be_said(tidelog, arguments):
    result = tidelog("reassign", "cancel", *arguments)

    assert result.code == 1
    assert "say what to cancel" in result.err


def test_a_plan_of_kafkas_form_is_read(tmp_path):
    path = tmp_path / "plan.json"
    partitions = [
        {"topic": "t", "partition": 1, "replicas": [3, 1], "log_dirs": ["any", "any"]},
        {"topic": "u", "partition": 0, "replicas": [2]},
    ]
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))

    assert read_plan(path) == {TopicPartition("t", 1): (3, 1), TopicPartition("u", 0): (2,)}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"partitions": [{"topic": "t"}]}', '{"partitions": 3}'])
def test_what_is_no_plan_is_refused_with_the_form(tidelog, tmp_path, text):
    path = tmp_path / "plan.json"
    path.write_text(text)

    result = tidelog("reassign", "start", "--plan", path)

    assert result.code == 1
    assert "is not a plan" in result.err
    assert '"partitions": [{"topic": "t"' in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("reassign",),
        ("reassign", "start"),
        ("reassign", "status"),
        ("reassign", "cancel"),
        ("brokers", "drain"),
        ("brokers", "remove"),
    ],
)
def test_help_teaches(tidelog, arguments):
    result = tidelog(*arguments, "--help")

    assert result.code == 0
    assert len(result.out.splitlines()) > 8
