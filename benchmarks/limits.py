"""What this machine can do without us: the figures that every other benchmark stands beside.

Rule 1: a limit is measured the way a node works: it appends to a new file on the node's own file
        system, because on a virtual machine a page that memory has never held costs several times
        one that is used again.
Rule 2: nothing is tuned. These are the plain calls; a node may beat one of them, by syncing more
        than 1 MB at once for example.
"""

import os
import shutil
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Final

from crc32c import crc32c

from benchmarks.bench import MIB, Bench, Steps
from benchmarks.peer import MESSAGE_BYTES
from benchmarks.process import Peer, cpu_seconds
from benchmarks.pump import connect, pump, receive_exactly
from benchmarks.report import Measured, Report, Result, result
from tidelog.client.load import percentiles
from tidelog.host import Path as HostPath
from tidelog.host import SystemDisk

BLOCK: Final = b"tidelog " * (1_000_000 // 8)
"""1 MB, as one batch of the throughput benchmark."""
PAGE: Final = bytes(4096)
ECHO: Final = bytes(MESSAGE_BYTES)
WRITTEN_BYTES_MAX: Final = 4_000_000_000
"""No measurement leaves more than this on the disk, however fast it is."""
SYNC_EACH_MAX: Final = 8
"""Up to so many files are synced one by one, more of them by one `syncfs`."""
READ_BYTES: Final = 4 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Bytes moved, and what that took."""

    size: int
    seconds: float
    cpu_seconds: float = 0.0

    @property
    def megabytes_per_second(self) -> float:
        return self.size / self.seconds / 1e6

    @property
    def cpu_seconds_per_gigabyte(self) -> float:
        return self.cpu_seconds / self.size * 1e9


# The network.


def loopback_copy(sink: Peer, seconds: float) -> tuple[Moved, Moved]:
    """1 MB at a time to another process, which forgets it: once as the sender, once as the sink.

    They differ only in whose CPU time it is.
    """
    sent = 0
    with connect(sink.port) as connection:
        cpu, sink_cpu, started = process_time(), cpu_seconds(sink.pid), perf_counter()
        while perf_counter() - started < seconds:
            connection.sendall(BLOCK)
            sent += len(BLOCK)
        connection.shutdown(socket.SHUT_WR)
        receive_exactly(connection, 1)
        elapsed = perf_counter() - started
    return (
        Moved(size=sent, seconds=elapsed, cpu_seconds=process_time() - cpu),
        Moved(size=sent, seconds=elapsed, cpu_seconds=cpu_seconds(sink.pid) - sink_cpu),
    )


def echoes_per_second(echo: Peer, *, connections: int, depth: int, seconds: float) -> float:
    """100 bytes there and back through uvloop, `depth` of them unanswered on each connection."""
    return pump(
        echo.port, ECHO, answer_bytes=len(ECHO), connections=connections, depth=depth, seconds=seconds
    ).per_second


def echo_latency_ms(echo: Peer, seconds: float) -> dict[str, float]:
    """Percentiles of 100 bytes there and back, one at a time."""
    with connect(echo.port) as connection:

        def once() -> None:
            connection.sendall(ECHO)
            receive_exactly(connection, len(ECHO))

        return percentiles(_timed(once, seconds))


# The disk.


def write_synced(directory: Path, seconds: float) -> Moved:
    """Append 1 MB to a new file and `fdatasync` it, again and again."""
    with _NewFile(directory) as file:

        def once() -> int:
            os.write(file, BLOCK)
            os.fdatasync(file)
            return len(BLOCK)

        return _moved(once, seconds)


def write_then_sync(directory: Path, seconds: float) -> Moved:
    """Append 1 MB at a time to a new file, with one `fdatasync` at the end, which counts."""
    with _NewFile(directory) as file:
        return _moved(lambda: os.write(file, BLOCK), seconds, finish=lambda: os.fdatasync(file))


def sync_latency_ms(directory: Path, seconds: float, size: int = len(PAGE)) -> dict[str, float]:
    """Percentiles of appending 4 KiB, or another size, to a new file and `fdatasync`."""
    data = bytes(size)
    with _NewFile(directory) as file:

        def once() -> None:
            os.write(file, data)
            os.fdatasync(file)

        return percentiles(_timed(once, seconds))


def write_spread(
    directory: Path, seconds: float, *, files: int, chunk_bytes: int, chunks_per_sync: int
) -> Moved:
    """Append chunks to many new files in turn, and sync all of them after every so many."""
    chunk = bytes(chunk_bytes)
    place = directory / "spread"
    place.mkdir()
    opened = [os.open(place / str(at), os.O_WRONLY | os.O_CREAT, 0o644) for at in range(files)]
    disk = SystemDisk()
    disk.sync_everything(HostPath(place))
    turn = 0

    def once() -> int:
        nonlocal turn
        for _ in range(chunks_per_sync):
            os.write(opened[turn], chunk)
            turn = (turn + 1) % files
        if files > SYNC_EACH_MAX:
            disk.sync_everything(HostPath(place))
        else:
            for file in opened:
                os.fdatasync(file)
        return chunks_per_sync * chunk_bytes

    try:
        return _moved(once, seconds)
    finally:
        for file in opened:
            os.close(file)
        shutil.rmtree(place)


def copy_file(directory: Path, size: int) -> Moved:
    """A plain copy of a file that memory holds, to a new one."""
    source, target = directory / "copy-source", directory / "copy-target"
    try:
        with source.open("wb") as file:
            for _ in range(size // len(BLOCK)):
                file.write(BLOCK)
            file.flush()
            os.fdatasync(file.fileno())
        cpu, started = process_time(), perf_counter()
        shutil.copyfile(source, target)
        seconds = perf_counter() - started
        return Moved(size=source.stat().st_size, seconds=seconds, cpu_seconds=process_time() - cpu)
    finally:
        source.unlink(missing_ok=True)
        target.unlink(missing_ok=True)


def copy_synced(source: Path) -> Moved:
    """Read a file that memory holds, 1 MB at a time, into a new one, with one `fdatasync`."""
    with source.open("rb", buffering=0) as file, _NewFile(source.parent) as target:
        cpu, started, size = process_time(), perf_counter(), 0
        while chunk := file.read(len(BLOCK)):
            size += os.write(target, chunk)
        os.fdatasync(target)
        seconds = perf_counter() - started
        return Moved(size=size, seconds=seconds, cpu_seconds=process_time() - cpu)


def read_checked(path: Path) -> Moved:
    """Read a file with plain reads, and take the CRC32C of every byte."""
    cpu, started, size, checksum = process_time(), perf_counter(), 0, 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(READ_BYTES):
            checksum = crc32c(chunk, checksum)
            size += len(chunk)
    return Moved(size=size, seconds=perf_counter() - started, cpu_seconds=process_time() - cpu)


def forget_cached(path: Path) -> None:
    """Let memory hold nothing of a file, so that the next read is the device's."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


class _NewFile:
    """A descriptor of a new file, which is gone afterwards."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "limit"

    def __enter__(self) -> int:
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        return self._file

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
        self._path.unlink()


def _moved(once: Callable[[], int], seconds: float, *, finish: Callable[[], None] | None = None) -> Moved:
    size = 0
    cpu, started = process_time(), perf_counter()
    while perf_counter() - started < seconds and size < WRITTEN_BYTES_MAX:
        size += once()
    if finish is not None:
        finish()
    elapsed = perf_counter() - started
    return Moved(size=size, seconds=elapsed, cpu_seconds=process_time() - cpu)


def _timed(once: Callable[[], None], seconds: float) -> Sequence[float]:
    """How long each of as many calls as fit took, in seconds."""
    samples = []
    started = now = perf_counter()
    while now - started < seconds:
        once()
        before, now = now, perf_counter()
        samples.append(now - before)
    return samples


# The benchmark.

NAME: Final = "limits"


def run(bench: Bench) -> Report:
    measured = Measured()
    seconds, directory = bench.limit_seconds, bench.directory
    copy_bytes = 100_000_000 if bench.quick else 1_000_000_000
    shapes = ((1, 1), (1, 100), (8, 1000))
    with (
        Peer("sink") as sink,
        Peer("echo") as echo,
        Peer("answer") as answer,
        Steps(NAME, (5 + 2 * len(shapes)) * bench.rounds) as steps,
    ):
        for _ in range(bench.rounds):
            steps.begin("loopback copy")
            measured.add("copy", loopback_copy(sink, seconds)[0].megabytes_per_second)
            for connections, depth in shapes:
                for name, peer in (("echo", echo), ("answer", answer)):
                    steps.begin(f"{name}, {connections} x {depth}")
                    rate = echoes_per_second(peer, connections=connections, depth=depth, seconds=seconds)
                    measured.add((name, connections, depth), rate)
            steps.begin("write and sync every 1 MB")
            bench.settle()
            measured.add("synced", write_synced(directory, seconds).megabytes_per_second)
            steps.begin("write, sync at the end")
            bench.settle()
            measured.add("at end", write_then_sync(directory, seconds).megabytes_per_second)
            steps.begin("fdatasync of 4 KiB")
            bench.settle()
            for name, milliseconds in sync_latency_ms(directory, seconds).items():
                measured.add(("sync", name), milliseconds)
            steps.begin("file copy")
            bench.settle()
            measured.add("file", copy_file(directory, copy_bytes).megabytes_per_second)
            bench.settle()
    sync_rates = [1000 / milliseconds for milliseconds in measured.of(("sync", "p50"))]

    def row(case: str, name: object, unit: str) -> Result:
        return result(NAME, case, measured.of(name), unit)

    rows = [
        row("loopback copy, 1 MB writes", "copy", "MB/s"),
        row("echo of 100 B, one at a time", ("echo", 1, 1), "requests/s"),
        row("echo of 100 B, 100 in flight", ("echo", 1, 100), "requests/s"),
        row("echo of 100 B, 8 connections x 1,000", ("echo", 8, 1000), "requests/s"),
        row("the same, each by itself, one at a time", ("answer", 1, 1), "requests/s"),
        row("the same, each by itself, 100 in flight", ("answer", 1, 100), "requests/s"),
        row("the same, each by itself, 8 x 1,000", ("answer", 8, 1000), "requests/s"),
        row("write + fdatasync per 1 MB", "synced", "MB/s"),
        row("write, one fdatasync at the end", "at end", "MB/s"),
        row("append 4 KiB + fdatasync, p50", ("sync", "p50"), "ms"),
        row("append 4 KiB + fdatasync, p99", ("sync", "p99"), "ms"),
        result(NAME, "append 4 KiB + fdatasync", sync_rates, "syncs/s"),
        row("file copy", "file", "MB/s"),
    ]
    return Report(title="what this machine can do", results=rows)
