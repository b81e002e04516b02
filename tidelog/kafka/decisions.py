"""One decision over many producers, what was decided last or by all, and forgetting it.

Rule: nothing here decides; a request becomes an event, and a result an answer.
"""

from typing import Any, cast

from tidelog.broker.broker import Broker
from tidelog.coordinators.transactions import TransactionCoordinator
from tidelog.errors import BrokerError, InvalidRequest
from tidelog.kafka.context import Request
from tidelog.model import NO_TIMESTAMP
from tidelog.security.permissions import Kind
from tidelog.txn.events import CommitGroup, Decided, ForgetDecision, GroupMember
from tidelog.wire.batches_decided import NO_BATCH, Counting
from tidelog.wire.own import NO_COUNTING


class DecisionApis:
    """The handlers, bound to this node's coordinator of transactions."""

    def __init__(self, transactions: TransactionCoordinator) -> None:
        self._transactions = transactions

    async def commit_group(self, broker: Broker, request: Any, context: Request) -> dict[str, Any]:
        members = tuple(
            GroupMember(member.transactional_id, member.producer_id, member.producer_epoch)
            for member in request.members
        )
        try:
            _require(context, request.group, *(one.transactional_id for one in members))
            counting = _counting(request.counting)
            decided = cast(
                Decided,
                await self._transactions.ask(
                    request.group,
                    lambda shard, reply, at: shard.commit_group(
                        CommitGroup(
                            reply=reply,
                            group=request.group,
                            batch_id=request.batch_id,
                            after=request.after,
                            counting=counting,
                            members=members,
                            proof=getattr(request, "proof", None),
                        ),
                        at,
                    ),
                ),
            )
        except BrokerError as error:
            return {"error_code": error.code, "error_message": str(error), "batch_id": NO_BATCH}
        return {"batch_id": decided.batch_id, "is_new": decided.is_new, "proof": decided.proof}

    def read_decision(self, broker: Broker, request: Any, context: Request) -> dict[str, Any]:
        context.require(Kind.TRANSACTIONAL_ID, request.group)
        decision = self._transactions.driver(request.group).shard.decision(request.group)
        if decision is None:
            return {"batch_id": NO_BATCH, "decided_ms": NO_TIMESTAMP}
        return {"batch_id": decision.batch_id, "decided_ms": decision.decided_ms, "proof": decision.proof}

    def list_decisions(self, broker: Broker, request: Any, context: Request) -> dict[str, Any]:
        return {
            "decisions": [
                {
                    "group": group,
                    "batch_id": one.batch_id,
                    "decided_ms": one.decided_ms,
                    "members": one.members,
                    "after": one.after,
                    "proof": one.proof,
                    "counting": NO_COUNTING if one.counting is None else one.counting.value,
                }
                for driver in self._transactions.drivers()
                for group, one in driver.shard.decisions().items()
                if context.may(Kind.TRANSACTIONAL_ID, group)
            ]
        }

    async def forget_decision(self, broker: Broker, request: Any, context: Request) -> dict[str, Any]:
        _require(context, request.group)
        await self._transactions.ask(
            request.group,
            lambda shard, reply, at: shard.forget(
                ForgetDecision(
                    reply=reply,
                    group=request.group,
                    batch_id=request.batch_id,
                    is_reset=getattr(request, "is_reset", False),
                ),
                at,
            ),
        )
        return {}


def _require(context: Request, *names: str) -> None:
    """Let those decide who act for the cluster, or may end each transaction and name the group."""
    if not context.may(Kind.CLUSTER):
        for name in names:
            context.require(Kind.TRANSACTIONAL_ID, name)


def _counting(number: int) -> Counting:
    try:
        return Counting(number)
    except ValueError:
        raise InvalidRequest(f"{number} is no way to count batches") from None
