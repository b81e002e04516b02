"""One node in its cluster: the drivers of the quorum, of the controller and of membership.

The machines of `raft` and `controller` decide; this room performs what they decide: it keeps the metadata
log on disk, sends messages to peers, renews leases, and hands committed metadata to the broker. It knows
links, logs and the clock of `tidelog.host`, and nothing of clients or of Kafka's requests.
"""
