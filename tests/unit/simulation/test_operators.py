"""Operators of a simulated cluster."""

import random
from dataclasses import replace

import pytest

from tidelog.simulation.operators import VERBS, draw_orders, impossible, verb_of
from tidelog.simulation.plan import Plan
from tidelog.simulation.questions import QUESTIONS, draw_questions

PLAN = Plan(seed=1, nodes=3, chaos_seconds=200.0, faults=())


def test_every_verb_and_every_question_has_its_turn():
    orders = draw_orders(PLAN, random.Random(1))
    questions = draw_questions(PLAN, random.Random(1))

    assert {order.arguments["verb"] for order in orders} == set(map(verb_of, VERBS))
    assert {question.arguments["what"] for question in questions} == set(QUESTIONS)


def test_what_changes_a_topic_is_asked_of_the_operators_own():
    orders = draw_orders(replace(PLAN, story="replicated"), random.Random(2))

    for order in orders:
        method, _, path = order.arguments["verb"].partition(" ")
        if path.startswith(("/v1/topics", "/v1/configs/topics")) and "promote" not in path:
            named = f"{order.arguments['path']} {order.arguments.get('body')}"
            assert method == "GET" or "ops-" in named
            assert method == "GET" or "tide" not in named


@pytest.mark.parametrize(
    "document",
    [
        {"replicas": [1, 9]},
        {"topics": [{"partitions": [{"replicas": [1, 2], "in_sync": [3]}]}]},
        {"replicas": [1, 2], "in_sync": [1], "leader": 3},
    ],
)
def test_an_answer_that_cannot_be_is_seen(document):
    assert impossible(document, frozenset((1, 2, 3))) is not None


def test_an_answer_that_can_be_is_left_alone():
    fine = {"replicas": [1, 2], "in_sync": [2], "leader": None, "topics": [{"replicas": 2}]}

    assert impossible(fine, frozenset((1, 2, 3))) is None
