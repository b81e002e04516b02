import sys
from types import SimpleNamespace

import pytest
import typer

from tidelog.faces.cli.common import UserError
from tidelog.faces.cli.group_offsets import _time_ms, confirm


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1700000000000", 1700000000000),
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-01T01:00:01+01:00", 1000),
        ("1969-12-31T23:59:59.999", 0),
        ("9" * 30, 2**63 - 1),
    ],
)
def test_a_time_never_becomes_one_of_kafkas_words_below_zero(text, time_ms):
    assert _time_ms(text) == time_ms


def test_what_would_be_lost_is_shown_before_the_question(capfd, monkeypatch):
    asked = []
    offsets = [{"topic": "or\x1bders", "partition": 3, "offset": 41}]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(typer, "confirm", lambda question, err: asked.append(question))

    with pytest.raises(UserError, match="nothing was deleted"):
        confirm("group 'g'", offsets)

    assert asked == ["Delete group 'g' and lose 1 committed offset?"]
    assert "or\\x1bders-3  41" in capfd.readouterr().err
