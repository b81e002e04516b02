"""Consumer groups: the machine of one group, and all groups of one partition of `__consumer_offsets`.

Requests, ticks and "stored" come in as events; answers and records to append go out as effects. Pure: no
clock, no file, no socket. A restart folds the partition's log and knows the same as before.

    shard.py         all groups of one partition of `__consumer_offsets`
    events.py        requests in; answers and records out
    group.py         one group: who is in it, its generation, who consumes what
    state.py         its state as values; members.py: its members
    rebalance.py     from one generation to the next
    offsets.py       its offsets: in the log, and on their way there
    transactions.py  which groups await the end of whose transaction
    records.py       the records, in Kafka's formats
    writes.py        what was sent to the log and is not stored yet
    limits.py        how large, slow and old things may be
"""
