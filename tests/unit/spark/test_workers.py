"""What is set apart from collections of garbage, and when."""

import gc

import pytest

from tidelog.spark import workers


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    monkeypatch.setattr(workers, "_calls", 0)
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(workers._calls))
    return calls


def test_a_kept_process_is_frozen_once_by_its_second_call(frozen, monkeypatch):
    monkeypatch.setenv(workers.KEPT, "1")

    for _ in range(5):
        workers.called()

    assert frozen == [2]


def test_a_process_of_the_user_is_left_alone(frozen, monkeypatch):
    monkeypatch.delenv(workers.KEPT, raising=False)

    for _ in range(5):
        workers.called()

    assert frozen == []
