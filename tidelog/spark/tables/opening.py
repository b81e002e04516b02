"""Catalogs, opened.

Rule: a catalog that two processes open for the first time at once is there for both. An SQL catalog makes its
tables when it is opened and lacks them; who is the second to make them fails, and finds them at the next try.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

MADE_BY_ANOTHER: Final = "already exists"
"""What every database says of a table that is made twice."""


def load(name: str, properties: Mapping[str, str]) -> "Catalog":
    """The catalog that has these properties; each kind of catalog has errors of its own."""
    from pyiceberg.catalog import load_catalog

    try:
        return load_catalog(name, **properties)
    except Exception as error:
        if MADE_BY_ANOTHER not in str(error):
            raise
    return load_catalog(name, **properties)
