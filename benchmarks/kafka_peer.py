"""Apache Kafka as a peer: one node or three, each broker and controller in one process, with
Kafka's own defaults.

Rule 1: nothing is tuned, up or down. The JVM gets the options that Kafka's own start script gives
        it; settings that differ from a default say why.
Rule 2: Kafka comes from Maven Central through Maven, once, into a directory that git ignores.
Rule 3: a process does not outlive its `with`, nor do its files outlive the caller's directory.
"""

import base64
import re
import shutil
import socket
import struct
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from benchmarks.clients import Unavailable
from benchmarks.process import end_process, free_ports

POM: Final = Path(__file__).with_name("kafka") / "pom.xml"
JARS: Final = Path(__file__).parents[1] / ".suites" / "kafka-jars"

DOWNLOAD_SECONDS_MAX: Final = 300
FORMAT_SECONDS_MAX: Final = 60
START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 30.0
ANSWER_SECONDS_MAX: Final = 2.0
POLL_SECONDS: Final = 0.01

# What kafka-server-start.sh and kafka-run-class.sh pass.
JVM_OPTIONS: Final = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)

# Nothing that Kafka does faster or slower for it while records flow: a node needs all but the last
# two, which make it start and clean up at once.
PROPERTIES: Final = """\
process.roles=broker,controller
node.id={node}
listeners=CLIENTS://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=CLIENTS://127.0.0.1:{port}
listener.security.protocol.map=CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=CLIENTS
controller.listener.names=CONTROLLER
log.dirs={logs}
group.initial.rebalance.delay.ms=0
log.segment.delete.delay.ms=100
"""

# A node that is alone cannot have three replicas of anything, as the defaults are.
ALONE: Final = """\
controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""

TOGETHER: Final = """\
controller.quorum.voters={voters}
"""

# api_versions 0 := size: int32, api_key: int16 = 18, version: int16, correlation_id: int32,
#                   client: string? = null
API_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, 1, -1)


class Kafka:
    """Kafka's jars, and a Java to run them."""

    def __init__(self) -> None:
        """Find Java and the jars, which the first time takes a download; or Unavailable."""
        java = shutil.which("java")
        if java is None:
            raise Unavailable("no java (Debian: openjdk-17-jre-headless)")
        self.java = java
        if not _are_current(JARS):
            _download(JARS)

    @property
    def version(self) -> str:
        found = re.search(r"<kafka.version>(.+)</kafka.version>", POM.read_text(encoding="utf-8"))
        assert found is not None, "the pom names the version"
        return found[1]

    def command(self, main: str, *arguments: str) -> list[str]:
        return [self.java, *JVM_OPTIONS, "-cp", f"{JARS}/*", main, *arguments]


def _are_current(jars: Path) -> bool:
    """Whether the jars are those of the pom: its copy beside them is written last."""
    copy = jars / POM.name
    return copy.is_file() and copy.read_bytes() == POM.read_bytes()


def _download(jars: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable("no mvn to download Kafka with (Debian: maven)")
    shutil.rmtree(jars, ignore_errors=True)
    jars.mkdir(parents=True)
    (jars / ".gitignore").write_text("*\n", encoding="ascii")
    command = [
        maven,
        "--batch-mode",
        "--quiet",
        "--file",
        str(POM),
        "dependency:copy-dependencies",
        "-DincludeScope=runtime",
        f"-DoutputDirectory={jars}",
    ]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"mvn did not finish in {DOWNLOAD_SECONDS_MAX} s") from None
    if ended.returncode:
        raise Unavailable(f"mvn failed: {(ended.stdout + ended.stderr).strip()[-1000:]}")
    shutil.copy(POM, jars / POM.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A node's number, its ports, and the quorum that it is part of, if it is not alone."""

    node: int
    port: int
    controller_port: int
    cluster_id: str
    voters: str = ""


class KafkaProcess:
    """One Kafka node on a free port. It has the face of `tests.support.node.NodeProcess`."""

    def __init__(self, kafka: Kafka, data: Path, place: Place | None = None) -> None:
        """Make and format `data`. This is not part of a start: Kafka wants it done beforehand."""
        self._kafka = kafka
        self._process: subprocess.Popen[bytes] | None = None
        self.data = data
        self.log = data.parent / (data.name + ".log")
        """What Kafka printed."""
        if place is None:
            port, controller_port = free_ports(2)
            place = Place(node=1, port=port, controller_port=controller_port, cluster_id=_new_cluster_id())
        self._place = place
        self.port = place.port
        data.mkdir()
        self._properties = data / "server.properties"
        template = PROPERTIES + (TOGETHER if place.voters else ALONE)
        self._properties.write_text(
            template.format(
                node=place.node,
                port=place.port,
                controller_port=place.controller_port,
                voters=place.voters,
                logs=data / "logs",
            ),
            encoding="utf-8",
        )
        self._format()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.is_running:
            self.kill()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start Kafka and wait until it answers a client's first request."""
        self.spawn()
        self.wait_ready()

    def spawn(self) -> None:
        """Make the process; one of several does not answer before most of them run."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._kafka.command("kafka.Kafka", str(self._properties)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.data,
            )

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._answers():
            if not self.is_running or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"Kafka did not start:\n{self._last_words()}")
            time.sleep(POLL_SECONDS)

    def stop(self) -> int:
        """SIGTERM: a clean stop; its exit code. SIGKILL if that takes too long."""
        assert self._process is not None
        return end_process(self._process, STOP_SECONDS_MAX)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def _format(self) -> None:
        alone = [] if self._place.voters else ["--standalone"]
        command = self._kafka.command(
            "kafka.tools.StorageTool",
            "format",
            *alone,
            "--cluster-id",
            self._place.cluster_id,
            "--config",
            str(self._properties),
        )
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=FORMAT_SECONDS_MAX, check=False
        )
        if ended.returncode:
            raise RuntimeError(
                f"Kafka's storage cannot be formatted: {(ended.stdout + ended.stderr)[-1000:]}"
            )

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), ANSWER_SECONDS_MAX) as client:
                client.sendall(API_VERSIONS)
                return len(client.recv(4)) == 4
        except OSError:
            return False

    def _last_words(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-4000:]


class KafkaCluster:
    """Several Kafka nodes, all of them voters. It has the face of `benchmarks.cluster.Cluster`."""

    def __init__(self, kafka: Kafka, data: Path, nodes: int) -> None:
        data.mkdir()
        ports = free_ports(2 * nodes)
        cluster_id = _new_cluster_id()
        numbered = [(number + 1, *ports[2 * number : 2 * number + 2]) for number in range(nodes)]
        voters = ",".join(f"{number}@127.0.0.1:{port}" for number, _, port in numbered)
        self._nodes = [
            KafkaProcess(
                kafka,
                data / f"node-{number}",
                Place(
                    node=number,
                    port=port,
                    controller_port=controller_port,
                    cluster_id=cluster_id,
                    voters=voters,
                ),
            )
            for number, port, controller_port in numbered
        ]

    def __enter__(self) -> Self:
        try:
            for node in self._nodes:
                node.spawn()
            for node in self._nodes:
                node.wait_ready()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._kill()

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self._nodes)

    def pids(self) -> list[int]:
        return [node.pid for node in self._nodes]

    def _kill(self) -> None:
        for node in self._nodes:
            if node.is_running:
                node.kill()


def _new_cluster_id() -> str:
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return "a" + cluster_id[1:] if cluster_id.startswith("-") else cluster_id  # not an option
