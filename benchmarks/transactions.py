"""What transactions cost: beside the same writes without them, and beside Kafka's.

Rule 1: the limit of a transactional producer is the same client, idempotent, on the same topic
        settings and in the same round; nothing else differs but that it commits now and then.
Rule 2: Kafka is measured in the same rounds, by the same client, on the same disk, if it can be
        had. Its defaults sync nothing, ours sync before every acknowledgement: both of ours are
        measured, that with syncs and that without.
Rule 3: a commit's time is the client's: what is still to be sent goes with it.
Rule 4: a decision's time is from the request to the answer, over members that have all written;
        beside it stand as many commits, one for each member, sent together.
"""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from time import perf_counter
from typing import Final, NamedTuple

from benchmarks.bench import Bench, Steps, run_fast
from benchmarks.clients import Rdkafka, Unavailable
from benchmarks.kafka_peer import Kafka, KafkaProcess
from benchmarks.report import Measured, Report, Result, result
from tidelog.client.kafka import KafkaClient
from tidelog.client.transactional import TransactionalClient
from tidelog.records import Record

NAME: Final = "transactions"

RECORD_BYTES: Final = 100
COMMIT_MS: Final = (10, 100, 1000)
MEMBERS: Final = (1, 10, 100)
RECORDS_PER_SECOND: Final = 400_000
"""How many are written per second of measuring; a fast machine is done sooner."""
SYNCED: Final = "Tidelog, fsync"
UNSYNCED: Final = "Tidelog, replicated"
KAFKA: Final = "Kafka"
GROUP_PARTITIONS: Final = 10

_numbers: Final = count()


class Server(NamedTuple):
    name: str
    bootstrap: str
    durability: str | None


def run(bench: Bench) -> Report:
    measured = Measured()
    notes: list[str] = []
    rdkafka = Rdkafka(bench.directory)
    with _servers(bench, notes) as servers:
        rounds = 1 if bench.quick else 3
        with Steps(NAME, rounds * (len(servers) * (len(COMMIT_MS) + 1) + len(MEMBERS))) as steps:
            for _ in range(rounds):
                for server in servers:
                    _load(bench, rdkafka, server, measured, steps)
                for members in MEMBERS:
                    steps.begin(f"decisions over {members} members")
                    _decide(servers[0], members, measured, repeats=3 if bench.quick else 20)
    return Report(
        title="transactions: throughput, commits and decisions, one node",
        results=_results([server.name for server in servers], measured),
        notes=notes,
    )


@contextmanager
def _servers(bench: Bench, notes: list[str]) -> Iterator[list[Server]]:
    with ExitStack() as stack:
        node = stack.enter_context(bench.node())
        servers = [Server(SYNCED, node.bootstrap, "fsync"), Server(UNSYNCED, node.bootstrap, "replicated")]
        try:
            kafka = stack.enter_context(KafkaProcess(Kafka(), bench.fresh("kafka")))
        except Unavailable as error:
            notes.append(f"Kafka was not measured: {error}")
        else:
            servers.append(Server(KAFKA, kafka.bootstrap, None))
            notes.append("Kafka syncs nothing by default: compare it with ours that is replicated")
        yield servers


def _load(bench: Bench, rdkafka: Rdkafka, server: Server, measured: Measured, steps: Steps) -> None:
    records = int(RECORDS_PER_SECOND * 2 * bench.subject_seconds)
    steps.begin(f"{server.name}: idempotent")
    topic = _new_topic(server)
    bench.settle()
    seconds = rdkafka.produce_idempotently(server.bootstrap, topic, records, RECORD_BYTES)
    measured.add((server.name, "idempotent"), records / seconds)
    _delete(server, topic)
    for commit_ms in COMMIT_MS:
        steps.begin(f"{server.name}: a commit every {commit_ms} ms")
        topic = _new_topic(server)
        bench.settle()
        seconds, commits = rdkafka.transact(
            server.bootstrap, topic, records, RECORD_BYTES, commit_ms, f"bench-{next(_numbers)}"
        )
        measured.add((server.name, commit_ms), records / seconds)
        for one in commits:
            measured.add((server.name, commit_ms, "commit"), one * 1000)
        _delete(server, topic)


def _new_topic(server: Server, partitions: int = 1) -> str:
    topic = f"transactions-{next(_numbers)}"
    configs = {} if server.durability is None else {"durability": server.durability}

    async def work() -> None:
        async with KafkaClient(server.bootstrap) as client:
            await client.create_topic(topic, partitions=partitions, configs=configs)

    run_fast(work())
    return topic


def _delete(server: Server, topic: str) -> None:
    async def work() -> None:
        async with KafkaClient(server.bootstrap) as client:
            await client.delete_topic(topic)

    run_fast(work())


def _decide(server: Server, members: int, measured: Measured, *, repeats: int) -> None:
    topic = _new_topic(server, GROUP_PARTITIONS)
    group = f"spark.bench-{next(_numbers)}"

    async def work() -> None:
        async with TransactionalClient(server.bootstrap) as client:
            for batch in range(repeats):
                producers = [await client.begin(f"{group}.{slot}") for slot in range(members)]
                await asyncio.gather(
                    *(
                        producer.write(topic, slot % GROUP_PARTITIONS, [Record(value=b"x" * 100)])
                        for slot, producer in enumerate(producers)
                    )
                )
                began = perf_counter()
                decided = await client.commit_group(
                    group,
                    batch,
                    [producer.member for producer in producers],
                    after=batch - 1 if batch else None,
                )
                measured.add(("decision", members), (perf_counter() - began) * 1000)
                assert decided.is_new, "every batch is decided once"
            await _commit_each(client, topic, members, measured, repeats)

    run_fast(work())
    _delete(server, topic)


async def _commit_each(
    client: TransactionalClient, topic: str, members: int, measured: Measured, repeats: int
) -> None:
    """What it would take without: every member commits for itself, all at once."""
    name = f"each-{next(_numbers)}"
    producers = [await client.begin(f"{name}.{slot}") for slot in range(members)]
    for _ in range(repeats):
        await asyncio.gather(
            *(
                producer.write(topic, slot % GROUP_PARTITIONS, [Record(value=b"x" * 100)])
                for slot, producer in enumerate(producers)
            )
        )
        began = perf_counter()
        await asyncio.gather(*(producer.commit() for producer in producers))
        measured.add(("each", members), (perf_counter() - began) * 1000)


def _results(names: list[str], measured: Measured) -> list[Result]:
    rows = []
    for name in names:
        idempotent = measured.of((name, "idempotent"))
        rows.append(result(NAME, f"{name}: idempotent", idempotent, "records/s"))
        rows += [
            result(
                NAME,
                f"{name}: a commit every {commit_ms:,} ms",
                measured.of((name, commit_ms)),
                "records/s",
                limits=idempotent,
                limit_name="idempotent",
                target=">= 0.85" if commit_ms == 100 and name != KAFKA else "",
            )
            for commit_ms in COMMIT_MS
        ]
    kafka = KAFKA in names
    for commit_ms in COMMIT_MS:
        for name in (SYNCED, UNSYNCED):
            for share, title in ((0.5, "p50"), (0.99, "p99")):
                rows.append(
                    result(
                        NAME,
                        f"{name}: commit every {commit_ms:,} ms takes, {title}",
                        measured.of((name, commit_ms, "commit")),
                        "ms",
                        share=share,
                        limits=_share(measured.of((KAFKA, commit_ms, "commit")), share),
                        limit_name=f"Kafka's {title}" if kafka else "",
                    )
                )
    rows += [
        result(
            NAME,
            f"decision over {members} members, {title}",
            measured.of(("decision", members)),
            "ms",
            share=share,
            limits=measured.of(("each", members)),
            limit_name="as many commits, p50",
        )
        for members in MEMBERS
        for share, title in ((0.5, "p50"), (0.99, "p99"))
    ]
    return rows


def _share(values: list[float], share: float) -> list[float]:
    """That share of the values as the one that counts."""
    return [sorted(values)[min(int(share * len(values)), len(values) - 1)]] if values else []
