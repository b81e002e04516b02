"""Watch how far replicas are behind, and raise an alarm when one is by more than 50 ms.

    python examples/monitor_lag.py --http 127.0.0.1:8080
    python examples/monitor_lag.py --once        # look once; exit 1 if there is something to tell

Put what your team uses in the place of `alert`.
"""

import argparse
import sys
import time

from tidelog.client import Client, TidelogHTTPError

LAG_MS_MAX = 50


def alert(message: str) -> None:
    print(f"ALERT {message}", file=sys.stderr, flush=True)


def look(client: Client, lag_ms_max: int) -> int:
    """Look once; return how many alarms there were."""
    alarms = 0
    status = client.replication.status()
    for replica in status["replicas"]:
        if replica["lag_ms"] > lag_ms_max or replica["status"] == "disconnected":
            alert(f"Replica {replica['id']} {replica['status']}: {replica['lag_ms']}ms")
            alarms += 1
    for address in status["unreachable"]:
        alert(f"Node {address} does not answer")
        alarms += 1
    lags = ", ".join(f"{replica['id']}: {replica['lag_ms']}ms" for replica in status["replicas"])
    print(f"{status['status']}  {lags or 'no replicas'}", flush=True)
    return alarms


def main() -> int:
    parser = argparse.ArgumentParser(description="Alert when a replica lags.")
    parser.add_argument("--http", default="127.0.0.1:8080", metavar="HOST:PORT")
    parser.add_argument("--lag-ms", type=int, default=LAG_MS_MAX, metavar="MS")
    parser.add_argument("--interval", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--once", action="store_true", help="look once, and exit 1 on an alarm")
    arguments = parser.parse_args()

    with Client(arguments.http) as client:
        if arguments.once:
            return 1 if look(client, arguments.lag_ms) else 0
        while True:
            try:
                look(client, arguments.lag_ms)
            except TidelogHTTPError as error:
                alert(str(error))
            time.sleep(arguments.interval)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TidelogHTTPError as error:
        sys.exit(f"monitor_lag: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
