"""Signals that ask a pipeline to stop, at whatever moment they come."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tidelog.spark.pipelines.running import FILE_MANAGER, checkpoint_settings, listening

SECONDS_MAX = 5.0


class Stuck(Exception):
    """The main thread did not get on."""


@contextmanager
def no_longer_than(seconds: float) -> Iterator[None]:
    """Stuck if it takes longer, also where the main thread waits for a lock."""

    def give_up(number: int, _: object) -> None:
        raise Stuck

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_asks_for_a_stop(number):
    stop = threading.Event()

    with listening(stop):
        signal.raise_signal(number)
        assert stop.wait(SECONDS_MAX)


def test_a_signal_that_interrupts_a_wait_for_the_stop_is_heard():
    stop = threading.Event()

    with no_longer_than(SECONDS_MAX), listening(stop):
        with stop._cond:  # type: ignore[attr-defined]  # as `wait` has it, first and last
            signal.raise_signal(signal.SIGTERM)
        assert stop.wait(SECONDS_MAX)


def test_a_signal_that_comes_last_is_heard_before_it_is_over():
    stop = threading.Event()

    with listening(stop):
        signal.raise_signal(signal.SIGTERM)

    assert stop.is_set()


def test_a_second_signal_does_not_wait_for_the_stop():
    stop = threading.Event()

    with listening(stop):
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)

    assert stop.is_set()


def test_handlers_and_threads_are_as_before_when_it_is_over():
    before, threads = signal.getsignal(signal.SIGTERM), threading.active_count()

    with listening(threading.Event()):
        assert signal.getsignal(signal.SIGTERM) is not before

    assert signal.getsignal(signal.SIGTERM) is before
    assert threading.active_count() == threads


@pytest.mark.parametrize("location", ["/data/checkpoints", "file:///data/checkpoints"])
def test_checkpoints_of_this_machine_are_written_without_a_process_for_each_file(location, monkeypatch):
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)

    (settings,) = checkpoint_settings(location, {}).items()

    assert settings == ("spark.sql.streaming.checkpointFileManagerClass", FILE_MANAGER)


@pytest.mark.parametrize(
    ("location", "conf"),
    [
        ("s3a://bucket/checkpoints", {}),
        ("hdfs://a:9000/checkpoints", {}),
        ("/on/hdfs/after/all", {"spark.hadoop.fs.defaultFS": "hdfs://a:9000"}),
    ],
)
def test_checkpoints_elsewhere_are_written_as_spark_does(location, conf, monkeypatch):
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)

    assert checkpoint_settings(location, conf) == {}
