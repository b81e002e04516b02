"""A command is run as a user runs it: arguments in, exit code, standard output and error out."""

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.unit.client.fake_broker import FakeBroker, in_thread
from tidelog.faces.cli import main


@dataclass
class Result:
    code: int
    out: str
    err: str


@pytest.fixture
def tidelog(capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run `tidelog ARGUMENTS`; `stdin` is what it reads."""

    def run(*arguments: object, stdin: bytes | None = None) -> Result:
        saved = os.dup(0)
        reading, writing = os.pipe()
        os.dup2(reading, 0)
        os.close(reading)
        feeder = threading.Thread(target=_feed, args=(writing, stdin or b""))
        feeder.start()
        try:
            code = main([str(argument) for argument in arguments])
        finally:
            os.dup2(saved, 0)  # closes the pipe's end, so the feeder ends, too
            os.close(saved)
            feeder.join()
        captured = capfd.readouterr()
        return Result(code, captured.out, captured.err)

    return run


def _feed(descriptor: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except BrokenPipeError:
        pass
    finally:
        os.close(descriptor)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBroker]:
    with in_thread() as broker:
        monkeypatch.setenv("TIDELOG_BOOTSTRAP", broker.address)
        yield broker
