import pytest

from tidelog.model import Endpoint, TopicPartition, topic_name_problem


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9092", "127.0.0.1", 9092),
        (" broker.example:0 ", "broker.example", 0),
        ("[::1]:65535", "::1", 65535),
    ],
)
def test_an_endpoint_is_read_from_host_and_port(text, host, port):
    endpoint = Endpoint.parse(text)

    assert endpoint == Endpoint(host=host, port=port)
    assert Endpoint.parse(str(endpoint)) == endpoint


@pytest.mark.parametrize(
    "text", ["", ":", "host", "host:", ":9092", "host:x", "host:-1", "host:65536", "host:9092:"]
)
def test_what_is_no_endpoint_is_refused_with_the_form_that_was_expected(text):
    with pytest.raises(ValueError, match=r"is not HOST:PORT, for example 127\.0\.0\.1:9092"):
        Endpoint.parse(text)


@pytest.mark.parametrize("text", ["host:²", "::1", "fe80::1:9092"])
def test_what_is_almost_an_endpoint_is_refused_with_the_form_that_was_expected(text):
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        Endpoint.parse(text)


def test_a_missing_port_is_the_default_one_if_there_is_one():
    assert Endpoint.parse("host", default_port=9092) == Endpoint(host="host", port=9092)
    assert Endpoint.parse("host:1", default_port=9092) == Endpoint(host="host", port=1)


@pytest.mark.parametrize("name", ["a", "orders.v2_new-1", "...", "_", "A" * 249])
def test_kafkas_topic_names_are_taken(name):
    assert topic_name_problem(name) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "empty"),
        (".", "called"),
        ("..", "called"),
        ("a" * 250, "at most 249 characters; this one has 250"),
        ("a/b", "only letters"),
        ("a b", "only letters"),
        ("a\0", "only letters"),
        ("ä", "only letters"),
        ("٣", "only letters"),
    ],
)
def test_other_topic_names_are_refused_with_the_reason(name, why):
    problem = topic_name_problem(name)

    assert problem is not None
    assert why in problem


def test_partitions_sort_by_topic_and_number_and_read_as_their_directory():
    partitions = [TopicPartition("b", 0), TopicPartition("a", 10), TopicPartition("a", 9)]

    assert list(map(str, sorted(partitions))) == ["a-9", "a-10", "b-0"]
