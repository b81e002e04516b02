"""The user that a cluster begins with."""

import pytest

from tests.unit.faces.http.cluster import Cluster
from tidelog.faces.first_user import parse_first_user

ADMIN = "admin:correct horse"


def users(world: Cluster, node: int = 1) -> list[str]:
    return [one["user"] for one in world.get(node, "/v1/users")["users"]]


def test_a_cluster_without_users_gets_the_first_one_once_however_many_nodes_have_the_file() -> None:
    with Cluster(3, first_user=ADMIN) as world:
        world.run_until(lambda: world.is_up(1) and list(world.node(1).broker.image.users) == ["admin"], 30.0)
        before = world.node(1).broker.image.users

        world.stop(2)
        world.run_until(lambda: world.machines[2].process is None, 60.0)
        world.restart(2)
        world.run(30.0)

        assert world.node(1).broker.image.users == before


def test_a_cluster_that_has_a_user_keeps_to_it() -> None:
    with Cluster(1, first_user=ADMIN) as world:
        world.run_until(lambda: world.is_up(1) and list(world.node(1).broker.image.users) == ["admin"], 30.0)
        assert world.ask(1, "/v1/users/bob", "PUT", {"password": "secret"}).status == 200
        assert world.ask(1, "/v1/users/admin", "DELETE").status == 200

        world.stop(1)
        world.run_until(lambda: world.machines[1].process is None, 60.0)
        world.restart(1)
        world.run(30.0)

        assert users(world) == ["bob"]


@pytest.mark.parametrize("text", ["", "admin", "admin:", ":x", "a:b\nc:d", " a:b", f"a:{'x' * 1025}"])
def test_what_names_no_user_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_first_user(text)
    assert "b\nc" not in str(refused.value) and "xxx" not in str(refused.value)


def test_a_password_may_hold_colons_and_the_line_may_end() -> None:
    assert parse_first_user("admin:a:b \n") == ("admin", "a:b ")
