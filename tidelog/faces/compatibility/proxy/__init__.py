"""`tidelog proxy`: queues spread over clusters that know nothing of each other.

    placing.py    which cluster has a queue; pure
    clusters.py   one cluster, its nodes and how it is
    listing.py    what all clusters have, page by page
    app.py        requests and their answers
    server.py     the process: from its first socket to its end

Rule 1: a proxy keeps no state. Where a queue is follows from its id or its name, so any proxy with
        the same clusters in the same order finds it, and none is missed when it dies.
Rule 2: what a cluster does not answer fails for its own queues alone.
Rule 3: a request has one Idempotency-Key on all of its way, the client's or one of ours: what is
        tried at another node happens once.
"""
