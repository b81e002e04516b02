"""Queues: those with a read pointer for each client, and those whose messages are given out.

    events.py         what is asked, and what those who asked are told
    records.py        what stands in `__queues`
    message.py        one message that is given out: its states, and the table of its steps
    backlog.py        messages that only wait for their turn, in little memory
    lines.py          order by key
    work.py           one queue whose messages have one owner at a time, until acknowledged
    pointers.py       one queue that everybody reads at his own pace
    changes.py        what becomes true with a write
    requests.py       requests that were done, for those who ask again
    books.py          what all requests share: writes in flight, requests, garbage
    work_desk.py      requests of work queues
    pointer_desk.py   requests of queues with pointers
    fold.py           reading the log again
    shard.py          all queues of one partition of `__queues`: their log is that partition
    ages.py           ages of the messages in one lane
    limits.py         how much queues remember, and for how long
    names.py          many names in order, that come and go
    old_requests.py   requests as the first format remembers them
    restored.py       records of a backup on their way into `__queues`
    work_records.py   what the log is told of messages that are given out

Rule 1: pure: events in, effects out. No clock, no file, no socket.
Rule 2: what a message says is not kept here. Its offset is, and the log has the rest.
"""
