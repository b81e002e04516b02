"""What tests of transactions share: writers that do not decide, readers that do not wait."""

import time
from collections.abc import Callable, Sequence

from tests.clients.adapters import EARLIEST, SECONDS_MAX, Client, TransactionalProducer
from tests.faces.raw import RawClient
from tests.support.node import NodeProcess
from tidelog.wire.apis import Api

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
UNSTABLE_OFFSET_COMMIT = 88


def transact(
    producer: TransactionalProducer, topic: str, values: Sequence[bytes], partition: int = 0
) -> None:
    """Write values that are in the log, and not decided yet."""
    pending = [producer.send(topic, value, partition=partition) for value in values]
    producer.flush()
    for each in pending:
        each.result()


def seen(client: Client, topic: str, isolation: str, partition: int = 0) -> list[bytes | None]:
    """What a reader gets before a plain record that is written now."""
    end = b"end-%d" % time.monotonic_ns()
    client.producer().send(topic, end, partition=partition).result()
    consumer = client.consumer(isolation=isolation).assign(topic, {partition: EARLIEST})
    values: list[bytes | None] = []
    deadline = time.monotonic() + SECONDS_MAX
    while end not in values:
        assert time.monotonic() < deadline, f"the reader waits after {values}"
        values += [message.value for message in consumer.poll(0.5)]
    return [value for value in values if value and not value.startswith(b"end-")]


def committed(node: NodeProcess, group: str, topic: str, partition: int = 0, *, stable: bool = False) -> int:
    """The group's offset; with `stable` an undecided one is an error, whose code comes negated."""
    fields = {
        "group_id": group,
        "topics": [{"name": topic, "partition_indexes": [partition]}],
        "require_stable": stable,
    }
    with RawClient(node.port) as raw:
        (found,) = raw.ask(Api.OFFSET_FETCH, 7, fields).topics[0].partitions
    return -int(found.error_code) if found.error_code else int(found.committed_offset)


def decided(node: NodeProcess, group: str, topic: str) -> int:
    """Where the group goes on, once no transaction can change that; a commit need not wait."""
    unstable = -UNSTABLE_OFFSET_COMMIT
    eventually(lambda: committed(node, group, topic, stable=True) != unstable, "the offset is undecided")
    return max(committed(node, group, topic, stable=True), 0)


def eventually(is_so: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline, problem
        time.sleep(0.05)


def open_transactions(node: NodeProcess) -> list[str]:
    """The transactional ids whose transactions are not complete."""
    with RawClient(node.port) as raw:
        found = raw.ask(Api.LIST_TRANSACTIONS, 0, {}).transaction_states
    done = {"Empty", "CompleteCommit", "CompleteAbort"}
    return [one.transactional_id for one in found if one.transaction_state not in done]
