"""Reports: pages that stand alone, and let nothing through as markup."""

import re
from html.parser import HTMLParser

import pytest

from tidelog.spark.report import Page, Series, nice, short

EVIL = "<script>alert('x')</script>&\""


class Balanced(HTMLParser):
    """Fails if a tag is closed that is not open, or left open."""

    EMPTY = frozenset({"meta", "line", "rect", "circle", "polyline"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page_of_all() -> str:
    page = Page(EVIL)
    page.heading(EVIL)
    page.text(EVIL, "bad")
    page.figures([(EVIL, EVIL)])
    page.table([EVIL, "count#"], [(EVIL, 1)])
    series = [Series(name=EVIL, points=[(0, 1), (1, 5), (2, 0)]), Series(name="b", points=[(0, 3)])]
    page.lines(EVIL, series, [(0, EVIL)])
    page.bars(EVIL, series)
    page.strip(EVIL, 0, 10, [(5, EVIL)])
    page.lines("empty", [Series(name="none", points=[])])
    return page.html()


def test_whatever_comes_from_outside_is_text():
    html = page_of_all()
    parser = Balanced()
    parser.feed(html)

    assert "script" not in parser.seen
    assert parser.open == []
    assert "<script" not in html


def test_the_page_loads_nothing():
    assert not re.search(r"https?:|src=|@import|url\(", page_of_all())


def test_marks_lie_inside_of_the_plot():
    html = page_of_all()

    places = [float(x) for x in re.findall(r'(?:x|cx|y|cy)="([\d.-]+)"', html)]
    assert all(-1 <= place <= 770 for place in places)


def test_one_point_alone_can_be_shown():
    page = Page("one")
    page.lines("one", [Series(name="s", points=[(5, 0)])])

    assert "polyline" in page.html()


@pytest.mark.parametrize(
    ("value", "expected"), [(1, 1), (1.1, 2), (2.2, 2.5), (30, 50), (0.03, 0.05), (999, 1000)]
)
def test_axes_end_at_round_numbers(value, expected):
    assert nice(value) == pytest.approx(expected)


def test_large_numbers_are_short():
    assert [short(value) for value in (0, 12.5, 1234, 5_600_000, 2.5e9)] == [
        "0",
        "12.5",
        "1.23k",
        "5.6M",
        "2.5G",
    ]
