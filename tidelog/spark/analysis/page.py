"""An analysis as a page."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from tidelog.spark.analysis.job import Analysis
from tidelog.spark.analysis.summary import Lag, Share, TopicSummary
from tidelog.spark.report import Page, Series, short

TICKS: Final = 6
LINES_MAX: Final = 6
"""Of one plot: so many colors are told apart."""


def analysis_page(analysis: Analysis) -> str:
    """The whole page, as HTML."""
    summary = analysis.summary
    page = Page("Analysis of topics")
    page.text(f"Cluster {analysis.plan.cluster_id}, {analysis.began:%Y-%m-%d %H:%M:%S} UTC", "faint")
    if analysis.is_estimate:
        sample = analysis.plan.wanted.sample
        page.text(f"Estimated from a sample of about {sample:.2%} of all offsets.", "warn")
    page.figures(
        [
            ("topics", len(summary.topics)),
            ("records", f"{sum(one.records for one in summary.topics):,.0f}"),
            ("batches", f"{sum(one.batches for one in summary.topics):,.0f}"),
            ("bytes stored", short(sum(one.stored for one in summary.topics))),
            ("bytes of keys and values", short(sum(one.payload for one in summary.topics))),
        ]
    )
    page.table(
        ["Topic", "Records#", "Batches#", "Stored#", "Keys and values#", "Ratio#", "Skew#"],
        [
            (
                one.topic,
                f"{one.records:,.0f}",
                f"{one.batches:,.0f}",
                short(one.stored),
                short(one.payload),
                ratio(one.payload, one.stored),
                f"{one.skew:.2f}",
            )
            for one in summary.topics
        ],
    )
    for topic in summary.topics:
        _topic(page, topic, summary.seconds)
    if summary.lags:
        _lags(page, summary.lags)
    return page.html()


def _topic(page: Page, one: TopicSummary, seconds: int) -> None:
    page.heading(one.topic)
    if not one.records:
        page.text("no records", "faint")
        return
    ticks = time_ticks([point.at for point in one.points])
    rates = [(point.at, point.records / seconds) for point in one.points]
    volumes = [(point.at, point.payload / seconds) for point in one.points]
    each = f"each point is {duration(seconds)}"
    page.lines(f"Records per second; {each}", [Series(name="records/s", points=rates)], ticks)
    page.lines(f"Bytes per second; {each}", [Series(name="bytes/s", points=volumes)], ticks)
    for sizes in one.histograms:
        bars = [(float(each.below.bit_length()), each.things) for each in sizes.bins]
        labels = [(at, f"<{power(int(at) - 1)}") for at, _ in bars]
        page.bars(
            f"{sizes.what.capitalize()}: mean {sizes.mean:,.1f}, half are below "
            f"{sizes.median_below:,}, 99 of 100 below {sizes.most_below:,}",
            [Series(name=sizes.what, points=bars)],
            labels,
        )
    page.text("Partitions", "faint")
    _shares(page, "Partition", one.partitions)
    page.text("Compression", "faint")
    _shares(page, "Codec", one.codecs)
    _keys(page, one)


def _shares(page: Page, what: str, shares: Sequence[Share]) -> None:
    total = sum(one.records for one in shares) or 1
    page.table(
        [what, "Records#", "Share#", "Batches#", "Stored#", "Keys and values#", "Ratio#"],
        [
            (
                one.name,
                f"{one.records:,.0f}",
                f"{one.records / total:.1%}",
                f"{one.batches:,.0f}",
                short(one.stored),
                short(one.payload),
                ratio(one.payload, one.stored),
            )
            for one in shares
        ],
    )


def _keys(page: Page, one: TopicSummary) -> None:
    count = f"{one.keys:,}" if one.keys_are_all else f"at least {one.keys:,}"
    text = f"Keys: {count}; {one.no_key:,.0f} records have none"
    if one.uncounted:
        text += f"; a count may be too low by up to {one.uncounted:,.0f}"
    page.text(text, "faint")
    if one.heaviest:
        page.table(
            ["Heaviest keys", "Records#", "Share#"],
            [(key.key, f"{key.records:,.0f}", f"{key.share:.2%}") for key in one.heaviest],
        )


def _lags(page: Page, lags: Sequence[Lag]) -> None:
    page.heading("Lag")
    page.text("Records that were not committed, as far back as commits are kept.", "faint")
    for topic in sorted({one.topic for one in lags}):
        found = sorted((one for one in lags if one.topic == topic), key=lambda one: -one.most)
        shown = found[:LINES_MAX]
        ticks = time_ticks([at for one in shown for at, _ in one.points])
        page.lines(topic, [Series(name=one.group, points=one.points) for one in shown], ticks)
        page.table(
            ["Group", "Last#", "Most#"], [(one.group, f"{one.last:,}", f"{one.most:,}") for one in found]
        )


def power(exponent: int) -> str:
    """2**10 as 1 Ki."""
    unit, rest = divmod(exponent, 10)
    return f"{2**rest} {('', 'Ki', 'Mi', 'Gi', 'Ti')[unit]}".strip()


def ratio(payload: float, stored: float) -> str:
    """How many bytes of keys and values a stored byte holds."""
    return f"{payload / stored:.2f}" if stored else "-"


def duration(seconds: int) -> str:
    """300 as 5 min."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit and seconds % unit == 0:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"


def time_ticks(times: Sequence[int]) -> list[tuple[float, str]]:
    """Some of these times, named as shortly as tells them apart."""
    if not times:
        return []
    first, last = min(times), max(times)
    span = last - first
    form = "%H:%M:%S" if span < 3600 else "%m-%d %H:%M" if span < 30 * 86400 else "%Y-%m-%d"
    places = [first + span * n / (TICKS - 1) for n in range(TICKS)] if span else [first]
    return [(at, _time(at, form)) for at in places]


def _time(at: float, form: str) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return str(int(at))
