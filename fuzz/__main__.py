"""`python -m fuzz`: run the fuzzers, each in a process of its own."""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz.runner import Fuzzer, limit_memory, run, watch


def _requests() -> Fuzzer:
    from fuzz.requests import RequestsFuzzer

    return RequestsFuzzer()


def _connections() -> Fuzzer:
    from fuzz.connections import ConnectionsFuzzer

    return ConnectionsFuzzer()


def _records() -> Fuzzer:
    from fuzz.records import RecordsFuzzer

    return RecordsFuzzer()


def _recovery() -> Fuzzer:
    from fuzz.recovery import RecoveryFuzzer

    return RecoveryFuzzer()


def _files() -> Fuzzer:
    from fuzz.files import FilesFuzzer

    return FilesFuzzer()


def _columns() -> Fuzzer:
    from fuzz.columns import ColumnsFuzzer

    return ColumnsFuzzer()


def _schemas() -> Fuzzer:
    from fuzz.schemas import SchemasFuzzer

    return SchemasFuzzer()


def _proofs() -> Fuzzer:
    from fuzz.proofs import ProofsFuzzer

    return ProofsFuzzer()


def _peers() -> Fuzzer:
    from fuzz.peers import PeersFuzzer

    return PeersFuzzer()


FUZZERS: dict[str, Callable[[], Fuzzer]] = {
    "connections": _connections,
    "peers": _peers,
    "proofs": _proofs,
    "requests": _requests,
    "records": _records,
    "recovery": _recovery,
    "files": _files,
    "columns": _columns,
    "schemas": _schemas,
}
SECONDS = 60.0


def main() -> int:
    arguments = _parse()
    if len(arguments.names) == 1:
        return _run_one(arguments.names[0], arguments)
    seconds = arguments.seconds / len(arguments.names)
    failed = [name for name in arguments.names if not _run_in_process(name, arguments, seconds)]
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def _parse() -> Any:
    parser = argparse.ArgumentParser(
        prog="python -m fuzz", description="Feed nonsense to Tidelog and see what breaks."
    )
    parser.add_argument("names", nargs="*", metavar="FUZZER", help=", ".join(FUZZERS))
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="for all of them together (%(default)s)"
    )
    parser.add_argument("--cases", type=int, help="stop each after this many cases")
    parser.add_argument("--seed", type=int, help="by default drawn from the clock, and printed")
    parser.add_argument(
        "--keep", type=Path, default=Path(), metavar="DIR", help="where failing cases are put"
    )
    parser.add_argument("--replay", type=Path, metavar="FILE", help="check this one case again")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in FUZZERS]
    if unknown:
        parser.error(f"there is no fuzzer {unknown[0]!r}; there are {', '.join(FUZZERS)}")
    arguments.names = arguments.names or list(FUZZERS)
    if arguments.replay is not None and len(arguments.names) != 1:
        parser.error("--replay needs the name of the one fuzzer whose case it is")
    if arguments.seed is None:
        arguments.seed = int(time.time())
    return arguments


def _run_in_process(name: str, arguments: Any, seconds: float) -> bool:
    """Run a fuzzer so that its death is only its own."""
    command = [
        sys.executable,
        "-m",
        "fuzz",
        name,
        "--seconds",
        str(seconds),
        "--seed",
        str(arguments.seed),
        "--keep",
        str(arguments.keep),
    ]
    if arguments.cases is not None:
        command += ["--cases", str(arguments.cases)]
    code = subprocess.run(command, check=False).returncode
    if code < 0:
        current = arguments.keep / f"fuzz-{name}-{arguments.seed}-current.case"
        print(f"{name}: killed by signal {-code}; the bytes are in {current}")
    return code == 0


def _run_one(name: str, arguments: Any) -> int:
    limit_memory()
    watch()
    fuzzer = FUZZERS[name]()
    if arguments.replay is not None:
        print(f"{name}: {fuzzer.check(arguments.replay.read_bytes())} inputs, nothing broke")
        return 0
    print(f"{name}: seed {arguments.seed}", flush=True)
    outcome = run(
        fuzzer,
        seed=arguments.seed,
        seconds=arguments.seconds,
        cases=arguments.cases,
        directory=arguments.keep,
        watched=True,
    )
    rate = outcome.inputs / max(outcome.seconds, 1e-9)
    print(
        f"{name}: {outcome.inputs} inputs in {outcome.cases} cases, {outcome.seconds:.1f} s, {rate:.0f}/s",
        flush=True,
    )
    if outcome.failure is not None:
        print(f"{name}: {outcome.failure}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
