"""What docs/testing.md names is there."""

import re
from pathlib import Path

import pytest

from tidelog.testing import Broker, BrokerManager, Cluster, Faults, InProcessNode, plugin

TEXT = (Path(__file__).parents[3] / "docs" / "testing.md").read_text()


def section(title: str) -> str:
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize(
    ("title", "kinds"),
    [
        ("The fixtures", (Cluster, InProcessNode)),
        ("Faults", (Faults, Cluster)),
        ("Brokers in processes", (Broker, BrokerManager)),
    ],
)
def test_every_call_that_is_named_exists(title, kinds):
    calls = set(re.findall(r"(?<![.\w])`?\.?([a-z_]{3,})\(", section(title)))
    ours = calls - {"print", "range", "tidelog_topic", *dir(plugin)}
    # Of the examples' own.
    ours -= {name for name in ours if name.startswith("test_")}

    assert ours
    assert not {name for name in ours if not any(hasattr(kind, name) for kind in kinds)}


def test_every_fixture_is_named():
    fixtures = [name for name in dir(plugin) if name.startswith("tidelog_")]

    assert fixtures
    assert all(f"| `{name}` |" in section("The fixtures") for name in fixtures)
