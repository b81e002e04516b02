"""The coordinators of this node: shards of state, each joined to the partition that keeps it.

    shard_drivers.py  one shard and its partition; a keeper of all shards of a kind
    groups.py         the group coordinator
    transactions.py   the transaction coordinator
    markers.py        ends of transactions: sent by coordinators, written by leaders of partitions
    orphans.py        what a producer has open that no coordinator will end
    verification.py   no batch of a transaction is taken before its coordinator knows the partition

Rule: the machines in `groups/`, `txn/` and `queues/` decide; these perform. They may touch the broker,
and know no protocol of clients.
"""
