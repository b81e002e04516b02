"""One replicated log: the machines of leader and follower, and the driver that joins one to a `Log`.

The machines are pure: events in, effects out. `driver.py` performs the effects on one log, and `mending.py`
repairs it; only these two may use the event loop. Messages between nodes are the caller's to send.

    driver.py         one replica: machine, log, waiters
    appending.py      what a leader appends: batches of clients and of this node, markers, backups
    fetched.py        what a follower appends
    log_start.py      where the log begins: promised, noted, waited for
    leader.py         high watermark, in-sync set, waiters, log start
    follower_view.py  what a leader knows of one follower
    follower.py       epochs compared, truncation, fetches
    catchup.py        a follower that is far behind: its catch-up's name, pace and end
    produced.py       what producers may not say of their batches
    restored.py       whether a backup's batches may be appended at the offsets that they have
    client_epochs.py  the epoch that a client believes in, held against the present one
    cut_tail.py       what a start has cut off, until the replica has it again
    mending.py        files changed under a partition: cut, begun anew, opened again
"""
