"""Real Kafka clients as loads: librdkafka from C, and confluent-kafka from Python.

Rule 1: what is missing on this machine is left out with a line that says what would bring it.
Rule 2: both move a given number of records of partition 0 and count only what was acknowledged,
        or received. The first one does not count: with it a client connects and finds its leader.
"""

import importlib.util
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, Final, Protocol

SOURCE: Final = Path(__file__).with_name("rdkafka_load.c")
COMPILE_SECONDS_MAX: Final = 60
RUN_SECONDS_MAX: Final = 300
POLL_RECORDS: Final = 10_000
SILENT_SECONDS_MAX: Final = 10.0

PRODUCER: Final[Mapping[str, str | bool]] = {
    "batch.size": "1000000",
    "batch.num.messages": "1000000",
    "linger.ms": "50",
    "queue.buffering.max.messages": "500000",
    "queue.buffering.max.kbytes": "262144",
    "delivery.report.only.error": True,
}
CONSUMER: Final[Mapping[str, str]] = {"queued.min.messages": "1000000"}


class Unavailable(Exception):
    """This client cannot be had here; the message says what is missing."""


class Client(Protocol):
    """A client that moves `count` records of `size` bytes, and says how many seconds it took."""

    name: str

    def produce(self, bootstrap: str, topic: str, count: int, size: int, acks: int) -> float: ...

    def consume(self, bootstrap: str, topic: str, count: int, size: int) -> float: ...


class Rdkafka:
    """librdkafka, driven by `rdkafka_load.c`."""

    name = "librdkafka (C)"

    def __init__(self, directory: Path) -> None:
        """Build the program in `directory`; Unavailable if that cannot be done."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise Unavailable("no C compiler (Debian: gcc)")
        self._program = directory / "rdkafka_load"
        options = _installed() or _in_wheel()
        if options is None:
            raise Unavailable(
                "no librdkafka: neither its headers (Debian: librdkafka-dev) nor a confluent-kafka "
                "wheel that brings the library"
            )
        built = subprocess.run(
            [compiler, "-O2", "-Wall", "-Wextra", "-o", str(self._program), str(SOURCE), *options],
            capture_output=True,
            text=True,
            timeout=COMPILE_SECONDS_MAX,
            check=False,
        )
        if built.returncode:
            raise Unavailable(f"{SOURCE.name} does not compile: {built.stderr.strip()[-500:]}")

    def produce(self, bootstrap: str, topic: str, count: int, size: int, acks: int) -> float:
        return self._run("produce", bootstrap, topic, count, size, {**PRODUCER, "acks": str(acks)})

    def consume(self, bootstrap: str, topic: str, count: int, size: int) -> float:
        return self._run("consume", bootstrap, topic, count, size, CONSUMER)

    def transact(
        self, bootstrap: str, topic: str, count: int, size: int, commit_ms: int, name: str
    ) -> tuple[float, list[float]]:
        """In transactions that are committed every `commit_ms`; the seconds of all, of each."""
        properties = {**PRODUCER, "acks": "-1", "transactional.id": name, "commit.ms": commit_ms}
        found = self._ask("transact", bootstrap, topic, count, size, properties)
        return float(found["seconds"]), list(found["commits"])

    def produce_idempotently(self, bootstrap: str, topic: str, count: int, size: int) -> float:
        properties = {**PRODUCER, "acks": "-1", "enable.idempotence": True}
        return self._run("produce", bootstrap, topic, count, size, properties)

    def _run(self, *arguments: Any) -> float:
        return float(self._ask(*arguments)["seconds"])

    def _ask(self, *arguments: Any) -> Any:
        *words, properties = arguments
        command = [str(self._program), *map(str, words)]
        command += [f"{name}={str(value).lower()}" for name, value in properties.items()]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False)
        if ended.returncode:
            raise RuntimeError(ended.stderr.strip()[-500:])
        return json.loads(ended.stdout)


def _installed() -> list[str] | None:
    """Compiler options for the system's librdkafka, if it has its headers."""
    if shutil.which("pkg-config") is None:
        return None
    asked = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "rdkafka"],
        capture_output=True,
        text=True,
        timeout=COMPILE_SECONDS_MAX,
        check=False,
    )
    return asked.stdout.split() if asked.returncode == 0 else None


def _in_wheel() -> list[str] | None:
    """Options for the library inside the confluent-kafka wheel, which comes without headers."""
    found = importlib.util.find_spec("confluent_kafka")
    if found is None or found.origin is None:
        return None
    libraries = Path(found.origin).parents[1] / "confluent_kafka.libs"
    for library in sorted(libraries.glob("librdkafka-*.so*")):
        return [str(library), f"-Wl,-rpath,{libraries}", "-Wl,--allow-shlib-undefined"]
    return None


class Confluent:
    """confluent-kafka from Python, whose cost per record is mostly Python's."""

    name = "confluent-kafka (Python)"

    def __init__(self) -> None:
        if importlib.util.find_spec("confluent_kafka") is None:
            raise Unavailable("no confluent-kafka (pip install confluent-kafka)")

    def produce(self, bootstrap: str, topic: str, count: int, size: int, acks: int) -> float:
        from confluent_kafka import KafkaError, Message, Producer

        failures: list[KafkaError | None] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        producer = Producer({**PRODUCER, "acks": str(acks), "bootstrap.servers": bootstrap})
        value = b"t" * size
        producer.produce(topic, value, partition=0, on_delivery=delivered)
        producer.flush(RUN_SECONDS_MAX)
        started = perf_counter()
        sent = 1
        while sent < count:
            try:
                producer.produce(topic, value, partition=0, on_delivery=delivered)
            except BufferError:
                producer.poll(0.001)
                continue
            sent += 1
            if sent % 1000 == 0:
                producer.poll(0)
        left = producer.flush(RUN_SECONDS_MAX)
        seconds = perf_counter() - started
        if left or failures:
            raise RuntimeError(f"{left + len(failures)} records were lost: {failures[:1]}")
        return seconds

    def consume(self, bootstrap: str, topic: str, count: int, size: int) -> float:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {**CONSUMER, "bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False}
        )
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            started = last = perf_counter()
            received = 0
            while received < count:
                messages = consumer.consume(POLL_RECORDS if received else 1, 0.1)
                for message in messages:
                    if (error := message.error()) is not None:
                        raise RuntimeError(str(error))
                if messages:
                    last = perf_counter()
                    started = started if received else last
                    received += len(messages)
                elif perf_counter() - last > SILENT_SECONDS_MAX:
                    raise RuntimeError(f"no record for {SILENT_SECONDS_MAX:.0f} s")
            return perf_counter() - started
        finally:
            consumer.close()
