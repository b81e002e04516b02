"""Messages without a history: whoever listens now hears them, at any node, and nobody else ever.

Rule 1: at most once. A message goes to the subscribers of this node, and over the peers' links to
        those of every other node that lives; nothing is kept, and nothing is sent again.
Rule 2: a subscriber that does not keep up is let go by whoever feeds it; it holds up nobody.
Rule 3: a pattern is words between dots: `*` stands for one word, `#` at the end for any number.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeAlias

from tidelog.broker.broker import Broker
from tidelog.cluster.messages import Fanned, FanOut
from tidelog.model import NodeId
from tidelog.peers.listener import Answer
from tidelog.peers.stream import PeerUnreachable
from tidelog.peers.wire import PeerRefused

NAME_MAX: Final = 256
_ASK_SECONDS_MAX: Final = 2.0

Hear: TypeAlias = Callable[[str, bytes], bool]
"""Called with a topic and a message; False if the subscriber has gone."""


def name_problem(name: str, *, is_pattern: bool = False) -> str | None:
    """Say why `name` is none of a topic, or no pattern; None if it is."""
    if not 0 < len(name) <= NAME_MAX:
        return f"it has 1 to {NAME_MAX} characters"
    words = name.split(".")
    for at, word in enumerate(words):
        if not word:
            return "it has a word between every two dots"
        if not is_pattern and ("*" in word or "#" in word):
            return "'*' and '#' are for those who listen"
        if is_pattern and word != "*" and "*" in word:
            return "'*' stands for a whole word"
        if is_pattern and "#" in word and (word != "#" or at != len(words) - 1):
            return "'#' stands for all words that are left, at the end"
    return None


def matches(pattern: str, name: str) -> bool:
    """Whether a topic is meant by a pattern."""
    if pattern == name:
        return True
    wanted, words = pattern.split("."), name.split(".")
    for at, one in enumerate(wanted):
        if one == "#":
            return True
        if at >= len(words) or one not in ("*", words[at]):
            return False
    return len(wanted) == len(words)


class PubSub:
    """Who listens at this node, and the way to all others."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._exact: dict[str, dict[Hear, None]] = {}
        self._patterns: dict[str, dict[Hear, None]] = {}
        self.presence: Counter[str] = Counter()
        """Who follows something that has a history, by its name: it is counted here, too."""
        broker.on_fan_out = self._on_fan_out

    # Listening.

    def subscribe(self, pattern: str, hear: Hear) -> None:
        self._of(pattern).setdefault(pattern, {})[hear] = None

    def unsubscribe(self, pattern: str, hear: Hear) -> None:
        known = self._of(pattern)
        if (hearing := known.get(pattern)) is not None:
            hearing.pop(hear, None)
            if not hearing:
                del known[pattern]

    def _of(self, pattern: str) -> dict[str, dict[Hear, None]]:
        return self._patterns if "*" in pattern or "#" in pattern else self._exact

    def counts(self) -> dict[str, int]:
        """Subscribers of this node, by pattern."""
        found = Counter(self.presence)
        for known in (self._exact, self._patterns):
            found.update({pattern: len(hearing) for pattern, hearing in known.items()})
        return {name: count for name, count in found.items() if count}

    # Telling.

    async def publish(self, name: str, data: bytes) -> int:
        """Tell everybody who listens now, at every node; how many heard."""
        answers = await self._ask_all(FanOut(topic=name, data=data))
        return self._tell(name, data) + sum(answer.heard for answer in answers)

    async def all_counts(self) -> dict[str, int]:
        """Subscribers of all nodes that answer, by pattern."""
        total = Counter(self.counts())
        for answer in await self._ask_all(FanOut()):
            total.update(answer.counts)
        return dict(sorted(total.items()))

    async def _ask_all(self, message: FanOut) -> list[Fanned]:
        broker = self._broker
        others = [
            known.node
            for known in broker.image.brokers.values()
            if known.node != broker.node_id and not known.fenced
        ]
        answers = await asyncio.gather(*(self._ask(node, message) for node in sorted(others)))
        return [answer for answer in answers if answer is not None]

    async def _ask(self, node: NodeId, message: FanOut) -> Fanned | None:
        try:
            return await self._broker.member.hub.ask(node, message, Fanned, seconds_max=_ASK_SECONDS_MAX)
        except (PeerUnreachable, PeerRefused):
            return None  # its subscribers have missed it

    def _tell(self, name: str, data: bytes) -> int:
        heard = 0
        hearing = list(self._exact.get(name, ()))
        for pattern, some in self._patterns.items():
            if matches(pattern, name):
                hearing += some
        for hear in dict.fromkeys(hearing):
            if hear(name, data):
                heard += 1
            else:
                self._forget(hear)
        return heard

    def _forget(self, hear: Hear) -> None:
        """It has gone without a word."""
        for known in (self._exact, self._patterns):
            for pattern in [one for one, hearing in known.items() if hear in hearing]:
                self.unsubscribe(pattern, hear)

    def _on_fan_out(self, source: NodeId, message: FanOut, place: Answer | None) -> None:
        assert place is not None, "it is counted who heard"
        if message.topic:
            place.send(Fanned(heard=self._tell(message.topic, message.data)))
        else:
            place.send(Fanned(counts=self.counts()))
