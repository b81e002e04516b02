"""The handlers of Kafka's APIs, one module for each family.

    requests.py              from a frame to its handler, and from the answer to bytes
    context.py               the client that asks, and the way of its answer
    produce.py, fetch.py     batches in and out; fetch_sessions.py is KIP-227
    topics.py, configs.py    metadata, topics and their settings; described_topics.py keeps what metadata says
    offsets.py               ListOffsets, OffsetForLeaderEpoch, DeleteRecords
    groups.py                groups and their offsets; group_offsets.py shows these in every version
    permissions.py           what each API does to which kind of resource
    acls.py                  permissions seen and changed
    producer_ids.py, transactions.py, transactional_offsets.py, decisions.py
    admin.py                 directories, producers, elections, the quorum
    reassignments.py         replicas that move, brokers that are removed
    sasl.py, users.py        proofs of who asks; users by Kafka's admin API
    restore_batches.py       RestoreBatches, our own: what a backup holds, at the offsets that it had

Rule: a handler turns a request into a call and a result into an answer. It may touch the broker and the
coordinators, never the services behind HTTP.
"""
