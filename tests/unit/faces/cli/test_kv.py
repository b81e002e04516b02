import json
from collections.abc import Iterator
from functools import partial
from urllib.parse import unquote

import httpx
import pytest

from tests.unit.client.fake_broker import in_thread
from tests.unit.client.http.fleet import Chunks, ok, problem
from tidelog.client import Client

COMMANDS = ["buckets", "create", "put", "get", "delete", "list", "watch", "drop"]
HTTP = "node:8080"


class KvNode:
    """A node with one bucket, `b`; and faults on demand."""

    def __init__(self) -> None:
        self.entries: dict[str, dict] = {}
        self.version = 0
        self.asked: list[httpx.Request] = []
        self.is_down = False
        self.problem: httpx.Response | None = None
        self.stream: httpx.SyncByteStream = Chunks()

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        if self.is_down:
            raise httpx.ConnectError("connection refused")
        if self.problem is not None:
            return self.problem
        path = request.url.raw_path.decode().partition("?")[0].removeprefix("/v1/kv")
        if path == "":
            return ok({"buckets": [{"name": "b", "partitions": 3}], "next": None})
        bucket, _, key = path.removeprefix("/").partition("/")
        if bucket == "b:watch":
            return httpx.Response(200, stream=self.stream)
        if bucket != "b":
            return problem(404, f"there is no topic or partition {bucket}", code=3)
        return self._key(request, unquote(key)) if key else self._bucket(request)

    def _bucket(self, request: httpx.Request) -> httpx.Response:
        if request.method != "GET":
            return ok({"name": "b", "partitions": 1})
        prefix = request.url.params.get("prefix", "")
        found = [one for key, one in sorted(self.entries.items()) if key.startswith(prefix)]
        return ok({"entries": found[: int(request.url.params["limit"])], "next": None})

    def _key(self, request: httpx.Request, key: str) -> httpx.Response:
        found = self.entries.get(key)
        if request.method == "GET":
            return ok(found) if found else problem(404, f"no key {key}", token="0:0")
        body = json.loads(request.content or b"{}")
        wanted = body.get("if_version", request.url.params.get("if_version"))
        version = found["version"] if found else None
        if wanted is not None and int(wanted) != (-1 if version is None else version):
            return problem(409, "it is another", version=version)
        if request.method == "DELETE":
            self.entries.pop(key, None)
            return ok({"key": key, "deleted": found is not None, "version": None, "token": "0:0"})
        self.version += 1
        entry = {"key": key, "value": body["value"], "version": self.version}
        if "ttl_ms" in body:
            entry["expires_at_ms"] = body["ttl_ms"]
        self.entries[key] = entry
        return ok(entry)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> KvNode:
    node = KvNode()
    client = partial(Client, transport=httpx.MockTransport(node.answer), sleep=lambda _: None)
    monkeypatch.setattr("tidelog.client.Client", client, raising=False)
    monkeypatch.setenv("TIDELOG_HTTP_BOOTSTRAP", HTTP)
    return node


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_examples(tidelog, command):
    result = tidelog("kv", command, "--help")

    assert result.code == 0
    assert "Examples:" in result.out and f"tidelog kv {command}" in result.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["put", "b", "k"], "VALUE"),
        (["put", "b", "", "1"], "KEY"),
        (["get", "", "k"], "BUCKET"),
        (["put", "b", "k", "1", "--ttl", "soon"], "--ttl"),
        (["put", "b", "k", "1", "--ttl", "0s"], "--ttl"),
        (["put", "b", "k", "1", "--if-absent", "--if-version", "3"], "keep one"),
        (["create", "b", "--config", "x"], "KEY=VALUE"),
        (["put", "b", "k", '{"dark": tru'], "looks like JSON but does not parse"),
        (["put", "b", "k", "[1, 2"], "--text"),
        (["drop", "b"], "--yes"),
        (["get", "b", "k", "--http", "nowhere:port"], "HOST:PORT"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_asks_nobody(tidelog, node, arguments, expected):
    result = tidelog("kv", *arguments)

    assert result.code in (1, 2)
    assert result.err.count("\n") == 1 and expected in result.err
    assert result.out == "" and node.asked == []


# Values.


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ('{"dark": true}', {"dark": True}),
        ("5", 5),
        ("null", None),
        ("hello", "hello"),
        ('"5"', "5"),
        ("NaN", "NaN"),
        ("", ""),
    ],
)
def test_a_value_is_json_if_it_reads_as_that_and_text_otherwise(tidelog, node, value, stored):
    result = tidelog("kv", "put", "b", "k", value)

    assert (result.code, result.out, result.err) == (0, "k written, version 1\n", "")
    assert node.entries["k"]["value"] == stored


def test_a_value_may_be_text_though_it_reads_as_json(tidelog, node):
    tidelog("kv", "put", "b", "k", "5", "--text")

    assert node.entries["k"]["value"] == "5"


def test_a_value_may_come_from_standard_input(tidelog, node):
    tidelog("kv", "put", "b", "k", "-", stdin=b'{"a":\n1}')

    assert node.entries["k"]["value"] == {"a": 1}


def test_standard_input_that_is_no_text_is_refused(tidelog, node):
    result = tidelog("kv", "put", "b", "k", "-", stdin=b"\xff")

    assert result.code == 1 and "UTF-8" in result.err and node.asked == []


@pytest.mark.parametrize(
    ("value", "printed"), [({"a": "ü"}, '{"a": "ü"}'), ("two\nlines", "two\nlines"), (5, "5")]
)
def test_a_text_is_printed_as_it_is_and_the_rest_as_json(tidelog, node, value, printed):
    node.entries["k"] = {"key": "k", "value": value, "version": 4}

    assert tidelog("kv", "get", "b", "k").out == printed + "\n"
    assert json.loads(tidelog("kv", "get", "b", "k", "--json").out) == node.entries["k"]


def test_bytes_are_written_as_they_are_or_as_base64(tidelog, node):
    node.entries["k"] = {"key": "k", "value": "aGkK", "version": 4, "encoding": "base64"}

    assert tidelog("kv", "get", "b", "k").out == "hi\n\n"
    assert json.loads(tidelog("kv", "get", "b", "k", "--json").out)["value"] == "aGkK"


def test_a_time_to_live_is_passed_on(tidelog, node):
    result = tidelog("kv", "put", "b", "k", "1", "--ttl", "10s", "--json")

    assert json.loads(result.out) == {"key": "k", "value": 1, "version": 1}
    assert node.entries["k"]["expires_at_ms"] == 10_000


def test_a_write_may_ask_for_replicas(tidelog, node):
    tidelog("kv", "put", "b", "k", "1", "--min-replicas-ack", "2")

    assert node.asked[0].url.params["min_replicas_ack"] == "2"
    assert node.asked[0].headers["idempotency-key"]


# Conditions.


def test_a_condition_that_holds_is_no_matter(tidelog, node):
    assert tidelog("kv", "put", "b", "k", "1", "--if-absent").code == 0
    assert tidelog("kv", "put", "b", "k", "2", "--if-version", "1").code == 0
    assert tidelog("kv", "delete", "b", "k", "--if-version", "2").out == "k deleted\n"


@pytest.mark.parametrize("condition", [["--if-absent"], ["--if-version", "7"]], ids=" ".join)
def test_a_condition_that_does_not_hold_tells_the_version(tidelog, node, condition):
    tidelog("kv", "put", "b", "k", "1")

    result = tidelog("kv", "put", "b", "k", "2", *condition)

    assert result.code == 1 and result.out == ""
    assert "key 'k' of 'b' is at version 1" in result.err and result.err.count("\n") == 1
    assert node.entries["k"]["value"] == 1


# Keys and buckets.


def test_a_key_that_is_not_there_is_an_error_of_get_and_none_of_delete(tidelog, node):
    missing = tidelog("kv", "get", "b", "k")
    deleted = tidelog("kv", "delete", "b", "k", "--json")

    assert missing.code == 1 and "tidelog kv list b" in missing.err
    assert (deleted.code, json.loads(deleted.out)) == (0, {"key": "k", "deleted": False})


def test_a_local_read_is_asked_for(tidelog, node):
    tidelog("kv", "get", "b", "k", "--local")

    assert node.asked[0].url.params["consistency"] == "local"


def test_keys_are_listed(tidelog, node):
    for key in ("a/1", "a/2", "b"):
        tidelog("kv", "put", "b", key, "x" * 200)

    assert tidelog("kv", "list", "b", "--prefix", "a/", "--keys-only").out == "a/1\na/2\n"
    table = tidelog("kv", "list", "b").out
    assert "a/1" in table and "xxx" in table and "x" * 101 not in table
    document = json.loads(tidelog("kv", "list", "b", "--limit", "1", "--json").out)
    assert document == {"entries": [{"key": "a/1", "value": "x" * 200, "version": 1}]}


def test_an_empty_bucket_is_said_to_be(tidelog, node):
    result = tidelog("kv", "list", "b", "--prefix", "a")

    assert (result.code, result.out) == (0, "") and "no keys" in result.err
    assert json.loads(tidelog("kv", "list", "b", "--json").out) == {"entries": []}


def test_buckets_are_listed_made_and_dropped(tidelog, node):
    assert json.loads(tidelog("kv", "buckets", "--json").out)["buckets"][0]["name"] == "b"
    assert "b" in tidelog("kv", "buckets").out
    assert tidelog("kv", "create", "b", "--partitions", "1", "--config", "a=1").code == 0
    assert json.loads(node.asked[-1].content) == {"partitions": 1, "config": {"a": "1"}}
    assert tidelog("kv", "drop", "b", "--yes").out == "b deleted\n"


@pytest.mark.parametrize(
    "arguments", [["get", "x", "k"], ["put", "x", "k", "1"], ["list", "x"], ["drop", "x", "-y"]]
)
def test_a_bucket_that_is_not_there_is_named_with_what_to_do(tidelog, node, arguments):
    result = tidelog("kv", *arguments)

    assert result.code == 1 and result.err.count("\n") == 1
    assert "no bucket 'x'" in result.err and "tidelog kv " in result.err


# Watching.


def change(version: int, value: str) -> bytes:
    document = f'{{"key": "k", "value": {value}, "version": {version}}}'
    return f"id: c{version}\ndata: {document}\n\n".encode()


def test_changes_are_printed_as_they_come(tidelog, node):
    node.stream = Chunks(change(1, '{"a": 1}'), change(2, '"text"'), change(3, 'null,"deleted":true'))

    result = tidelog("kv", "watch", "b", "--prefix", "k", "--from", "start", "--max", "3")

    assert result.out == '1\tk\t{"a": 1}\n2\tk\ttext\n3\tk\t(deleted)\n'
    assert dict(node.asked[0].url.params) == {"prefix": "k", "from": "start"}


def test_changes_are_documents_for_programs(tidelog, node):
    node.stream = Chunks(change(1, "5"))

    result = tidelog("kv", "watch", "b", "--max", "1", "--json")

    assert json.loads(result.out) == {"key": "k", "value": 5, "version": 1, "deleted": False, "cursor": "c1"}


def test_ctrl_c_ends_a_watch_without_a_word(tidelog, node):
    class Interrupted(httpx.SyncByteStream):
        is_closed = False

        def __iter__(self) -> Iterator[bytes]:
            yield change(1, "5")
            raise KeyboardInterrupt

        def close(self) -> None:
            self.is_closed = True

    node.stream = stream = Interrupted()

    result = tidelog("kv", "watch", "b")

    assert (result.code, result.out, result.err) == (130, "1\tk\t5\n", "")
    assert stream.is_closed


# Faults.


@pytest.mark.parametrize(
    "arguments", [["buckets"], ["get", "b", "k"], ["put", "b", "k", "1"], ["watch", "b"]]
)
def test_without_a_node_the_error_says_where_and_what_to_do(tidelog, arguments):
    with in_thread() as gone:
        address = gone.address

    result = tidelog("kv", *arguments, "--http", address)

    assert (result.code, result.out) == (1, "")
    assert result.err.count("\n") == 1
    assert address in result.err and "tidelog start" in result.err


def test_what_a_node_says_is_passed_on(tidelog, node):
    node.problem = problem(400, "a key has 1 to 4096 bytes; this has 5000")

    result = tidelog("kv", "get", "b", "k" * 5000)

    assert result.err == "tidelog: a key has 1 to 4096 bytes; this has 5000\n"


def test_an_unknown_outcome_says_how_to_repeat_the_write(tidelog, node):
    node.problem = problem(504, "not committed in time", outcome="unknown")

    result = tidelog("kv", "put", "b", "k", "1")

    assert result.code == 1
    assert "may have happened" in result.err and "idempotency_key" in result.err
