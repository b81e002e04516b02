"""A real node keeps to the description of its HTTP face, whatever it is asked.

Requests are made up from /openapi.json, good ones and bad ones, always the same. Every answer must
be one that the description has: its status, its content type, its fields. Nothing may be our bug.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.node import NodeProcess
from tidelog.faces.http.api import EVENTS, LINES
from tidelog.faces.http.openapi import description

pytestmark = pytest.mark.slow

SECONDS_MAX = 20.0
GOOD, BAD = 10, 4
"""How many requests of each kind every operation gets."""

LEFT_OUT = {
    "operations_stop_node": "stops the node",
    "brokers_stop": "stops the node",
    "brokers_drain": "the only node would take no new topics",
}
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
KNOWN: dict[str, Any] = {
    "topic": "tide",
    "bucket": "depths",
    "queue": "jobs",
    "room": "quay",
    "group": "crew",
    "key": "one",
    "partition": 0,
    "name": "jobs",
}
"""What is there, for the places of a path: about half of the requests mean it."""

SCHEMA = schemathesis.openapi.from_dict(json.loads(description()))


def is_asked(operation: Any) -> bool:
    raw = operation.definition.raw
    kinds = {kind for one in raw["responses"].values() for kind in one.get("content", {})}
    return raw["operationId"] not in LEFT_OUT and not kinds & {EVENTS, LINES}  # without an end


OPERATIONS = {
    operation.definition.raw["operationId"]: operation
    for found in SCHEMA.get_all_operations()
    if isinstance(found, Ok) and is_asked(operation := found.ok())
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("schema") / "data") as node:
        yield node
        assert node.is_running
        assert " ERROR " not in node.log.read_text()


@pytest.fixture(scope="module")
def session(node: NodeProcess) -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield session


@pytest.fixture
def tide(node: NodeProcess, session: requests.Session) -> None:
    """Makes anew what an operation before may have deleted."""
    base = f"http://{node.http}"
    session.post(f"{base}/v1/topics", json={"name": "tide", "partitions": 2}, timeout=SECONDS_MAX)
    session.put(f"{base}/v1/kv/depths", json={}, timeout=SECONDS_MAX)
    session.put(f"{base}/v1/kv/depths/one", json={"value": 1}, timeout=SECONDS_MAX)
    session.put(f"{base}/v1/queues/jobs", json={}, timeout=SECONDS_MAX)
    session.put(f"{base}/v1/rooms/quay", json={}, timeout=SECONDS_MAX)


def tame(case: Case, is_known: bool) -> None:
    """Let it mean what is there, wait for little, and ask for no ten thousand partitions."""
    for name in case.path_parameters or {}:
        if is_known and name in KNOWN:
            case.path_parameters[name] = KNOWN[name]
    query = case.query
    takes = {one["name"] for one in case.operation.definition.raw["parameters"]}
    for name in ("wait_ms", "sync_timeout_ms"):
        if name in takes and (name not in query or isinstance(query[name], int)):
            query[name] = min(query.get(name, 20), 20)
    if isinstance(case.body, dict):
        for name in ("partitions", "replication"):
            if isinstance(found := case.body.get(name), int) and found > 3:
                case.body[name] = 3


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.usefixtures("tide")
def test_every_answer_is_one_that_the_description_has(node, session, name):
    base = f"http://{node.http}"

    def play(count: int, mode: GenerationMode) -> None:
        @settings(
            max_examples=count,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=OPERATIONS[name].as_strategy(mode), is_known=st.booleans())
        def ask(case: Case, is_known: bool) -> None:
            tame(case, is_known)
            answer = case.call(base_url=base, session=session, timeout=SECONDS_MAX)
            assert answer.status_code in (503, 504) or answer.status_code < 500, case.as_curl_command()
            assert answer.headers["x-request-id"]
            case.validate_response(answer, checks=CHECKS)

        ask()

    play(GOOD, GenerationMode.POSITIVE)
    raw = OPERATIONS[name].definition.raw
    if "requestBody" in raw or any(one["in"] != "path" for one in raw["parameters"]):
        play(BAD, GenerationMode.NEGATIVE)
