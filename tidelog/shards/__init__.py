"""What all coordinators share: state that is a fold of one partition, and what it wants done.

Groups, transactions and queues each keep their state in shards, one for each partition of an internal topic.
Here are their common parts: effects, writes in flight, deadlines, and where a name belongs. Pure.
"""
