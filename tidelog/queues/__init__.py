"""Queues: those with a read pointer for each client, and those whose messages are given out.

    records.py    what stands in `__queues`, and how it is read again
    pointers.py   one queue that everybody reads at his own pace
    work.py       one queue whose messages have one owner at a time, until they are acknowledged
    recent.py     the answers of the last requests, for those who ask again
    shard.py      all queues of one partition of `__queues`: their log is that partition

Rule 1: pure: events in, effects out. No clock, no file, no socket.
Rule 2: what a message says is not kept here. Its offset is, and the log has the rest.
"""
