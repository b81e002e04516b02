"""Transactions: who may write in them, how each ends, and one decision over many.

The machine of one transactional id, and all ids of one partition of `__transaction_state`. Requests, ticks
and "stored" come in; answers, records and markers to send go out. Pure: no clock, no file, no socket.

    shard.py        all transactional ids of one partition of `__transaction_state`
    events.py       requests in; answers, records and markers out
    transaction.py  one transactional id: fences producers, ends transactions
    transitions.py  how one record of an id may follow another
    records.py      the records: Kafka's formats, and one of ours for decisions
    placement.py    ids of one decision meet in one partition
    writes.py       what was sent to the log and is not stored yet
    limits.py       how long things may take, and how many may wait
"""
