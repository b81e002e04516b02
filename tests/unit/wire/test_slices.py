from typing import Any

import pytest

from tests.unit.wire.test_entities import ANSWERS
from tidelog.wire import slices
from tidelog.wire.apis import APIS, Api
from tidelog.wire.entities import build, encode, response_entity
from tidelog.wire.slices import ITEMS_AT_ONCE, encode_items, response_in_slices

ANSWERED = [(a, v) for a in ANSWERS for v in range(APIS[a].taken_from, APIS[a].most + 1)]


def grown(value: Any, times: int) -> Any:
    """The same message with that many times the items in each list of messages."""
    if isinstance(value, dict):
        return {name: grown(inner, times) for name, inner in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [grown(item, times) for item in value] * times
    return value


def sliced(api: int, version: int, answer: dict[str, Any]) -> tuple[bytes, int]:
    found = response_in_slices(api, version, answer)
    count = 0
    while True:
        try:
            next(found)
        except StopIteration as ended:
            return ended.value, count
        count += 1


@pytest.mark.parametrize(("api", "version"), ANSWERED)
@pytest.mark.parametrize("times", [1, 9, 140])
def test_slices_add_up_to_the_bytes_of_the_whole(api, version, times):
    answer = (
        grown(ANSWERS[api], times)
        if times < 140
        else {
            name: value * times if isinstance(value, list) else value for name, value in ANSWERS[api].items()
        }
    )

    assert sliced(api, version, answer)[0] == encode(response_entity(api, version, answer))


def test_a_slice_builds_no_more_than_a_few_items(monkeypatch):
    """One topic of very many partitions is cut, too; each item is built once."""
    built = []

    def count(entity: Any, fields: Any) -> Any:
        built.append(sum(len(v) for v in fields.values() if isinstance(v, list)))
        return build(entity, fields)

    monkeypatch.setattr(slices, "build", count)
    topic = {"name": "big", "partitions": [{"partition_index": n} for n in range(4000)]}
    small = [{"name": f"t{n}", "partitions": [{}] * 10} for n in range(400)]

    found, turns = sliced(3, 9, {"topics": [topic, *small]})

    assert len(found) > 8000
    assert max(built) <= ITEMS_AT_ONCE
    assert turns >= 8000 // ITEMS_AT_ONCE


@pytest.mark.parametrize("version", range(APIS[Api.METADATA].taken_from, APIS[Api.METADATA].most + 1))
@pytest.mark.parametrize("count", [1, 7, ITEMS_AT_ONCE, 3 * ITEMS_AT_ONCE])
def test_items_that_are_encoded_already_stand_where_they_belong(version, count):
    """Beside others, before and behind them, in two lists, the one within the other."""
    partitions = [{"partition_index": n, "leader_id": n} for n in range(count)]
    parts = [encode_items(3, version, ("topics", "partitions"), partitions[:5]), *partitions[5:]]
    topics = [{"name": f"t{n}", "partitions": partitions} for n in range(count)]
    cut = [
        topics[0],
        encode_items(3, version, ("topics",), topics[1:4]),
        *({"name": topic["name"], "partitions": parts} for topic in topics[4:]),
    ]

    assert sliced(3, version, {"topics": cut})[0] == encode(response_entity(3, version, {"topics": topics}))
