"""What the shell is offered when somebody presses Tab."""

import pytest

from tidelog.faces.cli import main


def complete(monkeypatch, capfd, line):
    """What completion of `line` prints, as bash asks for it."""
    monkeypatch.setenv("_TIDELOG_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    with pytest.raises(SystemExit):
        main([])
    return capfd.readouterr().out.split()


@pytest.mark.parametrize("command", ["topics describe", "topics delete", "produce", "consume"])
def test_names_of_topics_are_completed(tidelog, broker, monkeypatch, capfd, command):
    tidelog("topics", "create", "orders")
    tidelog("topics", "create", "visits")

    assert complete(monkeypatch, capfd, f"tidelog {command} or") == ["orders"]


def test_no_topic_is_offered_for_one_that_is_to_be_created(tidelog, broker, monkeypatch, capfd):
    tidelog("topics", "create", "orders")

    assert complete(monkeypatch, capfd, "tidelog topics create or") == []


def test_nothing_is_offered_where_no_cluster_answers(monkeypatch, capfd):
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", "127.0.0.1:1")

    assert complete(monkeypatch, capfd, "tidelog consume or") == []
