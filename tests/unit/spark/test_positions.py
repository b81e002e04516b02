import json
from uuid import UUID

import pytest

from tidelog.errors import ConfigError
from tidelog.model import TopicPartition
from tidelog.spark.positions import Position

A0, B0 = TopicPartition("a", 0), TopicPartition("b", 0)
OLD, NEW, OTHER = UUID(int=1), UUID(int=2), UUID(int=3)


def test_a_position_comes_back_as_it_was_and_always_as_the_same_text():
    position = Position(offsets={B0: 7, A0: 3}, topics={"b": OTHER, "a": OLD}, query="q")
    text = json.dumps(position.to_json())
    assert Position.from_json(json.loads(text)) == position
    assert json.dumps(Position.from_json(json.loads(text)).to_json()) == text
    assert json.loads(text) | {"@": None} == {"a": {"0": 3}, "b": {"0": 7}, "@": None}

    first = Position(offsets={A0: 3}, topics={"a": OLD}, query="q", began={A0: 1})
    assert Position.from_json(first.to_json()) == first


def test_a_checkpoint_from_before_ids_were_kept_is_read():
    position = Position.from_json({"a": {"0": 3}})
    assert position == Position(offsets={A0: 3})
    assert position.remade({"a": NEW}) == {}


def test_a_topic_with_another_id_is_another_topic():
    position = Position(offsets={A0: 3, B0: 7}, topics={"a": OLD, "b": OTHER}, query="q")
    remade = position.remade({"a": NEW, "b": OTHER})
    assert remade == {"a": (OLD, NEW)}
    assert position.remade({"b": OTHER}) == {}  # it is gone; that is told otherwise
    assert position.without(remade) == Position(offsets={B0: 7}, topics={"b": OTHER}, query="q")


@pytest.mark.parametrize("told", [{"topics": {"a": "no id"}}, {"topics": 1}, 5])
def test_a_checkpoint_that_somebody_has_edited_is_named(told):
    with pytest.raises(ConfigError, match="checkpoint's offset"):
        Position.from_json({"a": {"0": 3}, "@": told})
