"""Strangers at the port of the peers, of a cluster whose nodes share a secret.

A stranger learns nothing there but a nonce and that it is refused, and nothing that it sends is read by the
quorum. What a stranger who got in would do, others watch for: it votes, tells a node to stop, registers.

| what     | what the stranger sends                                                     |
|----------|-----------------------------------------------------------------------------|
| hello    | who it claims to be, as a node without a secret does, then its requests     |
| nobody   | the same, of no cluster                                                     |
| proof    | a greeting, and a proof by another secret, then its requests                |
| replay   | a proof that was heard before: here, of the other side of a connection      |
| flood    | greetings, many at once, and no answer to any                               |
| nonsense | bytes that are no frames, and frames that are too large                     |
| silence  | nothing                                                                     |
"""

import asyncio
import random
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import msgspec

from tidelog.cluster.messages import Proposal, StopNode, WhoAreYou
from tidelog.controller.records import TopicDeleted
from tidelog.model import Endpoint
from tidelog.peers.handshake import NONCE_BYTES, Dialer, Doorkeeper
from tidelog.peers.stream import PeerUnreachable, Stream
from tidelog.peers.wire import PROTOCOL, Challenge, Greeting, Hello, Refusal, Welcome
from tidelog.raft.messages import BeginEpoch, Vote
from tidelog.raft.voters import ReplicaKey, Voter
from tidelog.security.secrets import Secret
from tidelog.simulation.node_calls import raise_error
from tidelog.simulation.nodes import peer_of
from tidelog.simulation.plan import Fault, Plan, moments, with_faults
from tidelog.simulation.world import World

STRANGERS: Final = "strangers"
"""The rule that a stranger breaks who is told anything."""
_WHATS: Final = ("hello", "nobody", "proof", "replay", "flood", "nonsense", "silence")
_SECONDS: Final = 8.0
_FLOOD: Final = 100
_ANYTHING: Final = msgspec.msgpack.Decoder(dict[str, object])
_OTHER: Final = Secret([b"a secret of somebody else, as long as any"])


def guarded(plan: Plan, choose: random.Random, enabled: Collection[str]) -> Plan:
    """The nodes share a secret, and strangers knock."""
    drawn = choose.randbytes(16).hex().encode()
    rate = choose.choice((0.3, 1.0, 3.0))  # per simulated second
    knocks = []
    for at in moments(choose, rate, plan.chaos_seconds):
        node, claimed = choose.randint(1, plan.nodes), choose.randint(1, plan.nodes + 1)
        asked = {"node": node, "claimed": claimed, "what": choose.choice(_WHATS)}
        knocks.append(Fault(at, "knock", asked))
    return with_faults(replace(plan, node={**plan.node, "cluster_secret": drawn}), knocks)


def knock(world: World, node: int, claimed: int, what: str) -> None:
    """Let a stranger come to a node's port for peers."""
    world.count("knock")
    host = world.client("stranger")
    at = Endpoint.parse(peer_of(node))

    def on_frame(stream: Stream, kind: int, number: int, message: memoryview) -> None:
        world.fail(STRANGERS, f"a stranger was asked something by node {node}")

    async def come() -> None:
        stream = Stream(on_frame, lambda stream, why: stream.tell_lost(is_down=False))
        try:
            await host.network.connect(lambda: stream, at.host, at.port)
        except OSError:
            return
        try:
            async with asyncio.timeout(_SECONDS):
                for answer in await _say(stream, node, claimed, what):
                    if answer not in (None, {"type": "Refusal", "reason": "refused"}):
                        world.fail(STRANGERS, f"a stranger was told {answer} by node {node} ({what})")
        except (PeerUnreachable, TimeoutError) as error:
            world.trace.note(host.name, f"knock: {what} at node {node}: {error}")
        finally:
            stream.fail("the stranger leaves")

    host.spawn(come()).add_done_callback(raise_error)


async def _say(stream: Stream, node: int, claimed: int, what: str) -> list[object]:
    """What the stranger is told, but for challenges."""
    cluster = None if what == "nobody" else "a cluster"
    hello = Hello(protocol=PROTOCOL, cluster=cluster, node=claimed, directory="mine", wanted=node)
    if what in ("hello", "nobody"):
        return await _ask_all(stream, [hello, *_wishes(claimed, node)])
    if what in ("proof", "replay"):
        dialer = Dialer(_OTHER, bytes(NONCE_BYTES), None)
        asked = await stream.ask(dialer.greeting, _ANYTHING)
        challenge = msgspec.convert(asked, Challenge)
        proved = dialer.challenged(challenge, hello)
        if what == "replay":
            listener = Doorkeeper(_OTHER, challenge.nonce, None)
            listener.greeted(dialer.greeting)
            listener.proved(proved)
            proved = _with_the_other_proof(proved, listener)
        return await _ask_all(stream, [proved, *_wishes(claimed, node)])
    if what == "flood":
        greetings = [Greeting(nonce=bytes([number] * NONCE_BYTES)) for number in range(_FLOOD)]
        return (await _ask_all(stream, greetings))[1:]
    if what == "nonsense":
        return await _ask_all(stream, [Refusal(reason="x" * 10_000)])
    await asyncio.sleep(_SECONDS)
    return []


def _with_the_other_proof(hello: Hello, listener: Doorkeeper) -> Hello:
    """The same, with what the other side would prove instead."""
    welcome, _ = listener.welcoming(Welcome(cluster=None, node=hello.wanted, directory="mine"))
    return msgspec.structs.replace(hello, proof=welcome.proof)


def _wishes(claimed: int, node: int) -> list[msgspec.Struct]:
    """What would harm the cluster if it was heard."""
    key = ReplicaKey(claimed, "mine")
    return [
        StopNode(),
        WhoAreYou(quorum=(claimed,)),
        BeginEpoch(epoch=2**30, leader=Voter(key, "stranger", 1)),
        Vote(
            epoch=2**30, candidate=key, voter=ReplicaKey(node, "mine"), last_epoch=2**30, end=2**60, pre=False
        ),
        Proposal(based_on=0, records=[TopicDeleted(name="tide-0")]),
    ]


async def _ask_all(stream: Stream, messages: Sequence[msgspec.Struct]) -> list[object]:
    """The answers, in order; None where the connection ended before."""
    asked = [stream.ask(message, _ANYTHING) for message in messages]
    found: list[object] = []
    for answer in asked:
        with suppress(PeerUnreachable):
            found.append(await answer)
    return found
