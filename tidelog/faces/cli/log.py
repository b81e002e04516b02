"""`tidelog log`: look into a data directory, offline."""

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.faces.cli.common import AsJson, note, number, plain, print_json, print_table, progress_bar

if TYPE_CHECKING:
    from tidelog.faces.cli.segments import Bad, Batch, Report

app = typer.Typer(help="Dump and verify the files of a data directory, offline.", no_args_is_help=True)

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="Data directory, or the directory of one partition.")
]
Partition = Annotated[
    str | None, typer.Option("--partition", metavar="TOPIC-N", help="Only this partition, as orders-0.")
]


@app.command("dump")
def dump(
    directory: Directory,
    partition: Partition = None,
    deep: Annotated[bool, typer.Option("--deep", help="Also print every record.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print one line for each batch in the files.

    Nothing is changed, and damaged batches are shown like others. `tidelog
    log verify` checks them.

    \b
    Examples:
      tidelog log dump ./data --partition orders-0
      tidelog log dump ./data/orders-0 --deep
    """
    from tidelog.faces.cli.segments import partition_directories, segment_files

    partitions = partition_directories(directory, partition)
    if as_json:
        _dump_json(partitions, deep)
        return
    for path in partitions:
        for segment in segment_files(path):
            print(f"{plain(path.name)}/{segment.name}")
            for line in _dump_lines(segment, deep):
                print(line)
    if not partitions:
        note(f"{directory} holds no partitions")


@app.command("verify")
def verify(directory: Directory, partition: Partition = None, as_json: AsJson = False) -> int:
    """Read and check all files: checksums, offsets, epochs, indexes, checkpoints.

    Exits with 1 if something is damaged. A torn tail, which is a batch that
    a crash interrupted, is reported but is no damage: the node cuts it off
    at its next start.

    \b
    Examples:
      tidelog log verify ./data
      tidelog log verify ./data --partition orders-0 --json
    """
    from tidelog.faces.cli.segments import Verifier, partition_directories, total_bytes

    partitions = partition_directories(directory, partition)
    root = directory if directory.resolve() not in partitions else directory.resolve().parent
    reports: list[Report] = []
    with progress_bar(visible=True) as progress:
        task = progress.add_task("verifying", total=total_bytes(partitions))
        verifier = Verifier(root, lambda size: progress.advance(task, size))
        reports.extend(verifier.verify(path) for path in partitions)
    damaged = any(report.is_damaged for report in reports)
    if as_json:
        print_json(
            {
                "data": str(directory),
                "damaged": damaged,
                "partitions": [_report_json(report) for report in reports],
            }
        )
    else:
        _print_reports(reports)
    return int(damaged)


def _report_json(report: "Report") -> dict[str, Any]:
    document = dataclasses.asdict(report)
    document["damaged"] = report.is_damaged
    return document


def _print_reports(reports: "list[Report]") -> None:
    print_table(
        ["partition", "segments#", "batches#", "records#", "bytes#", "offsets", "state"],
        [
            (
                report.partition,
                number(report.segments),
                number(report.batches),
                number(report.records),
                number(report.bytes),
                f"{report.first_offset} to {report.next_offset - 1}" if report.batches else "none",
                _state(report),
            )
            for report in reports
        ],
    )
    for report in reports:
        for problem in report.problems:
            print(
                f"{problem.kind.value}: {plain(report.partition)}/{problem.file} "
                f"at {problem.position}: {plain(problem.message)}"
            )


def _state(report: "Report") -> str:
    if report.is_damaged:
        return "DAMAGED"
    return "torn tail" if report.problems else "ok"


def _dump_lines(segment: Path, deep: bool) -> Iterator[str]:
    from tidelog.faces.cli.segments import Batch, batches

    for found in batches(segment):
        if found.header is None:
            yield f"  position {found.position} WRONG: {found.message}"
            continue
        header = found.header
        producer = ""
        if header.is_idempotent:
            producer = (
                f" producer {header.producer_id}/{header.producer_epoch}"
                f" sequence {header.base_sequence}-{header.last_sequence}"
            )
        flags = " transactional" * header.is_transactional + " control" * header.is_control
        yield (
            f"  offsets {header.base_offset}-{header.last_offset} position {found.position} "
            f"size {header.size} records {header.record_count} epoch {header.leader_epoch} "
            f"codec {_codec(header.attributes)} time {header.base_timestamp}-{header.max_timestamp}"
            f"{producer}{flags} crc {'ok' if isinstance(found, Batch) else 'WRONG'}"
        )
        if deep and isinstance(found, Batch):
            yield from _record_lines(segment, found)


def _record_lines(segment: Path, batch: "Batch") -> Iterator[str]:
    from tidelog.errors import TidelogError

    try:
        records = _records(segment, batch)
    except TidelogError as error:
        yield f"    unreadable: {plain(error)}"
        return
    for record in records:
        headers = "".join(f" {name}={value!r}" for name, value in record.headers)
        yield plain(
            f"    offset {record.offset} time {record.timestamp_ms} key {record.key!r} "
            f"value {record.value!r}{headers}"
        )


def _records(segment: Path, batch: "Batch") -> Any:
    from tidelog.records import decode_batch

    with segment.open("rb") as stream:
        stream.seek(batch.position)
        return decode_batch(stream.read(batch.header.size))


def _codec(attributes: int) -> str:
    from tidelog.records import CODEC_MASK, Codec

    codec = attributes & CODEC_MASK
    return Codec(codec).name.lower() if codec <= Codec.ZSTD else str(codec)


def _dump_json(partitions: list[Path], deep: bool) -> None:
    """One document, written as it is read: a log does not fit into memory."""
    from tidelog.faces.cli.segments import batches, segment_files, topic_id

    out = sys.stdout
    out.write('{"partitions": [')
    for at, path in enumerate(partitions):
        head = {"partition": path.name, "topic_id": topic_id(path)}
        out.write((", " if at else "") + json.dumps(head)[:-1] + ', "segments": [')
        for number_of_segment, segment in enumerate(segment_files(path)):
            out.write((", " if number_of_segment else "") + json.dumps({"file": segment.name})[:-1])
            out.write(', "batches": [')
            for number_of_batch, found in enumerate(batches(segment)):
                out.write(", " if number_of_batch else "")
                out.write(json.dumps(_found_json(segment, found, deep), ensure_ascii=False))
            out.write("]}")
        out.write("]}")
    out.write("]}\n")


def _found_json(segment: Path, found: "Batch | Bad", deep: bool) -> dict[str, Any]:
    from tidelog.errors import TidelogError
    from tidelog.faces.cli.lines import record_to_json
    from tidelog.faces.cli.segments import Batch

    if found.header is None:
        return {"position": found.position, "crc_ok": False, "message": found.message}
    header = found.header
    document: dict[str, Any] = {
        "position": found.position,
        "size": header.size,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.record_count,
        "epoch": header.leader_epoch,
        "codec": _codec(header.attributes),
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "crc_ok": isinstance(found, Batch),
    }
    if deep and isinstance(found, Batch):
        topic, _, partition = segment.parent.resolve().name.rpartition("-")
        try:
            document["records"] = [
                record_to_json(record, topic, int(partition)) for record in _records(segment, found)
            ]
        except TidelogError as error:
            document["unreadable"] = str(error)
    return document
