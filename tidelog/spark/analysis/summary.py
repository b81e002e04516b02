"""What all sums come to: rates, shares, skew, lag.

Rule 1: nothing here asks a cluster or Spark; every function is pure.
Rule 2: sums of a sample are multiplied by what the sample was of; they are estimates then.
Rule 3: lag is where the log ended minus what was committed, at the end of each moment, by the
        times of the records and of the commits. A group counts from its first commit on.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tidelog.model import Offset, TopicPartition
from tidelog.spark.analysis.commits import read_key
from tidelog.spark.analysis.measure import Kind
from tidelog.spark.analysis.plan import AnalysisPlan
from tidelog.spark.analysis.totals import Committed, Heavy, Keys, Moment, Sizes, Totals

KEY_CHARACTERS_MAX: Final = 60


class Point(NamedTuple):
    """What came in one moment."""

    at: int
    records: float
    payload: float


class Share(NamedTuple):
    """A part of a topic: a partition, or what was written with a codec."""

    name: str
    records: float
    batches: float
    stored: float
    payload: float


class HeavyKey(NamedTuple):
    """A key, and how much of a topic is under it."""

    key: str
    records: float
    share: float


class Bin(NamedTuple):
    """So many things of a size below `below`, and not below half of it."""

    below: int
    things: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Sizes of one kind of thing."""

    what: str
    count: float
    mean: float
    median_below: int
    most_below: int
    """99 of 100 are smaller than this."""
    bins: tuple[Bin, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummary:
    """One topic."""

    topic: str
    points: tuple[Point, ...]
    partitions: tuple[Share, ...]
    codecs: tuple[Share, ...]
    histograms: tuple[Histogram, ...]
    heaviest: tuple[HeavyKey, ...]
    keys: int
    keys_are_all: bool
    """Whether `keys` counts every key, or only those that could be told from the many."""
    no_key: float
    uncounted: float
    """By how much the count of a key may be too low."""

    @property
    def records(self) -> float:
        return sum(one.records for one in self.partitions)

    @property
    def batches(self) -> float:
        return sum(one.batches for one in self.partitions)

    @property
    def stored(self) -> float:
        return sum(one.stored for one in self.partitions)

    @property
    def payload(self) -> float:
        return sum(one.payload for one in self.partitions)

    @property
    def skew(self) -> float:
        """What the fullest partition has, by what it would have if all had the same."""
        most = max((one.records for one in self.partitions), default=0.0)
        return most * len(self.partitions) / self.records if self.records else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far a group was behind in a topic, over time."""

    group: str
    topic: str
    points: tuple[tuple[int, int], ...]
    """The first second of each moment, and how many records were not committed at its end."""

    @property
    def last(self) -> int:
        return self.points[-1][1]

    @property
    def most(self) -> int:
        return max(lag for _, lag in self.points)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All of it."""

    seconds: int
    """How long a moment is."""
    topics: tuple[TopicSummary, ...]
    lags: tuple[Lag, ...]


def summarize(plan: AnalysisPlan, totals: Totals) -> Summary:
    factors = plan.factors()
    names = sorted({one.topic for one in plan.bounds})
    topics = [_topic(name, plan, totals, factors) for name in names]
    return Summary(seconds=totals.seconds, topics=tuple(topics), lags=tuple(lags(plan, totals)))


def _topic(
    name: str, plan: AnalysisPlan, totals: Totals, factors: Mapping[TopicPartition, float]
) -> TopicSummary:
    moments = [one for one in totals.moments if one.topic == name]
    whole = _factor(name, plan, factors)
    records = sum(one.records for one in moments if one.kind == Kind.BATCH)
    keys = next((one for one in totals.keys if one.topic == name), Keys(name, 0, 0, 0))
    sizes = [one for one in totals.sizes if one.topic == name]
    numbers = [one.partition for one in plan.bounds if one.topic == name]
    return TopicSummary(
        topic=name,
        points=tuple(_points(moments, factors)),
        partitions=tuple(_partitions(name, numbers, moments, factors)),
        codecs=tuple(_codecs(moments, factors)),
        histograms=tuple(histograms(sizes, whole)),
        heaviest=tuple(_heaviest(totals.heavy, name, records, whole)),
        keys=keys.counted,
        keys_are_all=not keys.lowered and whole == 1.0,
        no_key=keys.nulls * whole,
        uncounted=keys.lowered * whole,
    )


def _factor(name: str, plan: AnalysisPlan, factors: Mapping[TopicPartition, float]) -> float:
    """What a topic's sums are to be multiplied by."""
    bounds = [one for one in plan.bounds if one.topic == name and one.count]
    read = sum(one.count / factors[one.place] for one in bounds)
    return sum(one.count for one in bounds) / read if read else 1.0


def _points(moments: Iterable[Moment], factors: Mapping[TopicPartition, float]) -> Iterable[Point]:
    found: dict[int, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for one in moments:
        if one.kind == Kind.RECORD and one.at >= 0:
            records, payload = found[one.at]
            factor = factors.get(TopicPartition(one.topic, one.partition), 1.0)
            found[one.at] = records + one.records * factor, payload + one.payload * factor
    return [Point(at, *found[at]) for at in sorted(found)]


def _partitions(
    topic: str, numbers: Iterable[int], moments: Sequence[Moment], factors: Mapping[TopicPartition, float]
) -> Iterable[Share]:
    for number in numbers:
        mine = [one for one in moments if one.partition == number and one.kind == Kind.BATCH]
        yield _share(str(number), mine, factors.get(TopicPartition(topic, number), 1.0))


def _codecs(moments: Iterable[Moment], factors: Mapping[TopicPartition, float]) -> Iterable[Share]:
    found: dict[str, Share] = {}
    for one in moments:
        if one.kind != Kind.BATCH or one.what is None:
            continue
        factor = factors.get(TopicPartition(one.topic, one.partition), 1.0)
        more, known = _share(one.what, [one], factor), found.get(one.what)
        found[one.what] = more if known is None else _add(known, more)
    return [found[name] for name in sorted(found)]


def _share(name: str, moments: Sequence[Moment], factor: float) -> Share:
    return Share(
        name,
        factor * sum(one.records for one in moments),
        factor * sum(one.batches for one in moments),
        factor * sum(one.stored for one in moments),
        factor * sum(one.payload for one in moments),
    )


def _add(one: Share, other: Share) -> Share:
    return Share(one.name, *(a + b for a, b in zip(one[1:], other[1:], strict=True)))


def histograms(sizes: Iterable[Sizes], factor: float) -> Iterable[Histogram]:
    by_what: dict[str, list[Sizes]] = defaultdict(list)
    for one in sizes:
        by_what[one.what].append(one)
    for what in sorted(by_what):
        found = sorted(by_what[what], key=lambda one: one.power)
        count = sum(one.things for one in found)
        yield Histogram(
            what=what,
            count=count * factor,
            mean=sum(one.total for one in found) / count,
            median_below=_below(found, count * 0.5),
            most_below=_below(found, count * 0.99),
            bins=tuple(Bin(2**one.power, one.things * factor) for one in found),
        )


def _below(sizes: Sequence[Sizes], count: float) -> int:
    """The least power of two that so many are below."""
    passed = 0
    for one in sizes:
        passed += one.things
        if passed >= count:
            return int(2**one.power)
    return 1


def _heaviest(heavy: Iterable[Heavy], topic: str, records: int, factor: float) -> Iterable[HeavyKey]:
    for one in heavy:
        if one.topic == topic:
            yield HeavyKey(key_text(one.key), one.records * factor, one.records / max(records, 1))


def key_text(key: bytes) -> str:
    """A key for people: its text if it is one, else its bytes."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    shown = text if text and text.isprintable() else f"0x{key.hex()}"
    return shown if len(shown) <= KEY_CHARACTERS_MAX else shown[: KEY_CHARACTERS_MAX - 1] + "…"


# Lag.


def lags(plan: AnalysisPlan, totals: Totals) -> Iterable[Lag]:
    """How far each group was behind, wherever there is something to tell."""
    places = {one.place: one.start for one in plan.bounds}
    ends: dict[TopicPartition, dict[int, Offset]] = defaultdict(dict)
    for one in totals.moments:
        if one.kind == Kind.BATCH and one.end is not None and one.at >= 0:
            of_place = ends[TopicPartition(one.topic, one.partition)]
            of_place[one.at] = max(of_place.get(one.at, 0), one.end)
    done: dict[tuple[str, str], dict[TopicPartition, dict[int, Offset]]] = {}
    for group, place, at, offset in _commits(totals.committed):
        if place in places:
            of_group = done.setdefault((group, place.topic), {})
            of_group.setdefault(place, {})[at] = offset
    for (group, topic), committed in sorted(done.items()):
        points = _lag_points(committed, ends, places)
        if points:
            yield Lag(group=group, topic=topic, points=points)


def _commits(committed: Iterable[Committed]) -> Iterable[tuple[str, TopicPartition, int, Offset]]:
    known: dict[bytes, tuple[str, TopicPartition] | None] = {}
    for one in committed:
        if one.key not in known:
            known[one.key] = read_key(one.key)
        if (named := known[one.key]) is not None:
            yield *named, one.at, one.offset


def _lag_points(
    committed: Mapping[TopicPartition, Mapping[int, Offset]],
    ends: Mapping[TopicPartition, Mapping[int, Offset]],
    starts: Mapping[TopicPartition, Offset],
) -> tuple[tuple[int, int], ...]:
    first = min(at for commits in committed.values() for at in commits)
    times = {at for commits in committed.values() for at in commits}
    times |= {at for place in committed for at in ends.get(place, {}) if at >= first}
    end = {place: starts[place] for place in committed}
    for place in committed:
        before = [offset for at, offset in ends.get(place, {}).items() if at < first]
        end[place] = max([end[place], *before])
    at_offset: dict[TopicPartition, Offset] = {}
    points = []
    for at in sorted(times):
        for place, commits in committed.items():
            end[place] = max(end[place], ends.get(place, {}).get(at, 0))
            at_offset[place] = commits.get(at, at_offset.get(place, -1))
        behind = [max(0, end[place] - offset) for place, offset in at_offset.items() if offset >= 0]
        points.append((at, sum(behind)))
    return tuple(points)


def as_json(summary: Summary) -> dict[str, Any]:
    """The same, of plain values."""
    return {
        "seconds": summary.seconds,
        "topics": [_topic_json(one) for one in summary.topics],
        "lags": [
            {
                "group": one.group,
                "topic": one.topic,
                "last": one.last,
                "most": one.most,
                "points": [list(point) for point in one.points],
            }
            for one in summary.lags
        ],
    }


def _topic_json(one: TopicSummary) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "records": round(one.records),
        "batches": round(one.batches),
        "stored": round(one.stored),
        "payload": round(one.payload),
        "skew": round(one.skew, 3),
        "points": [[point.at, round(point.records), round(point.payload)] for point in one.points],
        "partitions": [_share_json("partition", share) for share in one.partitions],
        "codecs": [_share_json("codec", share) for share in one.codecs],
        "sizes": [
            {
                "what": sizes.what,
                "count": round(sizes.count),
                "mean": round(sizes.mean, 1),
                "median_below": sizes.median_below,
                "most_below": sizes.most_below,
                "bins": [[each.below, round(each.things)] for each in sizes.bins],
            }
            for sizes in one.histograms
        ],
        "keys": {
            "count": one.keys,
            "is_all": one.keys_are_all,
            "no_key": round(one.no_key),
            "uncounted": round(one.uncounted),
            "heaviest": [
                {"key": key.key, "records": round(key.records), "share": round(key.share, 6)}
                for key in one.heaviest
            ],
        },
    }


def _share_json(what: str, share: Share) -> dict[str, Any]:
    return {
        what: share.name,
        "records": round(share.records),
        "batches": round(share.batches),
        "stored": round(share.stored),
        "payload": round(share.payload),
    }
