"""Somebody who is away is waited for; somebody who asks to stop is not made to wait."""

import pickle
import threading

import pytest
from botocore.exceptions import EndpointConnectionError
from pyiceberg.exceptions import CommitFailedException, ServiceUnavailableError

from tidelog.spark.tables.waiting import Away, Patience, StoppedWaiting, is_away, told_as_away


def failing(times: int, error: Exception) -> "list[Exception]":
    return [error] * times


def test_work_is_repeated_until_it_can_be_done_and_what_is_waited_for_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    errors = failing(3, ConnectionRefusedError("refused"))

    def work() -> int:
        if errors:
            raise errors.pop()
        return 7

    assert Patience(first_seconds=0.001).until_there("the catalog", work) == 7
    assert caplog.text.count("waiting for the catalog, which cannot be reached") == 3


def test_a_stop_ends_the_wait() -> None:
    stop = threading.Event()

    def work() -> None:
        stop.set()
        raise ServiceUnavailableError("503")

    with pytest.raises(StoppedWaiting, match="stopped while the store could not be reached"):
        Patience(stop=stop, first_seconds=60).until_there("the store", work)


@pytest.mark.parametrize("error", [FileNotFoundError("x"), CommitFailedException("x"), ValueError()])
def test_what_is_wrong_is_not_waited_for(error: Exception) -> None:
    def work() -> None:
        raise error

    with pytest.raises(type(error)):
        Patience(first_seconds=60).until_there("the store", work)


def test_who_is_away_for_too_long_is_given_up() -> None:
    def work() -> None:
        raise ConnectionResetError("reset")

    with pytest.raises(ConnectionResetError):
        Patience(first_seconds=0.001, seconds_max=0.01).until_there("the store", work)


def test_an_error_of_any_library_is_told_as_one_of_ours() -> None:
    with pytest.raises(Away, match="the catalog cannot be reached: 503"), told_as_away("the catalog"):
        raise ServiceUnavailableError("503\nand more")
    assert is_away(Away("x"))
    with pytest.raises(ValueError, match="wrong"), told_as_away("the catalog"):
        raise ValueError("wrong")


def test_patience_travels_to_a_server_that_runs_batches_itself() -> None:
    sent = Patience(first_seconds=0.5, seconds_max=7.0)

    arrived = pickle.loads(pickle.dumps(sent))

    assert (arrived.first_seconds, arrived.seconds_max) == (0.5, 7.0)
    assert not arrived.stop.is_set()


class AwsError(Exception):
    """As botocore tells what a service has answered."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}


def test_a_service_of_aws_that_cannot_be_reached_or_is_overloaded_is_away() -> None:
    assert is_away(EndpointConnectionError(endpoint_url="http://127.0.0.1:1"))
    assert is_away(AwsError(503, "ServiceUnavailable"))
    assert is_away(AwsError(400, "ThrottlingException"))
    assert not is_away(AwsError(400, "EntityNotFoundException"))
    assert not is_away(AwsError(403, "AccessDeniedException"))
