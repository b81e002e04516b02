"""How much memory the processes of a Spark session take at most, while it does something.

Rule: what is counted is what is resident (VmRSS), looked at a few times a second; pages that forked
      processes share are counted for each of them.
"""

import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PAUSE_SECONDS: Final = 0.2
KIB: Final = 1024
JVM: Final = "the JVM"
WORKERS: Final = "its Python processes together"
WORKER: Final = "the largest Python process"


@dataclass(slots=True)
class Memory:
    """Most that was seen, in MiB, by whose it was."""

    most: dict[str, float] = field(default_factory=dict)

    def look(self) -> None:
        children = defaultdict(list)
        found = dict(_processes())
        for pid, (parent, _, _) in found.items():
            children[parent].append(pid)
        ours: list[int] = []
        waiting = [os.getpid()]
        while waiting:
            below = children[waiting.pop()]
            ours += below
            waiting += below
        jvm = [found[pid][1] for pid in ours if found[pid][2] == "java"]
        workers = [found[pid][1] for pid in ours if found[pid][2].startswith("python")]
        now = {JVM: sum(jvm), WORKERS: sum(workers), WORKER: max(workers, default=0)}
        for name, size in now.items():
            self.most[name] = max(self.most.get(name, 0.0), size / KIB)


@contextmanager
def watched() -> Iterator[Memory]:
    """The memory of all processes below this one, but for nodes, while something is done."""
    memory = Memory()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(PAUSE_SECONDS):
            memory.look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield memory
    finally:
        done.set()
        thread.join()


def _processes() -> Iterator[tuple[int, tuple[int, int, str]]]:
    """Parent, KiB and program of every process of Spark."""
    for path in Path("/proc").iterdir():
        if not path.name.isdigit():
            continue
        try:
            status = dict(line.split(":", 1) for line in (path / "status").read_text().splitlines())
            command = (path / "cmdline").read_bytes()
        except OSError:
            continue
        is_spark = b"pyspark." in command or b"org.apache.spark" in command
        size = int(status.get("VmRSS", "0 kB").split()[0]) if is_spark else 0
        yield int(path.name), (int(status["PPid"]), size, status["Name"].strip())
