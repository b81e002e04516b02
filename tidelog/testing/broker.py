"""One broker in a process of its own, with the calls of the system that Tidelog was drawn from.

    broker = Broker(broker_id=1, port=8001)
    broker.start()
    broker.status()
    broker.kill()

| there                          | here                                                            |
|--------------------------------|-----------------------------------------------------------------|
| Broker(broker_id, ip, port)    | the same: its number, and where it serves HTTP; 0 for any port  |
| is_leader=True                 | a wish for the first election: it stands sooner than others     |
| start_http_server()            | `start(wait=False)`: the process is made, and serves HTTP       |
| set_peer_urls(urls)            | names its cluster, before it starts                             |
| set_follower_urls(urls)        | only checked: who follows whom is decided for every partition   |
| start_cluster_tasks(proxy_url) | `wait()`: until it takes part. A proxy finds the leaders itself |
| stop_cluster_tasks()           | nothing: `stop` hands over what it leads                        |
| stop_http_server()             | `stop()`                                                        |
| close()                        | the same: the process ends, and its directory goes              |

Rule 1: a process ends with the one that started it, however that ends.
Rule 2: ports are kept from the making of a broker to its `close`, whether it runs or not.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tidelog.faces.local.layout import State, quorum_size
from tidelog.faces.local.supervisor import describe_exit, last_line, process_state
from tidelog.model import NodeId
from tidelog.testing.errors import NotInTime, NotRunning, StartFailed
from tidelog.testing.ports import LOCALHOST, reserve
from tidelog.testing.settings import SETTINGS

SECONDS_MAX: Final = 30.0
STOP_SECONDS_MAX: Final = 40.0
"""A node gives its clients and its disk this long; whoever takes longer is killed."""
_SOON_MS: Final = 50
_WILDCARDS: Final = ("0.0.0.0", "")
_LOOK_SECONDS: Final = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatus:
    """How one broker is."""

    id: NodeId
    state: State
    pid: int | None
    exit_code: int | None
    """Of its last process, if that has ended; negative for a signal."""
    kafka: str
    url: str
    is_leader: bool | None = None
    """Whether it leads the cluster's quorum; None where nobody could be asked."""


class Launcher:
    """Makes processes from one thread.

    A node's process ends with the thread that has made it, so that none is left behind; the thread
    of a test may end before its broker should.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tidelog-brokers")

    def launch(self, arguments: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
        return self._thread.submit(self._launch, arguments, log).result()

    def _launch(self, arguments: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
        with log.open("ab") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "tidelog.testing.child", str(os.getpid()), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                process_group=0,
            )

    def close(self) -> None:
        self._thread.shutdown()


_known: "weakref.WeakValueDictionary[str, Broker]" = weakref.WeakValueDictionary()
"""The brokers that this process has made, by their addresses."""


class Broker:
    """A node that is started and ended by signals. Not for several threads at once."""

    def __init__(
        self,
        broker_id: NodeId = 1,
        ip: str = LOCALHOST,
        port: int = 0,
        is_leader: bool = False,
        *,
        kafka_port: int = 0,
        data: Path | str | None = None,
        settings: Mapping[str, object] | None = None,
        launcher: Launcher | None = None,
    ) -> None:
        """`data` is kept; without it there is a temporary directory that goes with the broker.

        `settings` are a node's, as `tidelog start --set` takes them.
        """
        self.id = broker_id
        self.is_leader_wanted = is_leader
        peer_ip = LOCALHOST if ip in _WILDCARDS else ip
        self._http, self._kafka, self._peer = reserve((ip, port), (ip, kafka_port), (peer_ip, 0))
        self.url = f"http://{self._peer.host}:{self._http.number}"
        """Where its HTTP face is."""
        self.kafka = f"{self._peer.host}:{self._kafka.number}"
        """Where Kafka clients connect."""
        self._home = Path(tempfile.mkdtemp(prefix="tidelog-")) if data is None else None
        self.data = Path(data) if data is not None else Path(self._home or "") / "data"
        self.log = self.data.with_name(self.data.name + ".log")
        """What it writes to standard error, of all its starts."""
        self._settings = {**SETTINGS, **(settings or {})}
        self._launcher = launcher or Launcher()
        self._owns_launcher = launcher is None
        self._cluster: tuple[Broker, ...] = (self,)
        self._process: subprocess.Popen[bytes] | None = None
        self._output = b""
        self._state = State.STOPPED
        _known[self.url] = self

    def __repr__(self) -> str:
        return f"<Broker {self.id} {self.state} {self.url} kafka={self.kafka}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Its life.

    def start(self, *, wait: bool = True, seconds_max: float = SECONDS_MAX) -> None:
        """Make its process, on the data that it left, and wait until it serves.

        Of a new cluster no broker serves before all do: start the others first, or do not wait.
        """
        if self.is_alive:
            raise StartFailed(f"broker {self.id} runs already, as process {self.pid}")
        self.data.parent.mkdir(parents=True, exist_ok=True)
        self._drop_output()
        self._output = b""
        self._process = self._launcher.launch(self._arguments(), self.log)
        self._state = State.STARTING
        if wait:
            self.wait(seconds_max=seconds_max)

    def wait(self, *, seconds_max: float = SECONDS_MAX) -> None:
        """Wait until it serves; StartFailed if it ends instead."""
        wait_ready([self], seconds_max)

    def stop(self, *, seconds_max: float = STOP_SECONDS_MAX) -> int:
        """Stop it in order, by SIGTERM; its exit code. If it is late it is killed: NotInTime."""
        self.ask_to_stop()
        return self.wait_ended(seconds_max=seconds_max)

    def ask_to_stop(self) -> None:
        """Let it begin to stop, in order."""
        process = self._require_process()
        self._state = State.STOPPED
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)  # paused, it would not hear of it

    def wait_ended(self, *, seconds_max: float = STOP_SECONDS_MAX) -> int:
        """Wait until its process has ended; the exit code."""
        try:
            code = self._require_output().wait(seconds_max)
        except subprocess.TimeoutExpired:
            self.kill()
            raise NotInTime(f"broker {self.id} did not end within {seconds_max:g} s and was killed") from None
        self._drop_output()
        return code

    def kill(self) -> None:
        """SIGKILL: nothing is finished, nobody is told, the data stays."""
        process = self._require_process()
        self._state = State.KILLED
        process.kill()
        process.wait()
        self._drop_output()

    def pause(self) -> None:
        """SIGSTOP: nothing of it runs when this returns; its peers hear nothing."""
        process = self._require_process()
        process.send_signal(signal.SIGSTOP)
        while process.poll() is None and process_state(process.pid) not in "Tt":
            time.sleep(_LOOK_SECONDS)  # a thread may still be in a disk's call

    def resume(self) -> None:
        """SIGCONT: it goes on, and learns what it missed."""
        self._require_process().send_signal(signal.SIGCONT)

    def restart(self, *, seconds_max: float = SECONDS_MAX) -> None:
        """Stop it in order if it runs, and start it again."""
        if self.is_alive:
            self.stop(seconds_max=seconds_max)
        self.start(seconds_max=seconds_max)

    def close(self) -> None:
        """End its process at once; its ports are anybody's, and its temporary directory goes."""
        if self.is_alive:
            self.kill()
        self._drop_output()
        for port in (self._http, self._kafka, self._peer):
            port.release()
        _known.pop(self.url, None)
        if self._owns_launcher:
            self._launcher.close()
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)

    # How it is.

    @property
    def is_alive(self) -> bool:
        """Whether its process runs, ready or not, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.is_alive else None

    @property
    def state(self) -> State:
        process, state = self._process, self._state
        if process is None:
            return State.STOPPED
        if process.poll() is None:
            is_paused = process_state(process.pid) in "Tt"
            return State.PAUSED if is_paused else state
        if state in (State.STARTING, State.RUNNING):  # nobody has asked for it
            return State.STOPPED if process.returncode == 0 else State.FAILED
        return state

    def status(self) -> BrokerStatus:
        process = self._process
        return BrokerStatus(
            id=self.id,
            state=self.state,
            pid=self.pid,
            kafka=self.kafka,
            url=self.url,
            exit_code=None if process is None else process.poll(),
        )

    # Its cluster.

    def join(self, cluster: Iterable["Broker"]) -> None:
        """Belong to these, of which it is one; before its first start."""
        members = tuple(sorted(cluster, key=lambda broker: broker.id))
        if members == self._cluster:
            return
        if self._process is not None:
            raise StartFailed(
                f"broker {self.id} was started in another cluster; name its peers before it starts"
            )
        if self not in members or len({broker.id for broker in members}) < len(members):
            raise ValueError(f"broker {self.id} must be one of its peers, each with its own id")
        self._cluster = members

    def set_peer_urls(self, urls: Iterable[str]) -> None:
        """Name the brokers of its cluster, itself included or not, by their addresses.

        They must have been made in this process: of a stranger only its HTTP port is known, and
        brokers talk to each other elsewhere.
        """
        self.join({self, *(_by_url(url) for url in urls)})

    def set_follower_urls(self, urls: Iterable[str]) -> None:
        """See that these are brokers of its cluster. Who follows whom is not decided here."""
        for url in urls:
            if _by_url(url) not in self._cluster:
                raise ValueError(f"{url} is not in the cluster of broker {self.id}; see join()")

    def start_http_server(self) -> None:
        self.start(wait=False)

    def start_cluster_tasks(self, proxy_url: str | None = None) -> None:
        """Wait until it takes part. A proxy is told nothing: it asks the brokers itself."""
        self.wait()

    def stop_cluster_tasks(self) -> None:
        """Nothing is to be done: `stop_http_server` hands over what it leads."""

    def stop_http_server(self) -> None:
        self.stop()

    # Its process.

    @property
    def peer(self) -> str:
        """Where its peers find it."""
        return f"{self._peer.host}:{self._peer.number}"

    def _arguments(self) -> list[str]:
        settings = dict(self._settings)
        if self.is_leader_wanted:
            settings["quorum.election.timeout.ms"] = _SOON_MS
        cluster = self._cluster
        place: list[str] = []
        if len(cluster) > 1:
            voters = cluster[: quorum_size(len(cluster))]
            quorum = ",".join(f"{broker.id}@{broker.peer}" for broker in voters)
            place = ["--peer", self.peer, "--quorum", quorum]
        return [
            "start",
            "--data",
            str(self.data),
            "--node-id",
            str(self.id),
            "--kafka",
            str(self._kafka),
            "--http",
            str(self._http),
            *place,
            *(f"--set={key}={value}" for key, value in settings.items()),
        ]

    def _require_process(self) -> "subprocess.Popen[bytes]":
        if self._process is None or not self.is_alive:
            raise NotRunning(f"broker {self.id} is {self.state}; start it first")
        return self._process

    @property
    def is_starting(self) -> bool:
        """Whether its process was made, and nobody has heard yet what came of it."""
        return self._process is not None and self._state is State.STARTING

    def fileno(self) -> int:
        """Of what it says, for `select`."""
        process = self._require_output()
        assert process.stdout is not None
        return process.stdout.fileno()

    def hear(self) -> None:
        """Take what it says: that it is ready, or nothing any more; StartFailed then."""
        process = self._require_output()
        chunk = os.read(self.fileno(), 4096)
        self._output += chunk
        if b"\n" in self._output:
            self._state = State.RUNNING
        elif not chunk:
            code = process.wait()
            self._state = State.FAILED
            raise StartFailed(
                f"broker {self.id} {describe_exit(code)} before it was ready: "
                f"{last_line(self.log)} (all of it is in {self.log})"
            )

    def _require_output(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            raise NotRunning(f"broker {self.id} was never started")
        return self._process

    def _drop_output(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()


def wait_ready(brokers: Iterable[Broker], seconds_max: float) -> None:
    """Wait until all of these serve; StartFailed as soon as one of them ends instead."""
    waiting = list(brokers)
    for broker in waiting:
        if not broker.is_starting:
            broker._require_process()
    deadline = time.monotonic() + seconds_max
    while waiting := [broker for broker in waiting if broker.is_starting]:
        left = max(deadline - time.monotonic(), 0.0)
        speaking, _, _ = select.select(waiting, [], [], left)
        if not speaking:
            said = "; ".join(f"broker {b.id} said last: {last_line(b.log)}" for b in waiting)
            raise NotInTime(
                f"not ready after {seconds_max:g} s (more than half of a cluster must run): {said}"
            )
        for broker in speaking:
            broker.hear()


def _by_url(url: str) -> Broker:
    broker = _known.get(url.rstrip("/"))
    if broker is None:
        raise ValueError(
            f"{url} is no Broker of this process; make all of a cluster here, as BrokerManager does"
        )
    return broker
