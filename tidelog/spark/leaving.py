"""Leaving a Spark Connect server, also one that is gone.

Rule 1: while its answers are wanted, a server that cannot be reached is asked again for as long as
        Spark's own client would, some ten minutes.
Rule 2: once somebody has asked for an end, or a call was given up, nothing is asked again. A server
        that is gone refuses the next call; one that is silent loses its connections.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc
import pyspark.sql.connect.proto as messages
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql.connect.client.retries import DefaultPolicy, RetryPolicyState

logger = logging.getLogger(__name__)

TRIES_MAX: Final = 300
"""With pauses of at most two seconds: ten minutes, as Spark's fifteen tries with longer ones."""
PAUSE_MS_MAX: Final = 2000
LOOK_SECONDS: Final = 0.5
ANSWER_SECONDS_MAX: Final = 5.0
SILENCES_MAX: Final = 2
"""In a row; then whoever waits for the server waits no longer."""
UNREACHED: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


class WhileWanted(DefaultPolicy):
    """Tries again what found no server, until somebody wants an end."""

    def __init__(self, stop: threading.Event | None) -> None:
        super().__init__(max_retries=TRIES_MAX, max_backoff=PAUSE_MS_MAX)
        self._stop = stop
        self._given_up = threading.Event()
        self.clients: list[Any] = []
        """All connections of the session, and of those that were cloned from it."""

    @property
    def is_ending(self) -> bool:
        return self._given_up.is_set() or (self._stop is not None and self._stop.is_set())

    def end(self) -> None:
        self._given_up.set()

    def govern(self, session: Any) -> None:
        """Have a session try again by this policy."""
        session.client.set_retry_policies([self])
        self.clients.append(session.client)

    def can_retry(self, exception: BaseException) -> bool:
        return not self.is_ending and bool(super().can_retry(exception))

    def to_state(self) -> RetryPolicyState:
        return _State(self)


class _State(RetryPolicyState):
    """The tries of one call; with its last one, all calls are given up."""

    _policy: WhileWanted

    def next_attempt(self, exception: BaseException | None = None) -> int | None:
        pause: int | None = super().next_attempt(exception)
        if pause is None:
            self._policy.end()
        return pause


def is_unreached(error: BaseException) -> bool:
    """Whether an error, or what it was made of, says that no server answered a call."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, SparkConnectGrpcException) and found.getGrpcStatusCode() in UNREACHED:
            return True
        if isinstance(found, grpc.RpcError) and found.code() in UNREACHED:
            return True
        if isinstance(found, ValueError) and "closed channel" in str(found):
            return True
        found = found.__cause__ or found.__context__
    return False


@contextmanager
def left_soon(session: Any, policy: WhileWanted) -> Iterator[None]:
    """Leave the server behind the work inside, whether it answers or not."""
    has_left = threading.Event()
    watching = threading.Thread(
        target=_watch, args=(session.client, policy, has_left), name="connect-watch", daemon=True
    )
    watching.start()
    try:
        yield
    finally:
        policy.end()
        try:
            session.stop()
        finally:
            has_left.set()
            watching.join()
            for client in policy.clients:
                client.close()


def _watch(client: Any, policy: WhileWanted, has_left: threading.Event) -> None:
    """While the end is waited for, see whether the server still answers; else end the waiting."""
    silences = 0
    while not has_left.wait(LOOK_SECONDS):
        silences = silences + 1 if policy.is_ending and not _answers(client) else 0
        if silences == SILENCES_MAX:
            logger.warning("the Spark Connect server does not answer; it is left without")
            for one in policy.clients:
                one._channel.close()
            return


def _answers(client: Any) -> bool:
    """Whether the server answers at all, and be it with an error."""
    request = messages.ConfigRequest(session_id=client._session_id)
    request.operation.get_option.keys.append("spark.app.name")
    try:
        client._stub.Config(request, metadata=client._builder.metadata(), timeout=ANSWER_SECONDS_MAX)
    except grpc.RpcError as error:
        return error.code() not in UNREACHED
    except Exception:  # it is closed already
        return True
    return True
