"""Whole nodes on simulated machines, each asked by the application of its HTTP face.

    world = cluster(3)
    answer = world.get(2, "/v1/brokers")

Real nodes with their listeners and the links between them; only the connections are left out.
"""

import json
from functools import partial
from typing import Any, Self

from tests.unit.faces.http.test_app import Answer, ask
from tidelog.client.operator import OperatorClient
from tidelog.faces.http.app import make_app
from tidelog.simulation.nodes import bootstrap, real_node
from tidelog.simulation.world import World

JSON = {"content-type": "application/json"}


def quorum_of(nodes: int) -> str:
    return ",".join(f"{node}@node-{node}:9192" for node in range(1, nodes + 1))


class Cluster(World):
    """A world whose nodes can be asked over HTTP."""

    def __init__(self, nodes: int = 1, *, voters: int | None = None, **settings: Any) -> None:
        self._apps: dict[Any, Any] = {}
        voting = quorum_of(voters or nodes)

        def factory(host: Any, number: int) -> Any:
            peer = {} if number <= (voters or nodes) else {"peer": f"node-{number}:9192"}
            return real_node(host, number, quorum=voting, **peer, **settings)

        super().__init__(
            7, nodes=nodes, node_factory=factory if nodes > 1 else partial(real_node, **settings)
        )
        self.honours_stops = False  # whoever asks for a stop looks at the node afterwards
        self.start()

    def __enter__(self) -> Self:
        return self

    def ask(
        self,
        node: int,
        path: str,
        method: str = "GET",
        body: Any = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """What a node answers; a body is sent as JSON."""
        served = self.node(node)
        if served not in self._apps:
            self._apps[served] = make_app(served)
        sent = (b"" if body is None else json.dumps(body).encode(),)
        chosen = JSON if headers is None and body is not None else headers
        machine = self.machines[node]
        assert machine.process is not None
        task = self.loop.create_task(
            ask(self._apps[served], path, method=method, headers=chosen, chunks=sent),
            context=machine.process.context.copy(),
        )
        self.run_until(task.done, 60.0)
        return task.result()

    def get(self, node: int, path: str) -> Any:
        """The document at a path, which must be there."""
        answer = self.ask(node, path)
        assert answer.status == 200, answer.json
        return answer.json

    def post(self, node: int, path: str, body: Any, status: int = 200) -> Any:
        answer = self.ask(node, path, "POST", body)
        assert answer.status == status, answer.json
        return answer.json

    def kafka(self, node: int = 1) -> OperatorClient:
        """A Kafka client that asks this node first."""
        return OperatorClient(bootstrap(node), network=self.client("story").network)
