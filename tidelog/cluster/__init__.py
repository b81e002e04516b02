"""One node in its cluster: the drivers of the quorum, of the controller and of membership.

The machines of `raft` and `controller` decide; this room performs what they decide: it keeps the metadata
log on disk, sends messages to peers, renews leases, and hands committed metadata to the broker. It knows
links, logs and the clock of `tidelog.host`, and nothing of clients or of Kafka's requests.

    member.py            all of it put together, for one node
    hub.py               links to all peers, and who handles what comes from them
    answering.py         work that ends with an answer to a peer
    messages.py          what nodes say to each other beside the quorum's own messages
    formation.py         how a quorum comes to be, and how a node finds its own
    quorum.py            drives one member of the quorum: machine, log, vote, clock, peers
    quorum_log.py        the metadata log on this node's disk; snapshots.py: prefixes of it as files
    acknowledged.py      how far this node's copy was acknowledged, noted apart from the log
    promises.py          small files that a node stakes its word on
    electorate.py        voters added and removed, from any node
    leadership.py        whether this node still leads the quorum, confirmed by a majority
    metadata.py          the image on this node, and how anybody here changes it
    membership.py        a broker's registration, heartbeats and lease
    active.py            drives the active controller
    controller_line.py   how any node asks the active controller to decide
"""
