"""Principals are values that read and write as Kafka's do."""

import pytest

from tidelog.security.principals import ANONYMOUS, Principal


@pytest.mark.parametrize("text", ["User:alice", "User:CN=a:b,O=c", "User:*"])
def test_a_principal_reads_what_it_writes(text: str) -> None:
    assert str(Principal.parse(text)) == text


@pytest.mark.parametrize("text", ["", "alice", "User:", ":alice", "User:a\nb", "User:" + "x" * 256])
def test_what_is_no_principal_is_refused_with_the_form_of_one(text: str) -> None:
    with pytest.raises(ValueError, match="User:NAME"):
        Principal.parse(text)


def test_who_has_proved_nothing_has_kafkas_name() -> None:
    assert str(ANONYMOUS) == "User:ANONYMOUS"
