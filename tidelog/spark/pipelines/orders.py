"""Orders that the sample reads: made up, some late, some broken.

Rule 1: what is made follows from the random numbers and the time that are given.
Rule 2: of a thousand orders about 20 are late, 5 are so late that their window has closed, and 10
        are no orders at all.
"""

import asyncio
import json
import time
from datetime import UTC, datetime
from random import Random
from typing import Final

from tidelog.client.kafka import KafkaClient
from tidelog.client.producer import Producer
from tidelog.errors import TidelogError
from tidelog.records import Record
from tidelog.spark.client_loop import CLIENT_ID
from tidelog.spark.pipelines.spec import Traffic

REGIONS: Final = ("north", "south", "east", "west")
PRODUCTS: Final = {"kettle": 39.9, "lamp": 24.5, "chair": 89.0, "mug": 7.8, "desk": 249.0}
LATE_SHARE: Final = 0.02
TOO_LATE_SHARE: Final = 0.005
BROKEN_SHARE: Final = 0.01
LATE_SECONDS: Final = (5, 20)
TOO_LATE_SECONDS: Final = (300, 900)
SPREAD_SECONDS: Final = 120
"""Orders that are made before a run are of the last so many seconds."""
TICK_SECONDS: Final = 0.25
RETRY_SECONDS: Final = 2.0


def order(random: Random, number: int, now_ms: int) -> Record:
    """One order of now, or a late one, or something that is none."""
    chance = random.random()
    at_ms = now_ms
    if chance < TOO_LATE_SHARE:
        at_ms -= random.randint(*TOO_LATE_SECONDS) * 1000
    elif chance < TOO_LATE_SHARE + LATE_SHARE:
        at_ms -= random.randint(*LATE_SECONDS) * 1000
    region, product = random.choice(REGIONS), random.choice(tuple(PRODUCTS))
    amount = random.randint(1, 4)
    text = json.dumps(
        {
            "order": f"{now_ms:013d}-{number}",
            "region": region,
            "product": product,
            "amount": amount,
            "total": round(amount * PRODUCTS[product], 2),
            "at": datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        }
    )
    if chance > 1 - BROKEN_SHARE:
        text = random.choice((text[: len(text) // 2], text.replace('"total": ', '"total": "much')))
    return Record(key=region.encode(), value=text.encode(), timestamp_ms=now_ms)


async def send_some(client: KafkaClient, traffic: Traffic, random: Random) -> int:
    """Make a pipeline that runs once something to read; how many orders that were."""
    producer = await _producer(client, traffic)
    now_ms, step = _now_ms(), SPREAD_SECONDS * 1000 / traffic.once
    for number in range(traffic.once):
        at_ms = now_ms - int((traffic.once - number) * step)
        producer.add(order(random, number, at_ms))
    await producer.flush()
    return traffic.once


async def send_always(bootstrap: str, traffic: Traffic, random: Random) -> None:
    """Orders at an even pace until cancelled; while the cluster is away, none."""
    while True:
        try:
            async with KafkaClient(bootstrap, client_id=CLIENT_ID) as client:
                await _send(client, traffic, random)
        except (TidelogError, TimeoutError):
            await asyncio.sleep(RETRY_SECONDS)


async def _send(client: KafkaClient, traffic: Traffic, random: Random) -> None:
    producer = await _producer(client, traffic)
    loop = asyncio.get_running_loop()
    began, sent = loop.time(), 0
    while True:
        due = int((loop.time() - began) * traffic.per_second)
        now_ms = _now_ms()
        for number in range(sent, due):
            producer.add(order(random, number, now_ms))
        sent = due
        await producer.room()
        await asyncio.sleep(TICK_SECONDS)


async def _producer(client: KafkaClient, traffic: Traffic) -> Producer:
    topic = await client.topic(traffic.topic)
    return Producer(client, traffic.topic, partitions=len(topic.partitions))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
