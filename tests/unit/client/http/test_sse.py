import pytest

from tidelog.client.http.sse import Event, EventTooLong, Parser


def parse(*chunks: bytes) -> list[Event]:
    parser = Parser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


def test_an_event_has_its_data_kind_and_id():
    (event,) = parse(b"id: 7\nevent: change\ndata: {}\n\n")

    assert event == Event(data="{}", kind="change", id="7")


def test_lines_of_data_are_one_text():
    (event,) = parse(b"data: a\ndata:b\ndata:  c\ndata\n\n")

    assert event.data == "a\nb\n c\n"
    assert event.kind == "message"


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
def test_a_stream_may_be_cut_anywhere(end):
    stream = end.join([b"\xef\xbb\xbfdata: 1", b"", b": beat", b"id: x", b"data: 2", b"", b""])

    events = [event.data for event in parse(*(stream[at : at + 1] for at in range(len(stream))))]

    assert events == ["1", "2"] == [event.data for event in parse(stream)]


def test_comments_and_unknown_fields_are_passed_over():
    assert parse(b": heartbeat\n\nretry: 5\nwhatever: x\n\n") == []


def test_an_id_counts_without_data_and_stays_for_what_follows():
    parser = Parser()

    assert parser.feed(b"id: 9\n\n") == []
    assert parser.last_id == "9"
    (event,) = parser.feed(b"data: x\n\n")
    assert event.id == "9"


def test_an_id_does_not_count_before_its_event_has_come_whole():
    parser = Parser()

    parser.feed(b"id: 1\ndata: x\n\nid: 2\ndata: y\n")
    assert parser.last_id == "1"
    parser.feed(b"\n")
    assert parser.last_id == "2"


def test_an_event_that_is_not_ended_is_none():
    assert parse(b"data: half") == []


@pytest.mark.parametrize(
    "chunks",
    [[b"data: " + b"x" * 100], [b"data: " + b"x" * 30 + b"\n"] * 5, [b"x" * 30] * 5],
    ids=["a line", "an event", "a line in pieces"],
)
def test_what_has_no_end_is_cut_off(chunks):
    parser = Parser(bytes_max=100)

    with pytest.raises(EventTooLong):
        list(map(parser.feed, chunks))


def test_the_limit_is_for_one_event_and_not_for_the_stream():
    parser = Parser(bytes_max=100)

    assert sum(len(parser.feed(b"data: " + b"x" * 50 + b"\n\n")) for _ in range(10)) == 10
