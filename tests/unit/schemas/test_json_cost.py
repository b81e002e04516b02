"""What a check by a JSON Schema costs is known before it is begun, and bounded.

Nobody can stop the validator: what these would not refuse, a test could not survive.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tidelog.schemas import json_cost
from tidelog.schemas.json_cost import FREE, Costs
from tidelog.schemas.json_schema import JsonSchemaCodec
from tidelog.schemas.problems import DoesNotFit, SchemaProblem
from tidelog.schemas.registry import Schema
from tidelog.schemas.table import Reading

LOOKS_AROUND = r"^(?=(a|a)*$)\1b"
"""Takes 2 to the power of n steps for n times `a`."""


def codec(schema: object) -> JsonSchemaCodec:
    return JsonSchemaCodec(Schema("JSON", json.dumps(schema)), None, Reading())


def left_over(levels: int, word: str) -> dict[str, object]:
    made: dict[str, object] = {"type": ["object", "array"]}
    for _ in range(levels):
        made = {"allOf": [made], word: {"type": "integer"}}
    return made


@pytest.mark.parametrize(
    ("word", "value"), [("unevaluatedProperties", {"a": 1, "b": 2}), ("unevaluatedItems", [1, 2])]
)
def test_what_is_left_over_is_counted_as_often_as_the_validator_looks_for_it(
    word: str, value: object
) -> None:
    with pytest.raises(DoesNotFit, match="steps"):
        Costs(left_over(40, word), {}).check(value)
    assert codec(left_over(4, word)).document(json.dumps(value).encode()) == value


def test_parts_for_the_names_of_members_are_counted_for_each_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_cost, "FREE", 100_000)
    parts = [{"not": {"const": f"z{at}"}} for at in range(200)]
    costs = Costs({"propertyNames": {"allOf": parts}}, {})

    costs.check({f"n{at}": None for at in range(10)})
    with pytest.raises(DoesNotFit, match="steps"):
        costs.check({f"n{at}": None for at in range(1000)})


def test_a_pattern_that_looks_around_may_go_back_so_often_and_in_so_many_texts() -> None:
    costs = Costs({"patternProperties": {LOOKS_AROUND: {}}, "items": {"pattern": LOOKS_AROUND}}, {})

    costs.check([str(at) for at in range(1000)])
    with pytest.raises(DoesNotFit, match="steps"):
        costs.check([str(at) for at in range(5000)])
    with pytest.raises(DoesNotFit, match="steps"):
        costs.check({str(at): None for at in range(5000)})
    with pytest.raises(DoesNotFit, match="Max limit for backtracking"):
        codec({"pattern": LOOKS_AROUND}).document(b'"' + b"a" * 10_000 + b'c"')


@pytest.mark.parametrize("text", ["A1" + "a" * 20_000, "a" * 20_000 + "A1"])
def test_a_pattern_that_looks_ahead_reads_long_texts(text: str) -> None:
    made = codec({"pattern": r"^(?=.*[A-Z])(?=.*\d).{8,}$"})

    assert made.document(json.dumps(text).encode()) == text


def test_counting_ends_once_the_count_is_too_large() -> None:
    looked: list[int] = []

    class Members(dict[str, Any]):
        def items(self) -> Any:
            for at in range(100 * FREE):
                looked.append(at)
                yield f"n{at}", {}

    parts: dict[str, Any] = {f"^a{at}$": {} for at in range(2000)}
    with pytest.raises(DoesNotFit, match="steps"):
        Costs({"patternProperties": parts}, {}).check(Members())
    assert len(looked) <= FREE // len(parts) + 1


@pytest.mark.parametrize(
    ("choice", "value"),
    [
        (lambda at: at + 0.5, 9999.5),
        (lambda at: 10**30 + at, 10**30 + 9999),
        (lambda at: [at], [9999]),
        (lambda at: {"a": at}, {"a": 9999}),
    ],
)
def test_choices_that_are_compared_one_after_the_other_are_counted(
    choice: Callable[[int], object], value: object
) -> None:
    made = codec({"items": {"enum": [choice(at) for at in range(10_000)]}})

    made.document(json.dumps([value] * 10).encode())
    with pytest.raises(DoesNotFit, match="steps"):
        made.document(json.dumps([value] * 10_000).encode())


def test_a_large_constant_is_compared_by_each_part_that_has_it() -> None:
    large = {str(at): at for at in range(2000)}
    made = codec({"allOf": [{"const": large} for _ in range(600)]})
    with pytest.raises(DoesNotFit, match="steps"):
        made.document(json.dumps(large).encode())


def test_texts_are_chosen_among_many_for_nothing() -> None:
    names = [f"n{at}" for at in range(10_000)]
    codec({"items": {"enum": [*names, 1, None]}}).document(json.dumps(names * 10).encode())


def test_a_pattern_that_repeats_what_repeats_is_counted_for_each_character() -> None:
    pattern = "^(a{1,100}){1,100}$"
    made = codec({"properties": {"b": {"items": {"pattern": pattern}}}, "patternProperties": {pattern: {}}})

    made.document(json.dumps({"b": ["a" * 100]}).encode())
    for value in ({"b": ["a" * 1000] * 10}, {"a" * at: 0 for at in range(200)}):
        with pytest.raises(DoesNotFit, match="steps"):
            made.document(json.dumps(value).encode())


@pytest.mark.parametrize("pattern", ["^.{1,9000}$", r"^[\s\S]{0,9000}$", "^([a-z]{1,63} ?){1,50}$"])
def test_a_pattern_that_says_how_long_a_text_is_reads_many(pattern: str) -> None:
    texts = ["ab " * 1000 if "?" not in pattern else "ab cd " * 8] * 100
    codec({"items": {"pattern": pattern}}).document(json.dumps(texts).encode())


def test_patterns_that_would_take_much_memory_are_refused_together() -> None:
    once = [{"pattern": f"{at}(a{{1,300}}){{1,300}}"} for at in range(100)]
    codec({"anyOf": once[:10]})
    refused: tuple[dict[str, object], ...] = (
        {"anyOf": once},
        {"patternProperties": {one["pattern"]: {} for one in once}},
        {"pattern": "(aa){" + "9" * 5000 + "}"},
        {"$defs": {str(at): {"pattern": f"^{at}\\p{{L}}{{1,200}}$"} for at in range(120)}},
    )
    for schema in refused:
        with pytest.raises(SchemaProblem, match="patterns have more than 2000000 states"):
            codec(schema)
