"""A service whose settings are a copy in its own process, and follow the cluster.

Workers read their settings for every request, which costs them about a microsecond and no network.
Meanwhile somebody changes a setting; every worker goes by it a moment later. Started again, the
service has its settings at once, with or without a cluster.

    python examples/embedded_config.py --http 127.0.0.1:8080 --workers 4 --changes 3
"""

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tidelog.client import Change, Client, EmbeddedReplica, ReplicationError, TidelogHTTPError

BUCKET = "service-settings"
KEY = "limits"


class Service:
    """Some workers, and the settings that they go by."""

    def __init__(self, settings: EmbeddedReplica, workers: int) -> None:
        self._settings = settings
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._work) for _ in range(workers)]
        self._lock = threading.Lock()
        self.handled: Counter[int] = Counter()
        """Requests, by the rate that they went by."""
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        handled: Counter[int] = Counter()
        while not self._over.is_set():
            limits = self._settings.get(KEY, {"rate": 0})
            handled[limits["rate"]] += 1
        with self._lock:
            self.handled += handled

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def tell(changes: Sequence[Change]) -> None:
    """Called in the thread that copies, after the changes can be read."""
    for change in changes:
        print(f"{change.key} is now {change.value} (version {change.version})", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Read settings from a copy of a bucket.")
    parser.add_argument("--http", default="127.0.0.1:8080", metavar="HOST:PORT")
    parser.add_argument("--path", type=Path, metavar="FILE.db", help="where the copy is kept")
    parser.add_argument("--workers", type=int, default=4, metavar="N")
    parser.add_argument("--changes", type=int, default=3, metavar="N")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as directory, Client(arguments.http) as client:
        path = arguments.path or Path(directory) / "settings.db"
        kv = client.kv(BUCKET)
        kv.create()
        entry = kv.put(KEY, {"rate": 100})

        with EmbeddedReplica(arguments.http, bucket=BUCKET, path=path, on_change=tell) as settings:
            settings.wait(entry.token)
            service = Service(settings, arguments.workers)
            began = time.monotonic()
            for change in range(arguments.changes):
                entry = kv.put(KEY, {"rate": 200 + 100 * change})
                settings.wait(entry.token)
            last = settings.get(KEY)
            service.stop()
            seconds = time.monotonic() - began
            status = settings.status()

        # The cluster is not asked any more: this is what a start without one has.
        with EmbeddedReplica("127.0.0.1:1", bucket=BUCKET, path=path) as settings:
            kept = settings.get(KEY)

    print(f"{service.handled.total():,} reads in {seconds:.1f} s, of {len(service.handled)} rates")
    print(f"{status.state}, {status.lag_entries} entries behind, {status.errors} errors")
    print(f"without a cluster: {kept}")
    return 0 if last == kept == {"rate": 100 + 100 * arguments.changes} else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (TidelogHTTPError, ReplicationError) as error:
        sys.exit(f"embedded_config: {error}")
