"""The node that these tests attack."""

from collections.abc import Iterator

import pytest

from tests.faces.arena import Arena, arena_on


@pytest.fixture(scope="session")
def shared_arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with arena_on(tmp_path_factory.mktemp("faces") / "data") as arena:
        yield arena


@pytest.fixture
def arena(shared_arena: Arena) -> Iterator[Arena]:
    """A node with small limits; after each test it must be as well as before."""
    with shared_arena.unharmed():
        yield shared_arena
