"""Requests that few clients send, asked of any node under faults.

Rule 1: each is asked once. It may be refused, or stay without an answer; what is answered must be
        possible.
Rule 2: what changes something concerns only topics, groups, queues and ids whose names begin with
        `OWN`.

| invariant                  | meaning                                                             |
|----------------------------|---------------------------------------------------------------------|
| an answer is possible      | an epoch ends within the log; a time is found within the log; who   |
|                            | describes a partition names its replicas; a record is read as it    |
|                            | was written                                                         |
"""

import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from tidelog.client.kafka import LATEST
from tidelog.client.operator import OperatorClient
from tidelog.client.transactional import TransactionalClient
from tidelog.client.transactions import OpenTransaction
from tidelog.errors import TidelogError
from tidelog.model import TopicPartition
from tidelog.queues.message import MAIN
from tidelog.queues.records import Settings
from tidelog.records import Record, encode_batch
from tidelog.security.scram import ITERATIONS
from tidelog.services.packing import NewRecord
from tidelog.services.queue_work import CreateWork, DeclareWork, DeleteWork, DropWork, MoveWork, QueueWork
from tidelog.services.services import Services
from tidelog.simulation.node_calls import ask_node, raise_error, up_from
from tidelog.simulation.nodes import OWN, bootstrap
from tidelog.simulation.operators import POSSIBLE
from tidelog.simulation.plan import Fault, Plan, moments
from tidelog.simulation.stories import WITH_REPLICAS
from tidelog.simulation.world import World
from tidelog.wire.apis import Api

_SECONDS: Final = 4.0
_TRANSACTION_MS: Final = 1000
_TOPIC: Final = f"{OWN}1"


class _Client(OperatorClient, TransactionalClient):
    """Speaks Kafka's protocol, and asks once."""

    async def retry(self, attempt: Callable[[], Awaitable[Any]]) -> Any:
        return await attempt()


class Asker:
    """Whoever asks one question."""

    def __init__(self, world: World, asked: int, topic: str, seed: str) -> None:
        self.world = world
        self.asked = asked
        self.topic = topic
        """Of the story's clients, if they keep to the same ones."""
        self.random = random.Random(seed)
        self.client = _Client(
            bootstrap(asked), network=world.client("asker").network, timeout_seconds=_SECONDS
        )

    def fail(self, problem: str) -> None:
        self.world.fail(POSSIBLE, f"node {self.asked}: {problem}")

    async def services(self, work: Callable[[Services], Awaitable[Any]]) -> Any:
        """What a node does for its HTTP face."""
        return await ask_node(self.world, self.asked, lambda machine: work(machine.node.services), _SECONDS)


Question: TypeAlias = Callable[[Asker], Awaitable[None]]


# Of a topic of the story's clients: nothing changes.


async def _by_time(asker: Asker) -> None:
    """The first offset since some time lies within the log."""
    clock = asker.world.client("asker").process.clock
    since_ms = clock.wall_ms() - asker.random.randint(0, 20_000)
    found = (await asker.client.list_offsets(asker.topic, {0: since_ms}))[0].offset
    latest = (await asker.client.list_offsets(asker.topic, {0: LATEST}))[0].offset
    if found > latest:
        asker.fail(f"{asker.topic}-0 has {found} since {since_ms}, and ends at {latest}")


async def _epoch_end(asker: Asker) -> None:
    """Every epoch ends within the log."""
    connection = await asker.client.leader(asker.topic, 0)
    epoch = (await asker.client.topic(asker.topic)).partitions[0].epoch
    wanted = asker.random.randint(0, max(epoch, 0))
    response = await connection.call(
        Api.OFFSET_FOR_LEADER_EPOCH,
        replica_id=-1,
        topics=[
            {
                "topic": asker.topic,
                "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": wanted}],
            }
        ],
    )
    answer = response.topics[0].partitions[0]
    if not answer.error_code and answer.leader_epoch > wanted:
        asker.fail(f"{asker.topic}-0 answers of epoch {answer.leader_epoch}, not of {wanted}")


async def _partitions(asker: Asker) -> None:
    connection = await asker.client.any_connection()
    response = await connection.call(
        Api.DESCRIBE_TOPIC_PARTITIONS,
        topics=[{"name": asker.topic}],
        response_partition_limit=10,
        cursor=None,
    )
    for one in response.topics[0].partitions:
        if not set(one.isr_nodes) <= set(one.replica_nodes) <= set(asker.world.machines):
            asker.fail(f"{asker.topic}: {one}")
    moving = await asker.client.list_reassignments()
    for name, move in moving.items():
        if not {*move.adding, *move.removing} <= {*move.replicas}:
            asker.fail(f"{name}: {move}")


async def _log_dirs(asker: Asker) -> None:
    connection = await asker.client.any_connection()
    response = await connection.call(Api.DESCRIBE_LOG_DIRS, topics=None)
    for one in response.results:
        for topic in one.topics:
            for partition in topic.partitions:
                if partition.partition_size < 0:
                    asker.fail(f"{topic.name}: {partition}")


async def _producers(asker: Asker) -> None:
    await asker.client.open_transactions([TopicPartition(asker.topic, 0)])


async def _replica_read(asker: Asker) -> None:
    place = TopicPartition(asker.topic, 0)
    follower = asker.random.choice(list(asker.world.machines))
    await asker.services(lambda services: services.replica_reads.read(place, follower, 0))


async def _presence(asker: Asker) -> None:
    """Somebody speaks to whoever listens at any node; nobody does."""
    heard = await asker.services(lambda services: services.pubsub.publish(_TOPIC, b"tide"))
    if heard:
        asker.fail(f"{heard} have heard, and nobody listens")


# Of what only operators use.


async def _records(asker: Asker) -> None:
    """A record that was written is read as it was."""
    value = b"%d" % asker.random.randrange(1 << 30)
    (placed,) = await asker.services(
        lambda services: services.records.produce(
            _TOPIC, [NewRecord(value, partition=0)], seconds_max=_SECONDS
        )
    )
    found = await asker.services(lambda services: services.records.read(_TOPIC, 0, offset=placed.offset))
    records, _ = found.unpack(1, 1000)
    written = [one.value for one in records if one.offset == placed.offset]
    if written not in ([], [value]):  # a topic that was made anew may have nothing there
        asker.fail(f"{_TOPIC}-0 has {written} at {placed.offset}, where {value!r} was written")


async def _old_configs(asker: Asker) -> None:
    connection = await asker.client.any_connection()
    await connection.call(
        Api.ALTER_CONFIGS,
        validate_only=False,
        resources=[
            {
                "resource_type": 2,
                "resource_name": _TOPIC,
                "configs": [{"name": "retention.ms", "value": "3600000"}],
            }
        ],
    )


async def _commit(asker: Asker) -> None:
    await asker.client.commit_offsets(_TOPIC, {TopicPartition(_TOPIC, 0): 0})


async def _delete_offsets(asker: Asker) -> None:
    await _commit(asker)
    await asker.client.delete_offsets(_TOPIC, [TopicPartition(_TOPIC, 0)])


async def _delete_group(asker: Asker) -> None:
    await _commit(asker)
    await asker.client.delete_group(_TOPIC)


async def _leave(asker: Asker) -> None:
    """Whoever leaves was never there."""
    await asker.client.ask_group_coordinator(_TOPIC, _leave_group)


async def _leave_group(connection: Any) -> None:
    await connection.call(
        Api.LEAVE_GROUP,
        group_id=_TOPIC,
        member_id="nobody",
        members=[{"member_id": "nobody", "group_instance_id": None, "reason": None}],
    )


async def _transaction(asker: Asker) -> None:
    """A transaction is left open, for an operator or its timeout to end it."""
    producer = await asker.client.begin(_TOPIC, timeout_ms=_TRANSACTION_MS)
    await producer.write(_TOPIC, 0, [Record(value=b"open")])


async def _orphan(asker: Asker) -> None:
    """A marker for a producer of which nobody has heard."""
    await asker.client.abort_orphan(
        OpenTransaction(
            place=TopicPartition(_TOPIC, 0),
            producer_id=1_000_000_007,
            producer_epoch=0,
            first_offset=0,
            last_timestamp_ms=0,
            coordinator_epoch=0,
        )
    )


async def _unregister(asker: Asker) -> None:
    """A broker that is not there is forgotten."""
    await asker.client.unregister_broker(max(asker.world.machines) + 1)


async def _groups(asker: Asker) -> None:
    """Who consumes, as Kafka's own tools ask for it."""
    for group in await asker.client.list_groups():
        await asker.client.describe_group(group.group)


async def _transactions(asker: Asker) -> None:
    """What is open, likewise."""
    for one in await asker.client.list_transactions(()):
        await asker.client.describe_transaction(one.transactional_id)


async def _forget_decision(asker: Asker) -> None:
    await asker.client.list_decisions()
    await asker.client.forget_decision(_TOPIC, 0)


async def _restore(asker: Asker) -> None:
    """A batch of a backup goes to the end of a log, and nowhere else."""
    connection = await asker.client.leader(_TOPIC, 0)
    topic = await asker.client.topic(_TOPIC)
    end = (await asker.client.list_offsets(_TOPIC, {0: LATEST}))[0].offset
    batch = encode_batch([Record(value=b"restored")], base_offset=end)
    response = await connection.call(
        Api.RESTORE_BATCHES, topic_id=topic.id, partition=0, timeout=2000, records=bytes(batch)
    )
    if not response.error_code and response.log_end <= end:
        asker.fail(f"{_TOPIC}-0 ends at {response.log_end} after a batch at {end}")


async def _users(asker: Asker) -> None:
    """A user is there with the passwords that it was given; no listener here asks for a proof."""
    connection = await asker.client.any_connection()
    named = {"name": OWN, "mechanism": asker.random.choice((1, 2))}
    given = {"iterations": ITERATIONS, "salt": bytes(16), "salted_password": asker.random.randbytes(32)}
    wanted = {"deletions": [named]} if asker.random.random() < 0.3 else {"upsertions": [named | given]}
    await connection.call(Api.ALTER_USER_SCRAM_CREDENTIALS, **wanted)
    found = await connection.call(Api.DESCRIBE_USER_SCRAM_CREDENTIALS, users=[{"name": OWN}])
    kept = [(one.mechanism, one.iterations) for user in found.results for one in user.credential_infos]
    if len(kept) != len(dict(kept)) or any(iterations != ITERATIONS for _, iterations in kept):
        asker.fail(f"a user has other passwords than it was given: {found}")
    shaken = await connection.call(Api.SASL_HANDSHAKE, mechanism="SCRAM-SHA-256")
    proved = await connection.call(Api.SASL_AUTHENTICATE, auth_bytes=b"n,,n=somebody,r=nonce")
    if not (shaken.error_code and proved.error_code):
        asker.fail(f"a proof was taken where none is asked for: {shaken}, {proved}")


async def _permissions(asker: Asker) -> None:
    """What is allowed there is, until it is not; the authorizer is off, so nobody minds."""
    connection = await asker.client.any_connection()
    named = {"resource_type": 2, "resource_name": _TOPIC, "resource_pattern_type": 3}
    who = {"principal": f"User:{OWN}", "host": "*", "operation": 3, "permission_type": 3}
    made = (await connection.call(Api.CREATE_ACLS, creations=[named | who])).results[0]
    wanted: dict[str, Any] = {  # exactly that: operators' orders allow other operations there
        "resource_type_filter": 2,
        "resource_name_filter": _TOPIC,
        "pattern_type_filter": 3,
        "principal_filter": f"User:{OWN}",
        "host_filter": "*",
        "operation": 3,
        "permission_type": 3,
    }
    found = await connection.call(Api.DESCRIBE_ACLS, **wanted)
    if len([acl for one in found.resources for acl in one.acls]) > 1:
        asker.fail(f"what was allowed once is there more than once: {found}")
    gone = (await connection.call(Api.DELETE_ACLS, filters=[wanted])).filter_results[0]
    if not (made.error_code or gone.error_code) and len(gone.matching_acls) > 1:
        asker.fail(f"what was allowed once was there more than once: {gone}")


def _queue(work: Callable[[Asker], QueueWork]) -> Question:
    async def ask(asker: Asker) -> None:
        async def do(services: Services) -> Any:
            queues = services.queues
            return await queues.have_done(await queues.place_of(_TOPIC), work(asker), seconds=_SECONDS)

        await asker.services(do)

    return ask


async def _delete_pointers(asker: Asker) -> None:
    """Make a queue with pointers, and delete it."""

    async def do(services: Services) -> None:
        queues = services.queues
        place = await queues.place_of(_TOPIC)
        made = await queues.have_done(place, CreateWork(), seconds=_SECONDS)
        assert made.number is not None, "a queue that was made has an id"
        await queues.have_done(place, DeleteWork(queue_id=made.number), seconds=_SECONDS)

    await asker.services(do)


async def _forget_waiter(asker: Asker) -> None:
    async def do(services: Services) -> None:
        await services.queues.forget(await services.queues.place_of(_TOPIC), "nobody")

    await asker.services(do)


QUESTIONS: Final[Mapping[str, Question]] = {
    "offset by time": _by_time,
    "end of an epoch": _epoch_end,
    "partitions": _partitions,
    "log directories": _log_dirs,
    "producers": _producers,
    "read for a replica": _replica_read,
    "presence": _presence,
    "records": _records,
    "configs, all at once": _old_configs,
    "commit": _commit,
    "delete offsets": _delete_offsets,
    "delete a group": _delete_group,
    "leave": _leave,
    "transaction": _transaction,
    "orphan": _orphan,
    "unregister a broker": _unregister,
    "groups": _groups,
    "transactions": _transactions,
    "forget decisions": _forget_decision,
    "permissions": _permissions,
    "users": _users,
    "restore": _restore,
    "declare a queue": _queue(lambda asker: DeclareWork(name=_TOPIC, settings=Settings())),
    "drop a queue": _queue(lambda asker: DropWork(name=_TOPIC)),
    "purge a queue": _queue(lambda asker: MoveWork(name=_TOPIC, lane=MAIN, count_max=10, purges=True)),
    "delete a queue with pointers": _delete_pointers,
    "forget a waiter": _forget_waiter,
}


def draw_questions(plan: Plan, choose: random.Random) -> list[Fault]:
    """Every question, in turns, each turn in another order."""
    rate = choose.choice((1.0, 2.0, 4.0))  # per simulated second
    has_topics = plan.story in WITH_REPLICAS
    turn: list[str] = []
    drawn = []
    for number, at in enumerate(moments(choose, rate, plan.chaos_seconds)):
        turn = turn or choose.sample(list(QUESTIONS), len(QUESTIONS))
        question = {
            "asked": choose.randint(1, plan.nodes),
            "what": turn.pop(),
            "topic": f"tide-{choose.randrange(plan.pace.topics)}" if has_topics else _TOPIC,
            "number": number,
        }
        drawn.append(Fault(at, "question", question))
    return drawn


def question(world: World, asked: int, what: str, topic: str, number: int) -> None:
    """Ask a node something."""
    world.count("question")
    asker = Asker(world, up_from(world, asked), topic, f"{world.seed} question {number}")
    world.client("asker").spawn(_ask(asker, what)).add_done_callback(raise_error)


async def _ask(asker: Asker, what: str) -> None:
    note = asker.world.trace.note
    try:
        await asker.services(lambda services: services.records.topic(_TOPIC, create=True))
        await QUESTIONS[what](asker)
        note("asker", f"{what} of node {asker.asked}: answered")
    except (TidelogError, TimeoutError) as error:
        note("asker", f"{what} of node {asker.asked}: {type(error).__name__}: {error}")
    finally:
        asker.client.close()
