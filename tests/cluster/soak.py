"""`python -m tests.cluster.soak --minutes 60`: the chaos of `test_chaos`, as long as you like."""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.cluster.chaos import IN_FLIGHT_MAX, Chaos, check_history
from tidelog.simulation.history import load


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long things are broken")
    parser.add_argument("--seed", type=int, help="decides what is broken; otherwise the time does")
    parser.add_argument("--rate", type=float, default=500.0, help="records per second, at most")
    parser.add_argument(
        "--in-flight", type=int, default=IN_FLIGHT_MAX, help="requests of a producer, at most"
    )
    parser.add_argument("--check", type=Path, metavar="FILE", help="check a history once more")
    options = parser.parse_args()
    if options.check is not None:
        return recheck(options.check)
    seed = int(time.time()) if options.seed is None else options.seed
    directory = Path(tempfile.mkdtemp(prefix="tidelog-soak-"))
    say(f"seed {seed}, {options.minutes:g} minutes, in {directory}")
    chaos = Chaos(directory, seed, per_second_max=options.rate, in_flight_max=options.in_flight, report=say)
    outcome = chaos.run(options.minutes * 60)
    say(str(outcome))
    if outcome.is_good:
        shutil.rmtree(directory)
    return 0 if outcome.is_good else 1


def recheck(file: Path) -> int:
    with file.open() as lines:
        history = load(lines)
    anomalies = check_history(history)
    say(f"{len(history)} operations, {len(anomalies)} anomalies")
    for anomaly in anomalies:
        say(str(anomaly))
    return 1 if anomalies else 0


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
