"""A small client: what the commands, the tests and the brokers use to talk to a Kafka listener.

    wire.py         one connection: frames, versions, correlation ids
    cluster.py      the brokers: metadata, leaders, retries
    kafka.py        one method per request of clients
    admin.py        and of operators: groups, offsets, settings
    members.py      brokers, and the quorum that decides
    transactions.py what is open, since when, and how it is ended
    group_offsets.py, settings.py, moves.py, elections.py
                    what operators do in several steps, for commands and HTTP alike
    partitioner.py  which partition a record goes to, as Kafka's default decides
    producer.py     records in, batches out
    sender.py       batches that are made already, of one producer
    consumer.py     batches in, records out
    slices.py       a range of offsets, as it was fetched
    frames.py       Produce and Fetch by hand, for those who count and do not decode
    load.py         a load generator

Rule: nothing here opens a socket; every connection comes through `tidelog.host.Network`.
"""
