"""The simulator's questions blame a node for what cannot be, and for nothing that others asked for."""

from functools import partial

import msgspec

from tidelog.simulation.http_door import call
from tidelog.simulation.node_calls import ask_node
from tidelog.simulation.nodes import OWN, real_node
from tidelog.simulation.questions import QUESTIONS, Asker
from tidelog.simulation.world import World


def test_what_operators_allow_there_too_is_not_the_question_s_own() -> None:
    topic = f"{OWN}1"
    acl = {"principal": f"User:{OWN}", "operation": "Write", "kind": "Topic", "name": topic}
    with World(1, nodes=1, node_factory=partial(real_node, quorum="1@node-1:9192")) as world:
        world.start()
        body = msgspec.json.encode({"acls": [acl]})
        post = partial(call, method="POST", path="/v1/acls", body=body)
        assert world.do(ask_node(world, 1, post, 5.0))[0] == 200

        async def ask() -> None:
            await QUESTIONS["permissions"](Asker(world, 1, topic, "seed"))

        world.do(ask())

        get = partial(call, method="GET", path="/v1/acls")
        _, left = world.do(ask_node(world, 1, get, 5.0))
        assert [one["operation"] for one in left["acls"]] == ["Write"]
