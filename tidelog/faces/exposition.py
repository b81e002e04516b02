"""Numbers in the text format of Prometheus.

Rule: every name begins with `tidelog_`, and every family says what it is.
"""

from collections.abc import Iterable
from typing import Final

METRICS_TYPE: Final = "text/plain; version=0.0.4"


class Page:
    """Families of numbers, one after the other."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(self, name: str, kind: str, text: str, values: Iterable[tuple[str, object]]) -> None:
        """Add a family; each value comes with its labels, as `labels` writes them, or with ""."""
        self._lines += [f"# HELP tidelog_{name} {text}", f"# TYPE tidelog_{name} {kind}"]
        self._lines += [f"tidelog_{name}{labels} {value}" for labels, value in values]

    @property
    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def labels(**named: object) -> str:
    """{name="value"}, with values of any content."""
    return "{" + ",".join(f'{name}="{_escaped(str(value))}"' for name, value in named.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
