"""The client's half of copies: `EmbeddedReplica`, a copy of buckets and queues inside of a program.

`replica.py` names its neighbours; docs/embedded.md teaches it. Users import it from `tidelog.client`.

Rule: it may touch the Python client of the HTTP face, `views/`, `stream/`, and records; nothing of a node.

    replica.py     what users hold: `EmbeddedReplica`
    partitions.py  one copy for each partition of a bucket, also when that was made anew
    plan.py        the copy's half of the replication stream, pure; driver.py: performs it
    files.py       where a copy's files are, and how they change
    reads.py       reads from any thread while it is written; cache.py: keys read lately
    changes.py     what differs between two states of a copy
    values.py      what a copy tells of itself; errors.py: what can go wrong
"""
