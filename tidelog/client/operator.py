"""All that operators ask of a cluster by Kafka's own requests, for a process that goes on asking.

Rule 1: whoever runs for long remembers nothing that may be outdated: topics are looked up for every
        question, coordinators for every transaction.
Rule 2: what any node may answer or decide is asked of the first address: it has acted on a change
        when it says yes, so that what it shows next has it. Only what the active controller alone
        knows is asked there.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from tidelog.client.cluster import ANSWER_SECONDS, TopicInfo, check
from tidelog.client.members import MembersClient
from tidelog.client.transactions import TransactionsClient
from tidelog.client.wire import Connection
from tidelog.model import NodeId
from tidelog.wire.apis import Api

T = TypeVar("T")


class OperatorClient(MembersClient, TransactionsClient):
    """A cluster that can be asked all of it."""

    async def any_connection(self) -> Connection:
        return await self._connect(self._bootstrap[0])

    async def ask_controller(
        self, api: Api, results: Callable[[Any], Iterable[tuple[int, str, str | None]]], **fields: Any
    ) -> Any:
        async def attempt() -> Any:
            connection = await self.any_connection()
            response = await connection.call(
                api,
                timeout=int(self._timeout_seconds * 1000),
                timeout_seconds=self._timeout_seconds + ANSWER_SECONDS,
                **fields,
            )
            for code, what, message in results(response):
                if code == ErrorCode.not_controller:
                    return None
                check(code, what, message)
            return response

        found = await self.retry(attempt)
        return await super().ask_controller(api, results, **fields) if found is None else found

    async def topic(self, name: str, *, create: bool = False) -> TopicInfo:
        """One topic, asked anew."""
        self.forget(name)
        return await super().topic(name, create=create)

    async def topics(self) -> list[TopicInfo]:
        self._topics.clear()  # what was deleted is not in the answer
        return await super().topics()

    async def ask_coordinator(
        self, transactional_id: str, ask: Callable[[NodeId, Connection], Awaitable[T]]
    ) -> T:
        try:
            return await super().ask_coordinator(transactional_id, ask)
        finally:
            self._coordinators.pop(transactional_id, None)
