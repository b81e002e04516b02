"""Every replica of every partition, read from its own broker and compared.

    plan.py      which replicas there are, and how far each may be read
    walk.py      one replica's batches, one after the other: what is there, what is wrong; pure
    contents.py  the records of a batch, by their hashes (hashing.py), for compacted topics
    replica.py   asks one broker for one replica
    compare.py   what Spark is asked of all those batches
    found.py     and what it tells
    judging.py   what that means: findings and notes; pure
    job.py       the whole of it
    page.py      and as a page
    hashing.py   hashes of many byte strings at once

Rule 1: a replica is held to what it says itself is committed, as it was when the audit began. So
        living traffic, a replica that catches up and a change of leaders are no findings.
Rule 2: what is read comes from the broker that holds the replica, never from its leader.
Rule 3: who finds a bad batch asks for it once more. That makes the node look at its own disk, and
        mend it from its leader; the finding stands.
"""
