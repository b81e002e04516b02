import pytest

from tidelog.cluster.formation import Formed, decide
from tidelog.cluster.messages import IAm
from tidelog.config.quorum import parse_quorum
from tidelog.errors import ConfigError
from tidelog.raft.voters import ReplicaKey, Voter

QUORUM = (1, 2, 3)


def voter(node: int, disk: str = "disk") -> Voter:
    return Voter(ReplicaKey(node, f"{disk}-{node}"), f"host-{node}", 9192)


def unformed(node: int, quorum: tuple[int, ...] = QUORUM) -> IAm:
    return IAm(me=voter(node), cluster=f"cluster-of-{node}", is_formed=False, quorum=quorum)


def formed(node: int, voters: tuple[Voter, ...]) -> IAm:
    return IAm(me=voter(node), cluster="ours", is_formed=True, voters=voters, quorum=QUORUM)


def test_all_who_are_named_form_the_same_quorum_whoever_looks():
    nodes = [unformed(node) for node in QUORUM]

    found = [decide(me, [n for n in nodes if n is not me], QUORUM) for me in nodes]

    expected = Formed(cluster="cluster-of-1", voters=(voter(1), voter(2), voter(3)))
    assert found == [expected] * 3


def test_a_majority_is_not_enough_to_form_one():
    assert decide(unformed(1), [unformed(2)], QUORUM) is None


def test_nodes_with_other_quorums_in_mind_form_none():
    assert decide(unformed(1), [unformed(2), unformed(3, (1, 2, 4))], QUORUM) is None


def test_a_formed_quorum_is_adopted_even_if_nobody_else_answers():
    voters = (voter(1), voter(2), voter(3))

    assert decide(unformed(2), [formed(3, voters)], QUORUM) == Formed(cluster="ours", voters=voters)


def test_a_wiped_disk_adopts_the_quorum_that_knows_its_old_one():
    voters = (voter(1), voter(2, "old"), voter(3))

    found = decide(unformed(2), [unformed(3), formed(1, voters)], QUORUM)

    assert found is not None
    assert voter(2).key not in [v.key for v in found.voters]


def test_a_quorum_is_read_from_its_text():
    found = parse_quorum("1@a:1, 2@[::1]:2,3@c:3")

    assert {node: str(endpoint) for node, endpoint in found.items()} == {1: "a:1", 2: "[::1]:2", 3: "c:3"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("here", "ID@HOST:PORT"),
        ("1@a", "ID@HOST:PORT"),
        ("x@a:1", "ID@HOST:PORT"),
        ("1@a:1,2@b:1", "1, 3, 5 or 7"),
        ("1@a:1,1@b:1,2@c:1", "node 1 twice"),
        (",".join(f"{n}@a:1" for n in range(9)), "more than 7"),
    ],
)
def test_a_quorum_that_cannot_be_is_refused_by_name(text, problem):
    with pytest.raises(ConfigError, match=problem):
        parse_quorum(text)
