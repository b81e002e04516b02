"""The node's partitions and what everything above shares to reach them, on this node or another.

    broker.py             start, stop and look-up
    housekeeping.py       checkpoints, retention, compaction; checkpoints.py is what is noted
    permissions.py        the authorizer, of the settings and the newest metadata
    topic_configs.py      the settings of each topic
    topics.py             topics made and deleted; topic_deletion.py waits until no node serves one
    serving.py            work that the leader of a partition does, whichever node was asked for it
    writing.py            writes that this node makes for clients that do not speak Kafka
    joint_writes.py       one append for what comes in one turn of the loop
    lead_confirmation.py  whether this node still leads a partition
    leader_doubts.py      leaders to which the connection broke, until the election is known
    fenced_brokers.py     brokers that were fenced, told to clients that must hear of it for a while
    outboxes.py           what is asked of other nodes, many things in one request
    log_reader.py         a log read from its start, for a state that is the fold of it
    cold_reads.py         batches for services, from memory or from files
    offset_search.py      offsets by time
    electing.py           what the active controller needs to decide on leaders

Rule: it knows no protocol of clients. It may touch replication and whatever is below that.
"""
