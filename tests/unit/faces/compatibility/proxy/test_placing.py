import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.faces.compatibility.proxy.placing import Places


@given(st.integers(0, 2**50), st.integers(1, 8), st.data())
def test_an_id_tells_its_cluster_and_what_it_is_called_there(local, clusters, data):
    slots = data.draw(st.integers(clusters, 16))
    cluster = data.draw(st.integers(0, clusters - 1))
    places = Places(clusters, slots)

    assert places.find(places.everywhere(local, cluster)) == (cluster, local)


def test_ids_of_different_clusters_are_different():
    places = Places(3, 3)

    ids = {places.everywhere(local, cluster) for local in range(100) for cluster in range(3)}

    assert len(ids) == 300


def test_places_that_no_cluster_has_yet_hold_no_queue():
    places = Places(2, 16)

    assert places.find(places.everywhere(5, 1)) == (1, 5)
    assert places.find(5 * 16 + 2) is None
    assert places.find(-1) is None


def test_with_more_slots_than_clusters_ids_outlive_a_further_cluster():
    before, after = Places(2, 16), Places(3, 16)

    for cluster in range(2):
        queue = before.everywhere(7, cluster)
        assert before.find(queue) == after.find(queue)


def test_names_are_spread_evenly():
    places = Places(4, 4)

    counts = [0] * 4
    for number in range(4000):
        counts[places.of_name(f"queue-{number}")] += 1

    assert all(800 < count < 1200 for count in counts)


def test_a_further_cluster_takes_names_and_moves_no_others():
    before, after = Places(3, 3), Places(4, 4)
    names = [f"queue-{number}" for number in range(2000)]

    moved = [name for name in names if before.of_name(name) != after.of_name(name)]

    assert all(after.of_name(name) == 3 for name in moved)
    assert 350 < len(moved) < 650


def test_what_is_dead_of_a_queue_is_where_the_queue_is():
    places = Places(5, 5)

    for number in range(50):
        assert places.of_name(f"q{number}.dead") == places.of_name(f"q{number}")


def test_a_repeated_request_makes_its_queue_in_the_same_cluster():
    places = Places(5, 5)

    assert len({places.of_key("again") for _ in range(10)}) == 1
    assert len({places.of_key(f"key-{n}") for n in range(100)}) == 5


def test_a_name_is_placed_the_same_for_ever():
    """Whoever changes the hash loses everybody's queues."""
    places = Places(4, 4)

    assert [places.of_name(name) for name in ("jobs", "mail", "orders", "ä", "")] == EXPECTED


EXPECTED = [3, 0, 3, 3, 2]


def test_clusters_must_fit():
    with pytest.raises(ValueError, match="3 clusters"):
        Places(3, 2)
