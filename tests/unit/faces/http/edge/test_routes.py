"""A table of routes, beside what is found by trying all of them in their order."""

import re

import pytest

from tidelog.faces.http.app import all_operations
from tidelog.faces.http.edge.routes import Table
from tidelog.faces.http.sockets import METHOD as WEB_SOCKET

PATTERNS = {"": "[^/]+", "int": "[0-9]+", "path": "(.|\\n)*"}


def regex_of(path: str) -> str:
    return re.sub(r"\{(\w+):?(\w*)\}", lambda found: f"(?P<{found[1]}>{PATTERNS[found[2]]})", path)


def first_of(rows, method, path):
    """What serves it: the first that fits, and what it finds in the path."""
    for known, pattern, name in rows:
        if known == method and (found := re.fullmatch(regex_of(pattern), path)):
            return name, found.groupdict()
    return None


def test_every_operation_is_found_as_if_all_were_tried_in_their_order():
    known = [one for one in all_operations() if one.method != WEB_SOCKET]
    rows = [(one.method, one.path, f"{one.method} {one.path}") for one in known]
    table = Table(rows)

    for one in known:
        for word in ("7", "a\nb", "a:b", "a:watch", "a/b", "a/records", "a/partitions/0/records"):
            path = re.sub(r"\{[^}]*\}", word, one.path)
            found, wanted = table.find(one.method, path), first_of(rows, one.method, path)
            assert (found is None) == (wanted is None)
            if found is not None and wanted is not None:
                assert found[0] == wanted[0]
                assert {name: str(value) for name, value in found[1].items()} == wanted[1]


def test_a_path_says_which_methods_it_takes():
    table = Table([("GET", "/v1/a/{b}", 1), ("PUT", "/v1/a/{b}", 2), ("GET", "/v1/a", 3)])

    assert table.methods("/v1/a/x") == ["GET", "PUT"]
    assert table.methods("/v1/a") == ["GET"]
    assert table.methods("/v1/a/") == table.methods("/") == []


def test_a_number_is_one_and_of_a_length_that_can_be_read():
    table = Table([("GET", "/v1/a/{n:int}", "number")])

    assert table.find("GET", "/v1/a/007") == ("number", {"n": 7})
    for path in ("/v1/a/x", "/v1/a/-1", "/v1/a/" + "9" * 5000, "/v1/a/7/", "/v1/a/\u0661"):
        assert table.find("GET", path) is None


def test_a_row_that_an_earlier_one_hides_is_not_found():
    table = Table([("GET", "/v1/a/{b:path}", "all"), ("GET", "/v1/a/x", "hidden"), ("PUT", "/v1/a/x", "put")])

    assert table.find("GET", "/v1/a/x") == ("all", {"b": "x"})
    assert table.find("PUT", "/v1/a/x") == ("put", {})


def test_no_row_may_have_a_parameter_where_rows_are_sorted_by():
    with pytest.raises(AssertionError):
        Table([("GET", "/v1/{a}", 1)])
