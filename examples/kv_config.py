"""A configuration that several writers share, and a counter that loses no step.

Every thread reads the document, changes its copy and writes it back only if nobody was faster
(compare-and-set). `update` does just that, and does it again after a conflict; `by_hand` shows what
is inside.

    python examples/kv_config.py --http 127.0.0.1:8080 --threads 8 --steps 25
"""

import argparse
import sys
import threading
from typing import Any

from tidelog.client import Client, TidelogHTTPError

BUCKET = "config"
KEY = "limits"


def by_update(client: Client) -> None:
    """One step, the short way."""
    client.kv(BUCKET).update(KEY, lambda limits: {**limits, "steps": limits["steps"] + 1})


def by_hand(client: Client) -> None:
    """One step, as it works."""
    kv = client.kv(BUCKET)
    while True:
        entry = kv.get(KEY)
        assert entry is not None, "it was written before the threads began"
        limits: dict[str, Any] = {**entry.value, "steps": entry.value["steps"] + 1}
        if kv.compare_and_set(KEY, limits, entry.version) is not None:
            return
        # Somebody else has written since: look again.


def main() -> int:
    parser = argparse.ArgumentParser(description="Count in one key from many threads.")
    parser.add_argument("--http", default="127.0.0.1:8080", metavar="HOST:PORT")
    parser.add_argument("--threads", type=int, default=8, metavar="N")
    parser.add_argument("--steps", type=int, default=25, metavar="N", help="of each thread")
    arguments = parser.parse_args()

    with Client(arguments.http) as client:
        kv = client.kv(BUCKET)
        kv.create()
        start = kv.put(KEY, {"requests_per_second": 100, "steps": 0})

        def work(step: Any) -> None:
            for _ in range(arguments.steps):
                step(client)

        threads = [
            threading.Thread(target=work, args=(by_hand if number % 2 else by_update,))
            for number in range(arguments.threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        end = kv.get(KEY)
        assert end is not None
        expected = arguments.threads * arguments.steps
        print(f"{end.value['steps']} steps of {expected}, {end.value['requests_per_second']} kept")
        print(f"version {start.version} became {end.version}")
        return 0 if end.value["steps"] == expected else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TidelogHTTPError as error:
        sys.exit(f"kv_config: {error}")
