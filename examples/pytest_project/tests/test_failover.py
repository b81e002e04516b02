"""With three brokers that are this test's own, so that it may break them."""

import pytest


@pytest.fixture
def shop(tidelog_cluster, make_shop):
    tidelog_cluster.create_topic("orders", partitions=3)
    tidelog_cluster.create_topic("totals", config={"cleanup.policy": "compact"})
    return make_shop(tidelog_cluster.bootstrap, "orders", "totals")


def test_no_order_is_lost_when_a_leader_is_killed(tidelog_cluster, shop):
    for _ in range(5):
        shop.order("c-1", 1)
    shop.serve(orders=5)

    tidelog_cluster.leader_of("totals").kill()

    for number in range(5):
        shop.order(f"c-{number}", 10)
    shop.serve(orders=5)
    assert shop.totals() == {"c-0": 10, "c-1": 15, "c-2": 10, "c-3": 10, "c-4": 10}


def test_totals_are_right_whatever_happens_between_brokers(tidelog_faults, shop):
    taken = 0
    with tidelog_faults.storm(["delay", "drop", "cut", "slow_disk", "kill"]):
        for number in range(30):
            shop.order(f"c-{number % 3}", 1)
            taken += shop.service.step(0.02)

    shop.serve(orders=30 - taken)
    assert shop.totals() == {"c-0": 10, "c-1": 10, "c-2": 10}
