import itertools
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import httpx
import pytest

from tests.unit.schemas.double import registry_double
from tidelog.errors import ConfigError
from tidelog.schemas import registry as module
from tidelog.schemas.formats import PartFormat
from tidelog.schemas.problems import RegistryDown, RegistryRefused
from tidelog.schemas.registry import Registry, Schema
from tidelog.schemas.table import SCHEMA_BYTES_MAX

DRIPS, DRIP_SECONDS = 100, 0.02
ORDER = Schema("AVRO", '{"type": "record", "name": "Order", "fields": []}')


@pytest.fixture
def double():
    with registry_double() as made:
        yield made


def test_a_schema_is_registered_found_and_asked_for_once(double):
    registry = Registry(double.url)

    number = registry.register("orders-value", ORDER)

    assert registry.latest("orders-value").id == number
    assert [registry.schema(number) for _ in range(3)] == [ORDER] * 3
    assert double.asked.count(f"GET /schemas/ids/{number}") == 1


def test_a_subject_may_have_any_name(double):
    Registry(double.url).register("a/b c-value", ORDER)
    assert list(double.subjects) == ["a/b c-value"]


def test_what_is_refused_says_what_to_do(double):
    registry = Registry(double.url)
    with pytest.raises(RegistryRefused, match=r"/schemas/ids/7 \(404: Schema not found\); the id"):
        registry.schema(7)
    registry.register("orders-value", ORDER)
    double.incompatible = True
    with pytest.raises(RegistryRefused, match=r"409.*the subject's compatibility"):
        registry.register("orders-value", Schema("AVRO", '"string"'))
    double.user_info = "me:secret"
    with pytest.raises(RegistryRefused, match=r"basic\.auth\.user\.info"):
        registry.latest("orders-value")
    assert Registry(double.url, user_info="me:secret").latest("orders-value").id == 1


def test_a_registry_that_is_down_is_named(double, monkeypatch):
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0)
    with registry_double() as other:
        gone = other.url
    with pytest.raises(RegistryDown, match=f"{gone} cannot be asked for /schemas/ids/1"):
        Registry(gone).schema(1)


def test_an_address_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="must be http:// or https://"):
        Registry("localhost:8081")


def answering(status=200, **answer):
    transport = httpx.MockTransport(lambda _: httpx.Response(status, **answer))
    return Registry("http://me:secret@127.0.0.1:1/", transport=transport)


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (200, {"json": {}}),
        (200, {"json": {"schema": None}}),
        (200, {"json": {"schema": "x", "references": [{}]}}),
        (200, {"json": [1]}),
        (200, {"text": "<html>"}),
        (200, {"text": "[" * 100_000}),
        (302, {"headers": {"Location": "/elsewhere"}}),
        (404, {"json": {"message": 5}}),
        (200, {"content": b" " * (module.ANSWER_BYTES_MAX + 1)}),
    ],
)
def test_what_is_no_answer_of_a_registry_is_refused_without_the_password(status, answer):
    with pytest.raises(RegistryRefused, match=r"127\.0\.0\.1:1 .*/schemas/ids/1") as refused:
        answering(status, **answer).schema(1)
    assert "secret" not in str(refused.value)


def test_an_answer_without_an_id_is_refused():
    with pytest.raises(RegistryRefused):
        answering(json={}).register("orders-value", ORDER)
    with pytest.raises(RegistryRefused):
        answering(json={"schema": "x"}).latest("orders-value")


def test_a_user_in_the_address_is_who_asks_and_is_not_shown(double):
    double.user_info = "me:secret"
    registry = Registry(double.url.replace("//", "//me:secret@"))
    registry.register("orders-value", ORDER)
    assert registry.url == double.url
    for url in ("ftp://me:secret@host", "http://me:secret@host:8o81"):
        with pytest.raises(ConfigError) as refused:
            Registry(url)
        assert "secret" not in str(refused.value)
    form = PartFormat(part="value", url="http://me:secret@host", user_info="me:secret")
    assert "secret" not in repr(form)


def test_all_questions_of_a_request_have_some_seconds_together(monkeypatch):
    asked = []

    def answer(request):
        asked.append(request.extensions["timeout"]["read"])
        return httpx.Response(200, json={"schema": "x"})

    registry = Registry("http://127.0.0.1:1", transport=httpx.MockTransport(answer))
    with module.within(5.0):
        registry.schema(1)
    assert 0 < asked.pop() <= 5.0
    with module.within(0.0), pytest.raises(RegistryDown, match="no time left"):
        registry.schema(2)
    assert asked == [] and registry.knows(1) and not registry.knows(2)


def test_a_process_remembers_a_bounded_number_of_schemas(monkeypatch):
    monkeypatch.setattr(module, "SCHEMAS_MAX", 2)
    registry = answering(json={"schema": "x"})
    for number in (1, 2, 3):
        registry.schema(number)
    assert [registry.knows(number) for number in (1, 2, 3)] == [False, True, True]


def test_an_answer_that_does_not_end_is_none(monkeypatch):
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0)

    class Slow(httpx.SyncByteStream):
        def __iter__(self):
            return itertools.repeat(b" ")

    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=Slow()))
    with pytest.raises(RegistryDown, match=r"no whole answer in 0\.01 s"):
        Registry("http://127.0.0.1:1", transport=transport, timeout_seconds=0.01).schema(1)


@contextmanager
def dripping(start):
    """The address of a registry that sends a beginning at once, and then a byte now and then."""
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor() as pool:

        def drip(connection):
            with connection, suppress(OSError):
                connection.sendall(start)
                for _ in range(DRIPS):
                    connection.sendall(b"x")
                    time.sleep(DRIP_SECONDS)

        def accept():
            with suppress(OSError):
                while True:
                    pool.submit(drip, listening.accept()[0])

        pool.submit(accept)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    "start",
    [b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9;"],
    ids=["headers", "the size of a chunk"],
)
def test_an_answer_that_drips_is_none(monkeypatch, start):
    monkeypatch.setattr(module, "TRIES_MAX", 1)
    with dripping(start) as url, pytest.raises(RegistryDown, match=r"no whole answer in 0\.1 s"):
        Registry(url, timeout_seconds=0.1).schema(1)


@pytest.mark.parametrize(
    "url",
    [
        "http://me:sec/ret@host:8081",
        "http://me:12/secret@host",
        "http://me:12#secret@host",
        "http://me:se?cret@host",
        "http://me:p@secret@ho\nst",
        "me:secret@host:8081",
    ],
)
def test_no_part_of_a_password_is_told(url):
    with pytest.raises(ConfigError) as refused:
        Registry(url)
    assert not any(part in str(refused.value) for part in ("sec", "cret", "me:", "12"))


@pytest.mark.parametrize(
    "answer",
    [
        {"schema": "x", "references": [{"name": ["a"], "subject": "a", "version": 1}]},
        {"schema": "x", "references": [{"name": "a", "subject": {}, "version": 1}]},
        {"schema": "x" * (SCHEMA_BYTES_MAX + 1)},
        {"schema": "x", "id": -1, "version": 1},
        {"schema": "x", "id": 2**32, "version": 1},
        {"schema": "x", "id": 1.5, "version": 1},
    ],
)
def test_an_answer_that_could_not_be_used_is_refused(answer):
    with pytest.raises(RegistryRefused, match="no schema"):
        answering(json={"id": 1, "version": 1, **answer}).latest("orders-value")


def test_a_number_without_end_is_no_version():
    with pytest.raises(RegistryRefused, match="no schema"):
        answering(text='{"schema": "x", "id": 1, "version": 1e999}').latest("orders-value")


def test_what_a_registry_tells_is_cut():
    with pytest.raises(RegistryRefused) as refused:
        answering(400, json={"message": "x" * 10_000}).schema(1)
    assert len(str(refused.value)) < 1000


def test_an_answer_is_never_unpacked():
    """Parts that unpack to nothing would have no end, and a few bytes could become many."""
    asked = []

    def answer(request):
        asked.append(request.headers["Accept-Encoding"])
        empty = itertools.repeat(b"\0\0\0\xff\xff", 100_000)  # blocks of deflate, without data
        return httpx.Response(200, headers={"Content-Encoding": "deflate"}, content=empty)

    registry = Registry("http://127.0.0.1:1", transport=httpx.MockTransport(answer))
    with pytest.raises(RegistryRefused, match="compressed"):
        registry.schema(1)
    assert asked == ["identity"]
