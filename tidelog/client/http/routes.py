"""Which node a request goes to.

Any node does any work: one that does not lead a partition has the leader do it. So what is known
here saves a hop and can never be wrong, only old.

Rule 1: what is known is one frozen value, replaced as a whole; threads may share it.
Rule 2: a node that was lost is left alone for a while, unless there is no other.
Rule 3: who asks once pays for one request: the cluster is looked at before the second.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlsplit

from tidelog.client.http.errors import BadAddress
from tidelog.wire.partitioner import partition_for

REFRESH_SECONDS: Final = 30.0
REFRESH_AGAIN_SECONDS: Final = 1.0
"""After a refresh that failed."""
AVOID_SECONDS: Final = 5.0
NAMES_BYTES_MAX: Final = 8 * 1024
"""Of topics whose leaders are kept known: all of them stand in one request's head."""
_EVERYWHERE: Final = frozenset({"0.0.0.0", "::", ""})
"""Hosts that a node listens at and nobody can connect to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a request is about: a topic, and the partition if it is known, or a key of it."""

    topic: str
    partition: int | None = None
    key: bytes | None = None
    choose: Callable[[int], int] | None = None
    """Which partition it is, of so many, where it is not that of a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The cluster as a node has described it."""

    origins: Mapping[int, str] = field(default_factory=dict)
    """Where brokers that serve listen, by their ids."""
    leaders: Mapping[str, Sequence[int | None]] = field(default_factory=dict)
    """Of every partition, by topic."""


def origin_of(address: str) -> str:
    """`http://HOST:PORT` of an address, which may lack its scheme."""
    text = address.strip()
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        is_origin = parts.path in ("", "/") and not parts.query
        _ = parts.port  # a ValueError if it is none
        if parts.scheme in ("http", "https") and parts.hostname and is_origin:
            return f"{parts.scheme}://{parts.netloc}"
    except ValueError:
        pass
    raise BadAddress(f"{address!r} is no address of a node, such as http://127.0.0.1:8080")


def origins_of(addresses: str | Sequence[str]) -> tuple[str, ...]:
    """Every address, given as a list, or between commas."""
    texts = addresses.split(",") if isinstance(addresses, str) else addresses
    found = tuple(dict.fromkeys(origin_of(text) for text in texts))
    if not found:
        raise BadAddress("give at least one address, such as http://127.0.0.1:8080")
    if len({origin.partition("://")[0] for origin in found}) > 1:
        raise BadAddress("give all addresses with http, or all with https")
    return found


class Routes:
    """What is known of the cluster, and who is to be left alone."""

    def __init__(
        self, addresses: str | Sequence[str], *, clock: Callable[[], float], discover: bool = True
    ) -> None:
        self.given = origins_of(addresses)
        self.scheme = self.given[0].partition("://")[0]
        self._clock = clock
        self._discover = discover
        self._lock = threading.Lock()
        self._known = Known()
        self._names: dict[str, None] = {}
        """Topics whose leaders are wanted, those used last at the end."""
        self._asked: frozenset[str] = frozenset()
        """Those that the last refresh was about, known or not."""
        self._avoided: dict[str, float] = {}
        self._was_answered = False
        self._is_refreshing = False
        self._refresh_at = float("-inf")

    # Whom to ask.

    def pick(self, place: Place | None = None) -> str:
        """The node for a request: the leader if it is known, or whoever seems well."""
        now = self._clock()
        leader = None if place is None else self._leader(place)
        if leader is not None and self._avoided.get(leader, now) <= now:
            return leader
        every = self.every()
        well = (origin for origin in every if self._avoided.get(origin, now) <= now)
        return next(well, None) or min(every, key=lambda origin: self._avoided.get(origin, now))

    def every(self) -> list[str]:
        """All nodes that can be asked, those that were given first."""
        others = self._known.origins.values() if self._discover else ()
        return list(dict.fromkeys((*self.given, *others)))

    def partition_of(self, place: Place) -> int | None:
        """Which partition a request is about, as far as is known."""
        if place.partition is not None:
            return place.partition
        leaders = self._known.leaders.get(place.topic)
        if not leaders:
            return None
        if place.key is not None:
            return partition_for(place.key, len(leaders))
        if place.choose is not None:
            return place.choose(len(leaders))
        return 0 if len(leaders) == 1 else None

    def _leader(self, place: Place) -> str | None:
        known = self._known
        leaders = known.leaders.get(place.topic, ())
        partition = self.partition_of(place)
        if not self._discover or partition is None or not 0 <= partition < len(leaders):
            return None
        leader = leaders[partition]
        return None if leader is None else known.origins.get(leader)

    # What was seen of nodes.

    def answered(self, origin: str) -> None:
        self._was_answered = True
        self._avoided.pop(origin, None)

    def avoid(self, origin: str) -> None:
        """It is gone, or cannot serve: ask others first, and look who leads now."""
        self._avoided[origin] = self._clock() + AVOID_SECONDS
        self.look_again()

    def look_again(self) -> None:
        """Something has changed."""
        self._refresh_at = float("-inf")

    def forget(self, topic: str) -> None:
        """It was made, changed or deleted."""
        self._asked -= {topic}

    # Looking at the cluster.

    def claim_refresh(self, place: Place | None) -> str | None:
        """The path to ask for the cluster at, if it is time to; `refreshed` must follow."""
        with self._lock:
            is_new = self._want(place)
            is_due = is_new or self._clock() >= self._refresh_at
            if self._is_refreshing or not self._was_answered or not is_due:
                return None
            if not self._can_be_asked():
                return None
            self._is_refreshing = True
            self._refresh_at = self._clock() + REFRESH_SECONDS
            self._asked = frozenset(self._names)
            return f"/v1/cluster?topics={quote(','.join(self._names), safe=',')}"

    def refreshed(self, document: object) -> None:
        """Take in what a node has told; None if none did."""
        try:
            self._known = self._read(document)
        except (KeyError, TypeError, ValueError, AttributeError):
            self._refresh_at = self._clock() + REFRESH_AGAIN_SECONDS
        self._is_refreshing = False

    def _can_be_asked(self) -> bool:
        """Whether a node seems well: to look for another is no use while there is none."""
        now = self._clock()
        return any(self._avoided.get(origin, now) <= now for origin in self.every())

    def _want(self, place: Place | None) -> bool:
        """Note what is asked about; whether it is new."""
        if place is None:
            return False
        self._names.pop(place.topic, None)
        self._names[place.topic] = None
        while sum(map(len, self._names)) > NAMES_BYTES_MAX:
            del self._names[next(iter(self._names))]
        return place.topic not in self._asked

    def nodes_of(self, document: Any) -> Sequence[str]:
        """Every node that serves, as `/v1/cluster` has it; or just those that were given."""
        origins = self._origins(document) if self._discover else {}
        return tuple(origins.values()) or self.given

    def _origins(self, document: Any) -> dict[int, str]:
        origins: dict[int, str] = {}
        for broker in document["brokers"]:
            http = broker["http"]
            if http is None or broker.get("fenced") or broker.get("shutting_down"):
                continue
            origin = origin_of(f"{self.scheme}://{http}")
            if urlsplit(origin).hostname not in _EVERYWHERE:
                origins[int(broker["id"])] = origin
        return origins

    def _read(self, document: Any) -> Known:
        leaders = {
            topic["name"]: tuple(partition["leader"] for partition in topic["partitions"])
            for topic in document["topics"]
        }
        return Known(origins=self._origins(document), leaders=leaders)
