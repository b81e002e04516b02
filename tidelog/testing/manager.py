"""Brokers in processes of their own, started, ended and watched together.

    with BrokerManager(count=3) as manager:
        leader = manager.wait_for_leader()
        manager.kill(leader)
        manager.wait_for_leader()
        manager.restart(leader)

Rule 1: who leads is what the brokers say over HTTP: the leader of the metadata quorum, which
        decides who leads each partition.
Rule 2: a broker that cannot answer is not asked for long.
"""

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, Self, TypeVar
from urllib.request import ProxyHandler, build_opener

from tidelog.faces.local.layout import State
from tidelog.model import NodeId
from tidelog.testing.broker import SECONDS_MAX, STOP_SECONDS_MAX, Broker, BrokerStatus, Launcher, wait_ready
from tidelog.testing.errors import NotInTime
from tidelog.testing.ports import LOCALHOST

T = TypeVar("T")

BROKERS_MAX: Final = 9
_ASK_SECONDS_MAX: Final = 1.0
_LOOK_SECONDS: Final = 0.02

_open = build_opener(ProxyHandler({})).open
"""Never through a proxy that the environment names: it is this machine."""


class BrokerManager:
    """Some brokers of one cluster. Not for several threads at once."""

    def __init__(
        self,
        count: int = 3,
        *,
        ip: str = LOCALHOST,
        ports: Sequence[int] = (),
        leader: NodeId | None = None,
        data: Path | str | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """Brokers 1 to `count`; nothing is started yet.

        `ports` are those of HTTP, one for each broker, or any. `leader` is who shall lead at
        first. `data` is kept; without it there is a temporary directory that goes with them.
        """
        if not 1 <= count <= BROKERS_MAX:
            raise ValueError(f"{count} brokers; there can be 1 to {BROKERS_MAX}")
        if ports and len(ports) != count:
            raise ValueError(f"{len(ports)} ports for {count} brokers; name one for each, or none")
        self._home = Path(tempfile.mkdtemp(prefix="tidelog-")) if data is None else None
        self.data = Path(data) if data is not None else Path(self._home or "")
        self._launcher = Launcher()
        self._brokers: dict[NodeId, Broker] = {}
        try:
            for node in range(1, count + 1):
                self._brokers[node] = Broker(
                    node,
                    ip,
                    ports[node - 1] if ports else 0,
                    is_leader=node == leader,
                    data=self.data / f"node-{node}",
                    settings=settings,
                    launcher=self._launcher,
                )
        except BaseException:
            self.close()
            raise
        for broker in self._brokers.values():
            broker.join(self._brokers.values())

    def __repr__(self) -> str:
        return f"<BrokerManager {[*self._brokers.values()]}>"

    def __enter__(self) -> Self:
        try:
            self.start_all()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, broker: NodeId) -> Broker:
        try:
            return self._brokers[broker]
        except KeyError:
            raise KeyError(f"there is no broker {broker}; there are {[*self._brokers]}") from None

    def __iter__(self) -> Iterator[Broker]:
        return iter(self._brokers.values())

    def __len__(self) -> int:
        return len(self._brokers)

    @property
    def bootstrap(self) -> str:
        """HOST:PORT,... of all brokers, for Kafka clients."""
        return ",".join(broker.kafka for broker in self)

    @property
    def urls(self) -> list[str]:
        """The addresses of all brokers' HTTP faces."""
        return [broker.url for broker in self]

    # All of them.

    def start_all(self, *, wait: bool = True, seconds_max: float = SECONDS_MAX) -> None:
        """Start all that do not run, at once, and wait until all serve."""
        for broker in self:
            if not broker.is_alive:
                broker.start(wait=False)
        if wait:
            self.wait(seconds_max=seconds_max)

    def wait(self, *, seconds_max: float = SECONDS_MAX) -> None:
        """Wait until all that were started serve; StartFailed as soon as one ends instead."""
        wait_ready([broker for broker in self if broker.is_starting], seconds_max)

    def stop_all(self, *, seconds_max: float = STOP_SECONDS_MAX) -> None:
        """Stop all in order, at once, and wait until all have ended."""
        stopping = [broker for broker in self if broker.is_alive]
        for broker in stopping:
            broker.ask_to_stop()
        deadline = time.monotonic() + seconds_max
        for broker in stopping:
            broker.wait_ended(seconds_max=max(deadline - time.monotonic(), 0.1))

    def restart_all(self, *, seconds_max: float = SECONDS_MAX) -> None:
        """Restart one after the other, each when all partitions have all of their replicas."""
        for broker in self:
            self.wait_in_sync(seconds_max=seconds_max)
            broker.restart(seconds_max=seconds_max)
        self.wait_in_sync(seconds_max=seconds_max)

    def close(self) -> None:
        """End all at once, without a word; a temporary directory goes."""
        for broker in self:
            broker.close()
        self._launcher.close()
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)

    # One of them.

    def start(self, broker: NodeId, *, seconds_max: float = SECONDS_MAX) -> None:
        self[broker].start(seconds_max=seconds_max)

    def stop(self, broker: NodeId) -> int:
        return self[broker].stop()

    def kill(self, broker: NodeId) -> None:
        self[broker].kill()

    def pause(self, broker: NodeId) -> None:
        self[broker].pause()

    def resume(self, broker: NodeId) -> None:
        self[broker].resume()

    def restart(self, broker: NodeId, *, seconds_max: float = SECONDS_MAX) -> None:
        """Start it again, after a stop in order if it runs."""
        self[broker].restart(seconds_max=seconds_max)

    # How they are.

    def status(self) -> dict[NodeId, BrokerStatus]:
        """How each broker is, and whether it leads."""
        leader = self.leader()
        return {
            broker.id: replace(broker.status(), is_leader=None if leader is None else broker.id == leader)
            for broker in self
        }

    def leader(self) -> NodeId | None:
        """Who leads the quorum, by what most of those say who can be asked; None if nobody does.

        Only who runs can lead: news of a broker that died take a moment.
        """
        said = [document["controller"] for document in self._documents()]
        able = {broker.id for broker in self if broker.state is State.RUNNING}
        for broker in able:
            if said.count(broker) * 2 > len(said):
                return broker
        return None

    def wait_for_leader(self, *, seconds_max: float = SECONDS_MAX) -> NodeId:
        """Wait until somebody leads; who."""
        return _wait(self.leader, seconds_max, lambda: f"nobody leads; {self!r}")

    def wait_in_sync(self, *, seconds_max: float = SECONDS_MAX) -> None:
        """Wait until every partition has a leader, and all of its replicas."""
        _wait(lambda: self._is_in_sync() or None, seconds_max, lambda: f"not in sync yet; {self!r}")

    def _is_in_sync(self) -> bool:
        documents = self._documents()
        return bool(documents) and all(
            partition["leader"] is not None and set(partition["in_sync"]) == set(partition["replicas"])
            for document in documents
            for topic in document["topics"]
            for partition in topic["partitions"]
        )

    def _documents(self) -> list[dict[str, Any]]:
        """What each broker says of the cluster that runs and answers."""
        running = [broker for broker in self if broker.state is State.RUNNING]
        return [found for broker in running if (found := _ask(f"{broker.url}/v1/cluster"))]


def _ask(url: str) -> dict[str, Any] | None:
    try:
        with _open(url, timeout=_ASK_SECONDS_MAX) as response:
            found: dict[str, Any] = json.load(response)
            return found
    except (OSError, HTTPException, ValueError):
        return None  # it may be dying just now


def _wait(look: Callable[[], T | None], seconds_max: float, problem: Callable[[], str]) -> T:
    deadline = time.monotonic() + seconds_max
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise NotInTime(f"not within {seconds_max:g} s: {problem()}")
        time.sleep(_LOOK_SECONDS)
    return found
