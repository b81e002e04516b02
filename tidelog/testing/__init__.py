"""Clusters for tests: ours, and those of everybody who writes something that uses Tidelog.

    cluster.py    Cluster: nodes in this process, ready in a fraction of a second
    node.py       one of them
    faults.py     Faults: what can happen to the nodes of a cluster, from a seed
    manager.py    BrokerManager: nodes in processes of their own
    broker.py     Broker: one of those
    plugin.py     fixtures for pytest; there for whoever has Tidelog installed

What these are made of:

    loop.py       an event loop in a thread
    lives.py      one run of a node inside of this process, and its end
    view.py       what the nodes know, together
    machine.py    what outlives it: ports, clocks, troubles
    wires.py      connections that can be cut, delayed and broken
    disk.py       files that can be slow, and fail
    ports.py      ports that nobody else gets
    child.py      how a process of a Broker begins
    errors.py     what goes wrong with clusters of tests
    settings.py   settings of test nodes, which wait less

Rule 1: importing this imports nothing else: a name is looked up when it is used. pytest imports the
        plugin wherever Tidelog is installed.
Rule 2: faults come through the doors of `tidelog.host`: sockets, files and nodes are real.
Rule 3: whatever is started is ended: threads, processes, sockets, directories.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tidelog.testing.broker import Broker, BrokerStatus
    from tidelog.testing.cluster import Cluster
    from tidelog.testing.errors import NotInTime, NotRunning, StartFailed
    from tidelog.testing.faults import Fault, Faults
    from tidelog.testing.manager import BrokerManager
    from tidelog.testing.node import InProcessNode, NodeStatus
    from tidelog.testing.view import ClusterStatus, PartitionStatus
    from tidelog.testing.wires import CLIENTS

__all__ = [
    "CLIENTS",
    "Broker",
    "BrokerManager",
    "BrokerStatus",
    "Cluster",
    "ClusterStatus",
    "Fault",
    "Faults",
    "InProcessNode",
    "NodeStatus",
    "NotInTime",
    "NotRunning",
    "PartitionStatus",
    "StartFailed",
]

_MODULES: Final = {
    "CLIENTS": "wires",
    "Broker": "broker",
    "BrokerManager": "manager",
    "BrokerStatus": "broker",
    "Cluster": "cluster",
    "ClusterStatus": "view",
    "Fault": "faults",
    "Faults": "faults",
    "InProcessNode": "node",
    "NodeStatus": "node",
    "NotInTime": "errors",
    "NotRunning": "errors",
    "PartitionStatus": "view",
    "StartFailed": "errors",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
