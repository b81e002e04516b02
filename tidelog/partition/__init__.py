"""One replicated log: the machines of leader and follower, and the driver that joins one to a `Log`.

The machines are pure: events in, effects out. `driver.py` performs the effects on one log, and `mending.py`
repairs it; only these two may use the event loop. Messages between nodes are the caller's to send.
"""
