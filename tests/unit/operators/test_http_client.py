"""The HTTP client asks for verbs as the table has them."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from tidelog.client.http.admin import BrokersPlans, GroupsPlans
from tidelog.client.http.core import Ask
from tidelog.operators.table import VERBS
from tidelog.operators.verbs import Verb

PLANS: Mapping[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "groups.list": (GroupsPlans, (), {}),
    "groups.describe": (GroupsPlans, ("g",), {}),
    "groups.reset": (GroupsPlans, ("g", "t"), {"to": "latest", "partitions": [1], "dry_run": True}),
    "groups.delete": (GroupsPlans, ("g",), {}),
    "brokers.list": (BrokersPlans, (), {}),
    "brokers.drain": (BrokersPlans, (1,), {"throttle_bytes_per_second": 5, "undo": False}),
    "brokers.stop": (BrokersPlans, (1,), {}),
    "brokers.remove": (BrokersPlans, (1,), {}),
}


class Heard:
    """A core that only notes what it is asked for."""

    change_seconds = 1.0

    def __init__(self) -> None:
        self.asks: list[Ask] = []

    def ask(self, ask: Ask, *_: object) -> Any:
        self.asks.append(ask)
        yield from ()

    pages = whole = ask


def matches(verb: Verb, ask: Ask) -> bool:
    assert verb.http is not None
    path = re.sub(r"{\w+(:\w+)?}", "[^/]+", verb.http.path)
    return verb.http.method == ask.method and re.fullmatch(path, ask.path) is not None


@pytest.mark.parametrize("name", PLANS)
def test_a_method_of_the_client_is_a_row_and_says_only_what_the_row_takes(name):
    plans, arguments, options = PLANS[name]
    core: Any = Heard()

    list(getattr(plans(core), name.partition(".")[2])(*arguments, **options))

    (ask,) = core.asks
    verb, fields = VERBS[name], {one.encode_name for one in msgspec.structs.fields(VERBS[name].asks)}
    assert matches(verb, ask)
    assert set(msgspec.json.decode(ask.body) if ask.body else {}) <= fields
