"""`python -m benchmarks.versus`: Tidelog beside others, same machine, same client, same run.

Beside Apache Kafka by its protocol: one node of each (`versus_node.py`), and three, which replicate
(`versus_cluster.py`). Beside NATS, Redis and RabbitMQ by requests for keys and queues, ours over HTTP
(`versus_requests.py`). Each `--peer` adds one; the others of its kind are measured in the same turns.

A ratio is Tidelog's figure over the other's; whether more or less is better stands beside it.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Final

from benchmarks.__main__ import _machine, _problem, _start_nodes_as_users_do
from benchmarks.bench import GIGABYTE, Bench
from benchmarks.clients import Unavailable
from benchmarks.compared import Compared, print_compared
from benchmarks.kafka_peer import Kafka
from benchmarks.request_sides import PEERS
from benchmarks.versus_cluster import NOTES, compare_clusters
from benchmarks.versus_node import Versus, compare_nodes
from benchmarks.versus_requests import compare_requests

NAME: Final = "versus"
KAFKA: Final = "kafka"
COUNTS: Final = (1, 3)
DISK_BYTES: Final = 12 * GIGABYTE


def main() -> int:
    arguments = _parse()
    problem = _problem(arguments.dir, DISK_BYTES)
    if problem is not None:
        print(f"{NAME}: {problem}", file=sys.stderr)
        return 2
    # As after Ctrl-C: every `with` ends its processes and removes its files.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = time.monotonic()
    peers = list(dict.fromkeys(arguments.peer or [KAFKA]))
    counts = [arguments.nodes] if arguments.nodes else list(COUNTS)
    try:
        with tempfile.TemporaryDirectory(
            prefix="tidelog-versus-", dir=arguments.dir, ignore_cleanup_errors=True
        ) as directory:
            bench = Bench(directory=Path(directory), quick=arguments.quick)
            _start_nodes_as_users_do(bench.directory)
            if not arguments.json:
                print(_machine(bench), end="\n\n", flush=True)
            compared: list[Compared] = []
            notes: list[str] = []
            if KAFKA in peers:
                compared += _beside_kafka(bench, counts, notes)
            if others := [peer for peer in peers if peer != KAFKA]:
                compared += compare_requests(bench, others, counts, notes)
    except Unavailable as missing:
        print(f"{NAME}: skipped: {missing}", file=sys.stderr)
        if arguments.json:
            print("[]")
        return 0
    except KeyboardInterrupt:
        print(f"{NAME}: interrupted", file=sys.stderr)
        return 130
    if arguments.json:
        print(json.dumps([asdict(one) for one in compared], indent=1))
    else:
        print_compared(compared, notes, seconds=time.monotonic() - started)
    return 0


def _beside_kafka(bench: Bench, counts: list[int], notes: list[str]) -> list[Compared]:
    kafka = Kafka()
    notes.append(f"Apache Kafka {kafka.version}")
    versus = Versus(bench=bench, kafka=kafka)
    compared: list[Compared] = []
    if 1 in counts:
        compared += compare_nodes(versus)
    if 3 in counts:
        compared += compare_clusters(bench, kafka, versus.client)
        versus.notes.extend(NOTES)
    notes.extend(versus.notes)
    return compared


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.versus",
        description="Measure Tidelog beside others. The first run with Kafka or NATS downloads them.",
    )
    parser.add_argument(
        "--peer",
        action="append",
        choices=(KAFKA, *PEERS),
        help="beside whom; may be given several times (default: kafka)",
    )
    parser.add_argument("--quick", action="store_true", help="short and rough: does it still run?")
    parser.add_argument(
        "--nodes", type=int, choices=COUNTS, help="one of each, or three of each (default: both)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document, no tables")
    parser.add_argument(
        "--dir",
        metavar="DIR",
        default=tempfile.gettempdir(),
        help="where to write; it decides which disk is measured (default: %(default)s)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
