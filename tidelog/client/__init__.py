"""A small client: what the commands, the tests and the brokers use to talk to a Kafka listener.

    wire.py         one connection: frames, versions, correlation ids
    cluster.py      the brokers: metadata, leaders, retries
    kafka.py        one method per request of clients
    admin.py        and of operators: groups, offsets, settings
    partitioner.py  which partition a record goes to, as Kafka's default decides
    producer.py     records in, batches out
    sender.py       batches that are made already, of one producer
    consumer.py     batches in, records out
    slices.py       a range of offsets, as it was fetched
    frames.py       Produce and Fetch by hand, for those who count and do not decode
    load.py         a load generator

Rule: nothing here opens a socket; every connection comes through `tidelog.host.Network`.
"""
