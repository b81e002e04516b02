"""Kafka's own command line: its main classes, run by `java` on the pinned jars.

The last checks read our data directory with `DumpLogSegments`: a node's files are Kafka's files.
"""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.suites import tools
from tests.suites.checks import Context, Ran, command, run_checks
from tests.suites.report import Check

TOOLS: Final = "org.apache.kafka.tools."
RECORDS: Final = 50_000
CODECS: Final = ("gzip", "snappy", "lz4", "zstd")


def version() -> str:
    jar = next(tools.jars().glob("kafka-tools-[0-9]*.jar"))
    return jar.stem.removeprefix("kafka-tools-")


def run(context: Context) -> Iterator[Check]:
    return run_checks(
        [
            broker_api_versions_reads_every_api,
            cluster_tool_shows_the_id,
            topics_are_created_altered_described_and_deleted,
            console_producer_and_consumer_carry_keys_and_headers,
            console_consumer_resumes_in_a_group,
            get_offsets_finds_each_kind,
            consumer_groups_are_listed_described_reset_and_deleted,
            groups_command_lists_groups,
            topic_configs_are_altered_and_described,
            broker_configs_are_altered_and_described,
            acls_are_added_listed_and_removed,
            delete_records_cuts_the_log,
            log_dirs_lists_partitions,
            metadata_quorum_shows_the_leader,
            leader_election_is_not_needed,
            reassignments_are_planned_executed_verified_and_listed,
            producer_performance_sends_all,
            consumer_performance_reads_all,
            transactions_are_listed_described_and_none_hangs,
            end_to_end_latency_is_measured,
            verifiable_producer_and_consumer_agree,
            dump_log_reads_every_codec,
            dump_log_verifies_the_indexes,
            dump_log_reads_a_producer_snapshot,
            dump_log_decodes_committed_offsets,
            dump_log_decodes_transactions,
            dump_log_decodes_cluster_metadata,
            a_node_starts_again_on_files_that_kafka_read,
        ],
        context,
    )


def _java(main: str, *words: str, given: str = "", code: int | None = 0, seconds_max: float = 90) -> Ran:
    return command(
        [
            # Short lives: start fast.
            "java",
            "-Xmx384m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            f"{tools.jars()}/*",
            main,
            *words,
        ],
        given=given,
        code=code,
        seconds_max=seconds_max,
    )


def _tool(context: Context, name: str, *words: str, given: str = "") -> Ran:
    return _java(TOOLS + name, "--bootstrap-server", context.bootstrap, *words, given=given)


def _make_topic(context: Context, topic: str, partitions: int = 1, *words: str) -> None:
    _tool(context, "TopicCommand", "--create", "--topic", topic, "--partitions", str(partitions), *words)


def _produce(context: Context, topic: str, lines: list[str], *words: str) -> None:
    _tool(context, "ConsoleProducer", "--topic", topic, *words, given="".join(f"{line}\n" for line in lines))


def _consume(context: Context, topic: str, count: int, *words: str) -> list[str]:
    return _tool(
        context,
        "consumer.ConsoleConsumer",
        "--topic",
        topic,
        "--max-messages",
        str(count),
        "--timeout-ms",
        "20000",
        *words,
    ).lines


def broker_api_versions_reads_every_api(context: Context) -> None:
    out = _tool(context, "BrokerApiVersionsCommand").out
    assert "Produce(0): 0 to" in out, out[:1000]
    assert "Fetch(1): 4 to" in out
    assert "ERROR" not in out


def cluster_tool_shows_the_id(context: Context) -> None:
    out = _java(TOOLS + "ClusterTool", "cluster-id", "--bootstrap-server", context.bootstrap).out
    assert re.search(r"Cluster ID: \S{22}", out), out


def topics_are_created_altered_described_and_deleted(context: Context) -> None:
    _make_topic(context, "made", 2, "--config", "retention.ms=1000000")
    assert "made" in _tool(context, "TopicCommand", "--list").lines
    _tool(context, "TopicCommand", "--alter", "--topic", "made", "--partitions", "5")
    out = _tool(context, "TopicCommand", "--describe", "--topic", "made").out
    assert "PartitionCount: 5" in out, out
    assert "retention.ms=1000000" in out, out
    assert out.count("Leader: 1") == 5, out
    _tool(context, "TopicCommand", "--delete", "--topic", "made")
    assert "made" not in _tool(context, "TopicCommand", "--list").lines


def console_producer_and_consumer_carry_keys_and_headers(context: Context) -> None:
    lines = [f"h:{i}\tkey-{i}\tvalue-{i}" for i in range(1000)]
    _produce(
        context,
        "console",
        lines,
        "--reader-property",
        "parse.key=true",
        "--reader-property",
        "parse.headers=true",
    )
    got = _consume(
        context,
        "console",
        1000,
        "--from-beginning",
        "--formatter-property",
        "print.key=true",
        "--formatter-property",
        "print.headers=true",
    )
    assert got == lines, got[:3]


def console_consumer_resumes_in_a_group(context: Context) -> None:
    _produce(context, "grouped", [str(i) for i in range(100)])
    first = _consume(context, "grouped", 60, "--group", "console-group", "--from-beginning")
    second = _consume(context, "grouped", 40, "--group", "console-group")
    assert first + second == [str(i) for i in range(100)]


def get_offsets_finds_each_kind(context: Context) -> None:
    _make_topic(context, "counted", 2)
    _produce(context, "counted", ["a", "b", "c"], "--reader-property", "parse.key=false")
    by_time = {
        when: sum(
            int(line.rpartition(":")[2] or 0)
            for line in _tool(context, "GetOffsetShell", "--topic", "counted", "--time", when).lines
        )
        for when in ("latest", "earliest", "max-timestamp")
    }
    assert by_time["latest"] == 3, by_time
    assert by_time["earliest"] == 0, by_time
    later = str((int(time.time()) + 3600) * 1000)
    lines = _tool(context, "GetOffsetShell", "--topic", "counted", "--time", later).lines
    assert all(line.rpartition(":")[2] in ("", "-1") for line in lines), lines


def consumer_groups_are_listed_described_reset_and_deleted(context: Context) -> None:
    tool = "consumer.group.ConsumerGroupCommand"
    _produce(context, "lagging", [str(i) for i in range(10)])
    _consume(context, "lagging", 4, "--group", "lagging-group", "--from-beginning")
    assert "lagging-group" in _tool(context, tool, "--list").lines
    out = _tool(context, tool, "--describe", "--group", "lagging-group").out
    assert re.search(r"lagging-group\s+lagging\s+0\s+4\s+10\s+6\s", out), out
    out = _tool(context, tool, "--describe", "--group", "lagging-group", "--state").out
    assert "Empty" in out, out
    reset = ["--reset-offsets", "--group", "lagging-group", "--topic", "lagging"]
    _tool(context, tool, *reset, "--to-offset", "7", "--dry-run")
    _tool(context, tool, *reset, "--to-earliest", "--execute")
    out = _tool(context, tool, "--describe", "--group", "lagging-group").out
    assert re.search(r"lagging-group\s+lagging\s+0\s+0\s+10\s+10\s", out), out
    _tool(context, tool, "--delete", "--group", "lagging-group")
    assert "lagging-group" not in _tool(context, tool, "--list").lines


def groups_command_lists_groups(context: Context) -> None:
    out = _tool(context, "GroupsCommand", "--list").out
    assert re.search(r"console-group\s+Classic\s+consumer", out), out


def topic_configs_are_altered_and_described(context: Context) -> None:
    _make_topic(context, "configured")
    entity = ["--entity-type", "topics", "--entity-name", "configured"]
    base = ["kafka.admin.ConfigCommand", "--bootstrap-server", context.bootstrap, *entity]
    _java(*base, "--alter", "--add-config", "retention.ms=5000,max.message.bytes=4000")
    out = _java(*base, "--describe").out
    assert "retention.ms=5000" in out and "max.message.bytes=4000" in out, out
    _java(*base, "--alter", "--delete-config", "retention.ms")
    assert "retention.ms=5000" not in _java(*base, "--describe").out
    out = _java(*base, "--describe", "--all").out
    assert "cleanup.policy=delete" in out, out
    ran = _java(*base, "--alter", "--add-config", "no.such=1", code=1)
    assert "no.such" in ran.out + ran.err


def broker_configs_are_altered_and_described(context: Context) -> None:
    entity = ["--entity-type", "brokers", "--entity-name", "1"]
    base = ["kafka.admin.ConfigCommand", "--bootstrap-server", context.bootstrap, *entity]
    _java(*base, "--alter", "--add-config", "log.retention.ms=123456789")
    assert "log.retention.ms=123456789" in _java(*base, "--describe").out
    _java(*base, "--alter", "--delete-config", "log.retention.ms")
    assert "log.retention.ms=123456789" not in _java(*base, "--describe").out


def acls_are_added_listed_and_removed(context: Context) -> None:
    def acls(*words: str) -> str:
        return _tool(context, "AclCommand", *words).out

    who = ("--allow-principal", "User:alice")
    acls("--add", *who, "--operation", "Read", "--topic", "guarded")
    acls("--add", "--deny-principal", "User:alice", "--operation", "Read", "--topic", "guarded")
    acls("--add", *who, "--producer", "--topic", "guard", "--resource-pattern-type", "prefixed")
    out = acls("--list", "--topic", "guarded", "--resource-pattern-type", "match")
    assert out.count("permissionType=DENY") == 1 and "patternType=PREFIXED" in out, out
    assert all(f"operation={one}" in out for one in ("READ", "WRITE", "DESCRIBE", "CREATE")), out
    acls("--remove", "--force", *who, "--operation", "Read", "--topic", "guarded")
    out = acls("--list", "--topic", "guarded")
    assert out.count("operation=READ") == 1 and "permissionType=DENY" in out, out


def delete_records_cuts_the_log(context: Context) -> None:
    _produce(context, "cut", [str(i) for i in range(10)])
    wanted = context.directory / "delete.json"
    wanted.write_text('{"version": 1, "partitions": [{"topic": "cut", "partition": 0, "offset": 6}]}')
    out = _tool(context, "DeleteRecordsCommand", "--offset-json-file", str(wanted)).out
    assert "low_watermark: 6" in out, out
    assert _consume(context, "cut", 4, "--from-beginning") == ["6", "7", "8", "9"]


def log_dirs_lists_partitions(context: Context) -> None:
    out = _tool(context, "LogDirsCommand", "--describe", "--topic-list", "console").out
    assert '"partition":"console-0"' in out, out
    size = int(re.search(r'"size":(\d+)', out)[1])  # type: ignore[index]
    log = _partition(context, "console") / f"{0:020}.log"
    assert size == log.stat().st_size, (size, log.stat().st_size)


def metadata_quorum_shows_the_leader(context: Context) -> None:
    out = _java(
        TOOLS + "MetadataQuorumCommand", "--bootstrap-server", context.bootstrap, "describe", "--status"
    ).out
    assert re.search(r"LeaderId:\s+1\b", out), out


def leader_election_is_not_needed(context: Context) -> None:
    kind = ["--election-type", "preferred"]
    out = _tool(context, "LeaderElectionCommand", *kind, "--topic", "console", "--partition", "0").out
    assert "Valid replica already elected for partitions console-0" in out, out
    # Of all partitions, only those that got another leader are named.
    assert _tool(context, "LeaderElectionCommand", *kind, "--all-topic-partitions").out == ""


def reassignments_are_planned_executed_verified_and_listed(context: Context) -> None:
    """On one node nothing can move; on several, `tests/cluster/test_reassign.py` does it."""
    _make_topic(context, "placed", 2)
    topics, plan = context.directory / "topics.json", context.directory / "plan.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": "placed"}]}))

    def reassign(*words: str) -> str:
        return _tool(context, "reassign.ReassignPartitionsCommand", *words).out

    out = reassign("--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "1")
    plan.write_text(out.rpartition("configuration\n")[2])
    out = reassign("--execute", "--reassignment-json-file", str(plan))
    assert "Successfully started partition reassignments for placed-0,placed-1" in out, out
    out = reassign("--verify", "--reassignment-json-file", str(plan))
    assert out.count("is completed") == 2, out
    assert "No partition reassignments found" in reassign("--list")


def producer_performance_sends_all(context: Context) -> None:
    out = _java(
        TOOLS + "ProducerPerformance",
        "--topic",
        "perf",
        "--num-records",
        str(RECORDS),
        "--record-size",
        "200",
        "--throughput",
        "-1",
        "--bootstrap-server",
        context.bootstrap,
        "--command-property",
        "acks=all",
    ).out
    assert f"{RECORDS} records sent" in out, out


def consumer_performance_reads_all(context: Context) -> None:
    out = _tool(
        context, "ConsumerPerformance", "--topic", "perf", "--num-records", str(RECORDS), "--timeout", "30000"
    ).lines
    header = [name.strip() for name in out[0].split(",")]
    fields = dict(zip(header, [field.strip() for field in out[-1].split(",")], strict=True))
    assert int(fields["data.consumed.in.nMsg"]) == RECORDS, fields


def transactions_are_listed_described_and_none_hangs(context: Context) -> None:
    out = _java(
        TOOLS + "ProducerPerformance",
        "--topic",
        "perf-transactions",
        "--num-records",
        "2000",
        "--record-size",
        "200",
        "--throughput",
        "5000",
        "--transactional-id",
        "perf-id",
        "--transaction-duration-ms",
        "100",
        "--bootstrap-server",
        context.bootstrap,
    ).out
    assert "2000 records sent" in out, out
    tool = "TransactionsCommand"
    out = _tool(context, tool, "list").out
    assert re.search(r"perf-id\s+\d+\s+\d+\s+CompleteCommit", out), out
    out = _tool(context, tool, "describe", "--transactional-id", "perf-id").out
    assert re.search(r"perf-id\s.*CompleteCommit", out), out
    out = _tool(context, tool, "describe-producers", "--topic", "perf-transactions", "--partition", "0").out
    assert re.search(r"^\d+\s+\d+\s+\d+\s.*\sNone\s*$", out, re.MULTILINE), out
    _tool(context, tool, "find-hanging", "--broker-id", "1")


def end_to_end_latency_is_measured(context: Context) -> None:
    out = _java(
        TOOLS + "EndToEndLatency",
        "--bootstrap-server",
        context.bootstrap,
        "--topic",
        "latency",
        "--num-records",
        "500",
        "--producer-acks",
        "all",
        "--record-size",
        "100",
    ).out
    assert "Percentiles: 50th" in out, out


def verifiable_producer_and_consumer_agree(context: Context) -> None:
    sent = _tool(context, "VerifiableProducer", "--topic", "verifiable", "--max-messages", "2000").lines
    assert sum('"name":"producer_send_success"' in line for line in sent) == 2000
    got = _tool(
        context,
        "VerifiableConsumer",
        "--topic",
        "verifiable",
        "--group-id",
        "verifiers",
        "--max-messages",
        "2000",
        "--reset-policy",
        "earliest",
        "--group-protocol",
        "classic",
    ).out
    counts = re.findall(r'"name":"records_consumed","count":(\d+)', got)
    counts = counts or re.findall(r'"count":(\d+),"name":"records_consumed"', got)
    if not counts:
        counts = [
            re.search(r'"count":(\d+)', line)[1]  # type: ignore[index]
            for line in got.splitlines()
            if '"records_consumed"' in line
        ]
    assert sum(map(int, counts)) == 2000, got[-1500:]


# Our files, read by Kafka


def _partition(context: Context, topic: str, number: int = 0) -> Path:
    return context.node.data / f"{topic}-{number}"


def _dump(*words: str) -> str:
    return _java(TOOLS + "DumpLogSegments", *words).out


def dump_log_reads_every_codec(context: Context) -> None:
    for codec in CODECS:
        _produce(context, f"dump-{codec}", [f"{codec} {i}" for i in range(200)], "--compression-codec", codec)
    for codec in CODECS:
        log = _partition(context, f"dump-{codec}") / f"{0:020}.log"
        out = _dump("--deep-iteration", "--print-data-log", "--files", str(log))
        payloads = re.findall(r"payload: (.*)", out)
        assert payloads == [f"{codec} {i}" for i in range(200)], out[:1500]
        assert f"compresscodec: {codec}" in out
        assert "isvalid: false" not in out


def dump_log_verifies_the_indexes(context: Context) -> None:
    # A clean stop writes what an active segment keeps in memory: its indexes and producers.
    context.node.stop()
    partition = _partition(context, "perf")
    for kind in ("index", "timeindex"):
        file = partition / f"{0:020}.{kind}"
        entries = _dump("--files", str(file))
        assert len(re.findall(r"offset: \d+", entries)) > 10, entries[:1000]
        _fail_on_mismatch(entries)
        _fail_on_mismatch(_dump("--verify-index-only", "--files", str(file)))
        assert "passed sanity check" in _dump("--index-sanity-check", "--files", str(file))


def _fail_on_mismatch(out: str) -> None:
    for bad in ("Mismatches in", "out of order", "not found", "Found timestamp mismatch"):
        assert bad not in out, out[:1500]


def dump_log_reads_a_producer_snapshot(context: Context) -> None:
    snapshot = next(_partition(context, "perf").glob("*.snapshot"))
    assert snapshot.stem == f"{RECORDS:020}", snapshot.name
    lines = [line for line in _dump("--files", str(snapshot)).splitlines() if "producerId" in line]
    # An entry for each of the last batches, where Kafka writes one; the newest is the last.
    found = re.search(r"producerEpoch: 0 .*lastSequence: (\d+) lastOffset: (\d+)", lines[-1])
    assert found, lines
    assert found[1] == found[2] == str(RECORDS - 1), lines


def dump_log_decodes_committed_offsets(context: Context) -> None:
    outs = [
        _dump("--offsets-decoder", "--files", str(log))
        for log in context.node.data.glob("__consumer_offsets-*/*.log")
        if b"console-group" in log.read_bytes()
    ]
    assert len(outs) == 1, "one partition holds the group"
    assert '"group":"console-group"' in outs[0], outs[0][:1500]
    assert re.search(r'"topic":"grouped","partition":0.*"offset":100', outs[0]), outs[0][:3000]
    assert '"protocolType":"consumer"' in outs[0], outs[0][:3000]


def dump_log_decodes_transactions(context: Context) -> None:
    outs = [
        _dump("--transaction-log-decoder", "--files", str(log))
        for log in context.node.data.glob("__transaction_state-*/*.log")
        if b"perf-id" in log.read_bytes()
    ]
    assert len(outs) == 1, "one partition holds the id"
    assert "perf-id" in outs[0], outs[0][:1500]
    for status in (0, 1, 2, 4):  # Empty, Ongoing, PrepareCommit, CompleteCommit
        assert f'"transactionStatus":{status},' in outs[0], outs[0][:3000]
    log = next(_partition(context, "perf-transactions").glob("*.log"))
    markers = _dump("--print-data-log", "--files", str(log))
    assert "endTxnMarker: COMMIT" in markers, markers[-1500:]


def dump_log_decodes_cluster_metadata(context: Context) -> None:
    log = _partition(context, "__cluster_metadata") / f"{0:020}.log"
    out = _dump("--cluster-metadata-decoder", "--files", str(log))
    assert '"type":"TOPIC_RECORD"' in out, out[:1500]
    assert '"name":"perf"' in out, out[:1500]
    assert '"type":"PARTITION_RECORD"' in out


def a_node_starts_again_on_files_that_kafka_read(context: Context) -> None:
    context.node.start()
    assert len(_consume(context, "console", 1000, "--from-beginning")) == 1000
