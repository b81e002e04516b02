"""With one broker that all tests share, and topics that are this test's own."""


def test_a_total_is_the_sum_of_a_customer_s_orders(tidelog_broker, tidelog_topic, make_shop):
    orders, totals = tidelog_topic("orders", partitions=3), tidelog_topic("totals")
    shop = make_shop(tidelog_broker.bootstrap, orders, totals)

    for customer, amount in (("c-1", 5), ("c-2", 7), ("c-1", 3)):
        shop.order(customer, amount)
    shop.serve(orders=3)

    assert shop.totals() == {"c-1": 8, "c-2": 7}


def test_a_service_that_starts_again_knows_all_totals(tidelog_broker, tidelog_topic, make_shop):
    orders, totals = tidelog_topic("orders", partitions=3), tidelog_topic("totals")
    first = make_shop(tidelog_broker.bootstrap, orders, totals)
    first.order("c-1", 5)
    first.serve(orders=1)

    second = make_shop(tidelog_broker.bootstrap, orders, totals)
    second.order("c-1", 1)
    second.serve(orders=2)

    assert second.totals() == {"c-1": 6}
