"""From a frame to its handler, and from the handler's answer to bytes.

Rule 1: every request passes `judge` before its body is looked at; before that, on a listener that
        wants proof, whether its sender has given it. Its handler asks for each resource that it names.
Rule 2: Produce and Fetch have their own codecs and answer when they can; everything else is
        decoded and encoded by kio, and its handler returns or awaits one answer.
Rule 3: what a handler refuses becomes the error in its answer. What it did not expect is logged
        and closes that one connection; others go on.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeAlias

from tidelog.broker.broker import Broker
from tidelog.config import NodeConfig
from tidelog.coordinators.groups import GroupCoordinator
from tidelog.coordinators.transactions import TransactionCoordinator
from tidelog.errors import BrokerError, LeaderNotAvailable, TidelogError, UnsupportedVersion
from tidelog.kafka import acls, admin, configs, offsets, reassignments, sasl, topics, users
from tidelog.kafka import restore_batches as restoring
from tidelog.kafka.context import Client, Reply, Request, judge
from tidelog.kafka.decisions import DecisionApis
from tidelog.kafka.described_topics import DescribedTopics
from tidelog.kafka.fetch import handle_fetch
from tidelog.kafka.fetch_sessions import Sessions
from tidelog.kafka.groups import GroupApis
from tidelog.kafka.produce import handle_produce, handle_repeated
from tidelog.kafka.producer_ids import ProducerIds
from tidelog.kafka.transactional_offsets import TransactionalOffsetApis
from tidelog.kafka.transactions import TransactionApis
from tidelog.security.authorizer import Access
from tidelog.wire.apis import APIS, Api
from tidelog.wire.entities import MessageDamaged, decode_request, encode, response_entity
from tidelog.wire.produce import Repeated
from tidelog.wire.requests import Header
from tidelog.wire.slices import response_in_slices

_log = logging.getLogger(__name__)

Answer: TypeAlias = dict[str, Any]
Handler: TypeAlias = Callable[[Broker, Any, Request], Answer | Awaitable[Answer]]
Perform: TypeAlias = Callable[[str, bytes, Access], Awaitable[bytes]]
"""A verb's answer, given its name, its parameters and what the asker may do; both are JSON."""

TRANSACTION_VERSION: Final = "transaction.version"
"""Kafka's feature: from level 2 on each transaction has an epoch of its own (KIP-890)."""
TRANSACTION_LEVEL: Final = 2


async def _no_verbs(verb: str, asked: bytes, access: Access) -> bytes:
    raise LeaderNotAvailable("this node performs no verbs yet")


def api_versions(broker: Broker, request: Any, context: Request) -> Answer:
    context.client.software = software_of(request)
    return _api_versions()


def software_of(request: Any) -> str:
    """The library that sent an ApiVersions request, and its version; empty before version 3."""
    name = getattr(request, "client_software_name", "")
    return f"{name} {getattr(request, 'client_software_version', '')}".strip()


def _api_versions() -> Answer:
    return {
        "api_keys": [
            {"api_key": api, "min_version": versions.least, "max_version": versions.most}
            for api, versions in APIS.items()
        ],
        "supported_features": [
            {"name": TRANSACTION_VERSION, "min_version": 0, "max_version": TRANSACTION_LEVEL}
        ],
        "finalized_features_epoch": 0,
        "finalized_features": [
            {
                "name": TRANSACTION_VERSION,
                "min_version_level": TRANSACTION_LEVEL,
                "max_version_level": TRANSACTION_LEVEL,
            }
        ],
    }


class Requests:
    """The broker as its connections see it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tasks: set[asyncio.Task[None]] = set()
        self.perform: Perform = _no_verbs
        """Performs an operator's verb; set by whoever has the table of verbs."""
        self.sessions = Sessions(
            broker.config.fetch_sessions_max,
            broker.config.max_incremental_fetch_partitions,
            broker.host.random,
        )
        coordinator = self.coordinator = GroupCoordinator(broker)
        coordinator.start()
        transactions = self.transactions = TransactionCoordinator(broker, coordinator)
        transactions.start()
        self._verification = transactions.verification
        groups = GroupApis(coordinator, transactions)
        txn = self.producers = TransactionApis(transactions, ProducerIds(broker))
        decisions = DecisionApis(transactions)
        txn_offsets = TransactionalOffsetApis(coordinator, transactions.verification.confirm)
        self._handlers: dict[Api, Handler] = {
            Api.API_VERSIONS: api_versions,
            Api.METADATA: partial(topics.metadata, DescribedTopics()),
            Api.DESCRIBE_CLUSTER: topics.describe_cluster,
            Api.CREATE_TOPICS: topics.create_topics,
            Api.DELETE_TOPICS: topics.delete_topics,
            Api.CREATE_PARTITIONS: topics.create_partitions,
            Api.LIST_OFFSETS: offsets.list_offsets,
            Api.OFFSET_FOR_LEADER_EPOCH: offsets.offset_for_leader_epoch,
            Api.DELETE_RECORDS: offsets.delete_records,
            Api.INIT_PRODUCER_ID: txn.init_producer_id,
            Api.ADD_PARTITIONS_TO_TXN: txn.add_partitions_to_txn,
            Api.ADD_OFFSETS_TO_TXN: txn.add_offsets_to_txn,
            Api.END_TXN: txn.end_txn,
            Api.WRITE_TXN_MARKERS: txn.write_txn_markers,
            Api.TXN_OFFSET_COMMIT: txn_offsets.txn_offset_commit,
            Api.COMMIT_GROUP: decisions.commit_group,
            Api.READ_DECISION: decisions.read_decision,
            Api.FORGET_DECISION: decisions.forget_decision,
            Api.LIST_DECISIONS: decisions.list_decisions,
            Api.PERFORM: self._perform,
            Api.RESTORE_BATCHES: restoring.restore_batches,
            Api.LIST_TRANSACTIONS: txn.list_transactions,
            Api.DESCRIBE_TRANSACTIONS: txn.describe_transactions,
            Api.DESCRIBE_ACLS: acls.describe_acls,
            Api.CREATE_ACLS: acls.create_acls,
            Api.DELETE_ACLS: acls.delete_acls,
            Api.DESCRIBE_CONFIGS: configs.describe_configs,
            Api.ALTER_CONFIGS: configs.alter_configs,
            Api.INCREMENTAL_ALTER_CONFIGS: configs.incremental_alter_configs,
            Api.DESCRIBE_LOG_DIRS: admin.describe_log_dirs,
            Api.DESCRIBE_PRODUCERS: admin.describe_producers,
            Api.DESCRIBE_TOPIC_PARTITIONS: admin.describe_topic_partitions,
            Api.DESCRIBE_QUORUM: admin.describe_quorum,
            Api.ADD_RAFT_VOTER: admin.add_raft_voter,
            Api.REMOVE_RAFT_VOTER: admin.remove_raft_voter,
            Api.ELECT_LEADERS: admin.elect_leaders,
            Api.ALTER_PARTITION_REASSIGNMENTS: reassignments.alter_partition_reassignments,
            Api.LIST_PARTITION_REASSIGNMENTS: reassignments.list_partition_reassignments,
            Api.UNREGISTER_BROKER: reassignments.unregister_broker,
            Api.FIND_COORDINATOR: groups.find_coordinator,
            Api.JOIN_GROUP: groups.join_group,
            Api.SYNC_GROUP: groups.sync_group,
            Api.HEARTBEAT: groups.heartbeat,
            Api.LEAVE_GROUP: groups.leave_group,
            Api.OFFSET_COMMIT: groups.offset_commit,
            Api.OFFSET_FETCH: groups.offset_fetch,
            Api.OFFSET_DELETE: groups.offset_delete,
            Api.DESCRIBE_GROUPS: groups.describe_groups,
            Api.LIST_GROUPS: groups.list_groups,
            Api.DELETE_GROUPS: groups.delete_groups,
            Api.SASL_HANDSHAKE: sasl.sasl_handshake,
            Api.SASL_AUTHENTICATE: sasl.sasl_authenticate,
            Api.DESCRIBE_USER_SCRAM_CREDENTIALS: users.describe_user_scram_credentials,
            Api.ALTER_USER_SCRAM_CREDENTIALS: users.alter_user_scram_credentials,
        }
        assert {*self._handlers, Api.PRODUCE, Api.FETCH} == set(APIS), "advertised = handled"

    async def _perform(self, broker: Broker, request: Any, context: Request) -> Answer:
        answer = await self.perform(request.verb, bytes(request.asked), context.access)
        return {"error_message": None, "answer": answer}

    @property
    def config(self) -> NodeConfig:
        return self._broker.config

    def handle(self, frame: bytearray, header: Header, client: Client, reply: Reply) -> Repeated | None:
        """Take one request; `reply` gets its answer, now or later.

        After a Produce, returns what the client will most likely send next: `handle_repeated`
        takes that without decoding it.
        """
        api = header.api
        if api is None:
            self._refuse_version(header, reply)
            return None
        if client.sasl is not None and not client.sasl.admits(api):
            reply.refuse(f"{api.title} before it was proved who asks")
            return None
        try:
            access = judge(client, self._broker.authorizer)
            if api is Api.PRODUCE:
                return handle_produce(self._broker, self._verification, frame, header, access, reply)
            if api is Api.FETCH:
                handle_fetch(self._broker, self.sessions, frame, header, access, reply)
            else:
                self._handle_entity(api, frame, header, client, reply)
        except MessageDamaged as error:
            reply.refuse(str(error))
        except Exception:
            _log.exception("%s from %s failed; its connection is closed", api.title, client.address)
            reply.refuse("an internal error")
        return None

    def handle_repeated(
        self, repeated: Repeated, batch: memoryview, size: int, client: Client, reply: Reply
    ) -> None:
        """Take a Produce of `size` bytes that says nothing new but `batch`."""
        if client.sasl is not None and not client.sasl.admits(Api.PRODUCE):
            reply.refuse("its session is over")
            return
        try:
            access = judge(client, self._broker.authorizer)
            handle_repeated(self._broker, repeated, batch, size, access, reply)
        except Exception:
            _log.exception("Produce from %s failed; its connection is closed", client.address)
            reply.refuse("an internal error")

    def _refuse_version(self, header: Header, reply: Reply) -> None:
        if header.api_key == Api.API_VERSIONS:
            # Clients learn from this which versions they may use; its shape is fixed (KIP-511).
            answer = _api_versions()
            answer["error_code"] = UnsupportedVersion.code
            reply.send((encode(response_entity(Api.API_VERSIONS, 0, answer)),))
        else:
            reply.refuse(f"API {header.api_key} is not known in version {header.version}")

    def _handle_entity(
        self, api: Api, frame: bytearray, header: Header, client: Client, reply: Reply
    ) -> None:
        entity = decode_request(header.api_key, header.version, frame, header.body_at)
        context = Request(api=api, version=header.version, client=client, client_id=header.client_id)
        try:
            answer = self._handlers[api](self._broker, entity, context)
        except BrokerError as error:
            answer = _refusal(error)
        if not inspect.isawaitable(answer):
            self._send(header, answer, reply)
            return
        task = asyncio.get_running_loop().create_task(self._await(answer, header, reply))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _await(self, answer: Awaitable[Answer], header: Header, reply: Reply) -> None:
        try:
            try:
                await self._send_in_turns(header, await answer, reply)
            except BrokerError as error:
                self._send(header, _refusal(error), reply)
        except TidelogError as error:
            reply.refuse(str(error))
        except Exception:
            _log.exception("request %d failed; its connection is closed", header.api_key)
            reply.refuse("an internal error")

    @staticmethod
    async def _send_in_turns(header: Header, answer: Answer, reply: Reply) -> None:
        slices = response_in_slices(header.api_key, header.version, answer)
        while True:
            try:
                next(slices)
            except StopIteration as ended:
                reply.send((ended.value,))
                return
            await asyncio.sleep(0)  # others get their turn

    @staticmethod
    def _send(header: Header, answer: Answer, reply: Reply) -> None:
        reply.send((encode(response_entity(header.api_key, header.version, answer)),))


def _refusal(error: BrokerError) -> Answer:
    """An answer that is nothing but an error; APIs without room for one say nothing else."""
    return {"error_code": error.code, "error_message": str(error)}
