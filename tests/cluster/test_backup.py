"""A million records of every kind, from one cluster into another, compared one by one."""

import asyncio
import json
import struct
import subprocess
import sys
from hashlib import blake2b
from random import Random

import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tidelog.backup import restoring
from tidelog.backup.creating import Wish, create
from tidelog.backup.restoring import restore
from tidelog.backup.storage import open_storage
from tidelog.client.admin import AdminClient
from tidelog.client.kafka import KafkaClient
from tidelog.model import TopicPartition as Place
from tidelog.records import Record, encode_batch
from tidelog.testing import Cluster

ORDERS, STATE, PAID = "orders", "state", "payments"
PARTITIONS = {ORDERS: 4, STATE: 1, PAID: 2}
COUNTS = {ORDERS: 700_000, STATE: 150_000, PAID: 120_000}
"""Records of each topic that count; what is taken back comes on top."""
MESSAGES = 30_000
"""In a work queue."""
TRANSACTIONS = 8
KEYS = 20_000
TIME_MS = 1_700_000_000_000
MIB = 1024 * 1024
PLACE = struct.Struct(">qq")


class Digests:
    """What each partition holds, or should hold: every record goes into a hash, in order."""

    def __init__(self):
        self.hashes = {}
        self.counts = {}

    def add(self, topic, partition, offset, time_ms, key, value):
        place = topic, partition
        digest = self.hashes.get(place)
        if digest is None:
            digest = self.hashes[place] = blake2b()
            self.counts[topic] = self.counts.get(topic, 0)
        digest.update(PLACE.pack(offset, time_ms))
        digest.update(key or b"-")
        digest.update(value)
        self.counts[topic] += 1

    def result(self):
        return {place: digest.hexdigest() for place, digest in sorted(self.hashes.items())}


def produce(producer, written, ends, topic, numbers):
    """Write a record for each number; into `written` goes what must come back."""
    partitions, prefix = PARTITIONS[topic], topic.encode()
    for number in numbers:
        partition = number % partitions
        key, value = b"k%d" % (number % KEYS), b"%s number %d" % (prefix, number)
        while True:
            try:
                producer.produce(topic, value, key, partition=partition, timestamp=TIME_MS + number)
                break
            except BufferError:
                producer.poll(0.1)
        offset = ends.get((topic, partition), 0)
        ends[topic, partition] = offset + 1
        if written is not None:
            written.add(topic, partition, offset, TIME_MS + number, key, value)


def fill_topics(cluster):
    """What the topics must hold when they are back."""
    written = Digests()
    ends: dict[tuple[str, int], int] = {}
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "linger.ms": 50,
        "batch.num.messages": 10_000,
        "queue.buffering.max.messages": 200_000,
    }
    for topic in PARTITIONS:
        config = {"cleanup.policy": "compact"} if topic == STATE else {}
        cluster.create_topic(topic, partitions=PARTITIONS[topic], config=config)
    plain = Producer({**settings, "enable.idempotence": True, "compression.type": "lz4"})
    for topic in (ORDERS, STATE):
        produce(plain, written, ends, topic, range(COUNTS[topic]))
    assert plain.flush(60) == 0
    writer = Producer({**settings, "transactional.id": "cashier"})
    writer.init_transactions(30)
    size = COUNTS[PAID] // TRANSACTIONS
    for number in range(TRANSACTIONS):
        writer.begin_transaction()
        produce(writer, written, ends, PAID, range(number * size, (number + 1) * size))
        writer.commit_transaction(30)
        writer.begin_transaction()
        produce(writer, None, ends, PAID, range(1000))
        writer.flush(30)
        writer.abort_transaction(30)
        for partition in range(PARTITIONS[PAID]):  # two markers
            ends[PAID, partition] += 2
    return written, ends


def fill_queues(http):
    """What must be known of queues and keys when they are back."""
    with httpx.Client(base_url=http, timeout=30) as client:

        def post(path, **body):
            answer = client.post(path, json=body)
            assert answer.status_code < 300, answer.text
            return answer.json()

        queue = post("/create_queue")["queue_id"]
        for number in range(5):
            post("/append", queue_id=queue, value={"number": number})
        post("/read", queue_id=queue, client_id="ada")
        client.put("/v1/queues/jobs", json={"visibility_ms": 600_000}).raise_for_status()
        for first in range(0, MESSAGES, 1000):
            post(
                "/v1/queues/jobs/messages",
                messages=[{"value": number} for number in range(first, first + 1000)],
            )
        given = post("/v1/queues/jobs/receive", max=10)["messages"]
        post("/v1/queues/jobs/ack", receipts=[one["receipt"] for one in given[:4]])
        for number in range(100):
            client.put(f"/v1/kv/settings/{number % 10}", json={"value": number}).raise_for_status()
        once = {"Idempotency-Key": "only-once"}
        answer = client.put("/v1/kv/settings/once", json={"value": 1}, headers=once)
        return queue, answer.json()["version"]


async def commit_group(bootstrap, ends):
    async with AdminClient(bootstrap) as client:
        places = {Place(PAID, n): ends[PAID, n] for n in range(PARTITIONS[PAID])}
        await client.commit_offsets("cashiers", {**places, Place(ORDERS, 0): 12_345})


def consume(bootstrap):
    """What a reader of committed records is given, by another's client."""
    found = Digests()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "check",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "queued.min.messages": 100_000,
        }
    )
    places = [TopicPartition(t, n, 0) for t, count in PARTITIONS.items() for n in range(count)]
    consumer.assign(places)
    ended = 0
    while ended < len(places):
        for message in consumer.consume(10_000, timeout=10):
            if message.error() is not None:
                ended += 1
            else:
                found.add(
                    message.topic(),
                    message.partition(),
                    message.offset(),
                    message.timestamp()[1],
                    message.key(),
                    message.value(),
                )
    consumer.close()
    return found


def tidelog(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "tidelog.faces.cli", *map(str, arguments), "--json"],
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_million_records_come_back_one_by_one(tmp_path):
    with Cluster(nodes=1) as source, Cluster(nodes=3) as target:
        written, ends = fill_topics(source)
        queue, version = fill_queues(source[1].http)
        asyncio.run(commit_group(source.bootstrap, ends))

        made = tidelog("backup", "create", tmp_path, "--bootstrap", source.bootstrap)
        checked = tidelog("backup", "verify", tmp_path)
        done = tidelog("backup", "restore", tmp_path, "--bootstrap", target.bootstrap)

        assert made["records"] >= sum(COUNTS.values()) + MESSAGES >= 1_000_000
        assert checked["backups"][0]["damage"] == []
        assert done["verified_records"] + done["compacted_records"] == made["records"]
        found = consume(target.bootstrap)
        assert found.counts == written.counts == COUNTS
        assert found.result() == written.result()
        for topic in PARTITIONS:
            target.wait_in_sync(topic)
        check_queues(target[2].http, queue, version)
        asyncio.run(check_group(target.bootstrap, ends))


def check_queues(http, queue, version):
    with httpx.Client(base_url=http, timeout=30) as client:

        def post(path, **body):
            return client.post(path, json=body).json()

        def read(who):
            return post("/read", queue_id=queue, client_id=who)["value"]

        assert [read("ada"), read("ada")] == [{"number": 1}, {"number": 2}]
        assert read("bob") == {"number": 0}
        jobs = client.get("/v1/queues/jobs").json()
        assert (jobs["depth"], jobs["in_flight"]) == (MESSAGES - 4, 6)
        assert post("/v1/queues/jobs/receive", max=1)["messages"][0]["value"] == 10
        for number in range(10):
            entry = client.get(f"/v1/kv/settings/{number}").json()
            assert (entry["value"], entry["version"]) == (90 + number, 90 + number)
        once = {"Idempotency-Key": "only-once"}
        again = client.put("/v1/kv/settings/once", json={"value": 1}, headers=once)
        assert again.json()["version"] == version


async def check_group(bootstrap, ends):
    async with AdminClient(bootstrap) as client:
        offsets = await client.group_offsets("cashiers")
        assert offsets[Place(ORDERS, 0)].offset == 12_345
        for number in range(PARTITIONS[PAID]):
            found = await client.list_offsets(PAID, {number: -1})
            assert offsets[Place(PAID, number)].offset == found[number].offset
            assert found[number].offset == ends[PAID, number]


def test_leaders_that_are_killed_in_the_middle_cost_nothing(tmp_path):
    with Cluster(nodes=3) as cluster:
        cluster.create_topic("t")
        asyncio.run(write_random(cluster.bootstrap, "t"))
        storage = open_storage(str(tmp_path))
        killed = set()

        def killing(topic):
            """Kills the leader of a topic, once there is some progress."""

            def look(progress):
                if topic not in killed and progress.bytes > 2 * MIB:
                    killed.add(topic)
                    cluster.leader_of(topic).kill()

            return look

        made = asyncio.run(create(cluster.bootstrap, storage, Wish(), on_progress=killing("t")))
        start_again(cluster)
        wish = restoring.Wish(prefix="again.")
        done = asyncio.run(
            restore(cluster.bootstrap, storage, made.manifest, wish, on_progress=killing("again.t"))
        )

        assert killed == {"t", "again.t"}
        assert done.verified_records == made.manifest.records == 200
        start_again(cluster)
        cluster.wait_in_sync("again.t")


async def write_random(bootstrap, topic):
    """200 records of 50 kB, which nothing can pack."""
    random = Random(7)
    async with KafkaClient(bootstrap) as client:
        for _ in range(20):
            records = [Record(value=random.randbytes(50_000), timestamp_ms=1) for _ in range(10)]
            await client.produce(topic, 0, encode_batch(records))


def start_again(cluster):
    for node in cluster:
        if not node.is_running:
            node.start()
    cluster.wait_ready()
