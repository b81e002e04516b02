"""The kinds of faults that any story may meet: how to draw one, and how to let it happen.

Faults that need more than a draw (an operator, a layout of the cluster, certain stories) belong to
a situation instead (`situations`). So do new kinds: a row here changes what every seed draws.
"""

import random
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from tidelog.model import OFFSETS_TOPIC, QUEUES_TOPIC
from tidelog.simulation.world import World


class Draw:
    """Draws the arguments of faults for one seed."""

    def __init__(self, generator: random.Random, nodes: int, story: str) -> None:
        self.random = generator
        self.nodes = nodes
        self.rotten = {
            "replicated": "tide-",
            "groups": OFFSETS_TOPIC,
            "transactions": "tide-",
            "kv": "tide-",
            "queues": QUEUES_TOPIC,
        }.get(story, "")
        """What the paths of files that rot have in common; where it is known to be bearable."""

    def node(self) -> int:
        return self.random.randint(1, self.nodes)

    def seconds(self, low: float, high: float) -> float:
        """Mostly short, at times long."""
        return round(low + (high - low) * self.random.random() ** 2, 3)

    def hosts(self) -> tuple[int | str, int | str]:
        """Two that talk: a node and its client, in either direction, or two nodes."""
        node = self.node()
        other: int | str = f"client-{node}"
        if self.nodes > 1 and self.random.random() < 0.3:
            other = self.random.choice([n for n in range(1, self.nodes + 1) if n != node])
        return (node, other) if self.random.random() < 0.5 else (other, node)


def _crash(world: World, node: int, down_seconds: float) -> None:
    world.crash(node)
    world.after(down_seconds, world.restart, node)


def _stop(world: World, node: int, down_seconds: float) -> None:
    world.count("stop")
    world.stop(node)
    world.after(down_seconds, world.restart, node)


def _lose_power(world: World, node: int, down_seconds: float) -> None:
    world.lose_power(node)
    world.after(down_seconds, world.restart, node)


def _lose_power_everywhere(world: World, down_seconds: float) -> None:
    world.lose_power_everywhere()
    world.after(down_seconds, world.restart_everyone)


def _isolate_for(world: World, node: int, seconds: float) -> None:
    world.isolate(node, seconds)


Befall: TypeAlias = Callable[..., None]
"""Lets a fault happen: takes the world, and the arguments of the fault by name."""
_Kind: TypeAlias = tuple[Callable[[Draw], dict[str, Any]], Befall]

KINDS: Final[dict[str, _Kind]] = {
    "crash": (lambda d: {"node": d.node(), "down_seconds": d.seconds(0, 5)}, _crash),
    "stop": (lambda d: {"node": d.node(), "down_seconds": d.seconds(0.5, 5)}, _stop),
    "lose_power": (lambda d: {"node": d.node(), "down_seconds": d.seconds(0, 5)}, _lose_power),
    "lose_power_everywhere": (lambda d: {"down_seconds": d.seconds(0, 5)}, _lose_power_everywhere),
    "lose_power_in_write": (
        lambda d: {"node": d.node(), "changes": d.random.randint(1, 60)},
        World.lose_power_in_write,
    ),
    "pause": (lambda d: {"node": d.node(), "seconds": d.seconds(0.1, 8)}, World.pause),
    "cut": (
        lambda d: dict(zip(("source", "target"), d.hosts(), strict=True), seconds=d.seconds(0.1, 8)),
        World.cut,
    ),
    "isolate": (lambda d: {"node": d.node(), "seconds": d.seconds(0.1, 8)}, _isolate_for),
    "clog": (
        lambda d: dict(
            zip(("source", "target"), d.hosts(), strict=True),
            delay_seconds=d.seconds(0.05, 3),
            seconds=d.seconds(0.5, 8),
        ),
        World.clog,
    ),
    "reset": (lambda d: {"node": d.node(), "chance": round(d.random.uniform(0.2, 1), 2)}, World.reset),
    "spike": (lambda d: {"chance": round(d.random.random(), 2), "seconds": d.seconds(0.5, 5)}, World.spike),
    "stall_disk": (lambda d: {"node": d.node(), "seconds": d.seconds(0.05, 5)}, World.stall_disk),
    "slow_disk": (
        lambda d: {"node": d.node(), "factor": d.random.choice((10, 100)), "seconds": d.seconds(0.5, 5)},
        World.slow_disk,
    ),
    "fill_disk": (
        lambda d: {
            "node": d.node(),
            "left_bytes": d.random.choice((0, 10, 500, 5000)),
            "seconds": d.seconds(0.1, 5),
        },
        World.fill_disk,
    ),
    "fail_reads": (
        lambda d: {"node": d.node(), "what": "reads", "times": d.random.randint(1, 3)},
        World.fail_disk,
    ),
    "fail_writes": (lambda d: {"node": d.node(), "what": "writes"}, World.fail_disk),
    "fail_syncs": (lambda d: {"node": d.node(), "what": "syncs"}, World.fail_disk),
    "write_back": (lambda d: {"node": d.node()}, World.write_back),
    "skew_clock": (
        lambda d: {"node": d.node(), "rate": round(d.random.choice((0.5, 0.99, 1.01, 2.0)), 3)},
        World.skew_clock,
    ),
    "jump_clock": (
        lambda d: {"node": d.node(), "seconds": d.random.choice((-3600, -1, 1, 60, 3600))},
        World.jump_clock,
    ),
    # Damage a lone node cannot mend; only the last one gets any, and is then judged less hard.
    "flip_bits": (
        lambda d: {"node": d.nodes, "count": d.random.choice((1, 1, 5, 50)), "inside": d.rotten},
        World.flip_bits,
    ),
    "misdirect_write": (lambda d: {"node": d.nodes}, World.misdirect_write),
}

DAMAGING: Final = ("flip_bits", "misdirect_write")
FORGETTING: Final = frozenset(("lose_power", "lose_power_everywhere", "lose_power_in_write", "fail_syncs"))
"""After these a disk lacks what was written and not synced, on many nodes at once."""
